"""Typed headers: round trips, missing and wrong fields by name, and how Java reads numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.wire_strategies import int32, int64, texts

from longpoll_protocol import headers
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.headers import (
    EmptyHeader,
    GetConsumerListByGroupRequestHeader,
    Header,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
)

ALL: list[type[Header]] = [getattr(headers, name) for name in headers.__all__ if name != "Header"]


def values_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[object]:
    """Values of a field's type."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return st.one_of(*(values_of(part) for part in kind.types))
    if isinstance(kind, msgspec.inspect.IntType):
        return int32 if kind.le == 2**31 - 1 else int64
    if isinstance(kind, msgspec.inspect.BoolType):
        return st.booleans()
    if isinstance(kind, msgspec.inspect.NoneType):
        return st.none()
    assert isinstance(kind, msgspec.inspect.StrType), kind
    return texts


@st.composite
def any_header(draw: st.DrawFn) -> Header:
    """A header of any class with any values."""
    cls = draw(st.sampled_from(ALL))
    described = msgspec.inspect.type_info(cls)
    assert isinstance(described, msgspec.inspect.StructType)
    values: dict[str, Any] = {field.name: draw(values_of(field.type)) for field in described.fields}
    if cls is PullMessageRequestHeader:
        values |= {name: draw(int64) for name in ("commit_offset", "suspend_timeout_millis", "sub_version")}
    return cls(**values)


@given(any_header())
def test_what_is_written_is_read_back(header: Header) -> None:
    """Every header class survives its own encoding, and the encoding is text."""
    fields = header.encode()
    assert all(type(value) is str for value in fields.values())
    assert type(header).decode(fields) == header
    assert type(header).decode(fields | {"unknown": "x"}) == header


@given(any_header(), st.data())
def test_a_missing_required_field_is_named(header: Header, data: st.DataObject) -> None:
    """Leaving out any required field is a HeaderError that names it."""
    required = [field.encode_name for field in msgspec.structs.fields(type(header)) if field.required]
    if not required:
        assert type(header).decode({}) is not None
        return
    name = data.draw(st.sampled_from(required))
    fields = {key: value for key, value in header.encode().items() if key != name}
    with pytest.raises(HeaderError, match="is missing") as caught:
        type(header).decode(fields)
    assert caught.value.field == name


@pytest.mark.parametrize("text", ["", "x", " 1", "1 ", "0x1", "1_000", "--1", "1.5", "٣", "9" * 1000, str(2**40)])
def test_a_wrong_number_is_named(text: str) -> None:
    """What Java's parseInt refuses we refuse, and the error says which field it was."""
    with pytest.raises(HeaderError) as caught:
        QueryConsumerOffsetRequestHeader.decode({"consumerGroup": "g", "topic": "t", "queueId": text})
    assert caught.value.field == "queueId"
    assert len(str(caught.value)) < 200


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from(["", "+"]), st.integers(0, 9))
def test_a_number_as_java_reads_it(number: int, sign: str, zeros: int) -> None:
    """A plus sign and leading zeros are fine."""
    text = f"-{'0' * zeros}{-number}" if number < 0 else f"{sign}{'0' * zeros}{number}"
    fields = {"consumerGroup": "g", "topic": "t", "queueId": text}
    assert QueryConsumerOffsetRequestHeader.decode(fields).queue_id == number


@pytest.mark.parametrize(
    ("number", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**31) - 1, False)]
)
def test_the_range_of_a_number(number: int, fits: bool) -> None:
    """An int32 takes its limits and nothing beyond, with or without the slow way."""
    for prefix in ("", "0" if number > 0 else ""):
        fields = {"consumerGroup": "g", "topic": "t", "queueId": f"{prefix}{number}"}
        if fits:
            assert QueryConsumerOffsetRequestHeader.decode(fields).queue_id == number
        else:
            with pytest.raises(HeaderError, match="out of range"):
                QueryConsumerOffsetRequestHeader.decode(fields)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("", False)]
)
def test_a_boolean_as_java_reads_it(text: str, value: bool) -> None:
    """Anything but "true" is false; it is never an error."""
    fields = {"queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "unitMode": text}
    assert SendMessageRequestHeader.decode(fields).unit_mode is value


def test_both_forms_of_a_send_are_one_header() -> None:
    """The one-letter names mean the same fields, in RocketMQ's order."""
    long = SendMessageRequestHeader.__struct_encode_fields__
    short = SendMessageRequestHeaderV2.__struct_encode_fields__
    assert dict(zip(long, short, strict=True)) == {
        "producerGroup": "a",
        "topic": "b",
        "defaultTopic": "c",
        "defaultTopicQueueNums": "d",
        "queueId": "e",
        "sysFlag": "f",
        "bornTimestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsumeTimes": "j",
        "unitMode": "k",
        "maxReconsumeTimes": "l",
        "batch": "m",
        "bname": "n",
    }
    assert isinstance(
        SendMessageRequestHeaderV2.decode({"b": "T", "e": "1", "f": "0", "g": "5", "h": "0"}), SendMessageRequestHeader
    )


@pytest.mark.parametrize(
    ("sys_flag", "missing"), [(1 | 4, "commitOffset"), (2 | 4, "suspendTimeoutMillis"), (0, "subVersion")]
)
def test_a_pull_needs_what_its_flag_calls_for(sys_flag: int, missing: str) -> None:
    """Three numbers of a pull may be missing, but not when `sysFlag` says that they are used."""
    fields = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": str(sys_flag),
    }
    with pytest.raises(HeaderError, match="is missing") as caught:
        PullMessageRequestHeader.decode(fields)
    assert caught.value.field == missing
    assert PullMessageRequestHeader.decode(fields | {missing: "1"}).sys_flag == sys_flag
    assert PullMessageRequestHeader.decode(fields | {"sysFlag": "4"}).has_subscription


def test_no_fields_at_all() -> None:
    """A command without extension fields has the same effect as one with none set."""
    assert EmptyHeader.decode(None) == EmptyHeader.decode({}) == EmptyHeader()
    assert EmptyHeader().encode() == {}
    assert UnregisterClientRequestHeader.decode(None) == UnregisterClientRequestHeader.decode({})
    with pytest.raises(HeaderError, match="consumerGroup"):
        GetConsumerListByGroupRequestHeader.decode(None)

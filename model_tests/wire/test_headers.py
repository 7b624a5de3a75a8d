"""Typed headers, message properties, batches and delay levels."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.plain import plain_store
from model_tests.support.broker.wire_strategies import filled_texts, int32, int64, texts

from longpoll_protocol import admin_headers, headers, properties
from longpoll_protocol.errors import HeaderError, LocalProtocolError, MessageRefusedError
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
from longpoll_protocol.message import (
    BATCH_COUNT_MAX,
    PROPERTIES_SIZE_MAX,
    BatchMessage,
    decode_batch,
    encode_batch,
    message_id,
    message_id_position,
)
from longpoll_protocol.properties import (
    DELAY_LEVELS_MS,
    LEVEL_COUNT_MAX,
    LEVEL_DAYS_MAX,
    delay_levels_ms,
    encode_properties,
    java_hash,
    java_hashes,
    read_properties,
    tags_code,
)

ALL: list[type[Header]] = [
    each
    for module in (headers, admin_headers)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Header) and each is not Header
]


def values_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[object]:
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
    cls = draw(st.sampled_from(ALL))
    described = msgspec.inspect.type_info(cls)
    assert isinstance(described, msgspec.inspect.StructType)
    values: dict[str, Any] = {field.name: draw(values_of(field.type)) for field in described.fields}
    if cls is PullMessageRequestHeader:
        values |= {name: draw(int64) for name in ("commit_offset", "suspend_timeout_millis", "sub_version")}
    return cls(**values)


@given(any_header())
def test_what_is_written_is_read_back(header: Header) -> None:
    fields = header.encode()
    assert all(type(value) is str for value in fields.values())
    assert type(header).decode(fields) == header
    assert type(header).decode(fields | {"unknown": "x"}) == header


@given(any_header(), st.data())
def test_a_missing_required_field_is_reported(header: Header, data: st.DataObject) -> None:
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
def test_a_wrong_number_is_reported(text: str) -> None:
    with pytest.raises(HeaderError) as caught:
        QueryConsumerOffsetRequestHeader.decode({"consumerGroup": "g", "topic": "t", "queueId": text})
    assert caught.value.field == "queueId"
    assert len(str(caught.value)) < 200


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from(["", "+"]), st.integers(0, 9))
def test_a_number_as_java_reads_it(number: int, sign: str, zeros: int) -> None:
    text = f"-{'0' * zeros}{-number}" if number < 0 else f"{sign}{'0' * zeros}{number}"
    fields = {"consumerGroup": "g", "topic": "t", "queueId": text}
    assert QueryConsumerOffsetRequestHeader.decode(fields).queue_id == number


@pytest.mark.parametrize(
    ("number", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**31) - 1, False)]
)
def test_the_range_of_a_number(number: int, fits: bool) -> None:
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
    """Any text except "true" is read as false and causes no error."""
    fields = {"queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "unitMode": text}
    assert SendMessageRequestHeader.decode(fields).unit_mode is value


def test_both_forms_of_a_send_give_one_header() -> None:
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
def test_a_pull_needs_the_fields_that_its_flag_requires(sys_flag: int, missing: str) -> None:
    """Three numbers of a pull may be missing, unless `sysFlag` says that they are used."""
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


plain_texts = filled_texts.map(lambda text: text.replace("\x01", "").replace("\x02", "")).filter(bool)


@given(st.dictionaries(plain_texts, plain_texts))
def test_properties_are_read_back(properties: dict[str, str]) -> None:
    """Properties are read with a final separator or, as old producers write them, without it."""
    text = encode_properties(properties)
    assert read_properties(text) == properties
    assert read_properties(text.removesuffix("\x02")) == properties


@pytest.mark.parametrize("wrong", ["a\x01", "\x02"])
def test_a_separator_in_a_property_is_a_local_error(wrong: str) -> None:
    """A separator in a property would make two properties of one, so it is refused."""
    for wrongly in ({wrong: "v"}, {"n": wrong}):
        with pytest.raises(LocalProtocolError, match="separate"):
            encode_properties(wrongly)


def test_odd_text_of_properties_and_fields() -> None:
    """A part of the text without a separator, or with an empty name or value, is skipped."""
    assert read_properties("a\x01\x02\x01b\x02") == {}
    assert read_properties("a\x01b\x02junk\x02c\x01d\x01e") == {"a": "b", "c": "d\x01e"}
    assert read_properties(None) == read_properties("") == {}
    assert EmptyHeader.decode(None) == EmptyHeader.decode({}) == EmptyHeader()
    assert EmptyHeader().encode() == {}
    assert UnregisterClientRequestHeader.decode(None) == UnregisterClientRequestHeader.decode({})
    with pytest.raises(HeaderError, match="consumerGroup"):
        GetConsumerListByGroupRequestHeader.decode(None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("AaAa", 2031744),
        ("BBBB", 2031744),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, code: int) -> None:
    """The hashes equal `String.hashCode`, also for collisions, the least integer and characters of two UTF-16 units."""
    assert (java_hash(text), tags_code(text)) == (code, code)


@given(texts)
def test_java_hash_is_an_int32_over_utf_16_units(text: str) -> None:
    assert -(2**31) <= java_hash(text) < 2**31
    assert java_hash(text + "x") == ((31 * java_hash(text) + ord("x") + 2**31) & 0xFFFFFFFF) - 2**31


@given(st.lists(texts | st.text("\0 ~\x7f", min_size=60, max_size=70), max_size=70))
@example(["longer than the others"] * 65)
def test_hashes_made_together_equal_single_hashes(many: list[str]) -> None:
    assert list(java_hashes(many)) == [plain_store.java_hash(text) for text in many]
    assert [java_hash(text) for text in many] == [plain_store.java_hash(text) for text in many]


def test_short_texts_are_hashed_together_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"T#{number}" for number in range(66)]
    alone = [java_hash(text) for text in many]
    monkeypatch.setattr(properties, "java_hash", lambda _text: pytest.fail("one was hashed by itself"))
    assert java_hashes(many) == alone


@given(st.ip_addresses(), st.integers(0, 65_535), st.integers(0, 2**63 - 1))
def test_message_ids_are_read_back(host: object, port: int, offset: int) -> None:
    text = message_id(str(host), port, offset)
    assert text == text.upper()
    assert len(text) in {32, 56}
    assert message_id_position(text) == (str(host), port, offset)


@pytest.mark.parametrize("text", ["", "xyz", "7F000001", "7F00000100002A9F000000000000000500"])
def test_a_wrong_message_id_is_a_header_error(text: str) -> None:
    with pytest.raises(HeaderError, match="msgId"):
        message_id_position(text)


batches = st.lists(st.builds(BatchMessage, body=st.binary(max_size=50), properties=texts, flag=int32), max_size=10)


@given(batches)
def test_batches_are_read_back(messages: list[BatchMessage]) -> None:
    found = decode_batch(encode_batch(messages))
    assert [(bytes(message.body), message.properties, message.flag) for message in found] == [
        (message.body, message.properties, message.flag) for message in messages
    ]


def test_bytes_and_limits_of_a_batch() -> None:
    """The layout is that of `MessageDecoder.encodeMessage`."""
    raw = encode_batch([BatchMessage(b"ab", "k\x01v\x02", 7)])
    assert raw == struct.pack(">iiiii2sh4s", 28, 0, 0, 7, 2, b"ab", 4, b"k\x01v\x02")
    assert len(decode_batch(encode_batch([BatchMessage(b"", "x" * PROPERTIES_SIZE_MAX)]))) == 1
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_batch([BatchMessage(b"", "x" * (PROPERTIES_SIZE_MAX + 1))])
    one = encode_batch([BatchMessage(b"", "")])
    assert len(decode_batch(one * BATCH_COUNT_MAX)) == BATCH_COUNT_MAX
    with pytest.raises(MessageRefusedError, match="more than"):
        decode_batch(one * (BATCH_COUNT_MAX + 1))


def check_any_bytes(raw: bytes) -> None:
    try:
        messages = decode_batch(raw)
    except HeaderError:
        return
    assert len(encode_batch(messages)) == len(raw)


@given(batches.filter(bool), st.data())
def test_a_damaged_batch_is_a_header_error(messages: list[BatchMessage], data: st.DataObject) -> None:
    raw = encode_batch(messages)
    ends = {len(encode_batch(messages[:count])) for count in range(len(messages) + 1)}
    cut = data.draw(st.integers(1, len(raw) - 1))
    if cut not in ends:
        with pytest.raises(HeaderError):
            decode_batch(raw[:cut])
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = bytes([*raw[:at], data.draw(st.integers(0, 255)), *raw[at + 1 :]])
    check_any_bytes(changed)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_a_header_error(raw: bytes) -> None:
    check_any_bytes(raw)


def test_rocketmqs_own_levels() -> None:
    minutes = [60_000 * count for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    assert [*DELAY_LEVELS_MS] == [1_000, 5_000, 10_000, 30_000, *minutes, 3_600_000, 7_200_000]
    assert len(delay_levels_ms("1s " * LEVEL_COUNT_MAX)) == LEVEL_COUNT_MAX


@pytest.mark.parametrize(
    ("text", "levels_ms"),
    [
        ("1s", (1_000,)),
        ("0s 2m  3h\t4d", (0, 120_000, 10_800_000, 345_600_000)),
        ("9s 1s", (9_000, 1_000)),
        (f"{LEVEL_DAYS_MAX}d", (LEVEL_DAYS_MAX * 86_400_000,)),
        ("007s", (7_000,)),
    ],
)
def test_levels_are_numbers_with_a_unit(text: str, levels_ms: tuple[int, ...]) -> None:
    assert delay_levels_ms(text) == levels_ms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 levels; write 1 to 1024"),
        ("1s 5", "level 2 is '5'"),
        ("1s s", "level 2 is 's'"),
        ("1S", "level 1 is '1S'"),
        ("1ms", "level 1 is '1ms'"),
        ("1.5s", "level 1 is '1.5s'"),
        ("-1s", "level 1 is '-1s'"),
        ("+1s", r"level 1 is '\+1s'"),
        ("1s,5s", "level 1 is '1s,5s'"),
        ("\u0661s", "level 1 is '\u0661s'"),
        ("1234567890s", "level 1 is '1234567890s'"),
        (f"1s {LEVEL_DAYS_MAX + 1}d", f"level 2 is {LEVEL_DAYS_MAX + 1}d; write at most {LEVEL_DAYS_MAX}d"),
        ("x" * 9_999, f"level 1 is '{'x' * 40}'"),
        ("1s " * (LEVEL_COUNT_MAX + 1), f"{LEVEL_COUNT_MAX + 1} levels; write 1 to"),
    ],
)
def test_an_invalid_list_of_levels_is_reported(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        delay_levels_ms(text)
    assert len(str(caught.value)) < 200

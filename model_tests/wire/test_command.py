"""Commands in the two header encodings, compared with an independent codec and with real brokers."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.plain import plain_codec
from model_tests.support.broker.wire_strategies import commands
from model_tests.support.faults import raising
from model_tests.support.present import present

from longpoll_protocol import frames
from longpoll_protocol.codes import OPAQUE_MADE_UP, VERSION
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames import (
    FIELD_COUNT_MAX,
    Command,
    CommandFlag,
    Frame,
    FrameReader,
    RequestCode,
    ResponseCode,
    Serialisation,
    decode_frame,
    encode,
    encode_head,
    encode_reply_head,
    frame_head,
    reply,
)


def read(stream: bytes) -> Command:
    reader = FrameReader()
    reader.feed(stream)
    frame = present(reader.next_frame())
    assert reader.next_frame() is None
    return decode_frame(frame)


def read_json(text: str | bytes, body: bytes = b"") -> Command:
    header = text.encode() if isinstance(text, str) else text
    return read(frame_head(Serialisation.JSON, header, len(body)) + body)


def as_plain(command: Command) -> dict[str, Any]:
    return {
        "code": command.code,
        "language": command.language,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark,
        "extFields": command.ext_fields,
        "body": bytes(command.body),
    }


@given(commands())
def test_what_is_written_is_read_back(command: Command) -> None:
    assert read(b"".join(encode(command))) == command


@given(commands())
def test_the_second_codec_reads_what_we_write(command: Command) -> None:
    assert plain_codec.decode_command(b"".join(encode(command))) == as_plain(command)


@given(commands())
def test_we_read_what_the_second_codec_writes(command: Command) -> None:
    assert read(plain_codec.encode_command(as_plain(command), command.serialisation.name)) == command


@given(commands(Serialisation.ROCKETMQ))
def test_binary_headers_equal_those_of_the_second_codec(command: Command) -> None:
    """The binary encoding has only one right form, so the bytes must be equal."""
    assert b"".join(encode(command)) == plain_codec.encode_command(as_plain(command), "ROCKETMQ")


@given(st.sampled_from(Serialisation), st.binary(min_size=1, max_size=200))
@example(Serialisation.JSON, b"[" * 100_000)
@example(Serialisation.JSON, b'{"more":' + b"[" * 100_000)
@example(Serialisation.JSON, b'{"extFields":{"a":' + b"[" * 100_000)
def test_any_header_is_a_command_or_a_remote_error(kind: Serialisation, header: bytes) -> None:
    try:
        found = decode_frame(Frame(kind, memoryview(header), memoryview(b"")))
    except RemoteProtocolError:
        return
    assert isinstance(found.code, int)
    assert found.ext_fields is None or all(type(value) is str for value in found.ext_fields.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
json_names = st.sampled_from(["code", "language", "version", "opaque", "flag", "remark", "extFields", "other"])


@given(st.dictionaries(json_names, json_values))
def test_any_json_object_is_a_command_or_a_remote_error(header: dict[str, Any]) -> None:
    try:
        found = read_json(json.dumps(header))
    except (RemoteProtocolError, UnicodeEncodeError):
        return
    answer = read(encode_reply_head(found, ResponseCode.SUCCESS))
    assert answer.opaque == found.opaque
    assert answer.is_response


@given(commands(Serialisation.ROCKETMQ), st.data())
def test_a_rocketmq_header_cut_anywhere_is_refused(command: Command, data: st.DataObject) -> None:
    """Every proper prefix of a binary header raises RemoteProtocolError, and 4.9.7 closes the connection for it."""
    header = encode_head(command, 0)[8:]
    cut = data.draw(st.integers(0, len(header) - 1))
    with pytest.raises(RemoteProtocolError):
        decode_frame(Frame(Serialisation.ROCKETMQ, memoryview(header[:cut]), memoryview(b"")))


@pytest.mark.parametrize(
    "text", ["[1,2,3]", '"code"', "null", "7", "", "{", '{"code":9999', '{"code":9999}}', "garbage!", "\x00\x01"]
)
def test_json_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frame(Frame(Serialisation.JSON, memoryview(text.encode()), memoryview(b"")))


@pytest.mark.parametrize("value", ["1.5", "{}", "[]", "true", "2147483648", "-2147483649", '"x"', '""'])
@pytest.mark.parametrize("key", ["code", "version", "opaque", "flag"])
def test_an_invalid_number_is_refused(key: str, value: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_json(f'{{"{key}":{value}}}')


def test_odd_but_accepted_headers() -> None:
    """Unknown keys, numbers as text, nulls, negative sizes and trailing bytes are read as by 4.9.7."""
    assert read_json("{}") == Command(code=0, opaque=OPAQUE_MADE_UP, version=0)
    assert read_json('{"code":"310","opaque":"7"}').code == RequestCode.SEND_MESSAGE_V2
    assert read_json('{"language":"KLINGON"}').language == "KLINGON"
    assert read_json('{"language":99}').language == "99"
    nulls = read_json('{"code":null,"language":null,"version":null,"opaque":null,"flag":null,"remark":null}')
    assert nulls == Command(code=0, opaque=OPAQUE_MADE_UP, version=0)
    assert read_json('{"code":11,"extFields":null,"more":[1,{"x":[]}]}').ext_fields is None
    assert read_json('{"remark":5}').remark == "5"
    fields = (
        struct.pack(">h1si", 1, b"a", 0) + struct.pack(">h1si1s", 1, b"b", 1, b"c") + struct.pack(">hi1s", 0, 1, b"d")
    )
    header = struct.pack(">hbhiiii", 9999, 99, 401, 777, 0, 0, len(fields)) + fields + b"beyond"
    found = decode_frame(Frame(Serialisation.ROCKETMQ, memoryview(header), memoryview(b"")))
    assert found == Command(
        code=9999,
        opaque=777,
        ext_fields={"b": "c"},
        language="OTHER",
        version=401,
        serialisation=Serialisation.ROCKETMQ,
    )
    header = struct.pack(">hbhii", 11, 0, 401, 1, 0) + struct.pack(">ii", 0, -1)
    command = decode_frame(Frame(Serialisation.ROCKETMQ, memoryview(header), memoryview(b"")))
    assert (command.code, command.ext_fields) == (11, None)


def test_numbers_and_booleans_in_extension_fields_become_text() -> None:
    """C++ and Node clients send numbers, whose text is kept; null counts as absent."""
    found = read_json(
        '{"code":11,"opaque":3,"extFields":{"queueId":3,"offset": 9223372036854775807 ,"big":1e3,"no":false,'
        '"none":null,"text":"a\\"\\u00e9","list":[1, 2]}}'
    )
    assert found.ext_fields == {
        "queueId": "3",
        "offset": "9223372036854775807",
        "big": "1e3",
        "no": "false",
        "text": 'a"\u00e9',
        "list": "[1, 2]",
    }
    assert (found.code, found.opaque) == (11, 3)


@pytest.mark.parametrize(
    "tail",
    [
        struct.pack(">ii", -1, 0),
        struct.pack(">ii", 100, 0),
        struct.pack(">ii", 0, 100),
        struct.pack(">iih", 0, 2, -5),
        struct.pack(">iih1si", 0, 7, 1, b"a", 99),
        struct.pack(">iih1si", 0, 7, 1, b"a", -1),
        struct.pack(">iih1si1s", 0, 8, 1, b"\xff", 1, b"a"),
        struct.pack(">i1si", 1, b"\xff", 0),
    ],
)
def test_sizes_in_a_rocketmq_header_are_checked(tail: bytes) -> None:
    header = struct.pack(">hbhii", 11, 0, 401, 1, 0) + tail
    with pytest.raises(RemoteProtocolError):
        decode_frame(Frame(Serialisation.ROCKETMQ, memoryview(header), memoryview(b"")))


def header_of(count: int, value: object, between: str = ":") -> str:
    fields = ",".join(f'"n{number}"{between}{json.dumps(value)}' for number in range(count))
    return f'{{"code":12,"extFields":{{{fields}}}}}'


@pytest.mark.parametrize("value", ["", "x" * 9, 7, None, {"a": 1}])
@pytest.mark.parametrize("between", [":", " \t\n: "])
def test_a_json_header_with_too_many_fields_is_refused(value: object, between: str) -> None:
    read = read_json(header_of(FIELD_COUNT_MAX, value, between))
    assert len(read.ext_fields or {}) == (0 if value is None else FIELD_COUNT_MAX)
    with pytest.raises(RemoteProtocolError, match="may have 1000 extension fields"):
        read_json(header_of(FIELD_COUNT_MAX + 1, value, between))


def test_a_json_header_that_has_far_too_many_fields_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 60,000 fields would block the thread that serves all clients, so such a header is refused."""
    looks_so = json.dumps({"code": 12, "extFields": {"properties": '":' * 16_000}})
    assert read_json(looks_so).ext_fields == {"properties": '":' * 16_000}
    for name in ("_decoder", "_odd_decoder"):
        monkeypatch.setattr(frames, name, SimpleNamespace(decode=raising(AssertionError("it is read"))))
    for between in (":", " :"):
        with pytest.raises(RemoteProtocolError, match="may have 1000 extension fields"):
            read_json(header_of(60_000, "", between))
    with pytest.raises(AssertionError, match="it is read"):
        read_json(looks_so)


def test_a_binary_header_with_too_many_fields_is_refused() -> None:

    def of(count: int) -> bytes:
        fields = {f"n{number}": "x" for number in range(count)}
        return b"".join(encode(Command(12, ext_fields=fields, serialisation=Serialisation.ROCKETMQ)))

    assert len(read(of(FIELD_COUNT_MAX)).ext_fields or {}) == FIELD_COUNT_MAX
    with pytest.raises(RemoteProtocolError, match="may have 1000 extension fields"):
        read(of(FIELD_COUNT_MAX + 1))
    # The fields after the limit are not parsed, because the impossible name size of one of them causes no error.
    with pytest.raises(RemoteProtocolError, match="may have 1000 extension fields"):
        read(of(FIELD_COUNT_MAX + 1)[:-8] + b"\xff" * 8)


def test_the_header_of_a_reply() -> None:
    """A reply copies its request's opaque and sets the response flag; 4.9 answers woken pulls in JSON."""
    for kind in Serialisation:
        request = Command(code=11, opaque=-5, flag=0, serialisation=kind, version=63, language="CPP")
        answer = reply(request, ResponseCode.PULL_NOT_FOUND, remark="nothing", ext_fields={"a": "1"}, body=b"xy")
        assert answer == Command(
            code=19,
            opaque=-5,
            flag=1,
            ext_fields={"a": "1"},
            body=b"xy",
            remark="nothing",
            version=VERSION,
            serialisation=kind,
        )
        head = encode_reply_head(request, 19, remark="nothing", ext_fields={"a": "1"}, body_size=2)
        assert [head, b"xy"] == encode(answer)
    request = Command(code=11, opaque=5, serialisation=Serialisation.ROCKETMQ)
    assert read(encode_reply_head(request, 0, serialisation=Serialisation.JSON)).serialisation is Serialisation.JSON
    assert Command(code=0, flag=1).is_response
    assert not Command(code=0, flag=2).is_response
    assert Command(code=0, flag=CommandFlag.ONE_WAY).is_one_way
    assert Command(code=0, flag=-1).is_one_way


def test_fields_and_body_of_a_written_command() -> None:
    """Fields that are None are left out, an empty dict is written as {}, and the body is passed without a copy."""
    assert b"extFields" not in encode_head(Command(code=0), 0)
    assert b'"extFields":{}' in encode_head(Command(code=0, ext_fields={}), 0)
    assert b"remark" not in encode_head(Command(code=0), 0)
    body = memoryview(bytearray(b"records"))
    buffers = encode(Command(code=0, body=body))
    assert buffers[1] is body
    assert len(encode(Command(code=0))) == 1


@pytest.mark.parametrize("kind", Serialisation)
def test_an_unwritable_command_is_a_local_error(kind: Serialisation) -> None:
    """Lone surrogates, and numbers or names too long for the binary header, raise LocalProtocolError."""
    lone = "\ud800"
    for wrong in (
        Command(code=0, remark=lone, serialisation=kind),
        Command(code=0, ext_fields={"a": lone}, serialisation=kind),
        Command(code=0, ext_fields={lone: "a"}, serialisation=kind),
    ):
        with pytest.raises(LocalProtocolError, match="Unicode"):
            encode(wrong)
    if kind is Serialisation.ROCKETMQ:
        for wrong in (
            Command(code=200_050, serialisation=kind),
            Command(code=0, version=2**15, serialisation=kind),
            Command(code=0, ext_fields={"n" * 2**15: "v"}, serialisation=kind),
        ):
            with pytest.raises(LocalProtocolError):
                encode(wrong)
        longest = Command(code=0, version=1, ext_fields={"n" * (2**15 - 1): "v"}, serialisation=kind)
        assert read(b"".join(encode(longest))) == longest

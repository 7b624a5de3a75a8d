"""The fast path for sends, pulls and answers, compared with the general path."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.raw_client import pull_fields, send_fields
from model_tests.support.broker.wire_strategies import commands

from longpoll_broker.send.send_processor import REGION_FIELDS
from longpoll_broker.store.messages import GetStatus
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.errors import HeaderError, LocalProtocolError, RemoteProtocolError
from longpoll_protocol.fast import (
    PullCommand,
    SendCommand,
    SentAnswer,
    SentConnection,
    TypedConnection,
    encode_pull_head,
    encode_send_head,
    header_of,
    plain,
    pull_heads,
)
from longpoll_protocol.frames import (
    FIELD_COUNT_MAX,
    FRAME_SIZE_MAX,
    HEAD,
    NEED_DATA,
    Command,
    Connection,
    encode,
    encode_head,
    encode_reply_head,
)
from longpoll_protocol.headers import Header, PullMessageRequestHeader, SendMessageRequestHeaderV2
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.message import message_id

VALUES = (
    st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "0", "7", "+1", "007", "1.0", "1e3", "true", "FALSE", "yes", "x" * 300, "null"])
)


HEADERS: dict[int, type[Header]] = {310: SendMessageRequestHeaderV2, 11: PullMessageRequestHeader}
REQUESTS: dict[int, dict[str, str]] = {310: send_fields("T", 3), 11: pull_fields("T", 3)}
NAMES: dict[int, Sequence[str]] = {
    310: "abcdefghijklmno",
    11: [*sorted(PullMessageRequestHeader.__struct_encode_fields__), "other"],
}
OTHERS = st.sampled_from(["opaque", "flag", "version", "language", "remark", "other"])
either_code = pytest.mark.parametrize("code", HEADERS, ids=["send", "pull"])


def told(command: Command) -> object:
    fields: object = command.ext_fields
    if isinstance(command, SendCommand | PullCommand):
        fields = command.header
    elif command.code in HEADERS:
        try:
            fields = HEADERS[command.code].decode(command.ext_fields)
        except HeaderError as error:
            fields = str(error)
    rest = (command.code, command.opaque, command.flag, bytes(command.body), command.remark, command.language)
    return (*rest, command.version, command.serialisation, fields)


def read_both(header: bytes) -> list[list[object]]:
    frame = frame_of(header, b"body")
    return [events_of(connection, [frame]) for connection in (TypedConnection(), Connection())]


def header_with(code: int, fields: Mapping[str, object], others: Mapping[str, object] | None = None) -> bytes:
    return msgspec.json.encode({"code": code, **(others or {}), "extFields": fields})


@either_code
@given(data=st.data(), others=st.dictionaries(OTHERS, VALUES))
def test_both_paths_read_the_same(code: int, data: st.DataObject, others: dict[str, object]) -> None:
    plain, common = read_both(header_with(code, REQUESTS[code]))
    assert plain == common
    changed = data.draw(st.dictionaries(st.sampled_from(NAMES[code]), VALUES))
    quick, common = read_both(header_with(code, {**REQUESTS[code], **changed}, others))
    assert quick == common


@either_code
@given(content=st.binary(max_size=40), start=st.integers(0, 400), size=st.integers(0, 30))
@example(content=b"\x80", start=123, size=0)
def test_both_paths_report_the_same_damage(code: int, content: bytes, start: int, size: int) -> None:
    whole = header_with(code, REQUESTS[code])
    quick, common = read_both(whole[:start] + content + whole[start + size :] or b"0")
    assert quick == common


@either_code
@pytest.mark.parametrize("count", [900, 1_000, 1_100, 30_000])
def test_a_header_with_many_fields_is_treated_as_on_the_general_path(code: int, count: int) -> None:
    fields = REQUESTS[code] | {f"n{number}": "" for number in range(count)}
    quick, common = read_both(header_with(code, fields))
    assert quick == common
    assert any("extension fields" in str(each) for each in common) == (len(fields) > FIELD_COUNT_MAX)


def test_only_a_send_or_a_pull_is_read_on_the_fast_path() -> None:
    """A command without a required field, or with another code, is left to the general path."""
    pull = pull_fields("T", 3, timeout_ms=5)
    headers = [
        *(header_with(code, fields) for code, fields in ((310, REQUESTS[310]), (3100, REQUESTS[310]), (310, {}))),
        *(header_with(code, fields) for code, fields in ((11, pull), (110, pull), (11, {}))),
        header_with(11, pull | {"suspendTimeoutMillis": None}),
    ]
    connection = TypedConnection()
    connection.receive_data(b"".join(frame_of(header, b"") for header in headers))
    found = [connection.next_event() for _ in headers]
    assert [type(each) for each in found] == [SendCommand, Command, Command, PullCommand, Command, Command, Command]
    send, held = found[0], found[3]
    assert isinstance(send, SendCommand)
    assert isinstance(held, PullCommand)
    assert (send.header.topic, send.header.queue_id, send.ext_fields) == ("T", 3, None)
    assert (held.header.topic, held.header.queue_offset, held.ext_fields) == ("T", 3, None)


@given(st.lists(commands(), max_size=4))
def test_other_commands_are_read_on_the_general_path(wanted: list[Command]) -> None:
    connection = TypedConnection()
    connection.receive_data(b"".join(b"".join(encode(command)) for command in wanted))
    found = [connection.next_event() for _ in wanted]
    assert [command for command in found if type(command) is Command] == [
        command for command, read in zip(wanted, found, strict=True) if type(read) is Command
    ]


def frame_of(header: bytes, body: bytes, mark: int = 0) -> bytes:
    return HEAD.pack(4 + len(header) + len(body), mark << 24 | len(header)) + header + body


FRAMES = st.one_of(
    st.builds(
        lambda number, body: frame_of(
            msgspec.json.encode({"code": 310, "opaque": number, "extFields": send_fields("T", number % 4)}), body
        ),
        st.integers(0, 9),
        st.sampled_from([b"", b"body", b"b" * 90]),
    ),
    commands().map(lambda command: b"".join(encode(command))),
    st.sampled_from([
        frame_of(b'{"code":310,"extFields":{}}', b""),
        frame_of(b'{"code":310,"extFields":', b"{}}"),
        frame_of(b'{"code":31', b'0,"extFields":{}}'),
        frame_of(msgspec.json.encode({"code": 310, "extFields": send_fields("T")}), b"", mark=1),
        frame_of(msgspec.json.encode({"code": 310, "extFields": send_fields("T") | {"i": "x" * 400}}), b""),
        HEAD.pack(-5, 20) + b'{"code":310,',
        HEAD.pack(1 << 30, 20) + b'{"code":310,',
        HEAD.pack(30, 40) + b'{"code":310,"extFields":{"a":"b"}}',
        HEAD.pack(4, 0),
    ]),
)  # fmt: skip


def events_of(connection: Connection, chunks: list[bytes], *, in_bursts: bool = False) -> list[object]:
    found: list[object] = []
    for chunk in chunks:
        connection.receive_data(chunk)
        try:
            while isinstance(command := connection.next_event(), Command):
                found.append(told(command))
                if in_bursts and isinstance(connection, TypedConnection) and isinstance(command, SendCommand):
                    found += map(told, connection.next_sends())
        except RemoteProtocolError as error:
            return [*found, str(error)]
    return [*found, connection._frames.is_between_frames]


def cut(frames: list[bytes], cuts: list[int]) -> list[bytes]:
    content = b"".join(frames)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    return [content[start:stop] for start, stop in itertools.pairwise(borders)]


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 900), max_size=3))
def test_a_burst_is_read_like_its_single_sends(frames: list[bytes], cuts: list[int]) -> None:
    chunks = cut(frames, cuts)
    assert events_of(TypedConnection(500), chunks) == events_of(TypedConnection(500), chunks, in_bursts=True)


def send_burst(count: int) -> bytes:
    header = msgspec.json.encode({"code": 310, "extFields": send_fields("T")})
    return frame_of(header, b"body") * count


def test_a_burst_is_read_in_one_go() -> None:
    """All complete frames after the first one are read together; a partial frame comes later."""
    connection = TypedConnection()
    burst = send_burst(5)
    connection.receive_data(burst[:-3])
    assert isinstance(connection.next_event(), SendCommand)
    assert [bytes(send.body) for send in connection.next_sends()] == [b"body"] * 3
    assert connection.next_event() is NEED_DATA
    assert connection.next_sends() == []
    connection.receive_data(burst[-3:])
    assert isinstance(connection.next_event(), SendCommand)


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def _pull_head(numbers: tuple[int, int, int], status: str, offsets: tuple[int, int, int], body_size: int) -> bytes:
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    fields = {"suggestWhichBrokerId": "0"} | {name: str(offset) for name, offset in zip(names, offsets, strict=True)}
    return encode_head(Command(*numbers, fields, remark=status), body_size)


@given(
    st.tuples(INT32, INT32, INT32), st.sampled_from(GetStatus), st.tuples(INT64, INT64, INT64), st.integers(0, 2**20)
)
def test_both_paths_write_the_same_answer_to_a_pull(
    numbers: tuple[int, int, int], status: GetStatus, offsets: tuple[int, int, int], body_size: int
) -> None:
    expected = _pull_head(numbers, status.name, offsets, body_size)
    assert expected == encode_pull_head(*numbers, status.name, *offsets, body_size)


@given(
    st.tuples(INT32, INT32), st.lists(INT32), st.sampled_from(GetStatus), st.tuples(INT64, INT64, INT64),
    st.integers(0, 2**20),
)  # fmt: skip
def test_headers_of_a_herd_equal_those_made_one_by_one(
    numbers: tuple[int, int], opaques: list[int], status: GetStatus, offsets: tuple[int, int, int], body_size: int
) -> None:
    code, flag = numbers
    heads = pull_heads(code, flag, status.name, *offsets, body_size)
    expected = [encode_pull_head(code, opaque, flag, status.name, *offsets, body_size) for opaque in opaques]
    assert expected == [heads.head(opaque) for opaque in opaques]
    body = bytes(body_size % 1000)
    assert heads.frames(opaques, body) == b"".join(head + body for head in expected)


def test_a_frame_that_the_peer_would_refuse_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_pull_head(0, 1, 1, "FOUND", 1, 0, 1, FRAME_SIZE_MAX)
    with pytest.raises(LocalProtocolError, match="over the limit"):
        pull_heads(0, 1, "FOUND", 1, 0, 1, FRAME_SIZE_MAX)


OFFSET = st.integers(0, 2**63 - 1)
RESPONSE = int(CommandFlag.RESPONSE)


def _send_head(request: Command, queue_id: int, msg_id: str, queue_offset: int) -> bytes:
    fields = REGION_FIELDS | {"queueId": str(queue_id), "msgId": msg_id, "queueOffset": str(queue_offset)}
    return encode_reply_head(request, 0, ext_fields=fields)


@given(INT32, INT32, INT32, st.sampled_from(["127.0.0.1", "2001:db8::7"]), OFFSET, OFFSET)
def test_both_paths_write_the_same_answer_to_a_send(  # noqa: PLR0917 - what differs between two answers
    opaque: int, flag: int, queue_id: int, host: str, physical_offset: int, offset: int
) -> None:
    digits = host_bytes(host, 10911).hex().upper().encode()
    expected = _send_head(Command(310, opaque, flag), queue_id, message_id(host, 10911, physical_offset), offset)
    assert expected == encode_send_head(opaque, RESPONSE, queue_id, digits, physical_offset, offset)


FIELDS = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "3", "queueOffset": "41", "MSG_REGION": "R"}


def answer(changed: object = (), **others: object) -> bytes:
    return msgspec.json.encode({"code": 0, "flag": 1, **others, "extFields": FIELDS | dict(changed)})  # type: ignore[call-overload]


def answer_told(read: Command) -> object:
    fields: object
    try:
        fields = header_of(read).encode()
    except HeaderError as error:
        fields = str(error)
    command = plain(read)
    names = None if command.ext_fields is None else set(command.ext_fields)
    rest = (command.code, command.opaque, command.flag, bytes(command.body), command.remark, command.language)
    return (*rest, command.version, command.serialisation, fields, names)


def read_all_answers(chunks: list[bytes], connection: Connection) -> list[object]:
    """Return the commands that a connection reads, including bursts of send answers, and its error if it has one."""
    found: list[object] = []
    for chunk in chunks:
        connection.receive_data(chunk)
        try:
            if isinstance(connection, SentConnection):
                found += map(answer_told, connection.next_sent())
            while isinstance(command := connection.next_event(), Command):
                found.append(answer_told(command))
        except RemoteProtocolError as error:
            return [*found, str(error)]
    return found


def both(chunks: list[bytes]) -> tuple[list[object], list[object]]:
    return read_all_answers(chunks, SentConnection()), read_all_answers(chunks, Connection())


@given(
    st.dictionaries(st.sampled_from([*FIELDS, "transactionId", "TRACE_ON", "x"]), VALUES),
    st.dictionaries(OTHERS, VALUES),
)
@example({}, {})
def test_both_paths_read_the_same_answer(changed: dict[str, object], others: dict[str, object]) -> None:
    quick, common = both([frame_of(answer(changed, **others), b"body")])
    assert quick == common


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 30))
def test_damaged_answers_are_read_the_same(content: bytes, start: int, size: int) -> None:
    whole = answer()
    quick, common = both([frame_of((whole[:start] + content + whole[start + size :]) or b"0", b"")])
    assert quick == common


@given(st.lists(FRAMES | st.just(frame_of(answer(), b"")), max_size=8), st.lists(st.integers(0, 900), max_size=3))
def test_a_burst_is_read_like_its_single_answers(frames: list[bytes], cuts: list[int]) -> None:
    quick, common = both(cut(frames, cuts))
    assert quick == common


def test_answers_that_are_read_in_one_pass() -> None:
    """An answer with an error or a missing field is left to the general path; additional fields are kept."""
    connection = SentConnection()
    headers = [answer(), answer(flag=0), b'{"code":0,"flag":1,"extFields":{}}', answer(code=10), answer()]
    content = b"".join(frame_of(header, b"") for header in headers)
    connection.receive_data(content[:-1])
    found: list[object] = list(connection.next_sent())
    found += [connection.next_event() for _number in range(3)]
    connection.receive_data(content[-1:])
    found.append(connection.next_event())
    assert [type(each) for each in found] == [SentAnswer, Command, Command, Command, SentAnswer]
    connection = SentConnection()
    connection.receive_data(frame_of(answer({"recallHandle": "aGFuZGxl"}), b""))
    assert connection.next_sent() == []
    read = connection.next_event()
    assert isinstance(read, Command)
    assert plain(read).ext_fields == {**FIELDS, "recallHandle": "aGFuZGxl"}

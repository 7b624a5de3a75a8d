"""Answers to pulls and sends, by the quick way and by the common way."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.wire.test_send_request import FRAMES, OTHERS, VALUES, frame_of

from longpoll_broker.send.send_processor import REGION_FIELDS
from longpoll_broker.store.read import GetStatus
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.errors import HeaderError, LocalProtocolError, RemoteProtocolError
from longpoll_protocol.fast.pull_answer import encode_pull_head, pull_heads
from longpoll_protocol.fast.send_answer import encode_send_head
from longpoll_protocol.fast.sent_answer import SentAnswer, SentConnection, header_of, plain
from longpoll_protocol.frames.command import Command, encode_head, encode_reply_head
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.frames.frame import FRAME_SIZE_MAX
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.message import message_id

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def _pull_head(numbers: tuple[int, int, int], status: str, offsets: tuple[int, int, int], body_size: int) -> bytes:
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    fields = {"suggestWhichBrokerId": "0"} | {name: str(offset) for name, offset in zip(names, offsets, strict=True)}
    return encode_head(Command(*numbers, fields, remark=status), body_size)


@given(
    st.tuples(INT32, INT32, INT32), st.sampled_from(GetStatus), st.tuples(INT64, INT64, INT64), st.integers(0, 2**20)
)
def test_both_ways_write_the_same_pull_answer(
    numbers: tuple[int, int, int], status: GetStatus, offsets: tuple[int, int, int], body_size: int
) -> None:
    expected = _pull_head(numbers, status.name, offsets, body_size)

    assert expected == encode_pull_head(*numbers, status.name, *offsets, body_size)


@given(
    st.tuples(INT32, INT32), st.lists(INT32), st.sampled_from(GetStatus), st.tuples(INT64, INT64, INT64),
    st.integers(0, 2**20),
)  # fmt: skip
def test_heads_of_a_herd_are_those_made_one_by_one(
    numbers: tuple[int, int], opaques: list[int], status: GetStatus, offsets: tuple[int, int, int], body_size: int
) -> None:
    code, flag = numbers
    heads = pull_heads(code, flag, status.name, *offsets, body_size)
    expected = [encode_pull_head(code, opaque, flag, status.name, *offsets, body_size) for opaque in opaques]

    assert expected == [heads.head(opaque) for opaque in opaques]
    body = bytes(body_size % 1000)
    assert heads.frames(opaques, body) == b"".join(head + body for head in expected)


def test_a_frame_that_the_peer_would_refuse_is_not_made() -> None:
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
def test_both_ways_write_the_same_send_answer(  # noqa: PLR0917 - what differs between two answers
    opaque: int, flag: int, queue_id: int, host: str, physical_offset: int, offset: int
) -> None:
    digits = host_bytes(host, 10911).hex().upper().encode()
    expected = _send_head(Command(310, opaque, flag), queue_id, message_id(host, 10911, physical_offset), offset)

    assert expected == encode_send_head(opaque, RESPONSE, queue_id, digits, physical_offset, offset)


FIELDS = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "3", "queueOffset": "41", "MSG_REGION": "R"}


def answer(changed: object = (), **others: object) -> bytes:
    """The header of an answer to a send, as brokers write it but for what is changed."""
    return msgspec.json.encode({"code": 0, "flag": 1, **others, "extFields": FIELDS | dict(changed)})  # type: ignore[call-overload]


def told(read: Command) -> object:
    """Everything that an answer says, however it was read, to who knows its header and to who does not."""
    fields: object
    try:
        fields = header_of(read).encode()
    except HeaderError as error:
        fields = str(error)
    command = plain(read)
    names = None if command.ext_fields is None else set(command.ext_fields)
    rest = (command.code, command.opaque, command.flag, bytes(command.body), command.remark, command.language)
    return (*rest, command.version, command.serialisation, fields, names)


def read_all(chunks: list[bytes], connection: Connection) -> list[object]:
    """What a connection reads of these bytes, answers to sends in bursts where it knows them, and its error."""
    found: list[object] = []
    for chunk in chunks:
        connection.receive_data(chunk)
        try:
            if isinstance(connection, SentConnection):
                found += map(told, connection.next_sent())
            while isinstance(command := connection.next_event(), Command):
                found.append(told(command))
        except RemoteProtocolError as error:
            return [*found, str(error)]
    return found


def both(chunks: list[bytes]) -> tuple[list[object], list[object]]:
    """What the quick way reads and what the common one does."""
    return read_all(chunks, SentConnection()), read_all(chunks, Connection())


@given(
    st.dictionaries(st.sampled_from([*FIELDS, "transactionId", "TRACE_ON", "x"]), VALUES),
    st.dictionaries(OTHERS, VALUES),
)
@example({}, {})
def test_both_ways_read_the_same(changed: dict[str, object], others: dict[str, object]) -> None:
    """Whatever stands in the header and its fields, also nothing that can be read."""
    quick, common = both([frame_of(answer(changed, **others), b"body")])

    assert quick == common


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 30))
def test_damage_is_read_the_same(content: bytes, start: int, size: int) -> None:
    """A header with a piece replaced."""
    whole = answer()
    quick, common = both([frame_of((whole[:start] + content + whole[start + size :]) or b"0", b"")])

    assert quick == common


@given(st.lists(FRAMES | st.just(frame_of(answer(), b"")), max_size=8), st.lists(st.integers(0, 900), max_size=3))
def test_a_burst_is_read_as_its_answers_are(frames: list[bytes], cuts: list[int]) -> None:
    """Whatever stands between answers, and wherever the bytes are cut."""
    content = b"".join(frames)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    quick, common = both([content[start:stop] for start, stop in itertools.pairwise(borders)])

    assert quick == common


def test_only_an_answer_to_a_send_is_read_so() -> None:
    """What lacks its fields, asks instead of answering, or is no success comes the common way; a cut one is read so."""
    connection = SentConnection()
    headers = [answer(), answer(flag=0), b'{"code":0,"flag":1,"extFields":{}}', answer(code=10), answer()]
    content = b"".join(frame_of(header, b"") for header in headers)
    connection.receive_data(content[:-1])
    found: list[object] = list(connection.next_sent())
    found += [connection.next_event() for _number in range(3)]
    connection.receive_data(content[-1:])
    found.append(connection.next_event())

    assert [type(each) for each in found] == [SentAnswer, Command, Command, Command, SentAnswer]


def test_an_answer_with_more_fields_keeps_them() -> None:
    """The handle to recall a timed message, which 5.x's brokers tell and the header does not know."""
    connection = SentConnection()
    connection.receive_data(frame_of(answer({"recallHandle": "aGFuZGxl"}), b""))
    assert connection.next_sent() == []
    read = connection.next_event()

    assert isinstance(read, Command)
    assert plain(read).ext_fields == {**FIELDS, "recallHandle": "aGFuZGxl"}

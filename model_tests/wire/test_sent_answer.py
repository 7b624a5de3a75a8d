"""The answer to a send read in one pass against the common way."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.wire.test_send_request import FRAMES, OTHERS, VALUES, frame_of

from longpoll_protocol.errors import HeaderError, RemoteProtocolError
from longpoll_protocol.fast.sent_answer import SentAnswer, SentConnection, header_of, plain
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.connection import Connection

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

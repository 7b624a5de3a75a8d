"""A send read in one pass against the common way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.raw_client import send_fields
from model_tests.support.broker.wire_strategies import commands

from longpoll_protocol.errors import HeaderError, RemoteProtocolError
from longpoll_protocol.fast.send_request import SendCommand
from longpoll_protocol.fast.typed_connection import TypedConnection
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.connection import NEED_DATA, Connection
from longpoll_protocol.frames.frame import HEAD
from longpoll_protocol.frames.json_header import FIELD_COUNT_MAX
from longpoll_protocol.headers import SendMessageRequestHeaderV2

VALUES = (
    st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "0", "7", "+1", "007", "1.0", "1e3", "true", "FALSE", "yes", "x" * 300, "null"])
)
"""What may stand where a field's text belongs."""


def received(header: bytes, *, reads_sends: bool) -> Command | str:
    """A frame with this JSON header as a connection reads it, or the text of its error."""
    connection = TypedConnection() if reads_sends else Connection()
    connection.receive_data(HEAD.pack(4 + len(header) + 4, len(header)) + header + b"body")
    try:
        command = connection.next_event()
    except RemoteProtocolError as error:
        return str(error)
    assert isinstance(command, Command)
    return command


def fields_of(command: Command) -> SendMessageRequestHeaderV2 | str:
    """The typed fields, or the text of their error."""
    if isinstance(command, SendCommand):
        return command.header
    try:
        return SendMessageRequestHeaderV2.decode(command.ext_fields)
    except HeaderError as error:
        return str(error)


def told(command: Command | str) -> object:
    """Everything that a command says, however it was read."""
    if isinstance(command, str):
        return command
    rest = (command.code, command.opaque, command.flag, bytes(command.body), command.remark, command.language)
    return (*rest, command.version, command.serialisation, fields_of(command))


OTHERS = st.sampled_from(["opaque", "flag", "version", "language", "remark", "other"])


@given(st.dictionaries(st.sampled_from("abcdefghijklmno"), VALUES), st.dictionaries(OTHERS, VALUES))
@example({}, {})
def test_both_ways_read_the_same(changed: dict[str, object], others: dict[str, object]) -> None:
    """Whatever stands in the header and its fields, also nothing that can be read."""
    header = msgspec.json.encode({"code": 310, **others, "extFields": send_fields("T", 3) | changed})

    assert told(received(header, reads_sends=True)) == told(received(header, reads_sends=False))


@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 30))
@example(b"\x80", 123, 0)
def test_damage_is_read_the_same(content: bytes, start: int, size: int) -> None:
    """A header with a piece replaced, or without its fields."""
    whole = msgspec.json.encode({"code": 310, "extFields": send_fields("T")})
    header = whole[:start] + content + whole[start + size :]

    assert told(received(header or b"0", reads_sends=True)) == told(received(header or b"0", reads_sends=False))


def test_only_a_send_is_read_so() -> None:
    """A plain one has its fields with their types; what lacks them, or has another code, comes the common way."""
    send = received(msgspec.json.encode({"code": 310, "extFields": send_fields("T", 3)}), reads_sends=True)
    bare = received(msgspec.json.encode({"code": 310}), reads_sends=True)
    other = received(msgspec.json.encode({"code": 3100, "extFields": send_fields("T", 3)}), reads_sends=True)

    assert isinstance(send, SendCommand)
    assert (send.header.topic, send.header.queue_id, send.ext_fields) == ("T", 3, None)
    assert type(bare) is type(other) is Command


@given(st.lists(commands(), max_size=4))
def test_everything_else_comes_as_it_is(wanted: list[Command]) -> None:
    """Every other command, in either encoding."""
    connection = TypedConnection()
    connection.receive_data(b"".join(b"".join(encode(command)) for command in wanted))
    found = [connection.next_event() for _ in wanted]

    assert [command for command in found if type(command) is Command] == [
        command for command, read in zip(wanted, found, strict=True) if type(read) is Command
    ]


def frame_of(header: bytes, body: bytes, mark: int = 0) -> bytes:
    """One frame; `mark` says how its header is written."""
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


def events_of(
    connection: Connection,
    chunks: list[bytes],
    say: Callable[[Command], object],
    ahead: Callable[[Command], Iterable[Command]],
) -> list[object]:
    """What a connection reads of these bytes, and its error; `ahead` gives what it reads behind each request."""
    found: list[object] = []
    for chunk in chunks:
        connection.receive_data(chunk)
        try:
            while isinstance(command := connection.next_event(), Command):
                found.append(say(command))
                found += [say(each) for each in ahead(command)]
        except RemoteProtocolError as error:
            return [*found, str(error)]
    return [*found, connection._frames.is_between_frames]


def read_all(chunks: list[bytes], *, in_bursts: bool) -> list[object]:
    """What a connection reads of these bytes, with the sends behind a send in one go or not, and its error."""
    connection = TypedConnection(500)

    def ahead(command: Command) -> list[SendCommand]:
        return connection.next_sends() if in_bursts and isinstance(command, SendCommand) else []

    return events_of(connection, chunks, told, ahead)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 900), max_size=3))
def test_a_burst_is_read_as_its_sends_are(frames: list[bytes], cuts: list[int]) -> None:
    """Whatever stands between sends, wherever the bytes are cut, and whatever cannot be read."""
    content = b"".join(frames)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[start:stop] for start, stop in itertools.pairwise(borders)]

    assert read_all(chunks, in_bursts=False) == read_all(chunks, in_bursts=True)


def send_burst(count: int) -> bytes:
    """So many sends, one behind the other."""
    header = msgspec.json.encode({"code": 310, "extFields": send_fields("T")})
    return frame_of(header, b"body") * count


def test_a_burst_is_read_in_one_go() -> None:
    """All whole frames behind the first; the one that is cut follows with its rest."""
    connection = TypedConnection()
    burst = send_burst(5)
    connection.receive_data(burst[:-3])

    assert isinstance(connection.next_event(), SendCommand)
    assert [bytes(send.body) for send in connection.next_sends()] == [b"body"] * 3
    assert connection.next_event() is NEED_DATA
    assert connection.next_sends() == []
    connection.receive_data(burst[-3:])
    assert isinstance(connection.next_event(), SendCommand)


@pytest.mark.parametrize("count", [900, 1_000, 1_100, 5_000])
def test_a_header_of_many_fields_is_read_or_refused_as_in_the_common_way(count: int) -> None:
    """The common way has a limit on them, also on those that nobody knows."""
    fields = send_fields("T") | {f"n{number}": "" for number in range(count)}
    header = json.dumps({"code": 310, "extFields": fields}, separators=(",", ":")).encode()
    typed, plain = (told(received(header, reads_sends=reads_sends)) for reads_sends in (True, False))
    assert typed == plain
    assert ("extension fields" in str(plain)) == (len(fields) > FIELD_COUNT_MAX)

"""A pull read in one pass against the common way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.raw_client import pull_fields
from model_tests.support.broker.wire_strategies import commands
from model_tests.wire.test_send_request import OTHERS, VALUES, events_of, frame_of, send_burst

from longpoll_protocol.errors import HeaderError
from longpoll_protocol.fast.pull_request import PullCommand
from longpoll_protocol.fast.typed_connection import TypedConnection
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.connection import NEED_DATA, Connection
from longpoll_protocol.frames.json_header import FIELD_COUNT_MAX
from longpoll_protocol.headers import PullMessageRequestHeader

NAMES = sorted(PullMessageRequestHeader.__struct_encode_fields__)


def told(command: Command) -> object:
    """Everything that a command says, however it was read."""
    fields: object = command.ext_fields
    if isinstance(command, PullCommand):
        fields = command.header
    elif command.code == 11:
        try:
            fields = PullMessageRequestHeader.decode(command.ext_fields)
        except HeaderError as error:
            fields = str(error)
    rest = (command.code, command.opaque, command.flag, bytes(command.body), command.remark, command.language)
    return (*rest, command.version, command.serialisation, fields)


def read_all(connection: Connection, chunks: list[bytes], *, ahead: bool = False) -> list[object]:
    """What a connection reads of these bytes, and its error; `ahead` asks for further pulls behind each."""

    def behind(_command: Command) -> Iterator[Command]:
        if ahead and isinstance(connection, TypedConnection):
            while pulls := connection.next_pulls(2):
                # The second comes again: by itself, or as the next event.
                connection.keep(1)
                yield pulls[0]

    return events_of(connection, chunks, told, behind)


def read_both(header: bytes) -> list[list[object]]:
    """A frame with this JSON header, read in one pass and the common way."""
    content = frame_of(header, b"body")
    return [read_all(connection, [content]) for connection in (TypedConnection(), Connection())]


@given(st.dictionaries(st.sampled_from([*NAMES, "other"]), VALUES), st.dictionaries(OTHERS, VALUES))
@example({}, {})
def test_both_ways_read_the_same(changed: dict[str, object], others: dict[str, object]) -> None:
    """Whatever stands in the header and its fields, also nothing that can be read."""
    quick, plain = read_both(msgspec.json.encode({"code": 11, **others, "extFields": pull_fields("T", 3) | changed}))

    assert quick == plain


@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 30))
@example(b"\x80", 123, 0)
def test_damage_is_read_the_same(content: bytes, start: int, size: int) -> None:
    """A header with a piece replaced, or without its fields."""
    whole = msgspec.json.encode({"code": 11, "extFields": pull_fields("T", 3)})
    quick, plain = read_both(whole[:start] + content + whole[start + size :] or b"0")

    assert quick == plain


def test_only_a_pull_is_read_so() -> None:
    """A plain one has its fields with their types; what lacks one that it needs, or has another code, does not."""
    whole = pull_fields("T", 3, timeout_ms=5)
    headers = [
        msgspec.json.encode({"code": code, "extFields": fields})
        for code, fields in [(11, whole), (11, whole | {"suspendTimeoutMillis": None}), (11, {}), (110, whole)]
    ]
    connection = TypedConnection()
    connection.receive_data(b"".join(frame_of(header, b"") for header in headers))
    found = [connection.next_event() for _ in headers]

    assert [type(command) for command in found] == [PullCommand, Command, Command, Command]
    pull = found[0]
    assert isinstance(pull, PullCommand)
    assert (pull.header.topic, pull.header.queue_offset, pull.ext_fields) == ("T", 3, None)


def pull_frame(offset: int) -> bytes:
    return frame_of(msgspec.json.encode({"code": 11, "extFields": pull_fields("T", offset)}), b"")


FRAMES = st.one_of(
    st.integers(0, 9).map(pull_frame),
    commands().map(lambda command: b"".join(encode(command))),
    st.sampled_from([send_burst(2), frame_of(b'{"code":11,"extFields":{}}', b""), frame_of(b'{"code":11,', b"}")]),
)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 900), max_size=3))
def test_pulls_asked_for_ahead_are_the_next_ones(frames: list[bytes], cuts: list[int]) -> None:
    """Whatever stands between pulls, wherever the bytes are cut, and whatever cannot be read."""
    content = b"".join(frames)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[start:stop] for start, stop in itertools.pairwise(borders)]

    assert read_all(TypedConnection(), chunks) == read_all(TypedConnection(), chunks, ahead=True)


def test_pulls_that_are_not_served_come_again() -> None:
    """Whoever serves them may give way: so many as are asked for, whole ones alone, and those not kept once more."""
    connection = TypedConnection()
    connection.receive_data(b"".join(map(pull_frame, range(4))) + pull_frame(5)[:-1])

    assert [pull.header.queue_offset for pull in connection.next_pulls(2)] == [0, 1]
    assert [pull.header.queue_offset for pull in connection.next_pulls(9)] == [2, 3]
    connection.keep(1)
    again = connection.next_event()
    assert isinstance(again, PullCommand)
    assert again.header.queue_offset == 3
    assert connection.next_pulls(9) == []
    assert connection.next_event() is NEED_DATA


@pytest.mark.parametrize("count", [900, 1_000, 1_100, 30_000])
def test_a_header_of_many_fields_is_read_or_refused_as_in_the_common_way(count: int) -> None:
    """The common way has a limit on them, also on those that nobody knows."""
    fields = pull_fields("T", 0) | {f"n{number}": "" for number in range(count)}
    header = json.dumps({"code": 11, "extFields": fields}, separators=(",", ":")).encode()
    typed, plain = read_both(header)
    assert typed == plain
    assert any("extension fields" in str(each) for each in plain) == (len(fields) > FIELD_COUNT_MAX)

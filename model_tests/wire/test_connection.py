"""The connection without a socket: order, ends, errors, and the recorded frames."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.wire_strategies import chunkings, commands

from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames.command import Command, ResponseCode, encode_reply_head
from longpoll_protocol.frames.connection import CLOSED, NEED_DATA, Connection

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden" / "frames.jsonl").read_text().splitlines()]


def events(connection: Connection) -> list[Command]:
    """Every command that is there."""
    found = []
    while isinstance(event := connection.next_event(), Command):
        found.append(event)
    return found


@given(st.lists(commands(), max_size=6), st.data())
def test_any_chunking_gives_the_same_commands(wanted: list[Command], data: st.DataObject) -> None:
    """What one end sends the other receives, however the bytes travel."""
    sender, receiver = Connection(), Connection()
    stream = b"".join(b"".join(sender.send(command)) for command in wanted)
    found = []
    for chunk in data.draw(chunkings(stream)):
        receiver.receive_data(memoryview(bytearray(chunk)))
        found += events(receiver)
    receiver.receive_eof()
    assert found == wanted
    assert receiver.next_event() is CLOSED


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_arbitrary_bytes_never_crash_and_an_error_stays(chunks: list[bytes]) -> None:
    """Only a RemoteProtocolError comes out, and after the first one nothing else ever does."""
    connection = Connection()
    failed = False
    for chunk in chunks:
        connection.receive_data(chunk)
        try:
            events(connection)
        except RemoteProtocolError:
            failed = True
        else:
            assert not failed


def test_an_error_is_raised_again_and_whole_commands_before_it_are_returned() -> None:
    """A bad frame does not take back the good ones before it, and the good ones after it are never read."""
    good = b"".join(Connection().send(Command(code=1, opaque=1)))
    connection = Connection()
    connection.receive_data(good + b"\xff\xff\xff\xff" + good)
    assert connection.next_event() == Command(code=1, opaque=1)
    with pytest.raises(RemoteProtocolError) as first:
        connection.next_event()
    connection.receive_data(good)
    with pytest.raises(RemoteProtocolError) as second:
        connection.next_event()
    assert first.value is second.value


def test_the_end_of_the_stream() -> None:
    """Between two commands it is CLOSED, within one an error; bytes after it are our own mistake."""
    good = b"".join(Connection().send(Command(code=1, opaque=1)))
    connection = Connection()
    assert connection.next_event() is NEED_DATA
    connection.receive_data(good)
    connection.receive_eof()
    assert connection.next_event() == Command(code=1, opaque=1)
    assert connection.next_event() is CLOSED
    with pytest.raises(LocalProtocolError):
        connection.receive_data(good)
    cut = Connection()
    cut.receive_data(good[:-1])
    cut.receive_eof()
    with pytest.raises(RemoteProtocolError, match="middle of a frame"):
        cut.next_event()


def test_the_limit_is_the_connections_own() -> None:
    """A connection made with a smaller limit refuses in both directions."""
    connection = Connection(frame_size_max=1000)
    with pytest.raises(LocalProtocolError, match="over the limit of 1000"):
        connection.send(Command(code=1, body=bytes(1000)))
    connection.receive_data((1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="over the limit of 1000"):
        connection.next_event()


@pytest.mark.parametrize("case", GOLDEN, ids=[case["id"] for case in GOLDEN])
def test_recorded_frames_end_as_on_a_real_broker(case: dict[str, Any]) -> None:
    """Where 4.9.7 closed the connection we refuse; where it answered our answer has its opaque, flag and form."""
    connection = Connection()
    connection.receive_data(base64.b64decode(case["raw"]))
    recorded = case["response"]
    if recorded == {"closed": True}:
        with pytest.raises(RemoteProtocolError):
            connection.next_event()
        return
    request = connection.next_event()
    assert isinstance(request, Command)
    assert request.code == 9999
    if recorded is None:
        assert request.opaque != case["opaque"]
        return
    other = Connection()
    other.receive_data(encode_reply_head(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=recorded["remark"]))
    answer = other.next_event()
    assert isinstance(answer, Command)
    assert answer.opaque == case["opaque"]
    assert (answer.code, answer.flag, answer.language, answer.remark, answer.serialisation.name) == (
        recorded["code"],
        recorded["flag"],
        recorded["language"],
        recorded["remark"],
        recorded["serialize"],
    )


def test_the_recording_has_both_kinds() -> None:
    """The golden file is not vacuous: some frames were answered, some closed the connection, one went astray."""
    kinds = {"closed" if case["response"] == {"closed": True} else type(case["response"]).__name__ for case in GOLDEN}
    assert kinds == {"closed", "dict", "NoneType"}
    assert len(GOLDEN) == 11

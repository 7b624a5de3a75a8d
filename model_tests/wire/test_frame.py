"""Frames and connections: chunks, limits, errors, and recorded frames."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.wire_strategies import chunkings, commands
from model_tests.support.present import present

from longpoll_broker.config import BrokerConfig
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames import (
    CLOSED,
    FRAME_SIZE_MAX,
    HEAD,
    HEADER_SIZE_MAX,
    LENGTH_SIZE,
    NEED_DATA,
    Command,
    Connection,
    Frame,
    FrameReader,
    ResponseCode,
    Serialisation,
    encode_reply_head,
    frame_head,
)


def read_all(reader: FrameReader, chunks: list[bytes]) -> list[tuple[Serialisation, bytes, bytes]]:
    found = []
    for chunk in chunks:
        reader.feed(chunk)
        while (frame := reader.next_frame()) is not None:
            found.append((frame.serialisation, bytes(frame.header), bytes(frame.body)))
    return found


frames = st.tuples(st.sampled_from(Serialisation), st.binary(min_size=1, max_size=60), st.binary(max_size=200))


@given(st.lists(frames, max_size=8), st.data())
def test_chunking_changes_no_frame(wanted: list[tuple[Serialisation, bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame_head(kind, header, len(body)) + body for kind, header, body in wanted)
    reader = FrameReader()
    assert read_all(reader, data.draw(chunkings(stream))) == wanted
    assert reader.is_between_frames


@given(st.lists(frames, min_size=1, max_size=8), st.data())
def test_all_chunks_may_arrive_before_the_first_read(
    wanted: list[tuple[Serialisation, bytes, bytes]], data: st.DataObject
) -> None:
    """Feeding all chunks before reading loses no frame."""
    stream = b"".join(frame_head(kind, header, len(body)) + body for kind, header, body in wanted)
    reader = FrameReader()
    for chunk in data.draw(chunkings(stream)):
        reader.feed(chunk)
    assert not reader.is_between_frames
    assert read_all(reader, [b""]) == wanted


def test_lengths_are_checked_as_bytes_come() -> None:
    """An invalid length is refused before the rest of its frame arrives."""
    reader = FrameReader()
    for byte in b"\x7f\xff\xff":
        reader.feed(bytes([byte]))
        assert reader.next_frame() is None
    reader.feed(b"\xff")
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        reader.next_frame()
    frame = b"".join((HEAD.pack(LENGTH_SIZE + 2, 2), b"{}"))
    for data, is_refused in ((frame * 2, False), (b"\x00" * 12, True)):
        for chunk_size in (1, 3, 12, 20):
            reader = FrameReader()
            reader.first_size = 12
            for start in range(0, 11, chunk_size):
                reader.feed(data[start : min(start + chunk_size, 11)])
                assert reader.next_frame() is None
            assert reader.unread_size == 11
            reader.feed(data[11:])
            if is_refused:
                with pytest.raises(RemoteProtocolError):
                    reader.next_frame()
                continue
            assert [bytes(found.header) for found in (reader.next_frame(), reader.next_frame()) if found] == [b"{}"] * 2
            reader.feed(frame)
            assert reader.next_frame() is not None


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3])
def test_a_length_below_four_is_refused(length: int) -> None:
    """A frame has at least its header mark. RocketMQ 4.9.7 closes the connection for shorter lengths."""
    reader = FrameReader()
    reader.feed(length.to_bytes(4, "big", signed=True))
    with pytest.raises(RemoteProtocolError, match="too short"):
        reader.next_frame()


def test_the_limits_of_a_frame() -> None:
    limit = 100
    header = b"{}"
    body = bytes(limit - 4 - len(header))
    stream = frame_head(Serialisation.JSON, header, len(body), limit) + body
    assert read_all(FrameReader(limit), [stream]) == [(Serialisation.JSON, header, body)]
    with pytest.raises(LocalProtocolError, match="over the limit of 100"):
        frame_head(Serialisation.JSON, header, len(body) + 1, limit)
    with pytest.raises(RemoteProtocolError, match="over the limit of 100"):
        read_all(FrameReader(limit), [frame_head(Serialisation.JSON, header, len(body) + 1)])
    assert BrokerConfig().frame_size_max == FRAME_SIZE_MAX
    body = bytes(FRAME_SIZE_MAX - 4 - 2)
    stream = frame_head(Serialisation.JSON, b"{}", len(body)) + body
    chunks = [stream[at : at + 65_536] for at in range(0, len(stream), 65_536)]
    found = read_all(FrameReader(), chunks)
    assert [len(body) for _kind, _header, body in found] == [len(body)]
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        read_all(FrameReader(), [HEAD.pack(FRAME_SIZE_MAX + 1, 2)])
    assert read_all(FrameReader(), [HEAD.pack(10, 6) + b"123456"]) == [(Serialisation.JSON, b"123456", b"")]
    longest = bytes(HEADER_SIZE_MAX)
    stream = frame_head(Serialisation.ROCKETMQ, longest, 0)
    assert read_all(FrameReader(), [stream]) == [(Serialisation.ROCKETMQ, longest, b"")]
    with pytest.raises(LocalProtocolError, match="header of"):
        frame_head(Serialisation.ROCKETMQ, longest + b"x", 0)
    connection = Connection(frame_size_max=1000)
    with pytest.raises(LocalProtocolError, match="over the limit of 1000"):
        connection.send(Command(code=1, body=bytes(1000)))
    connection.receive_data((1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="over the limit of 1000"):
        connection.next_event()


@pytest.mark.parametrize(
    ("mark", "length", "words"),
    [
        (0x07000002, 10, "serialisation 7"),
        (0xFF000002, 10, "serialisation 255"),
        (0x00000000, 10, "empty"),
        (0x01000000, 4, "empty"),
        (0x00000007, 10, "does not fit"),
        (0x00FFFFFF, 10, "does not fit"),
        (HEADER_SIZE_MAX + 1, HEADER_SIZE_MAX + 5, "over the limit"),
    ],
)
def test_a_bad_mark_is_refused(mark: int, length: int, words: str) -> None:
    for cut in (8, 5):
        with pytest.raises(RemoteProtocolError, match=words):
            read_all(FrameReader(), [HEAD.pack(length, mark)[:cut], HEAD.pack(length, mark)[cut:], bytes(length)])


def test_bodies_are_views_of_the_received_buffer() -> None:
    """A buffer that is not `bytes` is copied first, so a body never changes."""
    stream = frame_head(Serialisation.JSON, b"{}", 3) + b"abc"
    reader = FrameReader()
    reader.feed(stream)
    frame = present(reader.next_frame())
    assert frame.body.obj is stream
    reader.feed(frame_head(Serialisation.JSON, b"{}", 0))
    frame = present(reader.next_frame())
    assert frame.body.obj == b""
    buffer = bytearray(frame_head(Serialisation.JSON, b"{}", 3) + b"abc")
    reader = FrameReader()
    reader.feed(memoryview(buffer))
    frame = present(reader.next_frame())
    buffer[:] = bytes(len(buffer))
    assert bytes(frame.body) == b"abc"


def test_a_long_frame_in_tiny_chunks_is_gathered_in_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the bytes cost ten times the copied bytes."""

    def copied_bytes(size: int) -> int:
        """Return the total length of all slices taken of chunks while one frame of this size is gathered."""
        total = 0

        class Counting(FrameReader):
            def _gather(self) -> Frame | None:
                nonlocal total
                before = len(self._gathered)
                frame = super()._gather()
                total += (size + 2 if frame is not None else len(self._gathered)) - before
                return frame

        stream = frame_head(Serialisation.JSON, b"{}", size) + bytes(size)
        found = read_all(Counting(), [stream[at : at + 7] for at in range(0, len(stream), 7)])
        assert len(found) == 1
        return total

    small, large = copied_bytes(1_000), copied_bytes(10_000)
    assert large < 11 * small


GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden" / "frames.jsonl").read_text().splitlines()]


def events(connection: Connection) -> list[Command]:
    found = []
    while isinstance(event := connection.next_event(), Command):
        found.append(event)
    return found


@given(st.lists(commands(), max_size=6), st.data())
def test_any_chunking_gives_the_same_commands(wanted: list[Command], data: st.DataObject) -> None:
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
    """The only error is RemoteProtocolError, and after the first one every read raises it again."""
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
    """The end of the stream is the event CLOSED between two commands, and an error within a command."""
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


@pytest.mark.parametrize("case", GOLDEN, ids=[case["id"] for case in GOLDEN])
def test_recorded_frames_end_as_on_a_real_broker(case: dict[str, Any]) -> None:
    """Frames for which 4.9.7 closed the connection are refused. Answers have the opaque, flag and encoding of 4.9.7."""
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


def test_the_recorded_frames_have_each_kind_of_response() -> None:
    kinds = {"closed" if case["response"] == {"closed": True} else type(case["response"]).__name__ for case in GOLDEN}
    assert (kinds, len(GOLDEN)) == ({"closed", "dict", "NoneType"}, 11)

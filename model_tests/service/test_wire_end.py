"""What the two clients of tests have in common: when they read, how they write, and what a closed connection is."""

from __future__ import annotations

from typing import cast

import pytest
from attrs import define, field

from longpoll_broker.testing.wire_end import STALL_S, WireEnd
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime import Runtime
from longpoll_runtime.real import RealRuntime

PUSH = b"".join(encode(Command(40, 1)))
PART_SIZE = 10
"""What the socket takes of one write; it takes every second one."""


@define(eq=False)
class Wire(RealRuntime):
    """A runtime whose one socket has `coming` to be read, and whose poller counts what it is asked."""

    coming: bytes = b""
    is_closed: bool = False
    """Whether the peer closes behind what is coming, and takes nothing."""
    is_stuck: bool = False
    """Whether no write is taken."""
    taken: bytes = b""
    polled_s: list[float | None] = field(factory=list)
    watched: list[tuple[bool, bool]] = field(factory=list)
    """For what the socket was watched, at each wait: reads, writes."""
    closed_count: int = 0
    _turn: int = 0

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def connect(self, _host: str, _port: int, _timeout_s: float) -> Wire:  # type: ignore[override] # a socket of ours
        return self

    def poller(self) -> Wire:  # type: ignore[override] # a poller of ours
        return self

    def send(self, content: memoryview) -> int:
        self._turn += 1
        if self.is_closed:
            raise BrokenPipeError
        if self.is_stuck or self._turn % 2 == 0:
            raise BlockingIOError
        self.taken += content[:PART_SIZE]
        return len(content[:PART_SIZE])

    def recv_into(self, buffer: bytearray) -> int:
        """Give what is coming; then there is nothing, or the end."""
        if not self.coming and not self.is_closed:
            raise BlockingIOError
        size = len(self.coming)
        buffer[:size] = self.coming
        self.coming = b""
        return size

    def register(self, _key: object, *, read: bool, write: bool, data: object) -> None:
        assert data is not None
        self.watched.append((read, write))

    def modify(self, _key: object, *, read: bool, write: bool, data: object) -> None:
        assert data is not None
        self.watched[-1] = (read, write)

    def unregister(self, _key: object) -> None:
        """Watch it no more."""

    def poll(self, timeout_s: float | None) -> list[object]:
        self.polled_s.append(timeout_s)
        self.watched.append(self.watched[-1])
        return [] if self.is_stuck else [self]

    def close(self) -> None:
        self.closed_count += 1


class Noting(WireEnd):
    """Keeps the codes of what it reads."""

    def __init__(self, wire: Wire, *, reads_while_writing: bool = True) -> None:
        super().__init__(cast("Runtime", wire), ("127.0.0.1", 1), reads_while_writing=reads_while_writing)
        self.codes: list[int] = []

    def _received(self, command: Command, read_ns: int) -> None:
        assert self.written_ns <= read_ns <= self._runtime.monotonic_ns()
        self.codes.append(command.code)

    def wait(self, *left_ns: float) -> None:
        """Read until a command is there, with so much time left at each look."""
        rest = iter(left_ns)
        self._read_until(lambda: bool(self.codes), lambda: next(rest))


@pytest.mark.parametrize("reads", [False, True])
def test_who_is_said_to_reads_while_a_write_waits(reads: bool) -> None:
    wire = Wire(coming=PUSH)
    with Noting(wire, reads_while_writing=reads) as client:
        client.send_bytes(bytes(range(25)))
        assert client.codes == [40] * reads
        assert wire.watched == [(reads, True), (reads, True), (True, False)]
        client.drain()
        assert client.codes == [40]
    assert wire.taken == bytes(range(25))
    assert wire.polled_s == [STALL_S, STALL_S]


def test_a_write_that_is_not_taken_in_time_is_a_time_out() -> None:
    with Noting(Wire(is_stuck=True)) as client, pytest.raises(TimeoutError, match="no bytes were taken for 30 s"):
        client.send_bytes(b"x")
    with Noting(Wire(is_closed=True)) as client, pytest.raises(BrokenPipeError):
        client.send_bytes(b"x")


def test_reading_ends_with_what_was_waited_for_and_with_the_time() -> None:
    """No wait is longer than what is left, and nobody waits for what is there."""
    wire = Wire(coming=PUSH)
    with Noting(wire) as client:
        client.wait()
        assert (client.codes, wire.polled_s) == ([40], [])
        client.codes.clear()
        client.wait(3e9, 0.5e9, 0)
        assert (client.codes, client.closed, wire.polled_s) == ([], False, [3.0, 0.5])


def test_a_closed_connection_is_noted_after_what_came_before() -> None:
    wire = Wire(coming=PUSH, is_closed=True)
    client = Noting(wire)
    client.drain()
    assert (client.codes, client.closed) == ([40], False)
    client.codes.clear()
    client.wait(1e9)
    assert (client.codes, client.closed, wire.polled_s) == ([], True, [])
    client.close()
    client.close()
    assert wire.closed_count == 2


def test_what_is_no_command_is_an_error_of_the_peers() -> None:
    with Noting(Wire(coming=b"\xff" * 64)) as client, pytest.raises(RemoteProtocolError):
        client.wait(1e9)

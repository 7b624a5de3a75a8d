"""Reads lines from standard input, or from many TCP connections, in one thread.

A line ends with a line feed. Answers keep the order of their lines, and one write sends all answers to one read. The
oracle stops reading from a client that does not read its answers. The contents of lines: see `requests`.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from attrs import define, field

from longpoll.commands.oracle.requests import LINE_MAX, Oracle

CHUNK_BYTES: Final = 1 << 16
UNSENT_MAX: Final = 1 << 20
"""Unsent bytes of answers at which the oracle stops reading from a client."""
CONNECTIONS_MAX: Final = 1_000
WAIT_S: Final = 0.2
"""Seconds between two checks whether to stop."""
STDIN, STDOUT = 0, 1


@define
class Lines:
    """Splits bytes into lines. Invariant: `_rest` has no line feed, and at most `LINE_MAX` bytes."""

    _rest: bytearray = field(factory=bytearray)
    _is_passing_over: bool = False
    """Whether the current line is too long and is skipped."""

    def answered(self, oracle: Oracle, chunk: bytes) -> Iterator[bytes]:
        """The answers to the lines that end in a chunk; an empty line gets none."""
        self._rest += chunk
        if b"\n" in chunk:
            *whole, rest = self._rest.split(b"\n")
            self._rest = rest
            for line in whole:
                if self._is_passing_over:
                    self._is_passing_over = False
                elif len(line) > LINE_MAX:
                    yield oracle.too_long() + b"\n"
                elif line.strip():
                    yield oracle.answer(bytes(line)) + b"\n"
        if len(self._rest) > LINE_MAX:
            if not self._is_passing_over:
                yield oracle.too_long() + b"\n"
            self._is_passing_over = True
            self._rest.clear()

    def last(self, oracle: Oracle) -> bytes:
        """The answer to a last line without a line feed."""
        return b"".join(self.answered(oracle, b"\n"))


def serve_standard(oracle: Oracle) -> None:
    """Answer on standard output until standard input ends; raises `BrokenPipeError` if the reader has gone."""
    lines = Lines()
    while chunk := os.read(STDIN, CHUNK_BYTES):
        _write_all(b"".join(lines.answered(oracle, chunk)))
    _write_all(lines.last(oracle))


def _write_all(answers: bytes) -> None:
    rest = memoryview(answers)
    while rest:
        rest = rest[os.write(STDOUT, rest) :]


@define
class _Peer:
    """One connection."""

    socket: socket.socket
    lines: Lines = field(factory=Lines)
    unsent: bytearray = field(factory=bytearray)
    has_ended: bool = False
    """Whether the client has closed its side."""


def serve_tcp(oracle: Oracle, listener: socket.socket, is_stopped: Callable[[], bool]) -> None:
    """Answer every connection until `is_stopped`. A session outlives its connection, until a request closes it."""
    with selectors.DefaultSelector() as selector, closing(listener):
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        try:
            while not is_stopped():
                for key, _ in selector.select(WAIT_S):
                    if key.data is None:
                        _accept(selector, listener)
                    else:
                        _turn(selector, key.data, oracle)
        finally:
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    key.data.socket.close()


def _accept(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    try:
        accepted, _ = listener.accept()
    except OSError:  # the client has gone, or no descriptor is free; the next one may work
        return
    if len(selector.get_map()) > CONNECTIONS_MAX:
        accepted.close()
        return
    accepted.setblocking(False)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector.register(accepted, selectors.EVENT_READ, _Peer(accepted))


def _turn(selector: selectors.BaseSelector, peer: _Peer, oracle: Oracle) -> None:
    try:
        if len(peer.unsent) < UNSENT_MAX and not peer.has_ended:
            _read(peer, oracle)
        if peer.unsent:
            del peer.unsent[: peer.socket.send(peer.unsent)]
    except (BlockingIOError, InterruptedError):
        pass
    except OSError:  # the client has gone
        peer.has_ended = True
        peer.unsent.clear()
    if peer.has_ended and not peer.unsent:
        selector.unregister(peer.socket)
        peer.socket.close()
        return
    is_full = len(peer.unsent) >= UNSENT_MAX or peer.has_ended
    wanted = (0 if is_full else selectors.EVENT_READ) | (selectors.EVENT_WRITE if peer.unsent else 0)
    selector.modify(peer.socket, wanted, peer)


def _read(peer: _Peer, oracle: Oracle) -> None:
    try:
        chunk = peer.socket.recv(CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return
    if chunk:
        peer.unsent += b"".join(peer.lines.answered(oracle, chunk))
    else:
        peer.unsent += peer.lines.last(oracle)
        peer.has_ended = True

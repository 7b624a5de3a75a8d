"""Serves the breakpoints of a Java broker's threads, and our connections to the broker, on one thread.

At a breakpoint (gate), a thread of the broker connects to this server, asks whether it may continue, and waits for the
answer (`byteman_rules`). `replay` decides when the thread may continue.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from attrs import define, field, frozen

from longpoll_java.byteman_rules import GO
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import Command, Connection, Signal, encode

ASKED: Final = re.compile(r"GET /(\w+)\?(\S*) HTTP/1\.[01]\Z")
QUESTION_MAX: Final = 8_192
"""The maximum bytes of a question, which contains the names of a topic and a thread."""
CONNECT_S: Final = 10.0
BACKLOG: Final = 64


@frozen
class Arrival:
    """A thread of the broker at a breakpoint."""

    gate: str
    thread: str
    topic: str
    queue: int
    """The number of the queue; -1 if it is unknown."""
    request: int
    """The opaque of the pull; -1 if it is unknown."""
    suspends: bool | None
    """Whether the pull may still be held; None if that is unknown."""
    at_s: float


@define(eq=False)
class Peer:
    """One of our connections to the broker."""

    socket: socket.socket
    received: Connection = field(factory=Connection)
    replies: dict[int, tuple[Command, float]] = field(factory=dict)
    """Maps each opaque to its reply and the reply's arrival time."""
    is_open: bool = True


class Breakpoints:
    """Receives arrivals of broker threads at breakpoints and the broker's replies, and lets waiting threads continue.

    A thread continues at once if `stops` returns False. Invariant: a broker thread waits at one breakpoint at most.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._standing: dict[str, tuple[Arrival, socket.socket]] = {}
        self.stops: Callable[[Arrival], bool] = lambda _arrival: False
        self.seen: list[Arrival] = []
        """Every arrival so far, in order."""
        self.last_s: dict[str, float] = {}
        """Maps each breakpoint to the time when a thread last arrived there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go(lambda _arrival: True)
        for key in list(self._selector.get_map().values()):
            self._forget(key.fileobj)  # type: ignore[arg-type] # only sockets are registered
        self._selector.close()

    @property
    def port(self) -> int:
        """The port that breakpoints connect to, on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    @property
    def standing(self) -> Mapping[str, Arrival]:
        """Maps each waiting thread to its arrival at its breakpoint."""
        return {thread: arrival for thread, (arrival, _) in self._standing.items()}

    def until(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """Serve all connections until the condition holds, for at most `within_s` seconds; returns whether it holds."""
        end_s = time.monotonic() + within_s
        while not is_so():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            for key, _ in self._selector.select(left_s):
                key.data()
        return True

    def answer(self, thread: str, word: str = GO) -> None:
        """Release a waiting thread, or make it throw. Raises KeyError if the thread does not wait."""
        _, asking = self._standing.pop(thread)
        _tell(asking, word)

    def let_go(self, whom: Callable[[Arrival], bool]) -> None:
        """Release all waiting threads whose arrival satisfies the condition."""
        for thread, arrival in self.standing.items():
            if whom(arrival):
                self.answer(thread)

    def connect(self, address: tuple[str, int]) -> Peer:
        """Open a connection to the broker; raises OSError."""
        peer = Peer(socket.create_connection(address, CONNECT_S))
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(peer.socket, selectors.EVENT_READ, lambda: self._receive(peer))
        return peer

    def send(self, peer: Peer, command: Command) -> None:
        """Send a request, and block until the kernel has all its bytes. Raises OSError if the connection is lost."""
        peer.socket.sendall(b"".join(map(bytes, encode(command))))

    def close(self, peer: Peer) -> None:
        """Close a connection immediately."""
        if peer.is_open:
            peer.is_open = False
            self._forget(peer.socket)

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.close(peer)
            return
        peer.received.receive_data(data)
        try:
            while not isinstance(event := peer.received.next_event(), Signal):
                peer.replies[event.opaque] = (event, time.monotonic())
        except RemoteProtocolError:
            self.close(peer)

    def _accept(self) -> None:
        asking, _ = self._listener.accept()
        read = bytearray()
        self._selector.register(asking, selectors.EVENT_READ, lambda: self._hear(asking, read))

    def _hear(self, asking: socket.socket, read: bytearray) -> None:
        try:
            data = asking.recv(QUESTION_MAX)
        except ConnectionError:
            data = b""
        read += data
        if data and b"\r\n\r\n" not in read and len(read) <= QUESTION_MAX:
            return
        arrival = _arrival(bytes(read))
        if arrival is None:
            self._forget(asking)
            return
        self._selector.unregister(asking)
        self.seen.append(arrival)
        self.last_s[arrival.gate] = arrival.at_s
        if self.stops(arrival):
            self._standing[arrival.thread] = (arrival, asking)
        else:
            _tell(asking, GO)

    def _forget(self, of: socket.socket) -> None:
        self._selector.unregister(of)
        of.close()


def _tell(asking: socket.socket, word: str) -> None:
    """Answer a thread's question. If the broker has exited, nothing is sent."""
    with asking:
        try:
            asking.sendall(
                f"HTTP/1.1 200 OK\r\nContent-Length: {len(word)}\r\nConnection: close\r\n\r\n{word}".encode()
            )
        except OSError:
            return


def _arrival(question: bytes) -> Arrival | None:
    """Parse the question of a thread; returns None if our rules do not send such a question."""
    line = question.partition(b"\r\n")[0].decode("utf-8", "replace")
    match = ASKED.match(line)
    if match is None:
        return None
    said: dict[str, str] = {}
    for part in match[2].split("&"):
        name, _, value = part.partition("=")
        said[name] = value
    try:
        queue, request = int(said.get("queue", "-1")), int(said.get("request", "-1"))
    except ValueError:
        return None
    suspends = {"true": True, "false": False}.get(said.get("suspends", ""))
    return Arrival(match[1], said.get("thread", ""), said.get("topic", ""), queue, request, suspends, time.monotonic())

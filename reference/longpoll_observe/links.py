"""The data of the relay: listeners for clients (doors), connections through the proxy (links), and their taps.

Decoding commands takes many times as long as relaying bytes. If the relay decoded each command at once, the next bytes
from the broker would wait in the kernel, and the time of their arrival would be unknown. Therefore the relay alternates
between relaying bytes and decoding commands for a short time (`relay_loop`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, Protocol

from attrs import define, field

from longpoll_observe.arrival_time import HELD_MAX, SETTLE_NS, ArrivalTimes
from longpoll_runtime import Address, Buffer, Listener, PlainSocket, Socket

Tell = Callable[[bytes, int, int], None]
"""A function that gets bytes and two times in nanoseconds. The bytes passed the proxy between these two times."""

PIECE_SIZE: Final = 32 * 1024
"""The number of bytes (about 150 small commands, which take 2 to 3 ms to decode) that a tap gets at once."""


class TapQueue:
    """A queue of calls to taps. Invariant: `size` is the total number of bytes in these calls."""

    __slots__ = ("calls", "size")

    def __init__(self) -> None:
        self.calls: deque[tuple[Callable[[], None], int]] = deque()
        self.size = 0

    def add(self, call: Callable[[], None]) -> None:
        """Add a call at the end of the queue."""
        self.calls.append((call, 0))

    def add_bytes(self, tell: Tell, content: bytes, after_ns: int, before_ns: int) -> None:
        """Add calls for these bytes, in pieces with the same times. A piece may begin or end within a command."""
        size = len(content)
        self.size += size
        if size <= PIECE_SIZE:
            self.calls.append((lambda: tell(content, after_ns, before_ns), size))
            return
        for start in range(0, size, PIECE_SIZE):
            piece = content[start : start + PIECE_SIZE]
            self.calls.append((partial(tell, piece, after_ns, before_ns), len(piece)))

    def tell(self, now_ns: Callable[[], int], turn_ns: int) -> None:
        """Make calls for about `turn_ns` nanoseconds, and at least one call."""
        calls = self.calls
        stop_ns = 0
        while calls:
            call, size = calls.popleft()
            self.size -= size
            call()
            if calls:
                if not stop_ns:
                    stop_ns = now_ns() + turn_ns
                elif now_ns() >= stop_ns:
                    return

    def tell_down_to(self, size: int) -> None:
        """Make calls until at most `size` bytes wait."""
        while self.size > size:
            call, told = self.calls.popleft()
            self.size -= told
            call()

    def tell_all(self) -> None:
        """Make every call."""
        while self.calls:
            call, told = self.calls.popleft()
            self.size -= told
            call()


Direction = Literal["answers", "requests"]
"""The direction of bytes that wait: answers if the client does not read, requests if the broker does not read."""


class Tap(Protocol):
    """An object that receives the bytes of one connection after the proxy has relayed them."""

    def opened(self, after_ns: int, before_ns: int) -> None:
        """Note that the client connected between the two times."""
        ...

    def forwarded(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """Receive the client's next bytes, which were passed to the broker's socket between the two times."""
        ...

    def answered(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """Receive the broker's next bytes, which arrived between the two times."""
        ...

    def blocked(self, direction: Direction, after_ns: int, before_ns: int) -> None:
        """Note that bytes began to wait for their receiver between the two times; the proxy may not see later bytes."""
        ...

    def unblocked(self, direction: Direction, after_ns: int, before_ns: int) -> None:
        """Note that all waiting bytes were received and seen at some time between the two times."""
        ...

    def closed(self, after_ns: int, before_ns: int) -> None:
        """Note that the client or the broker ended the connection between the two times."""
        ...


Rewrite = Callable[[bytes], bytes]
"""A function that converts the next bytes from the broker to the bytes for the client."""


@define(slots=True, eq=False)
class Door:
    """A listener for clients, with the broker or name server to which it relays and the recorder of its connections."""

    listener: Listener
    target: Address
    make_tap: Callable[[], tuple[Tap, Rewrite | None]]
    settle_ns: int = field(default=SETTLE_NS)
    """The round-trip time to the target, in nanoseconds."""
    held_max: int = field(default=HELD_MAX)
    """The maximum number of bytes that the target's kernel buffers for one connection."""
    is_down: bool = field(default=False, init=False)
    """Whether the last connection to the target failed, so that further failures are not logged."""

    @property
    def address(self) -> Address:
        """The address for clients."""
        return self.listener.address


@define(slots=True, eq=False)
class Visitor:
    """A client whose connection waits until the address of its broker is resolved."""

    door: Door
    socket: Socket
    peer: str
    came_ns: int


@define(slots=True, eq=False)
class Side:
    """One socket of a link: the client's or the broker's.

    Invariants: `out` has the bytes from the opposite socket that this socket has not accepted; the proxy reads the
    opposite socket only while `out` is empty. `stuck` has the times of the first incomplete send, until all of its
    bytes are sent.
    """

    socket: Socket
    arrivals: ArrivalTimes
    busy_pass: int
    """The number of the last pass of the I/O loop in which the socket was readable or was not watched for reading."""
    look_ns: int = field(default=0)
    """No look (check that the socket is empty) is recorded before this time, because more looks would add little
    precision."""
    out: Buffer = field(default=b"")
    reads: bool = field(default=False)
    writes: bool = field(default=False)
    """Whether the loop watches this socket for writing; `reads` says whether it watches the socket for reading."""
    stuck: tuple[int, int] | None = field(default=None)
    stuck_told: bool = field(default=False)
    link: Link = field(init=False)


@define(slots=True, eq=False)
class Link:
    """A client's connection and its connection to the broker."""

    door: Door
    tap: Tap
    rewrite: Rewrite | None
    client: Side
    broker: Side
    onward: PlainSocket
    """The socket of the connection to the broker."""
    peer: str
    opened_ns: int
    connected: bool = field(default=False)
    started: bool = field(default=False)
    """Whether the client's first byte was seen."""
    ending: tuple[int, int] | None = field(default=None)
    """The times between which one of the two sockets ended. The bytes that wait for the opposite socket are still sent.
    """
    half_closed: tuple[int, int] | None = field(default=None)
    """The times between which the client stopped sending; answers may still follow."""
    half_closed_told: bool = field(default=False)
    """Whether the broker was informed that the client stopped sending."""
    closed: bool = field(default=False)

    def other(self, side: Side) -> Side:
        """The opposite socket of the link."""
        return self.broker if side is self.client else self.client

"""What the relay keeps: doors, the links that clients made through them, the two sides of each, and their taps.

Leaves out moving bytes (`relay_loop`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from attrs import define, field

from longpoll_observe.arrival_time import HELD_MAX, SETTLE_NS, ArrivalTimes
from longpoll_runtime import Address, Buffer, Listener, PlainSocket, Socket

Direction = Literal["answers", "requests"]
"""Which bytes wait: those for a client that does not read, or those for a broker that does not."""


class Tap(Protocol):
    """Gets one connection's bytes to read; every call comes after the bytes have left."""

    def opened(self, after_ns: int, before_ns: int) -> None:
        """The client was connected between the two moments."""
        ...

    def forwarded(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """The client's next bytes were handed to the broker's socket between the two moments."""
        ...

    def answered(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """The broker's next bytes came between the two moments."""
        ...

    def blocked(self, direction: Direction, after_ns: int, before_ns: int) -> None:
        """Between the two moments bytes began to wait that their receiver does not take; sent ones may not be seen."""
        ...

    def unblocked(self, direction: Direction, after_ns: int, before_ns: int) -> None:
        """Between the two moments everything that had waited was taken and seen."""
        ...

    def closed(self, after_ns: int, before_ns: int) -> None:
        """The connection ended, on either side, between the two moments."""
        ...


Rewrite = Callable[[bytes], bytes]
"""From the broker's next bytes to those that the client is sent instead."""


@define(slots=True, eq=False)
class Door:
    """A listener, where its connections lead, and what is to be told of them."""

    listener: Listener
    target: Address
    make_tap: Callable[[], tuple[Tap, Rewrite | None]]
    settle_ns: int = field(default=SETTLE_NS)
    """What the way to the target and back may take."""
    held_max: int = field(default=HELD_MAX)
    """Most bytes that the target's kernel holds of a connection."""
    is_down: bool = field(default=False, init=False)
    """Whether the last connection to the target failed; said once."""

    @property
    def address(self) -> Address:
        """Where clients come to."""
        return self.listener.address


@define(slots=True, eq=False)
class Visitor:
    """A client that came through a door whose broker is not known by address yet."""

    door: Door
    socket: Socket
    peer: str
    came_ns: int


@define(slots=True, eq=False)
class Side:
    """One socket of a link.

    Invariants: `out` is what the other side sent and this one has not taken; the other side is read only while it is
    empty. `stuck` are the moments of the first send that was not taken whole, until all of that time is passed on.
    """

    socket: Socket
    arrivals: ArrivalTimes
    busy_pass: int
    """The last pass in which the socket was reported readable, or was not watched for that."""
    look_ns: int = field(default=0)
    """A poll that began before this tells too little of the socket to be noted."""
    out: Buffer = field(default=b"")
    reads: bool = field(default=False)
    writes: bool = field(default=False)
    """What the poller watches."""
    stuck: tuple[int, int] | None = field(default=None)
    stuck_told: bool = field(default=False)
    link: Link = field(init=False)


@define(slots=True, eq=False)
class Link:
    """A client's connection and the broker's that belongs to it."""

    door: Door
    tap: Tap
    rewrite: Rewrite | None
    client: Side
    broker: Side
    onward: PlainSocket
    """The broker's side's socket."""
    peer: str
    opened_ns: int
    connected: bool = field(default=False)
    started: bool = field(default=False)
    """The client's first byte was seen."""
    ending: tuple[int, int] | None = field(default=None)
    """One side has ended, between these moments; what waits for the other is still sent."""
    half_closed: tuple[int, int] | None = field(default=None)
    """The client said, between these moments, that it sends nothing more; it may still be answered."""
    half_closed_told: bool = field(default=False)
    """Whether the broker knows."""
    closed: bool = field(default=False)

    def other(self, side: Side) -> Side:
        """The opposite side."""
        return self.broker if side is self.client else self.client

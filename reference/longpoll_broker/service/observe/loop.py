"""Moves bytes between pairs of sockets on one thread, and knows between which moments they arrived.

One pass reads every ready socket and sends what came at once to the other side; only then are the taps told, so that
reading commands delays nobody's bytes. A side whose peer does not take its bytes is not read: no more than one chunk a
direction waits here.

When bytes came is an interval. A poll that does not report a socket has seen it empty at some moment after the poll
began; so bytes that the next pass reads came after that. The loop polls at least every `TICK_S`, which bounds the
interval without any assumption on how soon a sleeping thread is woken: a stall of this process widens the interval
and accuses nobody.

Leaves out what the bytes mean (`tap`, `routes`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from attrs import define, field

from longpoll_broker.runtime import Buffer, Listener, Poller, Runtime, Socket, Thread

log = logging.getLogger(__name__)

Address = tuple[str, int]
TICK_S: Final = 0.005
"""The longest poll while there are connections; the interval of an arrival is about twice as long at most."""
IDLE_S: Final = 1.0
"""The longest poll while there are none."""
CHUNK_SIZE: Final = 256 * 1024
"""Bytes asked of one socket before the next has its turn, and the most that wait for one that takes none."""
READY_MAX: Final = 1000
"""A poll that reports so many sockets may have left others unreported."""
CONNECT_S: Final = 3.0
"""How long a broker may take to accept a connection."""
ACCEPTS_MAX: Final = 256
ACCEPT_PAUSE_S: Final = 1.0
"""How long nothing is accepted after the operating system refused a connection."""
TLS_HANDSHAKE: Final = 0x16
"""First byte of a TLS connection; as the first byte of a frame it would announce 369 MB, far over the limit."""


class Tap(Protocol):
    """What is told of one connection's bytes; every call comes after the bytes have left."""

    def opened(self, after_ns: int) -> None:
        """The client is connected."""
        ...

    def forwarded(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """The client's next bytes were handed to the broker's socket between the two moments."""
        ...

    def answered(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """The broker's next bytes came between the two moments."""
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
    is_down: bool = field(default=False, init=False)
    """Whether the last connection to the target failed; said once."""

    @property
    def address(self) -> Address:
        """Where clients come to."""
        return self.listener.address


@define(slots=True, eq=False)
class Side:
    """One socket of a link.

    Invariants: `out` is what the other side sent and this one has not taken; the other side is read only while it is
    empty. `drained_ns` is a moment at which everything that had arrived was read.
    """

    socket: Socket
    drained_ns: int
    busy_pass: int
    """The last pass in which the socket was reported readable, or was not watched for that."""
    out: Buffer = field(default=b"")
    reads: bool = field(default=False)
    writes: bool = field(default=False)
    """What the poller watches."""
    link: Link = field(init=False)


@define(slots=True, eq=False)
class Link:
    """A client's connection and the broker's that belongs to it."""

    door: Door
    tap: Tap
    rewrite: Rewrite | None
    client: Side
    broker: Side
    peer: str
    opened_ns: int
    connected: bool = field(default=False)
    started: bool = field(default=False)
    """The client's first byte was seen."""
    ending: tuple[int, int] | None = field(default=None)
    """One side has ended, between these moments; what waits for the other is still sent."""
    closed: bool = field(default=False)

    def other(self, side: Side) -> Side:
        """The opposite side."""
        return self.broker if side is self.client else self.client


class RelayLoop:
    """One thread, one poller, any number of doors and links. Invariant: `_links` are the open ones."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._now_ns = runtime.monotonic_ns
        self.poller: Poller = runtime.poller()
        self._doors: list[Door] = []
        self._links: dict[Link, None] = {}
        self._connecting: dict[Link, None] = {}
        self._paused: list[Door] = []
        self._resume_ns = 0
        self._pass = 1
        self._begun_ns = self._quiet_ns = runtime.monotonic_ns()
        self._told: deque[Callable[[], None]] = deque()
        self._buffer = bytearray(CHUNK_SIZE)
        self._view = memoryview(self._buffer)
        self._stopping = False
        self._thread: Thread | None = None

    def add_door(self, door: Door) -> None:
        """Accept connections there; before `start`, or on the loop's thread."""
        self._doors.append(door)
        self.poller.register(door.listener, read=True, write=False, data=door)

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._runtime.spawn("relay", self._run)

    def stop(self) -> None:
        """Close every connection and door, and wait until the thread has ended."""
        self._stopping = True
        if self._thread is not None:
            self.poller.wake()
            self._thread.join()
        else:
            self._close_all()
        self.poller.close()

    @property
    def link_count(self) -> int:
        """Open connections of clients."""
        return len(self._links)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            begun_ns = self._now_ns()
            ready = self.poller.poll(TICK_S if self._links else IDLE_S)
            self._pass += 1
            for data, readable, writable in ready:
                if type(data) is Side:
                    self._serve(data, readable, writable)
                else:
                    assert type(data) is Door
                    self._accept(data)
            self._tell()
            if self._connecting or self._paused:
                self._look_at_clock(begun_ns)
            if len(ready) < READY_MAX:
                self._quiet_ns = begun_ns
        self._close_all()

    def _tell(self) -> None:
        while self._told:
            self._told.popleft()()

    def _serve(self, side: Side, readable: bool, writable: bool) -> None:
        link = side.link
        if link.closed:
            return
        if side is link.broker and not link.connected:
            self._finish_connect(link)
        if writable and side.writes and not link.closed:
            self._flush(side)
        if readable and side.reads and not link.closed:
            self._receive(side)

    def _receive(self, side: Side) -> None:
        """Read once and pass on what came."""
        link = side.link
        after_ns = self._quiet_ns if side.busy_pass < self._pass - 1 else side.drained_ns
        side.busy_pass = self._pass
        begun_ns = self._now_ns()
        try:
            size = side.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        before_ns = self._now_ns()
        side.drained_ns = begun_ns if size < CHUNK_SIZE else after_ns
        if size == 0:
            self._end(link, side, after_ns, before_ns)
            return
        content = bytes(self._view[:size])
        if side is link.client:
            if not link.started and not self._start(link, content):
                return
            self._pass_on(link.broker, content)
            return
        self._told.append(lambda: link.tap.answered(content, after_ns, before_ns))
        if link.rewrite is None:
            self._pass_on(link.client, content)
        else:
            # What is rewritten answers a request that the tap must have been told of.
            self._tell()
            self._pass_on(link.client, link.rewrite(content))

    def _start(self, link: Link, content: bytes) -> bool:
        """Look at a client's first byte; false when the connection is refused."""
        link.started = True
        if content[0] != TLS_HANDSHAKE:
            return True
        log.warning(
            "%s begins a TLS connection, which cannot be observed: closing it; let the client speak plain text to the "
            "proxy (Java: tls.enable=false)",
            link.peer,
        )
        self._close(link, link.opened_ns, self._now_ns())
        return False

    def _pass_on(self, side: Side, content: bytes) -> None:
        """Send to one side, or keep for it what it does not take and stop reading the other."""
        if not content:
            return
        assert not side.out, "a side with bytes waiting is not sent more"
        side.out = content
        if side is side.link.client or side.link.connected:
            self._flush(side)
        else:
            self._watch(side.link.client)

    def _flush(self, side: Side) -> None:
        link = side.link
        content = side.out
        if content:
            after_ns = self._now_ns()
            try:
                size = side.socket.send(content)
            except BlockingIOError:
                size = 0
            except OSError:
                side.out = b""
                self._close(link, side.drained_ns, self._now_ns())
                return
            side.out = b"" if size == len(content) else memoryview(content)[size:]
            if side is link.broker and size:
                before_ns = self._now_ns()
                sent = content if size == len(content) and type(content) is bytes else bytes(content[:size])
                self._told.append(lambda: link.tap.forwarded(sent, after_ns, before_ns))
        if link.ending is not None and not side.out:
            self._close(link, *link.ending)
            return
        self._watch(side)
        self._watch(link.other(side))

    # -- opening and closing -----------------------------------------------------------------------------------------

    def _accept(self, door: Door) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, peer = door.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("a connection could not be accepted: %s; trying again in %.0f s", error, ACCEPT_PAUSE_S)
                self._paused.append(door)
                self._resume_ns = self._now_ns() + int(ACCEPT_PAUSE_S * 1e9)
                self.poller.modify(door.listener, read=False, write=False, data=door)
                return
            self._open(door, accepted, f"{peer[0]}:{peer[1]}")

    def _open(self, door: Door, accepted: Socket, peer: str) -> None:
        now_ns = self._now_ns()
        try:
            onward = self._runtime.begin_connect(*door.target)
        except OSError as error:
            self._say_down(door, str(error))
            accepted.close()
            return
        tap, rewrite = door.make_tap()
        link = Link(
            door,
            tap,
            rewrite,
            client=Side(accepted, now_ns, self._pass),
            broker=Side(onward, now_ns, self._pass),
            peer=peer,
            opened_ns=now_ns,
        )
        link.client.link = link.broker.link = link
        self._links[link] = None
        self._connecting[link] = None
        self._told.append(lambda: tap.opened(now_ns))
        self._watch(link.client)
        self._watch(link.broker)

    def _finish_connect(self, link: Link) -> None:
        """The broker's socket was reported: it is connected, or will not be."""
        try:
            # Sends nothing; a connection that failed says so.
            link.broker.socket.send(b"")
        except BlockingIOError:
            return
        except OSError as error:
            self._say_down(link.door, str(error))
            self._close(link, link.opened_ns, self._now_ns())
            return
        link.connected = True
        self._connecting.pop(link, None)
        if link.door.is_down:
            link.door.is_down = False
            log.warning("%s:%d answers again", *link.door.target)
        self._flush(link.broker)

    def _say_down(self, door: Door, why: str) -> None:
        if not door.is_down:
            door.is_down = True
            log.warning("%s:%d cannot be reached (%s): closing the connections that come for it", *door.target, why)

    def _end(self, link: Link, side: Side, after_ns: int, before_ns: int) -> None:
        """One side has ended: send the other what waits for it, then close both."""
        if link.other(side).out:
            link.ending = (after_ns, before_ns)
            self._watch(side)
            self._watch(link.other(side))
        else:
            self._close(link, after_ns, before_ns)

    def _close(self, link: Link, after_ns: int, before_ns: int) -> None:
        if link.closed:
            return
        link.closed = True
        self._links.pop(link, None)
        self._connecting.pop(link, None)
        for side in (link.client, link.broker):
            if side.reads or side.writes:
                self.poller.unregister(side.socket)
            side.reads = side.writes = False
            side.out = b""
            side.socket.close()
        self._told.append(lambda: link.tap.closed(after_ns, before_ns))

    def _watch(self, side: Side) -> None:
        """Have the poller watch what can be done with a side."""
        link = side.link
        if link.closed:
            return
        reads = not link.other(side).out and link.ending is None
        writes = bool(side.out) or (side is link.broker and not link.connected)
        if (reads, writes) == (side.reads, side.writes):
            return
        if reads and not side.reads:
            # It was not watched until now, so no earlier poll can have seen it empty.
            side.busy_pass = self._pass
        if not (reads or writes):
            self.poller.unregister(side.socket)
        elif side.reads or side.writes:
            self.poller.modify(side.socket, read=reads, write=writes, data=side)
        else:
            self.poller.register(side.socket, read=reads, write=writes, data=side)
        side.reads, side.writes = reads, writes

    def _look_at_clock(self, now_ns: int) -> None:
        for link in [link for link in self._connecting if now_ns - link.opened_ns > CONNECT_S * 1e9]:
            self._say_down(link.door, f"no answer in {CONNECT_S:g} s")
            self._close(link, link.opened_ns, now_ns)
        if self._paused and now_ns >= self._resume_ns:
            for door in self._paused:
                self.poller.modify(door.listener, read=True, write=False, data=door)
            self._paused.clear()
        self._tell()

    def _close_all(self) -> None:
        for door in self._doors:
            self.poller.unregister(door.listener)
            door.listener.close()
        for link in list(self._links):
            self._close(link, self._quiet_ns, self._now_ns())
        self._tell()

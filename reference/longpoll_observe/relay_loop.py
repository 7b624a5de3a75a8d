"""Relays bytes between pairs of sockets on one thread, and bounds when they arrived.

One pass of the loop reads every ready socket and sends the bytes to the opposite socket at once. The taps then decode
bytes for up to `TURN_NS`, and the remaining bytes wait in a `TapQueue`, so that decoding delays no relaying. While too
many bytes wait, the loop does not read from clients. The brokers then get no new requests, but the loop still reads
their answers at once, so the times of a busy connection stay precise. If a socket does not accept bytes, the loop does
not read the opposite socket either, so at most one chunk waits per direction.

The arrival of bytes is an interval. If a poll does not report a socket, the socket was empty at some time after the
poll began, so the bytes of the next pass arrived later. The loop polls at least every `TICK_S`, which bounds the
interval however late a thread wakes. A pause of this process widens the interval, but causes no false finding.
`arrival_time` bounds the send times.

`tap` and `routes` decode the commands, and `links` holds the data of the connections.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from longpoll_observe.arrival_time import FIRST_FLIGHT, ArrivalTimes
from longpoll_observe.links import Direction, Door, Link, Side, TapQueue, Visitor
from longpoll_observe.name_lookup import NameLookup, is_literal
from longpoll_runtime import Poller, Runtime, Thread

log = logging.getLogger(__name__)

TICK_S: Final = 0.005
"""The longest poll with open connections, in seconds. The interval in which bytes can have arrived is at most about
twice as long."""
IDLE_S: Final = 1.0
"""The longest poll without connections, in seconds."""
ROUND_NS: Final = 5_000_000
"""The minimum time in ns between two acknowledgements on a connection, and between two checks for the third rule."""
LOOK_NS: Final = 1_000_000
"""The minimum time in ns between two recorded checks of an idle connection, because more would add little precision."""
TURN_NS: Final = 1_000_000
"""How many nanoseconds the taps may decode before the sockets are checked again."""
UNTOLD_STOP: Final = 8 * 1024 * 1024
"""The number of undecoded bytes above which the loop does not read from clients."""
UNTOLD_GO: Final = UNTOLD_STOP // 2
"""The number of undecoded bytes below which the loop reads from clients again."""
UNTOLD_MAX: Final = 64 * 1024 * 1024
"""The number of undecoded bytes above which the loop does not read from brokers either, so that times get less precise.
"""
CHUNK_SIZE: Final = 256 * 1024
"""The maximum number of bytes that one pass reads from a socket, which is also the maximum that waits for a receiver.
"""
READY_MAX: Final = 1000
"""The maximum number of sockets that a poll reports. If a poll reports so many, other sockets may be ready too."""
CONNECT_S: Final = 3.0
"""The seconds that a broker may take to accept a connection."""
ACCEPTS_MAX: Final = 256
ACCEPT_PAUSE_S: Final = 1.0
"""The seconds for which no connection is accepted after the operating system refused one."""
BLOCKED_NS: Final = 25_000_000
"""The loop reports a blocked socket only after this time in ns, because shorter pauses only widen later intervals."""
TLS_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection. As the first byte of a frame, it would announce a frame of 369 MB, far over the
limit."""


class RelayLoop:
    """Relays all connections on one thread, with one poller. Invariant: `_links` contains all open links."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._now_ns = runtime.monotonic_ns
        self.poller: Poller = runtime.poller()
        self._doors: list[Door] = []
        self._links: dict[Link, None] = {}
        self._connecting: dict[Link, None] = {}
        self._stuck: dict[Side, None] = {}
        self._owing: dict[Side, None] = {}
        """The sides from which bytes were read that are not acknowledged yet."""
        self._round_ns = 0
        """The time from which the sides in `_owing` may be acknowledged again."""
        self._paused: list[Door] = []
        self._resume_ns = 0
        self._pass = 1
        self._begun_ns = self._quiet_ns = runtime.monotonic_ns()
        self.untold = TapQueue()
        self._is_behind = False
        """Whether clients are not read at the moment, because too many bytes are undecoded."""
        self._names = NameLookup(runtime, self.poller.wake)
        self._buffer = bytearray(CHUNK_SIZE)
        self._view = memoryview(self._buffer)
        self._stopping = False
        self._thread: Thread | None = None

    def add_door(self, door: Door) -> None:
        """Accept connections at a door; call this before `start`, or on the loop's thread."""
        self._doors.append(door)
        if not is_literal(door.target[0]):
            self._names.start()
        self.poller.register(door.listener, read=True, write=False, data=door)

    def start(self) -> None:
        """Start the thread of the loop."""
        self._thread = self._runtime.spawn("relay", self._run)

    def stop(self) -> None:
        """Close every connection and door, and join the thread."""
        self._stopping = True
        if self._thread is not None:
            self.poller.wake()
            self._thread.join()
        else:
            self._close_all()
        self._names.stop()
        self.poller.close()

    @property
    def link_count(self) -> int:
        """The number of open client connections."""
        return len(self._links)

    def _run(self) -> None:
        untold, visitors = self.untold.calls, self._names.waiting
        while not self._stopping:
            begun_ns = self._now_ns()
            ready = self.poller.poll(0 if untold else TICK_S if self._links or visitors else IDLE_S)
            self._pass += 1
            for data, readable, writable in ready:
                if type(data) is Side:
                    self._serve(data, readable, writable)
                else:
                    assert type(data) is Door
                    self._accept(data)
            if self._owing and begun_ns >= self._round_ns:
                self._acknowledge_all(begun_ns)
            if untold:
                self._tell()
            if self._connecting or self._paused or self._stuck or visitors:
                self._look_at_clock(begun_ns)
            if len(ready) < READY_MAX:
                self._quiet_ns = begun_ns
        self._close_all()

    def _tell(self) -> None:
        """Pass bytes to the taps for up to `TURN_NS`; stop reading from clients if too many bytes still wait."""
        untold = self.untold
        untold.tell(self._now_ns, TURN_NS)
        if not untold.size and not self._is_behind:
            return
        untold.tell_down_to(UNTOLD_MAX)
        is_behind = untold.size > (UNTOLD_GO if self._is_behind else UNTOLD_STOP)
        if is_behind is not self._is_behind:
            self._is_behind = is_behind
            for link in self._links:
                self._watch(link.client)

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
        link, arrivals = side.link, side.arrivals
        if side.busy_pass < self._pass - 1 and self._quiet_ns >= side.look_ns:
            self._note_quiet(side)
        side.busy_pass = self._pass
        after_ns = arrivals.since_ns
        try:
            size = side.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            self._end(link, side, after_ns, self._now_ns())
            return
        before_ns = self._now_ns()
        if size == 0:
            if side is link.client:
                self._half_close(link, after_ns, before_ns)
            else:
                arrivals.ended(before_ns)
                self._end(link, side, after_ns, before_ns)
            return
        arrivals.read += size
        self._owing[side] = None
        content = bytes(self._view[:size])
        if side is link.client:
            if link.started or self._start(link, content):
                self._pass_on(link.broker, content)
        elif link.rewrite is None:
            self.untold.add_bytes(link.tap.answered, content, after_ns, before_ns)
            self._pass_on(link.client, content)
        else:
            self._pass_on(link.client, link.rewrite(content))

    def _note_quiet(self, side: Side) -> None:
        """Record that a socket was empty, if a poll watched the socket and did not report it."""
        if side.busy_pass < self._pass - 1:
            side.look_ns = self._quiet_ns + LOOK_NS
            side.arrivals.looked(self._quiet_ns, side.arrivals.read)

    def _acknowledge_all(self, now_ns: int) -> None:
        owing, self._owing = self._owing, {}
        self._round_ns = now_ns + ROUND_NS
        for side in owing:
            link, arrivals = side.link, side.arrivals
            if side is link.broker:
                self._acknowledge(link, arrivals)
            else:
                # On the client's side, the bound is used only for the end of the stream, and a kernel sends the end
                # without waiting for an acknowledgement.
                arrivals.acknowledged(now_ns, arrivals.read + FIRST_FLIGHT)

    def _acknowledge(self, link: Link, arrivals: ArrivalTimes) -> None:
        """Acknowledge bytes, so that the broker's kernel releases bytes that it holds, and record the time."""
        begun_ns = self._now_ns()
        try:
            link.onward.acknowledge()
            come, room = link.onward.arrived()
        except OSError:
            # The connection is broken, which the next read reports.
            return
        if come >= arrivals.read:
            arrivals.looked(begun_ns, come)
        if come == arrivals.read:
            arrivals.acknowledged(self._now_ns(), come + room)

    def _start(self, link: Link, content: bytes) -> bool:
        """Check a client's first byte; returns false if the connection is refused."""
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
        """Send bytes to one socket. Keep bytes that it does not accept, and then do not read the opposite socket."""
        if not content:
            return
        assert not side.out, "a side with bytes waiting is not sent more"
        side.out = content
        if side is side.link.client or side.link.connected:
            self._flush(side)
        else:
            self._watch(side.link.client)

    def _flush(self, side: Side) -> None:
        """Send waiting bytes, and update for which events the sockets are watched."""
        link = side.link
        if side.out and not self._send(side):
            return
        if not side.out:
            if link.ending is not None:
                self._close(link, *link.ending)
                return
            if link.half_closed is None and link.connected and not side.writes and link.other(side).reads:
                # No bytes wait or have waited, so the sockets are watched for the same events as before.
                return
        if link.half_closed is not None and side is link.broker:
            self._pass_half_close(link)
        self._watch(side)
        self._watch(link.other(side))

    def _send(self, side: Side) -> bool:
        """Send once; returns false if an error closed the link."""
        link, content = side.link, side.out
        after_ns = self._now_ns()
        try:
            size = side.socket.send(content)
        except BlockingIOError:
            size = 0
        except OSError:
            side.out = b""
            self._close(link, side.arrivals.since_ns, self._now_ns())
            return False
        if size == len(content):
            side.out = b""
        else:
            side.out = memoryview(content)[size:]
            if side.stuck is None:
                side.stuck = after_ns, self._now_ns()
                self._stuck[side] = None
        if side is link.broker and size:
            before_ns = self._now_ns()
            sent = content if size == len(content) and type(content) is bytes else bytes(content[:size])
            if link.rewrite is None:
                self.untold.add_bytes(link.tap.forwarded, sent, after_ns, before_ns)
            else:
                # The tap must know the request before the answer is rewritten.
                link.tap.forwarded(sent, after_ns, before_ns)
        return True

    def _look_at_stuck(self) -> None:
        """Report sockets that have been blocked for `BLOCKED_NS`, and sockets that are no longer blocked."""
        now_ns = self._now_ns()
        for side in list(self._stuck):
            link, stuck = side.link, side.stuck
            assert stuck is not None
            direction: Direction = "answers" if side is link.client else "requests"
            since_ns = stuck[1]
            if side is link.client:
                self._note_quiet(link.broker)
                since_ns = link.broker.arrivals.since_ns
            if not side.out and since_ns >= stuck[1]:
                if side.stuck_told:
                    self.untold.add(partial(link.tap.unblocked, direction, stuck[1], now_ns))
                self._unstick(side)
            elif not side.stuck_told and now_ns - stuck[1] > BLOCKED_NS:
                side.stuck_told = True
                self.untold.add(partial(link.tap.blocked, direction, *stuck))

    def _unstick(self, side: Side) -> None:
        self._stuck.pop(side, None)
        side.stuck, side.stuck_told = None, False

    def _tell_unseen(self, link: Link) -> None:
        """At the end of a connection, report that answers may be unseen, unless its socket was recently seen empty."""
        if not link.client.stuck_told:
            self._note_quiet(link.broker)
            since_ns, now_ns = link.broker.arrivals.since_ns, self._now_ns()
            if now_ns - since_ns > BLOCKED_NS:
                self.untold.add(partial(link.tap.blocked, "answers", since_ns, now_ns))

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
            self._admit(Visitor(door, accepted, f"{peer[0]}:{peer[1]}", self._now_ns()))

    def _admit(self, visitor: Visitor) -> None:
        host, _port = visitor.door.target
        if is_literal(host):
            self._open(visitor, host)
        elif not self._names.admit(visitor):
            visitor.socket.close()

    def _turn_away(self, visitor: Visitor, why: str) -> None:
        self._say_down(visitor.door, why)
        visitor.socket.close()

    def _open(self, visitor: Visitor, address: str) -> None:
        door, accepted, now_ns = visitor.door, visitor.socket, self._now_ns()
        try:
            onward = self._runtime.begin_connect(address, door.target[1])
        except OSError as error:
            self._turn_away(visitor, str(error))
            return
        tap, rewrite = door.make_tap()
        link = Link(
            door,
            tap,
            rewrite,
            client=Side(accepted, ArrivalTimes(now_ns), self._pass),
            broker=Side(onward, ArrivalTimes(now_ns, door.settle_ns, door.held_max), self._pass),
            onward=onward,
            peer=visitor.peer,
            opened_ns=now_ns,
        )
        link.client.link = link.broker.link = link
        self._links[link] = None
        self._connecting[link] = None
        self.untold.add(partial(tap.opened, now_ns, self._now_ns()))
        self._watch(link.client)
        self._watch(link.broker)

    def _finish_connect(self, link: Link) -> None:
        """Complete a connection to the broker when its socket is ready, or report that it failed."""
        try:
            # Sending zero bytes raises the error if the connection failed.
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

    def _half_close(self, link: Link, after_ns: int, before_ns: int) -> None:
        """Pass on to the broker, after the last byte, that the client stopped sending. Answers may still follow."""
        link.half_closed = (after_ns, before_ns)
        self._pass_half_close(link)
        self._watch(link.client)

    def _pass_half_close(self, link: Link) -> None:
        if link.half_closed_told or link.broker.out or not link.connected or link.half_closed is None:
            return
        link.half_closed_told = True
        try:
            link.onward.end_sending()
        except OSError:
            self._close(link, link.half_closed[0], self._now_ns())

    def _end(self, link: Link, side: Side, after_ns: int, before_ns: int) -> None:
        """Handle the end of one socket: send the bytes that wait for the opposite socket, and then close both."""
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
        if link.connected:
            self._tell_unseen(link)
        if link.half_closed is not None:
            after_ns = link.half_closed[0]
        self._links.pop(link, None)
        self._connecting.pop(link, None)
        for side in (link.client, link.broker):
            if side.reads or side.writes:
                self.poller.unregister(side.socket)
            side.reads = side.writes = False
            side.out = b""
            self._unstick(side)
            self._owing.pop(side, None)
            side.socket.close()
        self.untold.add(partial(link.tap.closed, after_ns, before_ns))

    def _watch(self, side: Side) -> None:
        link = side.link
        if link.closed:
            return
        reads = not link.other(side).out and link.ending is None
        if side is link.client:
            reads = reads and link.half_closed is None and not self._is_behind
        writes = bool(side.out) or (side is link.broker and not link.connected)
        if (reads, writes) == (side.reads, side.writes):
            return
        if reads and not side.reads:
            # The loop did not watch the socket until now, so no earlier poll can have seen it empty.
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
        if self._stuck:
            self._look_at_stuck()
        for visitor, found in self._names.answered():
            if isinstance(found, str):
                self._open(visitor, found)
            else:
                self._turn_away(visitor, str(found))
        for visitor in self._names.overdue(now_ns - int(CONNECT_S * 1e9)):
            self._turn_away(visitor, f"its name was not found in {CONNECT_S:g} s")

    def _close_all(self) -> None:
        for door in self._doors:
            self.poller.unregister(door.listener)
            door.listener.close()
        for link in list(self._links):
            self._close(link, self._quiet_ns, self._now_ns())
        self.untold.tell_all()

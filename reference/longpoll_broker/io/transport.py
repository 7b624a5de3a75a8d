"""The I/O loop, which serves many connections on one thread.

One pass of a loop reads every ready connection, hands each complete command to its listener's handler, calls
`PassEnd.end_pass` (for a broker `BrokerHandler.end_pass`), and then writes. Therefore all answers to one connection are
sent in one system call, and no thread switch is needed to answer a send and the pulls that it wakes. If one command of
a connection takes long, the connection's other commands wait for the next pass.

An error while serving a connection closes that connection; the loop continues.

The state of a connection, and writing to it: see `io.channel`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, Protocol

from attrs import define, field, frozen

from longpoll_broker.io.channel import BytesByPeer, Channel, ConnectionLimit, Connections, Handler, Limits, Outbox
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import Command
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Listener, Poller, Runtime, Socket, Thread
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS, KeepGoing

log = logging.getLogger(__name__)

RECEIVE_SIZE: Final = 256 * 1024
"""Maximum number of bytes that one pass of the I/O loop reads from a connection."""
LARGE_SIZE: Final = 64 * KIB
"""A connection with at least this many unserved bytes is treated as slow and is served after the quick connections."""
QUEUED_SIZE_MAX: Final = 32 * KIB
"""Maximum number of bytes queued for one connection in a pass of the I/O loop. Above this limit, the bytes are sent.

The limit equals the answers to about four pulls of 32 small messages each. With twice this limit, all eight pulls in
flight would be served before the first answer is sent, so client and broker would work alternately instead of
concurrently."""
TURN_NS_MAX: Final = 5_000_000
"""Maximum time slice (turn) of one connection in a pass, ns. The last request of a time slice may exceed the maximum.
"""
PASS_NS: Final = 10_000_000
"""Time that all ready connections share in one pass, ns. With more ready connections, each connection gets a shorter
time slice."""
TURN_NS_MIN: Final = 250_000
"""Minimum time slice of a connection if many connections are ready, ns. Shorter time slices would spend more time on
switching."""
RESTS_MAX: Final = 8
"""Maximum number of slow connections (long requests or large answers) that one pass serves; they share `PASS_NS`."""
ACCEPTS_MAX: Final = 256
"""Maximum number of connections that are accepted before the open connections are served."""
CLOSES_MAX: Final = 64
"""Maximum number of connections that one pass of the I/O loop closes, which takes a few milliseconds. Later passes
close further connections."""
LINGER_S: Final = 2.0
"""How long a stopping loop waits for peers to read their answers, seconds."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long a loop accepts no connection after the operating system refused to accept one, seconds."""
IDLE_CHECK_S: Final = 10.0
"""Interval between checks for idle channels, and maximum sleep of a loop, seconds."""
STOPPING: Final = "the broker stops"
CANNOT_BE_SERVED: Final = "the broker failed at it"


class Clock(Protocol):
    """Scheduled work that one loop runs when it is due."""

    def wait_s(self) -> float | None:
        """Returns the seconds until `run` is needed, or None if no work is scheduled. `run` may be called earlier."""
        ...

    def run(self, outbox: Outbox) -> None:
        """Do the work that is due."""
        ...


class PassEnd(Protocol):
    """Work that the I/O loop does after it has served the ready connections and before it sends their answers."""

    @property
    def has_more(self) -> bool:
        """Whether more work waits, so that another pass must start at once."""
        ...

    def end_pass(self, outbox: Outbox) -> None:
        """Do the work that is common to all requests which the loop has served since the last call."""
        ...


@define(slots=True, eq=False)
class Totals:
    """Counts the connections and bytes of all loops of a broker together."""

    unfinished: BytesByPeer[Channel]
    unsent: BytesByPeer[Channel]
    connections: Connections
    reached: Counter[ConnectionLimit] = field(factory=Counter, init=False)
    """Number of closed connections by the limit that closed them; only approximate on other threads."""

    @classmethod
    def of(cls, runtime: Runtime, limits: Limits) -> Totals:
        """Create the totals for these limits, all zero."""
        return cls(
            BytesByPeer(limits.unfinished_bytes_max, runtime.lock()),
            BytesByPeer(limits.unsent_bytes_max, runtime.lock()),
            Connections(limits.connection_count_max, limits.address_connection_count_max, runtime.lock()),
        )


@define(slots=True, eq=False)
class _Binding:
    listener: Listener
    handler: Handler


@frozen
class _Accepted:
    sock: Socket
    peer: tuple[str, int]
    handler: Handler
    number: int


class IoLoop:
    """One thread, one poller, any number of listeners and channels.

    Invariant: `_channels` has exactly the registered, open channels of this loop; only its thread changes it.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        limits: Limits,
        *,
        pass_end: PassEnd | None = None,
        clock: Clock | None = None,
        totals: Totals | None = None,
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._limits = limits
        self._pass_end = pass_end
        self._clock = clock
        self._totals = Totals.of(runtime, limits) if totals is None else totals
        """Shared with the broker's other loops."""
        self.poller: Poller = runtime.poller()
        self.outbox = Outbox()
        self._bindings: list[_Binding] = []
        self._channels: dict[Channel, None] = {}
        self._to_close: deque[Channel] = deque()
        self._leaving: dict[Channel, tuple[str, ConnectionLimit | None]] = {}
        """Channels to close in later passes, with the reason."""
        self._closes_left = CLOSES_MAX
        self._turn_ns = TURN_NS_MAX
        self._to_adopt: deque[_Accepted] = deque()
        self._unfinished: dict[Channel, None] = {}
        """Channels with unserved commands; nothing more is read from them until these are served."""
        self._is_turn_of_new = False
        """Whether the last slow turn went to a channel that had no turn before."""
        self._unread: dict[Channel, None] = {}
        """New or slow channels that were ready but not read for lack of time."""
        self._stopping = False
        self._numbers = 0
        self._idle_check_ns = 0
        self._paused: list[_Binding] = []
        self._resume_ns = 0
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)
        self._peers: list[IoLoop] = [self]
        self._thread: Thread | None = None

    @property
    def channel_count(self) -> int:
        """Number of open connections of this loop; only approximate on other threads."""
        return len(self._channels)

    # -- before the start, and from other threads --------------------------------------------------------------------

    def add_listener(self, listener: Listener, handler: Handler) -> None:
        """Serve a listener. Call before `start`."""
        binding = _Binding(listener, handler)
        self._bindings.append(binding)
        self.poller.register(listener, read=True, write=False, data=binding)

    def share_with(self, loops: Sequence[IoLoop]) -> None:
        """Distribute accepted connections over these loops in turn. Call before `start`."""
        self._peers = list(loops)

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._runtime.spawn(self._name, self._run)

    def wake(self) -> None:
        """Make the loop check its connections and due work now, instead of waiting for the next event."""
        self.poller.wake()

    def close_soon(self, channel: Channel) -> None:
        """Ask the loop to close a channel; callable from any thread."""
        self._to_close.append(channel)
        self.poller.wake()

    def stop(self) -> None:
        """Stop listening, send the queued answers, close every channel, and join the thread."""
        if self._thread is None:
            self._close_all()
        else:
            self._stopping = True
            self.poller.wake()
            self._thread.join()
            self._thread = None
        self.poller.close()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        clock = self._clock
        while not self._stopping:
            wait_s = clock.wait_s() if clock is not None else None
            has_more = self._unfinished or self._leaving or (self._pass_end is not None and self._pass_end.has_more)
            wait_s_max = 0.0 if has_more else ACCEPT_PAUSE_S if self._paused else IDLE_CHECK_S
            ready = self.poller.poll(wait_s_max if wait_s is None or wait_s > wait_s_max else wait_s)
            self._run_pass(ready)
            if clock is not None:
                try:
                    clock.run(self.outbox)
                except FAULTS:
                    log.exception("what was due could not be done")
            self.outbox.flush()
            while self._to_close:
                channel = self._to_close.popleft()
                self._close_in_turn(channel, channel.close_reason, channel.reached)
        self._linger()
        self._close_all()

    def _run_pass(self, ready: list[tuple[object, bool, bool]]) -> None:
        """Read every ready connection and run the handlers; answers are written at the end."""
        now_ns = self._runtime.monotonic_ns()
        self._close_those_leaving()
        self._look_after_connections(now_ns)
        unfinished, self._unfinished = self._unfinished, {}
        self._turn_ns = min(max(PASS_NS // (len(ready) + len(unfinished) + 1), TURN_NS_MIN), TURN_NS_MAX)
        # Begin with the channels that the last pass had no time to read.
        slow, self._unread = self._unread, {}
        for data, readable, writable in ready:
            if type(data) is Channel:
                if writable:
                    data.flush()
                if not readable or data.closed or data.broken or data in unfinished:
                    continue
                if data.is_slow:
                    slow[data] = None
                elif (size := self._receive(data, now_ns)) and size + data.unfinished_size >= LARGE_SIZE:
                    # Serving much input takes long, and a single send of another client must not wait behind fifty such
                    # batches.
                    data.is_slow = True
                    unfinished[data] = None
                elif size:
                    self._serve(data)
            elif type(data) is _Binding:
                with KeepGoing(log, "a connection could not be accepted"):
                    self._accept(data)
        self._receive_slow(list(slow), unfinished, now_ns)
        self._serve_unfinished(list(unfinished))
        if self._pass_end is not None:
            self._end_pass(self._pass_end)

    def _end_pass(self, pass_end: PassEnd) -> None:
        try:
            pass_end.end_pass(self.outbox)
        except FAULTS:
            log.exception("a pass could not be ended")

    def _receive_slow(self, channels: Sequence[Channel], unfinished: dict[Channel, None], now_ns: int) -> None:
        """Read from new or slow channels, after the quick channels, within the time of a pass.

        The channels read here are served after the channels that already have unserved commands. One read may take a
        millisecond, because it may do a TLS handshake.
        """
        if not channels:
            return
        clock_ns = self._runtime.monotonic_ns
        end_ns = clock_ns() + PASS_NS
        # Known and new channels alternate, because a thousand handshakes make the time slices so short that a known
        # channel is soon classified as slow.
        pairs = zip_longest((one for one in channels if not one.is_new), (one for one in channels if one.is_new))
        channels = [channel for pair in pairs for channel in pair if channel is not None]
        for number, channel in enumerate(channels):
            if channel.closed or channel.broken or channel in unfinished:
                continue
            if self._receive(channel, now_ns):
                unfinished[channel] = None
            if clock_ns() > end_ns:
                self._unread = dict.fromkeys(channels[number + 1 :])
                return

    def _serve_unfinished(self, channels: list[Channel]) -> None:
        """Continue with channels that have unserved commands, but with only a few slow channels per pass.

        As many new channels are served as the pass has time for, because the connections of short-lived clients would
        otherwise accumulate.
        """
        if not channels:
            return
        now_ns = self._runtime.monotonic_ns
        known: deque[Channel] = deque()
        new: deque[Channel] = deque()
        for channel in channels:
            if channel.rest is not None or channel.is_heavy or channel.is_slow:
                (new if channel.is_new else known).append(channel)
            elif not (channel.closed or channel.broken):
                self._serve(channel)
        end_ns = now_ns() + PASS_NS
        rests_left = RESTS_MAX
        while new or (known and rests_left):
            # New and known channels alternate, because a known channel may be slow once and must not wait for a flood
            # of new channels.
            self._is_turn_of_new = not self._is_turn_of_new
            is_rest = bool(known and rests_left) and not (self._is_turn_of_new and new)
            rests_left -= is_rest
            channel = known.popleft() if is_rest else new.popleft()
            if not (channel.closed or channel.broken):
                self._serve(channel)
                if now_ns() > end_ns:
                    break
        # The channels that this pass did not serve come first in the next pass.
        self._unfinished = dict.fromkeys((*known, *new)) | self._unfinished

    def _look_after_connections(self, now_ns: int) -> None:
        """Close idle channels, resume accepting, and adopt connections that another loop accepted."""
        if now_ns >= self._idle_check_ns:
            self._idle_check_ns = now_ns + int(IDLE_CHECK_S * 1e9)
            self._close_idle(now_ns)
        if self._paused and now_ns >= self._resume_ns:
            self._resume_accepting()
        while self._to_adopt:
            with KeepGoing(log, "a connection could not be taken over"):
                self._adopt(self._to_adopt.popleft())

    def _receive(self, channel: Channel, now_ns: int) -> int:
        """Read the available bytes; returns their number, or 0 if there is nothing to serve."""
        try:
            size = channel.receive_into(self._buffer)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._close_in_turn(channel, f"the connection failed: {error.strerror or error}")
            return 0
        if size == 0:
            self._close_in_turn(channel, "the peer closed it")
            return 0
        channel.received_ns = now_ns
        try:
            channel.connection.receive_data(bytes(self._view[:size]))
        except FAULTS:
            log.exception("what %s sent cannot be taken", channel)
            self._close(channel, CANNOT_BE_SERVED)
            return 0
        return size

    def _serve(self, channel: Channel) -> None:
        connection, received = channel.connection, channel.handler.received
        now_ns = self._runtime.monotonic_ns
        end_ns = channel.turn_end_ns = now_ns() + self._turn_ns
        channel.is_new = False
        had_command = False
        try:
            while True:
                if channel.rest is not None:
                    rest, channel.rest, channel.rest_size = channel.rest, None, 0
                    rest(self.outbox)
                elif isinstance(command := connection.next_event(), Command):
                    received(channel, command, self.outbox)
                    had_command = True
                else:
                    self._note_unread(channel, ended_a_frame=had_command)
                    return
                channel.is_slow = now_ns() > end_ns
                channel.is_heavy = channel.queued_size > QUEUED_SIZE_MAX or channel.is_slow
                if channel.gives_way or channel.is_heavy:
                    channel.gives_way = False
                    self._unfinished[channel] = None
                    self._note_unread(channel, ended_a_frame=True)
                    return
        except RemoteProtocolError as error:
            # The frames before the bad one were served in this pass, so send their answers before the close.
            channel.flush()
            self._close(channel, f"it sent what cannot be read: {error}")
        except FAULTS:
            # Errors of a processor are answered in `io.processors`, so this error arose elsewhere.
            log.exception("what %s sent cannot be served", channel)
            channel.flush()
            self._close(channel, CANNOT_BE_SERVED)

    def _note_unread(self, channel: Channel, *, ended_a_frame: bool) -> None:
        """Update the number of unserved bytes, and the start time of an incomplete frame."""
        size = channel.connection.unread_size + channel.rest_size
        if ended_a_frame or not channel.unfinished_size:
            channel.begun_ns = channel.received_ns
        if size != channel.unfinished_size:
            channel.unfinished_size = size
            unfinished = self._totals.unfinished
            for most, had in unfinished.note(channel, size):
                most.give_up(ConnectionLimit.UNFINISHED_BYTES, unfinished.bytes_max, had)

    def _accept(self, binding: _Binding) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, peer = binding.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Usually the process has no free file descriptor, so accepting again at once would only use CPU time.
                log.warning(
                    "a connection could not be accepted: %s; trying again in %.0f s",
                    error,
                    ACCEPT_PAUSE_S,
                    extra=event("connection_refused", reason=str(error)),
                )
                self._paused.append(binding)
                self._resume_ns = self._runtime.monotonic_ns() + int(ACCEPT_PAUSE_S * 1e9)
                self.poller.modify(binding.listener, read=False, write=False, data=binding)
                return
            self._numbers += 1
            loop = self._peers[self._numbers % len(self._peers)]
            accepted = _Accepted(sock, peer, binding.handler, self._numbers)
            if loop is self:
                self._adopt(accepted)
            else:
                loop.adopt_soon(accepted)

    def _resume_accepting(self) -> None:
        for binding in self._paused:
            self.poller.modify(binding.listener, read=True, write=False, data=binding)
        self._paused.clear()

    def adopt_soon(self, accepted: _Accepted) -> None:
        """Ask the loop to serve a connection that another loop accepted; callable from any thread."""
        self._to_adopt.append(accepted)
        self.poller.wake()

    def _adopt(self, accepted: _Accepted) -> None:
        sock, peer, handler, number = accepted.sock, accepted.peer, accepted.handler, accepted.number
        connections = self._totals.connections
        reached = connections.add(peer[0])
        if reached is not None:
            self._refuse(sock, peer, reached)
            return
        channel = Channel(
            self, sock, peer, number, handler, self._limits, self._runtime.lock(), unsent=self._totals.unsent
        )
        channel.received_ns = self._runtime.monotonic_ns()
        try:
            self.poller.register(sock, read=True, write=False, data=channel)
        except FAULTS:
            connections.remove(peer[0])
            sock.close()
            raise
        self._channels[channel] = None
        log.info("%s is connected", channel, extra=event("connection_opened", peer=channel.peer, connection=number))
        try:
            handler.opened(channel)
        except FAULTS:
            log.exception("%s cannot be served", channel)
            self._close(channel, CANNOT_BE_SERVED)

    def _refuse(self, sock: Socket, peer: tuple[str, int], reached: ConnectionLimit) -> None:
        limits = self._limits
        if reached is ConnectionLimit.CONNECTIONS:
            reason = f"over {limits.connection_count_max} connections"
        else:
            reason = f"over {limits.address_connection_count_max} connections of one address ({reached.value})"
        log.warning(
            "%s: closing %s:%d",
            reason,
            *peer,
            extra=event("connection_refused", peer=f"{peer[0]}:{peer[1]}", reason=reason),
        )
        self._totals.reached[reached] += 1
        sock.close()

    def _close_in_turn(self, channel: Channel, reason: str, reached: ConnectionLimit | None = None) -> None:
        """Stop serving a channel, and close it now, or in a later pass if many channels close at once."""
        if channel.closed or channel in self._leaving:
            return
        if self._closes_left:
            self._closes_left -= 1
            self._close(channel, reason, reached)
        else:
            channel.leave()
            self._leaving[channel] = reason, reached

    def _close_those_leaving(self) -> None:
        self._closes_left = CLOSES_MAX
        while self._leaving and self._closes_left:
            channel = next(iter(self._leaving))
            reason, reached = self._leaving.pop(channel)
            self._close_in_turn(channel, reason, reached)

    def _close(self, channel: Channel, reason: str, reached: ConnectionLimit | None = None) -> None:
        if channel.closed:
            return
        self._channels.pop(channel, None)
        self._totals.connections.remove(channel.peer_host[0])
        self._totals.unfinished.note(channel, 0)
        if reached is not None:
            self._totals.reached[reached] += 1
        # Update the counts before closing, because the peer may connect again as soon as it sees the close.
        channel.close()
        log.info(
            "%s is closed: %s",
            channel,
            reason,
            extra=event("connection_closed", peer=channel.peer, connection=channel.number, reason=reason),
        )
        with KeepGoing(log, "a closed connection could not be forgotten"):
            channel.handler.closed(channel)

    def _close_idle(self, now_ns: int) -> None:
        limits = self._limits
        idle_ns, frame_ns = limits.idle_ms_max * 1_000_000, limits.frame_ms_max * 1_000_000
        for channel in list(self._channels):
            if now_ns - channel.received_ns > idle_ns:
                reason = f"nothing came for {limits.idle_ms_max / 1000:g} s"
                self._close_in_turn(channel, reason, ConnectionLimit.IDLE_TIME)
            elif channel.unfinished_size and channel not in self._unfinished and now_ns - channel.begun_ns > frame_ns:
                log.warning(
                    "%s has not ended a frame in %g s (%s): closing it",
                    channel,
                    limits.frame_ms_max / 1000,
                    ConnectionLimit.FRAME_TIME.value,
                    extra=event("connection_limit", peer=channel.peer, limit=ConnectionLimit.FRAME_TIME.value),
                )
                reason = f"it did not end a frame in {limits.frame_ms_max / 1000:g} s"
                self._close_in_turn(channel, reason, ConnectionLimit.FRAME_TIME)

    def _linger(self) -> None:
        """Wait up to `LINGER_S` for peers to read their answers."""
        self.outbox.flush()
        while self._leaving:
            self._close_those_leaving()
        for channel in list(self._channels):
            channel.flush()
            if channel.unsent():
                channel.stop_reading()
            else:
                self._close(channel, STOPPING)
        deadline_ns = self._runtime.monotonic_ns() + int(LINGER_S * 1e9)
        while any(channel.unsent() for channel in self._channels):
            left_s = (deadline_ns - self._runtime.monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            for data, _readable, writable in self.poller.poll(min(left_s, 0.1)):
                if type(data) is Channel and writable:
                    data.flush()

    def _close_all(self) -> None:
        for binding in self._bindings:
            self.poller.unregister(binding.listener)
            binding.listener.close()
        for channel in list(self._channels):
            self._close(channel, STOPPING)
        # Connections that were accepted but never served are closed too, because their peers would wait forever.
        while self._to_adopt:
            self._to_adopt.popleft().sock.close()

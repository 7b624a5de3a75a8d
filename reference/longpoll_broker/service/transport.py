"""Non-blocking connections and the loop that serves many of them on one thread.

One pass of a loop reads every ready connection, hands each whole command to its listener's handler, calls the
handlers' `pass_ended`, and only then writes: all that one connection is told in a pass leaves in one system call, and
a send, the pulls it wakes and their answers need no hand-over between threads. Any thread may write to any channel
through an `Outbox` of its own, which it flushes when its work is done.

Leaves out what commands mean. Rules: only the loop that owns a channel reads and closes it; whoever holds the
channel's lock writes; nothing blocks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import define

from longpoll_broker.errors import RemoteProtocolError
from longpoll_broker.runtime import PARTS_MAX, Buffer, Listener, Lock, Poller, Runtime, Socket, Thread
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.connection import Connection

log = logging.getLogger(__name__)

RECEIVE_SIZE: Final = 256 * 1024
"""Bytes asked of one connection before the next has its turn."""
ACCEPTS_MAX: Final = 256
"""Connections accepted before the open ones have their turn."""
LINGER_S: Final = 2.0
"""How long a stopping loop waits for peers to read what was written to them."""
FLUSH_COUNT: Final = 64
"""Commands after which a long row of answers is sent without waiting for its end."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long nothing is accepted after the operating system refused a connection."""
IDLE_CHECK_S: Final = 10.0
"""How often a loop looks for channels that have said nothing for too long, and the longest that it sleeps."""

Parts = Sequence[Buffer]
"""The buffers of one command, to be sent one after the other."""


class Handler(Protocol):
    """What a listener's commands are handed to; always called on the loop's thread."""

    def opened(self, channel: Channel) -> None:
        """A peer has connected."""
        ...

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """A whole command has come."""
        ...

    def closed(self, channel: Channel) -> None:
        """The channel is closed; it is not used any more."""
        ...


class Clock(Protocol):
    """What has to be done at a time rather than at an arrival; asked by the loop that it is given to."""

    def wait_s(self) -> float | None:
        """Seconds until `run` is needed; None when nothing is due ever. The loop may come earlier."""
        ...

    def run(self, outbox: Outbox) -> None:
        """Do what is due."""
        ...


class Channel:
    """One connection. Hashed and compared by identity.

    Invariants: `_out` grows at the right from any thread (a deque's append is atomic) and shrinks under `_lock`;
    `_pending` are the bytes of commands already begun; both together are what the peer has not been sent.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "_loop",
        "_out",
        "_output_bytes_max",
        "_pending",
        "_socket",
        "_watches_write",
        "broken",
        "closed",
        "connection",
        "handler",
        "host_bytes",
        "number",
        "peer",
        "peer_host",
        "received_ns",
        "request_count",
    )

    def __init__(  # noqa: PLR0917 - one caller, `IoLoop`
        self,
        loop: IoLoop,
        sock: Socket,
        peer: tuple[str, int],
        number: int,
        handler: Handler,
        limits: Limits,
        lock: Lock,
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._lock = lock
        self._out: deque[Parts] = deque()
        self._pending: deque[Buffer] = deque()
        self._watches_write = False
        self._output_bytes_max = limits.output_bytes_max
        self.connection = Connection(limits.frame_size_max)
        self.handler = handler
        self.number = number
        """Counts the connections of this broker's life."""
        self.peer = f"{peer[0]}:{peer[1]}"
        self.peer_host = peer
        self.host_bytes = b""
        """The peer's address as a record holds it; filled by whoever stores messages of this channel."""
        self.closed = False
        self.broken = False
        self.received_ns = 0
        """When bytes last came."""
        self.request_count = 0

    def __str__(self) -> str:
        return f"/{self.peer}"

    def write(self, parts: Parts) -> None:
        """Queue one command; `flush` sends it. Callable from any thread."""
        self._out.append(parts)

    def flush(self) -> None:
        """Send as much as the socket takes; the rest goes when it takes more. Callable from any thread."""
        with self._lock:
            if self.closed or self.broken:
                self._out.clear()
                self._pending.clear()
                return
            pending = self._pending
            while self._out:
                pending.extend(self._out.popleft())
            try:
                self._send(pending)
            except OSError:
                self._break()
                return
            if bool(pending) != self._watches_write:
                self._watches_write = bool(pending)
                self._loop.poller.modify(self._socket, read=True, write=self._watches_write, data=self)
            if pending and sum(map(len, pending)) > self._output_bytes_max:
                log.warning("%s does not read: closing it with over %d bytes unsent", self, self._output_bytes_max)
                self._break()

    def stop_reading(self) -> None:
        """Only send from now on; the loop only, while it stops."""
        self._loop.poller.modify(self._socket, read=False, write=True, data=self)

    def unsent(self) -> bool:
        """Whether something written has not left yet."""
        return bool(self._pending or self._out) and not (self.closed or self.broken)

    def receive_into(self, buffer: bytearray) -> int:
        """Read once; raises OSError."""
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Let go of the socket; the loop only."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._out.clear()
            self._pending.clear()
            self._loop.poller.unregister(self._socket)
            self._socket.close()

    def _send(self, pending: deque[Buffer]) -> None:
        while pending:
            try:
                if len(pending) == 1:
                    sent = self._socket.send(pending[0])
                else:
                    sent = self._socket.send_parts([pending[at] for at in range(min(len(pending), PARTS_MAX))])
            except BlockingIOError:
                return
            while pending and sent >= len(pending[0]):
                sent -= len(pending.popleft())
            if sent:
                pending[0] = memoryview(pending[0])[sent:]

    def _break(self) -> None:
        """Give the peer up; the loop that owns the channel closes it."""
        self.broken = True
        self._out.clear()
        self._pending.clear()
        self._loop.close_soon(self)


class Outbox:
    """The channels that one thread has written to and not flushed; not shared between threads."""

    __slots__ = ("_channels", "_count", "_sent")

    def __init__(self) -> None:
        self._count = 0
        self._channels: dict[Channel, None] = {}
        self._sent: list[Callable[[], None]] = []

    def write(self, channel: Channel, parts: Parts) -> None:
        """Queue one command for a channel."""
        channel.write(parts)
        self._channels[channel] = None
        self._count += 1

    def after_flush(self, told: Callable[[], None]) -> None:
        """Call `told` when what is in the box now has been handed to the sockets (the recorder's use)."""
        self._sent.append(told)

    def flush_many(self) -> None:
        """Send everything if it has become much: the first of a thousand answers must not wait for the last."""
        if self._count >= FLUSH_COUNT:
            self.flush()

    def flush(self) -> None:
        """Send everything."""
        if not (self._channels or self._sent):
            return
        self._count = 0
        channels, self._channels = self._channels, {}
        sent, self._sent = self._sent, []
        for channel in channels:
            channel.flush()
        for told in sent:
            told()


@define(slots=True)
class Limits:
    """What a connection may cost."""

    frame_size_max: int
    output_bytes_max: int
    connection_count_max: int
    idle_ms_max: int


@define(slots=True, eq=False)
class _Door:
    listener: Listener
    handler: Handler


class IoLoop:
    """One thread, one poller, any number of listeners and channels.

    Invariant: `_channels` are exactly the registered, open channels of this loop; only its thread changes the set.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        limits: Limits,
        *,
        pass_ended: Callable[[Outbox], None],
        clock: Clock | None = None,
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._limits = limits
        self._pass_ended = pass_ended
        self._clock = clock
        self.poller: Poller = runtime.poller()
        self.outbox = Outbox()
        self._doors: list[_Door] = []
        self._channels: dict[Channel, None] = {}
        self._to_close: deque[Channel] = deque()
        self._to_adopt: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._numbers = 0
        self._idle_check_ns = 0
        self._paused: list[_Door] = []
        self._resume_ns = 0
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)
        self._peers: list[IoLoop] = [self]
        self._thread: Thread | None = None

    # -- before the start, and from other threads --------------------------------------------------------------------

    def add_listener(self, listener: Listener, handler: Handler) -> None:
        """Serve a listener; before `start`."""
        door = _Door(listener, handler)
        self._doors.append(door)
        self.poller.register(listener, read=True, write=False, data=door)

    def share_with(self, loops: Sequence[IoLoop]) -> None:
        """Deal accepted connections out to these loops in turn; before `start`."""
        self._peers = list(loops)

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._runtime.spawn(self._name, self._run)

    def wake(self) -> None:
        """Make the loop look around now."""
        self.poller.wake()

    def close_soon(self, channel: Channel) -> None:
        """Have the loop close a channel; callable from any thread."""
        self._to_close.append(channel)
        self.poller.wake()

    def stop(self) -> None:
        """Stop listening, send what is written, close every channel, end the thread and wait for that."""
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
            wait_s_max = ACCEPT_PAUSE_S if self._paused else IDLE_CHECK_S
            ready = self.poller.poll(wait_s_max if wait_s is None or wait_s > wait_s_max else wait_s)
            self._run_pass(ready)
            if clock is not None:
                clock.run(self.outbox)
            self.outbox.flush()
            while self._to_close:
                self._close(self._to_close.popleft())
        self._linger()
        self._close_all()

    def _run_pass(self, ready: list[tuple[object, bool, bool]]) -> None:
        """Read every ready connection and let the handlers finish; nothing is written before the end."""
        now_ns = self._runtime.monotonic_ns()
        if now_ns >= self._idle_check_ns:
            self._idle_check_ns = now_ns + int(IDLE_CHECK_S * 1e9)
            self._close_idle(now_ns)
        if self._paused and now_ns >= self._resume_ns:
            self._resume_accepting()
        while self._to_adopt:
            self._to_adopt.popleft()()
        for data, readable, writable in ready:
            if type(data) is Channel:
                if writable:
                    data.flush()
                if readable and not data.closed:
                    data.received_ns = now_ns
                    self._receive(data)
            else:
                assert type(data) is _Door
                self._accept(data)
        self._pass_ended(self.outbox)

    def _receive(self, channel: Channel) -> None:
        try:
            size = channel.receive_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            self._close(channel)
            return
        if size == 0:
            self._close(channel)
            return
        connection = channel.connection
        connection.receive_data(bytes(self._view[:size]))
        received = channel.handler.received
        try:
            while isinstance(event := connection.next_event(), Command):
                received(channel, event, self.outbox)
        except RemoteProtocolError as error:
            # What came before the bad frame was answered in this pass; the bad frame costs its sender the connection.
            log.info("%s sent what cannot be read: %s", channel, error)
            channel.flush()
            self._close(channel)

    def _accept(self, door: _Door) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, peer = door.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors, mostly: asking again at once would only turn in circles.
                log.warning("a connection could not be accepted: %s; trying again in %.0f s", error, ACCEPT_PAUSE_S)
                self._paused.append(door)
                self._resume_ns = self._runtime.monotonic_ns() + int(ACCEPT_PAUSE_S * 1e9)
                self.poller.modify(door.listener, read=False, write=False, data=door)
                return
            self._numbers += 1
            loop = self._peers[self._numbers % len(self._peers)]
            if loop is self:
                self._adopt(sock, peer, door.handler, self._numbers)
            else:
                loop.adopt_soon(sock, peer, door.handler, self._numbers)

    def _resume_accepting(self) -> None:
        for door in self._paused:
            self.poller.modify(door.listener, read=True, write=False, data=door)
        self._paused.clear()

    def adopt_soon(self, sock: Socket, peer: tuple[str, int], handler: Handler, number: int) -> None:
        """Have the loop serve a connection that another one accepted."""
        self._to_adopt.append(lambda: self._adopt(sock, peer, handler, number))
        self.poller.wake()

    def _adopt(self, sock: Socket, peer: tuple[str, int], handler: Handler, number: int) -> None:
        if len(self._channels) >= self._limits.connection_count_max:
            log.warning("over %d connections: closing %s:%d", self._limits.connection_count_max, *peer)
            sock.close()
            return
        channel = Channel(self, sock, peer, number, handler, self._limits, self._runtime.lock())
        channel.received_ns = self._runtime.monotonic_ns()
        self._channels[channel] = None
        handler.opened(channel)
        self.poller.register(sock, read=True, write=False, data=channel)

    def _close(self, channel: Channel) -> None:
        if channel.closed:
            return
        channel.close()
        self._channels.pop(channel, None)
        channel.handler.closed(channel)

    def _close_idle(self, now_ns: int) -> None:
        """Close the channels that have said nothing for too long (`serverChannelMaxIdleTimeSeconds`)."""
        limit_ns = self._limits.idle_ms_max * 1_000_000
        for channel in [channel for channel in self._channels if now_ns - channel.received_ns > limit_ns]:
            self._close(channel)

    def _linger(self) -> None:
        """Give peers a moment to take what was written to them before the end."""
        self.outbox.flush()
        for channel in list(self._channels):
            channel.flush()
            if channel.unsent():
                channel.stop_reading()
            else:
                self._close(channel)
        deadline_ns = self._runtime.monotonic_ns() + int(LINGER_S * 1e9)
        while any(channel.unsent() for channel in self._channels):
            left_s = (deadline_ns - self._runtime.monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            for data, _readable, writable in self.poller.poll(min(left_s, 0.1)):
                if type(data) is Channel and writable:
                    data.flush()

    def _close_all(self) -> None:
        for door in self._doors:
            self.poller.unregister(door.listener)
            door.listener.close()
        for channel in list(self._channels):
            self._close(channel)


__all__ = ["Channel", "Clock", "Handler", "IoLoop", "Limits", "Outbox", "Parts"]

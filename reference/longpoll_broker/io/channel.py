"""One connection's two ends, and the outbox by which any thread writes to it.

Rules: only the loop that owns a channel reads and closes it; a thread that holds its lock writes; nothing blocks.
Leaves out the loop (`io.transport`) and what commands mean.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from attrs import frozen

from longpoll_broker.io.connection_limits import BytesByPeer, ConnectionLimit, address_of
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.sizes import MIB
from longpoll_runtime import PARTS_MAX, Buffer, Lock, Poller, Socket
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS, KeepGoing

log = logging.getLogger(__name__)

NO_END_NS: Final = 1 << 62
"""The end of a turn that has not begun: a moment that never comes."""
FLUSH_COUNT: Final = 8
"""Commands after which a large herd of answers is sent without waiting for its end; the next part is twice as long."""
FLUSH_COUNT_MAX: Final = 2048
"""Longest part: 2048 answers over twenty connections are still a hundred for each system call."""
CHANNEL_COUNT: Final = 64
"""Answers to one connection that are worth a system call of their own, whatever others wait for."""

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


class Owner(Protocol):
    """The loop that a channel belongs to."""

    @property
    def poller(self) -> Poller:
        """Where the channel's socket is registered."""
        ...

    def close_soon(self, channel: Channel) -> None:
        """Have the loop close the channel; callable from any thread."""
        ...


class Channel:
    """One connection. Hashed and compared by identity.

    Invariants: `_out` grows at the right from any thread (a deque's append is atomic) and shrinks under `_lock`;
    `_pending` are the bytes of commands already begun; both together are what the peer has not been sent.
    `_unsent_size` is the sum of `_pending`, and what `_unsent` has of this channel, whenever `_lock` is free.
    """

    __slots__ = (
        "__weakref__",
        "_is_watched",
        "_lock",
        "_loop",
        "_out",
        "_output_bytes_max",
        "_pending",
        "_socket",
        "_unsent",
        "_unsent_size",
        "_watches_write",
        "account",
        "begun_ns",
        "broken",
        "close_reason",
        "closed",
        "connection",
        "gives_way",
        "handler",
        "host_bytes",
        "is_heavy",
        "is_new",
        "is_slow",
        "number",
        "peer",
        "peer_host",
        "queued_size",
        "reached",
        "received_ns",
        "request_count",
        "rest",
        "rest_size",
        "turn_end_ns",
        "unfinished_size",
    )

    def __init__(  # noqa: PLR0917 - one caller, the loop
        self,
        loop: Owner,
        sock: Socket,
        peer: tuple[str, int],
        number: int,
        handler: Handler,
        limits: Limits,
        lock: Lock,
        unsent: BytesByPeer[Channel] | None = None,
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._lock = lock
        self._out: deque[Parts] = deque()
        self._pending: deque[Buffer] = deque()
        self._is_watched = True
        self._watches_write = False
        self._output_bytes_max = limits.output_bytes_max
        self._unsent = unsent
        """The bytes that all channels have not been able to send, where somebody counts them."""
        self._unsent_size = 0
        self.connection = Connection(limits.frame_size_max)
        self.handler = handler
        self.number = number
        """Counts the connections of this broker's life."""
        self.peer = f"{peer[0]}:{peer[1]}"
        self.peer_host = peer
        self.account = ""
        """The access key of its last request that the accounts let in; empty without accounts or a key."""
        self.host_bytes = b""
        """The peer's address as a record holds it; filled in when a message of this channel is first stored."""
        self.closed = False
        self.broken = False
        self.close_reason = "it could not be written to"
        """Why it is closed, once it is broken."""
        self.reached: ConnectionLimit | None = None
        """The limit that broke it."""
        self.received_ns = 0
        """When bytes last came."""
        self.begun_ns = 0
        """When the first bytes of the frame came that has not ended; 0 without one. The loop only."""
        self.unfinished_size = 0
        """Bytes that came and belong to no request that was begun, as they are counted. The loop only."""
        self.request_count = 0
        self.queued_size = 0
        """Bytes of bodies queued since the last flush; about right, for several threads may write."""
        self.gives_way = False
        """Others have their turn before more of what came is served: what was just done takes long. The loop only."""
        self.is_heavy = False
        """What it was answered in its last turn was much: only a few such have a turn in one pass. The loop only."""
        self.is_slow = True
        """Its last turn took too long, or it had none yet: those that are quick have theirs before. The loop only."""
        self.is_new = True
        """It had no turn yet. The loop only."""
        self.turn_end_ns = NO_END_NS
        """When others have their turn. The loop only."""
        self.rest: Callable[[Outbox], None] | None = None
        """What is left of the request that was begun last; done before more of what came is served. The loop only."""
        self.rest_size = 0
        """Bytes of that request which are still needed: they are counted with what came and was not served."""

    def __str__(self) -> str:
        return f"/{self.peer}"

    @property
    def owner(self) -> str:
        """For whom what it makes counts: its account, or, without one, its address."""
        return self.account or address_of(self.peer_host[0])

    def write(self, parts: Parts) -> None:
        """Queue one command; `flush` sends it. Callable from any thread."""
        self._out.append(parts)
        if len(parts) > 1:
            self.queued_size += len(parts[1])

    def flush(self) -> None:
        """Send as much as the socket takes; the rest goes when it takes more. Callable from any thread."""
        with self._lock:
            self.queued_size = 0
            if self.closed or self.broken:
                self._out.clear()
                self._pending.clear()
                self._unsent_size = 0
                return
            pending = self._pending
            try:
                # Mostly everything leaves at once, and then nothing need be counted.
                is_counted = bool(pending)
                while self._out:
                    parts = self._out.popleft()
                    pending.extend(parts)
                    if is_counted:
                        self._unsent_size += sum(map(len, parts))
                sent = self._send(pending)
                if pending or is_counted:
                    self._unsent_size = self._unsent_size - sent if is_counted else sum(map(len, pending))
                if bool(pending) != self._watches_write:
                    self._watches_write = bool(pending)
                    self._loop.poller.modify(self._socket, read=True, write=self._watches_write, data=self)
            except OSError:
                self._break()
                return
            except FAULTS:
                # Whatever it was, those whose answers leave in the same pass must get theirs.
                log.exception("%s cannot be written to", self)
                self._break()
                return
            if self._unsent_size > self._output_bytes_max:
                log.warning(
                    "%s does not read: closing it with over %d bytes unsent",
                    self,
                    self._output_bytes_max,
                    extra=event("connection_unread", peer=self.peer, bytes_max=self._output_bytes_max),
                )
                self.close_reason, self.reached = (
                    f"it left over {self._output_bytes_max} bytes unread",
                    ConnectionLimit.OUTPUT_BYTES,
                )
                self._break()
            if is_counted or pending:
                self._note_unsent()

    def stop_reading(self) -> None:
        """Only send from now on; the loop only, while it stops."""
        self._loop.poller.modify(self._socket, read=False, write=True, data=self)

    def unsent(self) -> bool:
        """Whether something written has not left yet."""
        return bool(self._pending or self._out) and not (self.closed or self.broken)

    def receive_into(self, buffer: bytearray) -> int:
        """Read once; raises OSError."""
        return self._socket.recv_into(buffer)

    @property
    def has_left(self) -> bool:
        """Whether it is closed, or about to be, and takes nothing any more."""
        return not self._is_watched

    def leave(self) -> None:
        """Read and write nothing more until `close`; the loop only."""
        with self._lock:
            self.broken = True
            self._out.clear()
            self._pending.clear()
            self._unsent_size = 0
            self._note_unsent()
            self._unwatch()
        self.rest = None

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.poller.unregister(self._socket)

    def close(self) -> None:
        """Let go of the socket; the loop only."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._out.clear()
            self._pending.clear()
            self._unsent_size = 0
            self._note_unsent()
            self._unwatch()
            self._socket.close()
        self.rest = None

    def give_up(self, limit: ConnectionLimit, bytes_max: int, size: int) -> None:
        """Have the channel closed, for it has most of what all have too much of. Callable from any thread.

        Nothing is read from it or written to it any more; what it has is let go of when the loop closes it.
        """
        if self.broken or self.closed:
            return
        log.warning(
            "%s has most of over %d bytes (%s), %d: closing it",
            self,
            bytes_max,
            limit.value,
            size,
            extra=event("connection_limit", peer=self.peer, limit=limit.value, bytes_max=bytes_max, bytes=size),
        )
        self.close_reason, self.reached = f"it had most of the bytes over {limit.value}", limit
        self.broken = True
        self._loop.close_soon(self)

    def _note_unsent(self) -> None:
        """Have what is unsent counted, and those given up who have most where all have too much."""
        if self._unsent is not None:
            for channel, size in self._unsent.note(self, self._unsent_size):
                channel.give_up(ConnectionLimit.UNSENT_BYTES, self._unsent.bytes_max, size)

    def _send(self, pending: deque[Buffer]) -> int:
        """Send what the socket takes; how many bytes that were."""
        size = 0
        while pending:
            try:
                if len(pending) == 1:
                    sent = self._socket.send(pending[0])
                else:
                    sent = self._socket.send_parts(list(islice(pending, PARTS_MAX)))
            except BlockingIOError:
                return size
            size += sent
            while pending and sent >= len(pending[0]):
                sent -= len(pending.popleft())
            if sent:
                pending[0] = memoryview(pending[0])[sent:]
        return size

    def _break(self) -> None:
        """Give the peer up; the loop that owns the channel closes it."""
        self.broken = True
        self._out.clear()
        self._pending.clear()
        self._unsent_size = 0
        self._loop.close_soon(self)


class Outbox:
    """The channels that one thread has written to and not flushed; not shared between threads.

    Invariant: `_channels` has the commands of each that wait for a flush, and `_count` is their sum.
    """

    __slots__ = ("_channels", "_count", "_part", "_sent")

    def __init__(self) -> None:
        self._count = 0
        self._part = FLUSH_COUNT
        self._channels: dict[Channel, int] = {}
        self._sent: list[Callable[[], None]] = []

    def write(self, channel: Channel, parts: Parts, count: int = 1) -> None:
        """Queue one command for a channel, or the bytes of several."""
        channel.write(parts)
        self._channels[channel] = self._channels.get(channel, 0) + count
        self._count += count

    def write_in_herd(self, channel: Channel, parts: Parts, count: int = 1) -> None:
        """Queue answers of what may be a large herd, and send everything if it has become much.

        The first of a thousand answers must not wait for the last.
        """
        self.write(channel, parts, count)
        if self._count >= self._part:
            self._flush()
            self._part = min(2 * self._part, FLUSH_COUNT_MAX)

    def flush_busy(self) -> None:
        """Send to the connections that have much to be told, whatever others wait for."""
        if self._sent:
            return
        for channel in [channel for channel, count in self._channels.items() if count >= CHANNEL_COUNT]:
            self._count -= self._channels.pop(channel)
            channel.flush()

    def after_flush(self, told: Callable[[], None]) -> None:
        """Call `told` when what is in the box now has been handed to the sockets (the recorder's use)."""
        self._sent.append(told)

    def after_answer(self, channel: Channel, told: Callable[[], None]) -> None:
        """The same of an answer; a channel that is closed by then took none, so nothing is told of it."""
        self._sent.append(lambda: None if channel.has_left else told())

    def flush(self) -> None:
        """Send everything."""
        self._part = FLUSH_COUNT
        if self._channels or self._sent:
            self._flush()

    def _flush(self) -> None:
        """Send to whom was written last first: a message's answer can wait until those whom it wakes are told."""
        self._count = 0
        channels, self._channels = self._channels, {}
        sent, self._sent = self._sent, []
        for channel in reversed(channels):
            channel.flush()
        for told in sent:
            with KeepGoing(log, "an answer that was sent could not be noted"):
                told()


@frozen
class Limits:
    """What a connection may cost, and what all of them together."""

    frame_size_max: int
    output_bytes_max: int
    connection_count_max: int
    idle_ms_max: int
    frame_ms_max: int = 60_000
    """How long a frame may take from its first byte to its last."""
    unfinished_bytes_max: int = 256 * MIB
    unsent_bytes_max: int = 256 * MIB
    address_connection_count_max: int = 10_000

"""Server-side connections, the outbox through which any thread writes to them, and limits on all connections together.

Rules: only the loop that owns a channel reads and closes it; only a thread that holds the channel's lock writes; no
operation blocks. The loop: see `io.transport`.

One connection may use only little memory, but many connections together could use all of it. Therefore the bytes of
incomplete frames and of unsent answers are summed over all connections. If a sum exceeds its limit, the connection with
the most of these bytes is closed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from enum import StrEnum
from ipaddress import IPv6Address, IPv6Network
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from attrs import define, field, frozen

from longpoll_protocol.frames import Command, Connection
from longpoll_protocol.sizes import MIB
from longpoll_runtime import PARTS_MAX, Buffer, Lock, Poller, Socket
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS, KeepGoing

Peer = TypeVar("Peer", bound=Hashable)


class ConnectionLimit(StrEnum):
    """A limit that closes connections. The values are used as metric labels."""

    UNFINISHED_BYTES = "unfinishedBytesMax"
    UNSENT_BYTES = "unsentBytesMax"
    OUTPUT_BYTES = "outputBytesMax"
    FRAME_TIME = "frameTimeMax"
    IDLE_TIME = "serverChannelMaxIdleTimeSeconds"
    CONNECTIONS = "connectionCountMax"
    ADDRESS_CONNECTIONS = "addressConnectionCountMax"


@define(slots=True, eq=False)
class BytesByPeer(Generic[Peer]):
    """The bytes of one kind per connection. Invariant: `total` is the sum of `by_peer`, whose values are positive."""

    bytes_max: int
    lock: Lock
    total: int = field(default=0, init=False)
    by_peer: dict[Peer, int] = field(factory=dict, init=False)

    def note(self, peer: Peer, size: int) -> list[tuple[Peer, int]]:
        """Set the bytes of a connection.

        Returns the connections that must be closed to keep the limit, with their bytes; usually the list is empty.
        """
        with self.lock:
            self._set(peer, size)
            closed: list[tuple[Peer, int]] = []
            while self.total > self.bytes_max:
                most = max(self.by_peer, key=self.by_peer.__getitem__)
                closed.append((most, self.by_peer[most]))
                self._set(most, 0)
            return closed

    def _set(self, peer: Peer, size: int) -> None:
        self.total += size - self.by_peer.pop(peer, 0)
        if size:
            self.by_peer[peer] = size


@define(slots=True, eq=False)
class Connections:
    """Number of connections per address; callable from any thread."""

    count_max: int
    address_count_max: int
    lock: Lock
    by_address: Counter[str] = field(factory=Counter, init=False)
    count: int = field(default=0, init=False)

    def add(self, host: str) -> ConnectionLimit | None:
        """Count a connection; if a limit forbids the connection, do not count it and return the limit."""
        address = address_of(host)
        with self.lock:
            if self.count >= self.count_max:
                return ConnectionLimit.CONNECTIONS
            if self.by_address[address] >= self.address_count_max:
                return ConnectionLimit.ADDRESS_CONNECTIONS
            self.count += 1
            self.by_address[address] += 1
            return None

    def remove(self, host: str) -> None:
        """Remove a counted connection."""
        address = address_of(host)
        with self.lock:
            self.count -= 1
            self.by_address[address] -= 1
            if not self.by_address[address]:
                del self.by_address[address]


def address_of(host: str) -> str:
    """Returns the address for counting: for IPv6 the /64 network, because one machine may own a whole network."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, 64), strict=False))


log = logging.getLogger(__name__)

NO_END_NS: Final = 1 << 62
"""The end of a connection's time slice while no time slice has begun: a time that is never reached."""
FLUSH_COUNT: Final = 8
"""Number of answers in the first batch sent to a large thundering herd; each later batch is twice as large."""
FLUSH_COUNT_MAX: Final = 2048
"""Maximum answers in one batch to a large thundering herd: with 20 connections, 100 answers per system call."""
CHANNEL_COUNT: Final = 64
"""If a connection has this many queued answers, they are sent at once, in a separate system call."""

Parts = Sequence[Buffer]
"""The buffers of one command, in order."""


class Handler(Protocol):
    """Handles the commands of a listener. Its methods are called on the loop's thread."""

    def opened(self, channel: Channel) -> None:
        """Called when a peer has connected."""
        ...

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Called with each complete command."""
        ...

    def closed(self, channel: Channel) -> None:
        """Called when the channel has been closed."""
        ...


class Owner(Protocol):
    """The loop that a channel belongs to."""

    @property
    def poller(self) -> Poller:
        """Returns the poller that watches the channel's socket."""
        ...

    def close_soon(self, channel: Channel) -> None:
        """Ask the loop to close the channel; callable from any thread."""
        ...


class Channel:
    """One connection, compared and hashed by identity.

    Invariants: any thread appends to `_out` (atomic for a deque), and only a holder of `_lock` removes from it.
    `_pending` has the rest of partly sent commands. `_out` and `_pending` are the unsent bytes. `_unsent_size` is the
    size of `_pending`, and equals this channel's entry in `_unsent` whenever `_lock` is free.
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
        """The unsent bytes of all channels together; None without a limit on them."""
        self._unsent_size = 0
        self.connection = Connection(limits.frame_size_max)
        self.handler = handler
        self.number = number
        """Number of this connection since the broker started."""
        self.peer = f"{peer[0]}:{peer[1]}"
        self.peer_host = peer
        self.account = ""
        """The access key of the last accepted request; empty without access control or a key."""
        self.host_bytes = b""
        """The peer's address in the form of a record; set when the channel's first message is stored."""
        self.closed = False
        self.broken = False
        self.close_reason = "it could not be written to"
        """Why the channel is closed, if it is broken."""
        self.reached: ConnectionLimit | None = None
        """The limit on connections that broke the channel; None if it was another reason."""
        self.received_ns = 0
        """When bytes last arrived."""
        self.begun_ns = 0
        """When the first bytes of the current unfinished frame arrived; 0 without one. Loop thread only."""
        self.unfinished_size = 0
        """Counted size of received bytes that belong to no started request. Loop thread only."""
        self.request_count = 0
        self.queued_size = 0
        """Bytes of bodies queued since the last flush; approximate, because several threads write."""
        self.gives_way = False
        """Whether other connections go first in this pass, because the last request took long. Loop thread only."""
        self.is_heavy = False
        """Whether the channel's last answers were large; only a few such channels get a turn per pass. Loop thread
        only."""
        self.is_slow = True
        """Whether the last turn took too long, or there was none yet; quick channels go first. Loop thread only."""
        self.is_new = True
        """Whether the channel had no turn yet. Loop thread only."""
        self.turn_end_ns = NO_END_NS
        """When the channel's turn ends, ns of the monotonic clock. Loop thread only."""
        self.rest: Callable[[Outbox], None] | None = None
        """The rest of the last started request, done before later requests. Loop thread only."""
        self.rest_size = 0
        """Bytes of the request in `rest` that are still in use; they count as unfinished."""

    def __str__(self) -> str:
        return f"/{self.peer}"

    @property
    def owner(self) -> str:
        """The owner for quotas: the account, or the address if the connection has no account."""
        return self.account or address_of(self.peer_host[0])

    def write(self, parts: Parts) -> None:
        """Queue one command, which `flush` sends. Callable from any thread."""
        self._out.append(parts)
        if len(parts) > 1:
            self.queued_size += len(parts[1])

    def flush(self) -> None:
        """Send what the socket accepts now; the remaining bytes follow later. Callable from any thread."""
        with self._lock:
            self.queued_size = 0
            if self.closed or self.broken:
                self._out.clear()
                self._pending.clear()
                self._unsent_size = 0
                return
            pending = self._pending
            try:
                # Usually the socket accepts all bytes at once, and then the unsent bytes need not be counted.
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
                # Any error here is only logged, because the answers to other connections in this pass must still be
                # sent.
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
        """Read nothing more, but send the queued answers. Called on the loop's thread while the loop stops."""
        self._loop.poller.modify(self._socket, read=False, write=True, data=self)

    def unsent(self) -> bool:
        """Whether any written bytes are unsent."""
        return bool(self._pending or self._out) and not (self.closed or self.broken)

    def receive_into(self, buffer: bytearray) -> int:
        """Read into `buffer` once; returns the number of bytes. Raises OSError."""
        return self._socket.recv_into(buffer)

    @property
    def has_left(self) -> bool:
        """Whether the channel is closed or will be closed soon."""
        return not self._is_watched

    def leave(self) -> None:
        """Stop reading and writing until `close` is called. Loop thread only."""
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
        """Close the socket. Loop thread only."""
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
        # Some policies keep pulls after the close, and pulls refer to the channel, so release the received bytes.
        self.connection = Connection(0)

    def give_up(self, limit: ConnectionLimit, bytes_max: int, size: int) -> None:
        """Ask the loop to close this channel, because a total exceeds its limit; callable from any thread.

        Reading and writing stop at once; the loop releases the buffers when it closes the channel.
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
        """Report the unsent bytes. If the total exceeds its limit, close the channels with the most bytes."""
        if self._unsent is not None:
            for channel, size in self._unsent.note(self, self._unsent_size):
                channel.give_up(ConnectionLimit.UNSENT_BYTES, self._unsent.bytes_max, size)

    def _send(self, pending: deque[Buffer]) -> int:
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
        """Mark the channel as broken; its loop closes it."""
        self.broken = True
        self._out.clear()
        self._pending.clear()
        self._unsent_size = 0
        self._loop.close_soon(self)


class Outbox:
    """The channels to which one thread has written without flushing; an outbox is not shared between threads.

    Invariant: `_channels` has the number of unflushed commands per channel, and `_count` is the sum.
    """

    __slots__ = ("_channels", "_count", "_part", "_sent")

    def __init__(self) -> None:
        self._count = 0
        self._part = FLUSH_COUNT
        self._channels: dict[Channel, int] = {}
        self._sent: list[Callable[[], None]] = []

    def write(self, channel: Channel, parts: Parts, count: int = 1) -> None:
        """Queue `count` commands for a channel."""
        channel.write(parts)
        self._channels[channel] = self._channels.get(channel, 0) + count
        self._count += count

    def write_in_herd(self, channel: Channel, parts: Parts, count: int = 1) -> None:
        """Queue answers to a thundering herd, and send them when enough are queued.

        If all answers were sent together, the first of a thousand answers would wait for the last.
        """
        self.write(channel, parts, count)
        if self._count >= self._part:
            self._flush()
            self._part = min(2 * self._part, FLUSH_COUNT_MAX)

    def flush_busy(self) -> None:
        """Send to the connections with many queued answers."""
        if self._sent:
            return
        for channel in [channel for channel, count in self._channels.items() if count >= CHANNEL_COUNT]:
            self._count -= self._channels.pop(channel)
            channel.flush()

    def after_flush(self, told: Callable[[], None]) -> None:
        """Call `told` after the outbox's current contents were handed to the sockets; used by the recorder."""
        self._sent.append(told)

    def after_answer(self, channel: Channel, told: Callable[[], None]) -> None:
        """Like `after_flush`, but does not call `told` if the channel has closed before the flush."""
        self._sent.append(lambda: None if channel.has_left else told())

    def flush(self) -> None:
        """Send everything."""
        self._part = FLUSH_COUNT
        if self._channels or self._sent:
            self._flush()

    def _flush(self) -> None:
        """Send in reverse order of the first writes, so that woken pulls are answered before the waking send."""
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
    """Limits per connection, and for all connections together."""

    frame_size_max: int
    output_bytes_max: int
    connection_count_max: int
    idle_ms_max: int
    frame_ms_max: int = 60_000
    """Maximum time from the first byte of a frame to its last, ms."""
    unfinished_bytes_max: int = 256 * MIB
    unsent_bytes_max: int = 256 * MIB
    address_connection_count_max: int = 10_000

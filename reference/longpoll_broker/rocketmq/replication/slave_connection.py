"""A master's connection to one slave: the slave's reports, and the log sent to it.

Thread and waiting sends: see `replicator`. Source: `HAConnection.java` 4.9.7.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define, field

from longpoll_broker.shared.statistics import TransferRate
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.replication import ReportReader, encode_head
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address, Buffer, Socket

TURN_SIZE: Final = 1 * MIB
"""Bytes sent to one slave before other slaves and reports get their turn."""
UNREPORTED_SIZE_MAX: Final = 16 * MIB
"""Maximum bytes that a slave with progress may leave unreported: several large records."""
_RECEIVE_SIZE: Final = 4096
_READS_MAX: Final = 16
"""Limits the reads of one slave, so that constant reports do not starve others."""


@define(slots=True, eq=False)
class SlaveConnection:
    """One connection; used by one thread. Invariant: `_out` is begun and unsent, `next_offset` follows it.

    `asked_offset` is None until the first report, and nothing is sent before.
    """

    socket: Socket
    peer: Address
    store: MessageStore
    transfer_size: int
    """`haTransferBatchSize`."""
    begins_with_last_file: bool
    """Whether an empty slave gets only the log's last file."""
    only_visible: bool
    """Whether it gets only visible messages."""
    heard_ns: int
    """When it last sent a report."""
    sent_ns: int
    """When it was last sent something."""
    moved_ns: int = field(init=False)
    """When it last made progress, or lacked nothing."""
    flow: TransferRate = field(init=False)
    """The rate of sent bytes."""
    watches_write: bool = field(default=False, init=False)
    asked_offset: int | None = field(default=None, init=False)
    reported_offset: int = field(default=0, init=False)
    """The log end that it reported."""
    next_offset: int = field(default=0, init=False)
    """The begin of the next transfer."""
    _greets: bool = field(default=False, init=False)
    """Whether the last transfer is an empty heartbeat, which causes no progress."""
    _first_offset: int = field(default=0, init=False)
    """The begin of the first transfer."""
    _reader: ReportReader = field(factory=ReportReader, init=False)
    _received: bytearray = field(factory=lambda: bytearray(_RECEIVE_SIZE), init=False)
    _out: deque[Buffer] = field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self.moved_ns = self.heard_ns
        self.flow = TransferRate(self.sent_ns)

    def __str__(self) -> str:
        return f"slave {self.peer[0]}:{self.peer[1]}"

    def read(self, now_ns: int) -> bool:
        """Read reports; returns false if the slave closed. Raises RemoteProtocolError and OSError."""
        for _ in range(_READS_MAX):
            try:
                size = self.socket.recv_into(self._received)
            except BlockingIOError:
                return True
            if not size:
                return False
            reported = self._reader.receive(memoryview(self._received)[:size])
            if reported is not None:
                # Single bytes are not a report and do not keep a slot.
                self.heard_ns = now_ns
                moves = self.asked_offset is None or reported > self.reported_offset
                self._report(reported)
                if moves or not self.lacked_size:
                    self.moved_ns = now_ns
        return True

    def _report(self, offset: int) -> None:
        store = self.store
        if offset > store.log_end:
            raise RemoteProtocolError(
                f"has a log up to {offset}, but this one ends at {store.log_end}, so they differ; stop it and give it "
                "a copy of this store, or an empty directory"
            )
        if self.asked_offset is None:
            first = offset
            if not offset:
                size = store.log_file_size
                first = store.log_end - store.log_end % size if self.begins_with_last_file else store.log_start
            if first < store.log_start:
                raise RemoteProtocolError(
                    f"asks for the log from {first} on, but the files before {store.log_start} were removed; stop it "
                    "and give it a copy of this store, or an empty directory"
                )
            self.asked_offset = offset
            self.next_offset = self._first_offset = first
        elif offset > self.next_offset:
            raise RemoteProtocolError(f"reports a log up to {offset}, but was sent only up to {self.next_offset}")
        self.reported_offset = offset

    def write(self, now_ns: int) -> bool:
        """Send missing data, up to a turn's size; returns whether the socket may accept more. Raises OSError."""
        sent = 0
        while sent < TURN_SIZE:
            if not self._out and not self._begin():
                return False
            try:
                size = self.socket.send_parts(tuple(self._out))
            except BlockingIOError:
                return False
            sent += size
            self.flow.add(size)
            self.sent_ns = now_ns
            if not self._greets and self.lacked_size <= UNREPORTED_SIZE_MAX:
                self.moved_ns = now_ns
            self._drop(size)
        return True

    def greet(self) -> None:
        """Begin an empty transfer, a heartbeat to an up-to-date slave."""
        if not self._out and self.asked_offset is not None:
            self._out.append(encode_head(self.next_offset, 0))
            self._greets = True

    @property
    def lacked_size(self) -> int:
        """Bytes sent or in transfer, and not reported."""
        return max(self.next_offset - max(self._first_offset, self.reported_offset), 0)

    @property
    def gives_way(self) -> bool:
        """Whether it has copied nothing yet: any peer may report an offset."""
        return self.asked_offset is None or self.reported_offset <= self.asked_offset

    @property
    def is_current(self) -> bool:
        """Whether it claims to have everything that it was sent."""
        return self.asked_offset is not None and not self.lacked_size

    @property
    def is_blocked(self) -> bool:
        """Whether a transfer waits for the socket."""
        return bool(self._out)

    def _begin(self) -> bool:
        """Begin the next transfer; returns false if there is nothing to send."""
        if self.asked_offset is None:
            return False
        part = self.store.log_part(self.next_offset, self.transfer_size, only_visible=self.only_visible)
        if part is None:
            if self.next_offset < self.store.log_start:
                raise RemoteProtocolError(
                    f"is at {self.next_offset}, before {self.store.log_start}, where the log begins"
                )
            return False
        self._greets = False
        self._out.extend((encode_head(self.next_offset, len(part)), part))
        self.next_offset += len(part)
        return True

    def _drop(self, size: int) -> None:
        while size:
            first = self._out.popleft()
            if len(first) > size:
                self._out.appendleft(memoryview(first)[size:])
                return
            size -= len(first)

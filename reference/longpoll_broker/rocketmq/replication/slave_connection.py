"""One slave's connection as its master has it: what the slave says it has, and what it is sent from there on.

Leaves out the thread and the sends that wait (`replicator`). Source: `HAConnection.java` 4.9.7.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define, field

from longpoll_broker.rocketmq.replication.transfer_rate import TransferRate
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames.replication import ReportReader, encode_head
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address, Buffer, Socket

TURN_SIZE: Final = 1 * MIB
"""Bytes sent to one slave before the others, and the reports, have their turn."""
UNREPORTED_SIZE_MAX: Final = 16 * MIB
"""Bytes that a slave may have been sent and not reported while it counts as getting further: several large records."""
_RECEIVE_SIZE: Final = 4096
_READS_MAX: Final = 16
"""So that one that reports without end does not keep the others from theirs."""


@define(slots=True, eq=False)
class SlaveConnection:
    """One connection; one thread uses it. Invariant: `_out` is what was begun and is not sent, `next_offset` follows.

    `asked_offset` is None until the first report, and nothing is sent before.
    """

    socket: Socket
    peer: Address
    store: MessageStore
    transfer_size: int
    """`haTransferBatchSize`."""
    begins_with_last_file: bool
    """Whether a slave that has nothing is sent only the log's last file."""
    only_visible: bool
    """Whether it is sent what is visible here, and nothing before that."""
    heard_ns: int
    """When it last said something."""
    sent_ns: int
    """When it was last sent something."""
    moved_ns: int = field(init=False)
    """When it last got further, or lacked nothing of what it was sent."""
    flow: TransferRate = field(init=False)
    """Of what it is sent."""
    watches_write: bool = field(default=False, init=False)
    asked_offset: int | None = field(default=None, init=False)
    reported_offset: int = field(default=0, init=False)
    """Up to where it has the log, as it says."""
    next_offset: int = field(default=0, init=False)
    """Where the next transfer begins."""
    _greets: bool = field(default=False, init=False)
    """Whether what was begun last is a greeting, by which nobody gets further."""
    _first_offset: int = field(default=0, init=False)
    """Where the first one did."""
    _reader: ReportReader = field(factory=ReportReader, init=False)
    _received: bytearray = field(factory=lambda: bytearray(_RECEIVE_SIZE), init=False)
    _out: deque[Buffer] = field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self.moved_ns = self.heard_ns
        self.flow = TransferRate(self.sent_ns)

    def __str__(self) -> str:
        return f"slave {self.peer[0]}:{self.peer[1]}"

    def read(self, now_ns: int) -> bool:
        """Take what it says; false when it has closed. Raises RemoteProtocolError and OSError."""
        for _ in range(_READS_MAX):
            try:
                size = self.socket.recv_into(self._received)
            except BlockingIOError:
                return True
            if not size:
                return False
            reported = self._reader.receive(memoryview(self._received)[:size])
            if reported is not None:
                # A byte now and then is no report, and keeps nobody's place.
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
        self.reported_offset = offset

    def write(self, now_ns: int) -> bool:
        """Send what it lacks, up to a turn's size; whether there may be more that its socket takes. Raises OSError."""
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
        """Begin a transfer of nothing, which says that the master is there; for a slave that lacks nothing."""
        if not self._out and self.asked_offset is not None:
            self._out.append(encode_head(self.next_offset, 0))
            self._greets = True

    @property
    def lacked_size(self) -> int:
        """Bytes that it was sent, or is being sent, and has not reported."""
        return max(self.next_offset - max(self._first_offset, self.reported_offset), 0)

    @property
    def gives_way(self) -> bool:
        """Whether it has copied nothing so far of what it asked for, or has not asked: anybody may say some bytes."""
        return self.asked_offset is None or (self.lacked_size > 0 and self.reported_offset <= self.asked_offset)

    @property
    def is_blocked(self) -> bool:
        """Whether something that was begun waits until the socket takes it."""
        return bool(self._out)

    def _begin(self) -> bool:
        """Begin the next transfer; false when it has everything."""
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

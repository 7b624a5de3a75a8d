"""The slave's side of replication: one thread that receives the master's log and reports its own progress.

Only complete, checked records are appended (`store.replica_append`), so a report counts complete data; with SYNC_FLUSH,
durable data. Invalid data is never appended: it ends the connection with a log message, and the thread retries, because
the master may be fixed.

The master's address: see `peer_client`. Tables: see `table_sync`. Source: `HAService.HAClient` 4.9.7,
`DefaultHAClient.java` 5.x.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import define, field

from longpoll_broker.errors import BrokerError
from longpoll_broker.rocketmq.replication.peer_client import MasterAddress
from longpoll_broker.shared.statistics import TransferRate
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.bodies import FollowingStatus
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.log_record import SIZE_AND_MAGIC
from longpoll_protocol.replication import (
    REPORT_SIZE,
    TRANSFER_SIZE_MAX,
    Transfer,
    TransferReader,
    encode_report,
)
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Poller, Runtime, Socket
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS
from longpoll_runtime.services import ServiceThread

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""Wait before the next try; RocketMQ waits 5 s."""
CONNECT_S: Final = 3.0
LOOK_S: Final = 0.5
"""Interval of checks for a stop or a due report while the master is silent."""
RECEIVE_SIZE: Final = 256 * KIB
READS_MAX: Final = 16
"""Reads between two reports."""


class MasterGoneError(BrokerError):
    """The master closed the connection or is silent."""


@define(slots=True, eq=False)
class Follower(ServiceThread):
    """The thread. Invariant: the log followed by `_pending` equals the bytes that the master sent."""

    NAME = "follower"

    store: MessageStore
    master: MasterAddress
    show: Callable[[], None]
    """Makes appended messages visible, and wakes pulls."""
    flushes: bool
    """Whether only durable data is reported (`SYNC_FLUSH`)."""
    heartbeat_ms: int
    """`haSendHeartbeatInterval`."""
    idle_ms_max: int
    """`haHousekeepingInterval`: a master silent for so long is considered gone."""
    is_connected: bool = field(default=False, init=False)
    """Whether a master is sending."""
    _heard_ms: int = field(default=0, init=False)
    """When the master last sent something; 0 before."""
    _reported_ms: int = field(default=0, init=False)
    _flow: TransferRate = field(init=False)
    _pending: bytearray = field(factory=bytearray, init=False)
    """Part of a record, to be appended at the log's end."""
    _due_size: int = field(default=0, init=False)
    """Expected size of that record by its head, after the store accepted it; 0 before.

    The record is not read again before this size, because otherwise one arriving byte by byte would be copied each
    time.
    """

    _poller: Poller = field(init=False)

    def __attrs_post_init__(self) -> None:
        ServiceThread.__attrs_post_init__(self)
        self._poller = self.runtime.poller()
        self._flow = TransferRate(self.runtime.monotonic_ns())

    @property
    def status(self) -> FollowingStatus:
        """The state in the answer to code 907."""
        address = self.master.ha_address
        return FollowingStatus(
            last_read_timestamp=self._heard_ms,
            last_write_timestamp=self._reported_ms,
            master_addr=None if address is None else f"{address[0]}:{address[1]}",
            max_offset=self.store.log_end,
            transferred_byte_in_second=self._flow.per_second,
        )

    def stop(self) -> None:
        """End the thread and the connection."""
        self._stop.set()
        self._poller.wake()
        ServiceThread.stop(self)
        self._poller.close()

    def _run(self) -> None:
        wait_ms = 0
        while not self._stop.wait(wait_ms / 1000):
            wait_ms = RETRY_MS
            address = self.master.ha_address
            if address is None:
                continue
            try:
                self._follow(*address)
            except (BrokerError, RemoteProtocolError, OSError) as error:
                log.warning(
                    "the log of the master at %s:%d is not followed: %s; trying again",
                    *address,
                    error,
                    extra=event("master_lost", peer="{}:{}".format(*address), reason=str(error)),
                )
            except FAULTS:
                log.exception("the master could not be followed; trying again")
            finally:
                self.is_connected = False
                self._pending.clear()
                self.store.forget_beginning()

    def _follow(self, host: str, port: int) -> None:
        """Copy from one connection until it ends; raises the reason."""
        socket = self.runtime.connect(host, port, CONNECT_S)
        self._poller.register(socket, read=True, write=False, data=None)
        try:
            link = _Link(self.runtime, socket, self._poller, self.store.log_end)
            self.is_connected = True
            log.info(
                "the master at %s:%d is followed from %d on",
                host,
                port,
                self.store.log_end,
                extra=event("master_found", peer=f"{host}:{port}", log_end=self.store.log_end),
            )
            self._copy(link, (host, port))
        finally:
            self._poller.unregister(socket)
            socket.close()

    def _copy(self, link: _Link, address: tuple[str, int]) -> None:
        while not self._stop.is_set() and self.master.ha_address == address:
            size = link.receive()
            if size:
                self._heard_ms = self.runtime.unix_ms()
                self._flow.add(size)
            self._flow.look(self.runtime.monotonic_ns())
            while (transfer := link.reader.next_transfer()) is not None:
                self._take(transfer)
            if self.store.log_end > link.reported_offset:
                if self.flushes:
                    self.store.flush()
                self.show()
                self._report(link)
            elif link.since_report_ms() >= self.heartbeat_ms:
                self._report(link)
            if not size and link.since_heard_ms() > self.idle_ms_max:
                raise MasterGoneError(f"it has sent nothing for {self.idle_ms_max} ms")

    def _report(self, link: _Link) -> None:
        link.report(self.store.log_end)
        self._reported_ms = self.runtime.unix_ms()

    def _take(self, transfer: Transfer) -> None:
        """Append complete records; raises CopyRefusedError and OSError."""
        due = self.store.log_end + len(self._pending)
        is_begun = bool(self.store.log_end or self._pending)
        if is_begun and transfer.physical_offset != due:
            raise RemoteProtocolError(f"it sends its log from {transfer.physical_offset}, but {due} comes next here")
        if not transfer.content:
            return
        start = self.store.log_end if is_begun else transfer.physical_offset
        content = transfer.content
        if self._pending:
            self._pending += content
            if len(self._pending) < self._due_size:
                return
            content = memoryview(bytes(self._pending))
        taken = self.store.put_copied(start, content)
        self._pending = bytearray(content[taken:])
        is_told = len(self._pending) >= SIZE_AND_MAGIC.size
        self._due_size = SIZE_AND_MAGIC.unpack_from(self._pending)[0] if is_told else 0


@define(slots=True, eq=False)
class _Link:
    runtime: Runtime
    socket: Socket
    poller: Poller
    reported_offset: int
    reader: TransferReader = field(factory=TransferReader, init=False)
    _received: bytearray = field(factory=lambda: bytearray(RECEIVE_SIZE), init=False)
    _heard_ns: int = field(init=False)
    _reported_ns: int = field(init=False)
    _out: bytes = field(default=b"", init=False)

    def __attrs_post_init__(self) -> None:
        self._heard_ns = self._reported_ns = self.runtime.monotonic_ns()
        self.report(self.reported_offset)

    def receive(self) -> int:
        """Wait briefly for data; returns its size. Raises MasterGoneError and OSError."""
        self.poller.poll(LOOK_S)
        self._send()
        heard_size = 0
        for _ in range(READS_MAX):
            try:
                size = self.socket.recv_into(self._received)
            except BlockingIOError:
                break
            if not size:
                raise MasterGoneError("it has closed the connection")
            heard_size += size
            self.reader.receive(memoryview(self._received)[:size])
            if self.reader.gathered_size > TRANSFER_SIZE_MAX:
                break
        if heard_size:
            self._heard_ns = self.runtime.monotonic_ns()
        return heard_size

    def report(self, offset: int) -> None:
        """Report the log's end; raises OSError."""
        self.reported_offset = offset
        self._reported_ns = self.runtime.monotonic_ns()
        # An unsent report is replaced; a partly sent one is kept, because its end must follow.
        self._out = self._out[: len(self._out) % REPORT_SIZE] + encode_report(offset)
        self._send()

    def _send(self) -> None:
        try:
            while self._out:
                self._out = self._out[self.socket.send(self._out) :]
        except BlockingIOError:
            pass
        self.poller.modify(self.socket, read=True, write=bool(self._out), data=None)

    def since_heard_ms(self) -> float:
        """Time since the master last sent something, ms."""
        return (self.runtime.monotonic_ns() - self._heard_ns) / 1e6

    def since_report_ms(self) -> float:
        """Time since the last report, ms."""
        return (self.runtime.monotonic_ns() - self._reported_ns) / 1e6

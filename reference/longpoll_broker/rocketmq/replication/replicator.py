"""The master's side of replication: one thread that sends the log to every slave and answers waiting sends.

It wakes after appends and, as RocketMQ, every 100 ms. Any connecting peer gets the whole log: the port checks only
addresses. Unauthenticated clients cannot occupy the slots: a slave without reports or progress is disconnected, also
one that reports more than it was sent. A slave that has copied nothing gives way to a new one. One connection: see
`slave_connection`.

Sends of a SYNC_MASTER wait for slaves: on 4.9 for the most advanced one, if one is near enough; on 5.x for
`inSyncReplicas` - 1 slaves, whether they exist or not.

Source: `HAService.java`, `CommitLog.submitReplicaRequest` 4.9.7; `DefaultHAService.java`, `CommitLog.handleHA`,
`GroupTransferService.java` 5.x.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

from attrs import define, field, frozen

from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.transport import ACCEPT_PAUSE_S
from longpoll_broker.rocketmq.replication.slave_connection import SlaveConnection
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.bodies import SlaveStatus
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_runtime import Address, Listener, Lock, Poller, Runtime, Thread
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS, KeepGoing

WAITING_COUNT_MAX: Final = 100_000
"""Maximum waiting sends; the next one is answered at once as timed out."""
SPARE_COUNT: Final = 1_000
"""Finished sends allowed in the heap, in addition to the number of waiting ones, before it is cleaned."""

Copied = Callable[[bool, Outbox], None]
"""Called with whether enough slaves have a message in time; writes the answer to the outbox."""


@define(slots=True, eq=False, order=False)
class SlaveWait:
    """One waiting send; `is_over` once it is being answered."""

    log_end: int
    deadline_ns: int
    copied: Copied
    is_over: bool = field(default=False, init=False)


@define(slots=True, eq=False)
class SlaveWaits:
    """Every waiting send; the caller locks. Invariant: `count` is the number of unfinished ones."""

    count: int = field(default=0, init=False)
    _by_end: list[tuple[int, int, SlaveWait]] = field(factory=list, init=False)
    """A heap. Timed-out sends stay until they reach the top or most of the heap is timed out."""
    _by_deadline: deque[SlaveWait] = field(factory=deque, init=False)
    """In order of arrival, because all wait equally long."""
    _numbers: itertools.count[int] = field(factory=itertools.count, init=False)

    def add(self, wait: SlaveWait) -> bool:
        """Add a send; returns false if too many wait."""
        if self.count >= WAITING_COUNT_MAX:
            return False
        self.count += 1
        heapq.heappush(self._by_end, (wait.log_end, next(self._numbers), wait))
        self._by_deadline.append(wait)
        return True

    def take_copied(self, copied_end: int) -> list[SlaveWait]:
        """Finish and return the sends whose messages enough slaves have, up to `copied_end`."""
        found = []
        while self._by_end and self._by_end[0][0] <= copied_end:
            wait = heapq.heappop(self._by_end)[2]
            if not wait.is_over:
                found.append(wait)
        return self._over(found)

    def take_late(self, now_ns: int | None) -> list[SlaveWait]:
        """Finish and return the timed-out sends, or all of them if `now_ns` is None."""
        found = []
        while self._by_deadline and (
            now_ns is None or self._by_deadline[0].is_over or self._by_deadline[0].deadline_ns <= now_ns
        ):
            wait = self._by_deadline.popleft()
            if not wait.is_over:
                found.append(wait)
        return self._over(found)

    def _over(self, found: list[SlaveWait]) -> list[SlaveWait]:
        for wait in found:
            wait.is_over = True
        self.count -= len(found)
        if not self.count:
            self._by_end.clear()
            self._by_deadline.clear()
        elif len(self._by_end) > 2 * self.count + SPARE_COUNT:
            # If a slave is away for hours, sends time out and none reaches the top.
            self._by_end = [entry for entry in self._by_end if not entry[2].is_over]
            heapq.heapify(self._by_end)
        return found


log = logging.getLogger(__name__)

ACCEPT_COUNT_MAX: Final = 64
"""Maximum connections accepted before slaves and waiting sends get their turn."""
LOOK_S: Final = 0.1
"""Interval of periodic checks, seconds (`allWaitForRunning`)."""


Network: TypeAlias = IPv4Network | IPv6Network


@frozen
class ReplicationSettings:
    """Settings of a master's replication."""

    transfer_size: int
    """`haTransferBatchSize`, bytes."""
    heartbeat_ms: int
    """`haSendHeartbeatInterval`: interval of heartbeats to up-to-date slaves."""
    idle_ms_max: int
    """`haHousekeepingInterval`: a slave silent or without progress for so long is disconnected."""
    slave_count_max: int
    networks: tuple[Network, ...]
    """Allowed addresses of slaves; empty: all."""
    behind_bytes_max: int
    """`haSlaveFallbehindMax`: sends do not wait for a slave that lacks this many bytes."""
    timeout_ms: int
    """`slaveTimeout`: how long a send waits for slaves."""
    needed_count: int | None
    """Number of slaves that must have a message; None: one, if it is not too far behind."""
    begins_with_last_file: bool
    only_visible: bool
    """Whether slaves get only visible messages."""


@define(slots=True, eq=False)
class Replicator:
    """The thread. Invariant: only it changes `_links` and the poller; `_waits` changes under `_lock`."""

    runtime: Runtime
    store: MessageStore
    listener: Listener
    settings: ReplicationSettings
    copied_end: int = field(default=0, init=False)
    """The greatest log end that any slave has reported (`push2SlaveMaxOffset`); it never decreases."""
    _links: tuple[SlaveConnection, ...] = field(default=(), init=False)
    """Replaced, never changed, so that other threads may read it."""
    _waits: SlaveWaits = field(factory=SlaveWaits, init=False)
    _lock: Lock = field(init=False)
    _poller: Poller = field(init=False)
    _resume_ns: int | None = field(default=None, init=False)
    """When slaves are accepted again; None while they are accepted."""
    _is_woken: bool = field(default=False, init=False)
    _stopping: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._lock = self.runtime.lock()
        self._poller = self.runtime.poller()
        self._poller.register(self.listener, read=True, write=False, data=None)

    @property
    def address(self) -> Address:
        """The address for slaves."""
        return self.listener.address

    @property
    def behind_bytes(self) -> dict[str, int]:
        """Bytes of the log that each slave lacks, by its address."""
        end = self.store.log_end
        return {f"{link.peer[0]}:{link.peer[1]}": max(end - link.reported_offset, 0) for link in self._links}

    @property
    def slaves(self) -> list[SlaveStatus]:
        """The slaves as in the answer to code 907."""
        end = self.store.log_end
        return [self._status_of(link, end) for link in self._links]

    def _status_of(self, link: SlaveConnection, end: int) -> SlaveStatus:
        asked = link.asked_offset is not None
        acknowledged = link.reported_offset if asked else -1
        return SlaveStatus(
            addr=f"{link.peer[0]}:{link.peer[1]}",
            diff=end - acknowledged,
            in_sync=end - acknowledged < self.settings.behind_bytes_max,
            slave_ack_offset=acknowledged,
            transfer_from_where=link.next_offset if asked else -1,
            transferred_byte_in_second=link.flow.per_second,
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread = self.runtime.spawn("replicator", self._run)

    def stop(self) -> None:
        """End the thread and every connection; waiting sends are answered as timed out."""
        self._stopping = True
        self._poller.wake()
        if self._thread is not None:
            self._thread.join()
        for link in self._links:
            link.socket.close()
        self._links = ()
        self.listener.close()
        self._poller.close()
        outbox = Outbox()
        self._answer_late(None, outbox)
        outbox.flush()

    def appended(self) -> None:
        """Send appended messages; callable from any thread when they may be sent."""
        if self._links and not self._is_woken:
            self._is_woken = True
            self._poller.wake()

    def is_near(self, log_end: int) -> bool:
        """Whether a slave is near enough to wait for this log end (`isSlaveOK`)."""
        if self.settings.needed_count is not None:
            return True
        return bool(self._links) and log_end - self.copied_end < self.settings.behind_bytes_max

    def submit(self, log_end: int, copied: Copied, outbox: Outbox) -> None:
        """Call `copied` when enough slaves have the log up to `log_end`, or at a timeout.

        Runs on the replicator's thread; at once, with the caller's outbox, if it cannot wait.
        """
        needed = self.settings.needed_count
        deadline_ns = self.runtime.monotonic_ns() + self.settings.timeout_ms * 1_000_000
        wait = SlaveWait(log_end, deadline_ns, copied)
        is_there = needed == 0
        with self._lock:
            waits = not is_there and not self._stopping and self._waits.add(wait)
        if not waits:
            copied(is_there, outbox)
            return
        if not self._is_woken:
            self._is_woken = True
            self._poller.wake()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        outbox = Outbox()
        has_more = False
        while not self._stopping:
            is_idle = not self._links and not self._waits.count and self._resume_ns is None
            ready = self._poller.poll(0 if has_more else None if is_idle else LOOK_S)
            # Reset before the checks, so that later appends wake the thread again.
            self._is_woken = False
            now_ns = self.runtime.monotonic_ns()
            if self._resume_ns is not None and now_ns >= self._resume_ns:
                self._resume_ns = None
                self._poller.modify(self.listener, read=True, write=False, data=None)
            for data, is_readable, _is_writable in ready:
                if data is None:
                    self._accept(now_ns)
                elif isinstance(data, SlaveConnection) and is_readable and not self._serve(data, "read", now_ns):
                    self._close(data, "it has closed the connection")
            has_more = False
            for link in self._links:
                has_more |= self._serve(link, "write", now_ns)
            self._look_after(now_ns)
            self._answer_copied(outbox)
            self._answer_late(now_ns, outbox)
            outbox.flush()

    def _accept(self, now_ns: int) -> None:
        for _ in range(ACCEPT_COUNT_MAX):
            try:
                socket, peer = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Usually out of file descriptors: an immediate retry would only spin.
                log.warning(
                    "a slave could not be accepted: %s; trying again in %.0f s",
                    error,
                    ACCEPT_PAUSE_S,
                    extra=event("connection_refused", reason=str(error)),
                )
                self._poller.modify(self.listener, read=False, write=False, data=None)
                self._resume_ns = now_ns + int(ACCEPT_PAUSE_S * 1e9)
                return
            reason = self._refusal(peer)
            if reason:
                log.warning(
                    "slave %s:%d is refused: %s",
                    *peer,
                    reason,
                    extra=event("slave_refused", peer=f"{peer[0]}:{peer[1]}", count=len(self._links), reason=reason),
                )
                socket.close()
                continue
            settings = self.settings
            link = SlaveConnection(
                socket,
                peer,
                self.store,
                settings.transfer_size,
                settings.begins_with_last_file,
                settings.only_visible,
                now_ns,
                now_ns,
            )
            self._poller.register(socket, read=True, write=False, data=link)
            self._links = (*self._links, link)
            log.info("%s has connected", link, extra=event("slave_connected", peer=str(link)))

    def _refusal(self, peer: Address) -> str:
        """Returns why a peer may not follow; empty if there is room, perhaps after closing another."""
        settings = self.settings
        if settings.networks:
            address = ip_address(peer[0])
            mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
            if not any((mapped or address) in network for network in settings.networks):
                return "slaveAddresses does not have it"
        if len(self._links) >= settings.slave_count_max:
            idle = min((link for link in self._links if link.gives_way), key=lambda link: link.is_current, default=None)
            if idle is None:
                return f"there are {len(self._links)} already"
            self._close(idle, "it has copied nothing yet, and another one is there")
        return ""

    def _serve(self, link: SlaveConnection, what: str, now_ns: int) -> bool:
        """Read from or write to a slave, and close it on errors; returns whether there is more."""
        if link not in self._links:
            return True
        try:
            return link.read(now_ns) if what == "read" else link.write(now_ns)
        except (RemoteProtocolError, OSError) as error:
            self._close(link, str(error))
        except FAULTS:
            log.exception("%s could not be served", link)
            self._close(link, "of a fault here")
        return what == "read"

    def _look_after(self, now_ns: int) -> None:
        for link in self._links:
            link.flow.look(now_ns)
            if now_ns - link.heard_ns > self.settings.idle_ms_max * 1_000_000:
                self._close(link, f"it has sent nothing for {self.settings.idle_ms_max} ms")
            elif link.lacked_size and now_ns - link.moved_ns > self.settings.idle_ms_max * 1_000_000:
                self._close(link, f"it has got no further for {self.settings.idle_ms_max} ms")
            elif now_ns - link.sent_ns > self.settings.heartbeat_ms * 1_000_000:
                link.greet()
                self._serve(link, "write", now_ns)
            if link in self._links and link.watches_write != link.is_blocked:
                link.watches_write = link.is_blocked
                self._poller.modify(link.socket, read=True, write=link.is_blocked, data=link)

    def _close(self, link: SlaveConnection, reason: str) -> None:
        self._links = tuple(each for each in self._links if each is not link)
        with KeepGoing(log, "a slave's connection could not be closed"):
            self._poller.unregister(link.socket)
            link.socket.close()
        log.warning("%s is let go: %s", link, reason, extra=event("slave_closed", peer=str(link), reason=reason))

    def _answer_copied(self, outbox: Outbox) -> None:
        # Without a report a slave has nothing: 0, where no message ends.
        reported = sorted((link.reported_offset for link in self._links), reverse=True)
        self.copied_end = max([self.copied_end, *reported])
        needed = self.settings.needed_count
        end = self.copied_end if needed is None else reported[needed - 1] if 0 < needed <= len(reported) else -1
        if self._waits.count:
            with self._lock:
                found = self._waits.take_copied(end)
            self._answer(found, True, outbox)

    def _answer_late(self, now_ns: int | None, outbox: Outbox) -> None:
        # On shutdown the lock is always taken, because a send may be about to wait.
        if self._waits.count or now_ns is None:
            with self._lock:
                found = self._waits.take_late(now_ns)
            self._answer(found, False, outbox)

    def _answer(self, found: list[SlaveWait], is_copied: bool, outbox: Outbox) -> None:
        for wait in found:
            with KeepGoing(log, "a send gets no answer"):
                wait.copied(is_copied, outbox)

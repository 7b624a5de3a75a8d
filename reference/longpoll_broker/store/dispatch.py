"""From the log to the queues: a cursor that makes each message visible (`ReputMessageService.doReput`).

The log is the truth. So that a message just appended need not be decoded again, its writer also hands over what its
unit needs; the hand-over is bounded, and whenever it was missed (after opening, or when the dispatcher is far behind)
the cursor reads the log. Leaves out who calls it and when (the service), and the notification that follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Final, Protocol

import msgspec

from longpoll_broker.errors import StoreDamageError
from longpoll_broker.runtime import Lock
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.consume_queue import ConsumeQueue
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.record import Damage, Record

HANDED_COUNT_MAX: Final = 262_144
"""Most messages handed over and not yet dispatched; over this the dispatcher reads the log."""


class Handed(msgspec.Struct, frozen=True, gc=False):
    """What a writer hands to the dispatcher: the unit of one record; `queue` is None when no queue lists it."""

    queue: ConsumeQueue | None
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_ms: int


class QueueOf(Protocol):
    """Finds, and makes if need be, the queue of a record."""

    def __call__(self, record: Record) -> ConsumeQueue | None:
        """The queue, or None when none lists the record; raises OSError when it cannot be made."""
        ...


InnerOf = Callable[[Record], list[tuple[ConsumeQueue, int]]]
"""The further queues that list a record, with its offset in each (`inner_queues`); raises OSError likewise."""


class Dispatcher:
    """The cursor. Invariant: every record before `cursor` is in its queue; `handed` are neighbours that begin there.

    `handing` is false from a missed hand-over until the cursor has caught up with the log; both change under the append
    lock only, so a record is either handed over or read, never both and never neither. `_handed_end` is where the log
    ended after the last hand-over: a record that does not begin there shows that one before it was missed.
    """

    __slots__ = (
        "_append_lock",
        "_handed_end",
        "_inner_of",
        "_log",
        "_queue_of",
        "cursor",
        "handed",
        "handing",
        "only_durable",
    )

    def __init__(self, log: CommitLog, append_lock: Lock, queue_of: QueueOf, inner_of: InnerOf, cursor: int) -> None:
        self._log = log
        self._append_lock = append_lock
        self._queue_of = queue_of
        self._inner_of = inner_of
        self.cursor = cursor
        self.handed: deque[Handed] = deque()
        self.handing = cursor == log.end
        self._handed_end = cursor
        # Whether the cursor stays where the log is durable (`getConfirmOffset` of 5.x under SYNC_FLUSH).
        self.only_durable = False

    def hand(self, handed: Handed, log_end_before: int) -> None:
        """Take over a record just appended; the caller holds the append lock.

        `log_end_before` is where the log ended before it, and before a blank that it may have needed.
        """
        if self.handing:
            if log_end_before == self._handed_end and len(self.handed) < HANDED_COUNT_MAX:
                self.handed.append(handed)
                self._handed_end = handed.physical_offset + handed.size
            else:
                self.handing = False

    def waiting(self) -> list[Arrival]:
        """The messages handed over and not visible yet, as they will arrive; other threads may be dispatching them."""
        return [
            Arrival(item.queue.topic, item.queue.queue_id, item.queue_offset + 1, item.tags_code, item.store_ms,
                    item.physical_offset, item.size)
            for item in list(self.handed)
            if item.queue is not None
        ]  # fmt: skip

    def unlist(self, queues: Container[ConsumeQueue]) -> None:
        """Let no queue of these list what was handed over for it; the caller holds dispatch and append lock."""
        self.handed = deque(
            msgspec.structs.replace(item, queue=None) if item.queue is not None and item.queue in queues else item
            for item in self.handed
        )

    def dispatch(self, limit: int) -> list[Arrival]:
        """Move up to `limit` records into their queues; the arrivals in log order, fewer when some list in no queue.

        One caller at a time. Raises OSError when a queue's file cannot grow (the cursor stays before that record) and
        StoreDamageError when the log holds no record where one must be; not while there are arrivals to tell of, for
        whoever waits for them must hear, and the next call meets the same.
        """
        arrivals: list[Arrival] = []
        end = self._log.flushed_end if self.only_durable else self._log.end
        try:
            self._dispatch(limit, end, arrivals)
        except (OSError, StoreDamageError):
            if not arrivals:
                raise
        return arrivals

    def _dispatch(self, limit: int, end: int, arrivals: list[Arrival]) -> None:
        handed = self.handed
        count = 0
        while handed and count < limit and self.cursor < end:
            # Looked at before it is taken: when the queue's file cannot grow the record must stay the next one.
            self._show(handed[0], arrivals.append)
            handed.popleft()
            count += 1
        if self.cursor < end:
            self._read(limit - count, end, arrivals)

    def _show(self, item: Handed, arrived: Callable[[Arrival], None]) -> None:
        queue = item.queue
        if queue is not None and queue.put(
            item.queue_offset, item.physical_offset, item.size, item.tags_code, item.store_ms
        ):
            arrived(
                Arrival(
                    queue.topic, queue.queue_id, item.queue_offset + 1, item.tags_code, item.store_ms,
                    item.physical_offset, item.size,
                )
            )  # fmt: skip
        self.cursor = item.physical_offset + item.size

    def _show_inner(self, record: Record, arrived: Callable[[Arrival], None]) -> None:
        """List a record in its further queues; one that lists it already, before a failure, is passed over."""
        for queue, offset in self._inner_of(record):
            place = (record.physical_offset, record.size, record.tags_code)
            if queue.put(offset, *place, record.store_ms):
                arrived(Arrival(queue.topic, queue.queue_id, offset + 1, place[2], record.store_ms, place[0], place[1]))

    def _read(self, limit: int, end: int, arrivals: list[Arrival]) -> None:
        log = self._log
        for _ in range(limit):
            if self.only_durable and self.cursor >= end:
                return
            with self._append_lock:
                if self.handed:
                    return
                if self.cursor == log.end:
                    self.handing = True
                    self._handed_end = log.end
                    return
            found = log.read(self.cursor)
            if isinstance(found, int):
                self.cursor = found
                continue
            if found is None or isinstance(found, Damage):
                raise StoreDamageError(
                    f"commit log, physical offset {self.cursor}: {found}; stop the broker and run "
                    "`longpoll store verify` on its store"
                )
            self._show_inner(found, arrivals.append)
            queue = self._queue_of(found)
            self._show(
                Handed(queue, found.queue_offset, found.physical_offset, found.size, found.tags_code, found.store_ms),
                arrivals.append,
            )

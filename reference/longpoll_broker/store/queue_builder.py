"""Builds the consume queues: a cursor over the log makes each message visible in its queue.

To avoid decoding each record, a writer hands its new records over. The list of handed records is bounded. When a record
is missing in it (after opening, or far behind), the cursor reads the log instead. A message whose queue cannot take its
unit waits; the messages of other queues go on.

The dispatcher's thread, retries and notification: see `DispatchService` in `hold.hold_service`.
Source: `ReputMessageService.doReput` 4.9.7.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from longpoll_broker.errors import StoreDamageError
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.consume_queue import ConsumeQueue
from longpoll_broker.store.messages import Arrival
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import SCHEDULE_TOPIC, Damage, Record, tags_code_of
from longpoll_protocol.properties import DELAY_LEVELS_MS
from longpoll_runtime import Lock
from longpoll_runtime.logs import event

_lines = logging.getLogger(__name__)

HANDED_COUNT_MAX: Final = 262_144
"""Maximum messages handed over and not yet dispatched; above this the dispatcher reads the log."""
BEHIND_COUNT_MAX: Final = 262_144
"""Maximum messages that wait for their queue; above this the cursor stops."""
RETRIED_COUNT: Final = 8
"""Number of queues with waiting messages that one call of `dispatch` tries again."""


Handed: TypeAlias = tuple[ConsumeQueue | None, Arrival]
"""One message as its arrival, and its queue; None when no queue lists it."""


class QueueOf(Protocol):
    """Finds or creates the queue of a record."""

    def __call__(self, record: Record) -> ConsumeQueue | None:
        """Returns the queue, or None if no queue lists the record.

        Raises OSError if creation fails, MessageRefusedError if it is not allowed.
        """
        ...


InnerOf = Callable[[Record], list[tuple[ConsumeQueue, int]]]
"""Finds the additional queues that list a record, with the offset in each (`inner_queues`); raises OSError."""


class QueueBuilder:
    """The cursor. Invariant: every record before `cursor` is in its queue or `behind`; `handed` begins at the cursor.

    `handing` is false from a missed hand-over until the cursor reaches the log's end. Both change only under the append
    lock, so a record is either handed over or read. `_handed_end` is the log's end after the last hand-over; a record
    that does not begin there follows a missed one.
    """

    __slots__ = (
        "_append_lock",
        "_behind_count",
        "_handed_end",
        "_inner_of",
        "_levels_ms",
        "_log",
        "_queue_of",
        "behind",
        "cursor",
        "handed",
        "handing",
        "only_durable",
        "shown_offset",
        "trouble",
    )

    def __init__(
        self,
        log: CommitLog,
        append_lock: Lock,
        queue_of: QueueOf,
        inner_of: InnerOf,
        cursor: int,
        *,
        levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    ) -> None:
        self._log = log
        self._append_lock = append_lock
        self._queue_of = queue_of
        self._inner_of = inner_of
        self._levels_ms = levels_ms
        self.cursor = cursor
        # The last record made visible; -1 before the first.
        self.shown_offset = -1
        self.handed: deque[Handed] = deque()
        self.handing = cursor == log.end
        self._handed_end = cursor
        # Whether the cursor stops at the durable end of the log (`getConfirmOffset` of 5.x under SYNC_FLUSH).
        self.only_durable = False
        # By queue, in log order, the messages that it could not list.
        self.behind: dict[ConsumeQueue, deque[Arrival]] = {}
        self._behind_count = 0
        # Why messages could not be made visible; None without a problem.
        self.trouble: OSError | StoreDamageError | None = None

    @property
    def visible_end(self) -> int:
        """Physical offset up to which every message is visible; callable from any thread."""
        # The cursor is read before `behind`, because it passes a message only after the message is in `behind`.
        end = self.cursor
        for waiting in self.behind.copy().values():
            with suppress(IndexError):  # `dispatch` has listed the last waiting message meanwhile
                end = min(end, waiting[0].physical_offset)
        return end

    def hand(self, burst: Sequence[Handed], log_end_before: int) -> None:
        """Take over appended, adjacent records; the caller holds the append lock.

        `log_end_before` is the log's end before them and before a blank that preceded the first.
        """
        if self.handing:
            if log_end_before == self._handed_end and len(self.handed) < HANDED_COUNT_MAX:
                self.handed.extend(burst)
                self._handed_end = burst[-1][1].log_end
            else:
                self.handing = False

    def waiting(self) -> list[Arrival]:
        """The messages handed over and not yet visible; other threads may be dispatching them."""
        return [arrival for queue, arrival in list(self.handed) if queue is not None]

    def unlist(self, queues: Container[ConsumeQueue]) -> None:
        """Unlist the handed-over messages of these queues; the caller holds dispatch and append lock."""
        self.handed = deque(
            (None, arrival) if queue is not None and queue in queues else (queue, arrival)
            for queue, arrival in self.handed
        )
        for queue in [queue for queue in self.behind if queue in queues]:
            self._behind_count -= len(self.behind.pop(queue))
        if not self.behind:
            self.trouble = None

    def dispatch(self, limit: int) -> list[Arrival]:
        """Move up to `limit` records into their queues; returns the arrivals in log order.

        One caller at a time. Returns fewer arrivals if some records have no queue. Messages that a queue cannot list
        are `behind` and retried on each call. Raises OSError when too many are behind, and StoreDamageError when a
        record is damaged. If there are arrivals, it returns them so that their pulls wake; the next call raises.
        """
        arrivals: list[Arrival] = []
        end = self._log.flushed_end if self.only_durable else self._log.end
        try:
            if self.behind:
                self._catch_up(limit, arrivals)
            self._dispatch(limit - len(arrivals), end, arrivals)
        except (OSError, StoreDamageError) as error:
            self.trouble = error
            if not arrivals:
                raise
        else:
            if not self.behind:
                self.trouble = None
        return arrivals

    def _catch_up(self, limit: int, arrivals: list[Arrival]) -> None:
        for queue in list(self.behind)[:RETRIED_COUNT]:
            waiting = self.behind[queue]
            try:
                while waiting and len(arrivals) < limit:
                    if queue.put(waiting[0]):
                        arrivals.append(waiting[0])
                    waiting.popleft()
                    self._behind_count -= 1
            except OSError as error:
                self.trouble = error
            # The queue goes to the end of the order, so that the next call begins with the queues not tried yet.
            del self.behind[queue]
            if waiting:
                self.behind[queue] = waiting

    def _list(self, queue: ConsumeQueue, arrival: Arrival, arrivals: list[Arrival]) -> None:
        """List a message, or queue it in `behind`; raises OSError when too many are behind."""
        if queue not in self.behind:
            try:
                if queue.put(arrival):
                    arrivals.append(arrival)
            except OSError as error:
                if self._behind_count >= BEHIND_COUNT_MAX:
                    raise
                if not self.behind:
                    _lines.exception("a message of %s queue %d stays unseen; trying again", queue.topic, queue.queue_id)
                self.trouble = error
                self.behind[queue] = deque((arrival,))
            else:
                return
        elif self._behind_count >= BEHIND_COUNT_MAX:
            raise OSError(errno.ENOBUFS, "too many messages wait for queues that cannot list them")
        else:
            self.behind[queue].append(arrival)
        self._behind_count += 1
        # Without room, the next send to this queue is refused, so the waiting messages do not grow further.
        queue.room_end = 0

    def _dispatch(self, limit: int, end: int, arrivals: list[Arrival]) -> None:
        handed = self.handed
        count = 0
        while handed and count < limit and self.cursor < end:
            # Removed only after it was listed: if too many messages are behind, this record must stay the next one.
            queue, arrival = handed[0]
            if queue is not None:
                self._list(queue, arrival, arrivals)
            self.shown_offset = start = arrival.physical_offset
            self.cursor = start + arrival.size
            handed.popleft()
            count += 1
        if self.cursor < end:
            self._read(limit - count, end, arrivals)

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
            self._show_read(found, arrivals)

    def _show_read(self, found: Record, arrivals: list[Arrival]) -> None:
        """List a record read from the log, in additional queues first; skip it if no queue may list it."""
        for inner, offset in self._inner_of(found):
            if not _may_list(inner, offset, found):
                continue
            # A queue that already listed the record before a failure skips it as a duplicate.
            self._list(inner, arrival_of(found, inner.topic, inner.queue_id, offset, self._levels_ms), arrivals)
        try:
            queue = self._queue_of(found)
        except MessageRefusedError as error:
            # No checksum covers the topic's name, so it may be damaged, and this one is not safe as a path.
            _tell_of_damage(found, str(error))
            queue = None
        if queue is not None and _may_list(queue, found.queue_offset, found):
            arrival = arrival_of(found, found.topic, found.queue_id, found.queue_offset, self._levels_ms)
            self._list(queue, arrival, arrivals)
        self.shown_offset = found.physical_offset
        self.cursor = found.physical_offset + found.size


def _may_list(queue: ConsumeQueue, offset: int, record: Record) -> bool:
    """Whether a queue may list a record at an offset.

    No checksum covers the offset, and filling a large gap costs disk.
    """
    if queue.may_list(offset, record.physical_offset):
        return True
    place = f"it says that it is number {offset} of {queue.topic} queue {queue.queue_id}"
    _tell_of_damage(record, f"{place}, which has {queue.offset_end}, and so many others do not fit before it")
    return False


def _tell_of_damage(record: Record, why: str) -> None:
    _lines.error(
        "the record at %d is damaged, and nobody is shown it: %s",
        record.physical_offset,
        why,
        extra=event("record_unlisted", physical_offset=record.physical_offset, topic=record.topic),
    )


def arrival_of(record: Record, topic: str, queue_id: int, offset: int, levels_ms: Sequence[int]) -> Arrival:
    """Create a record's arrival at an offset of a queue."""
    code = record.tags_code
    if record.topic == SCHEDULE_TOPIC:
        code = tags_code_of(record.topic, record.properties, record.store_ms, levels_ms)
    return Arrival(topic, queue_id, offset + 1, code, record.store_ms, record.physical_offset, record.size)

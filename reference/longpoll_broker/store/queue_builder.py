"""Builds the consume queues: a cursor over the log makes each message visible in its queue.

A writer hands its new records over to the cursor, so that the cursor need not decode each record. The list of
handed-over records is bounded. If a record is missing in the list (after opening, or when the cursor is far behind),
the cursor reads the log instead. If a queue cannot take a message's unit, the message waits, and the messages of other
queues continue.

The dispatcher's thread, retries and notification: see `DispatchService` in `hold.hold_service`. Source:
`ReputMessageService.doReput` 4.9.7.
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
"""Maximum messages handed over and not yet dispatched; beyond this limit, the dispatcher reads the log."""
BEHIND_COUNT_MAX: Final = 262_144
"""Maximum messages that wait for their queue; beyond this limit, the cursor stops."""
RETRIED_COUNT: Final = 8
"""Number of queues with waiting messages that one call of `dispatch` tries again."""


Handed: TypeAlias = tuple[ConsumeQueue | None, Arrival]
"""A message's queue and its arrival; the queue is None if the message is in no queue."""


class QueueOf(Protocol):
    """Finds or creates the queue of a record."""

    def __call__(self, record: Record) -> ConsumeQueue | None:
        """Returns the queue, or None if the record belongs in no queue.

        Raises OSError if the queue cannot be created, and MessageRefusedError if creating it is not allowed.
        """
        ...


InnerOf = Callable[[Record], list[tuple[ConsumeQueue, int]]]
"""Finds the additional queues of a record, and its offset in each (`inner_queues`); raises OSError."""


class QueueBuilder:
    """The cursor. Invariant: every record before `cursor` is in its queue or `behind`; `handed` begins at the cursor.

    `handing` says whether writers hand records over in memory. It becomes false when a writer could not hand over a
    record, and true again when the cursor, which then reads the log, reaches the log's end. `handing` and `_handed_end`
    change only under the append lock, so a record is either handed over or read. `_handed_end` is the log's end after
    the last record that a writer handed over. If a new record does not begin at `_handed_end`, an earlier record was
    not handed over.
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
        # Physical offset of the last record made visible; -1 before the first record.
        self.shown_offset = -1
        self.handed: deque[Handed] = deque()
        self.handing = cursor == log.end
        self._handed_end = cursor
        # Whether the cursor stops at the durable end of the log (`getConfirmOffset` of 5.x under SYNC_FLUSH).
        self.only_durable = False
        # By queue, in log order, the messages that the queue could not accept.
        self.behind: dict[ConsumeQueue, deque[Arrival]] = {}
        self._behind_count = 0
        # Why messages could not be made visible, or None.
        self.trouble: OSError | StoreDamageError | None = None

    @property
    def visible_end(self) -> int:
        """Physical offset up to which every message is visible; callable from any thread."""
        # The cursor is read before `behind`, because the cursor passes a message only after the message is in `behind`.
        end = self.cursor
        for waiting in self.behind.copy().values():
            with suppress(IndexError):  # `dispatch` may have removed the last waiting message in between.
                end = min(end, waiting[0].physical_offset)
        return end

    def hand(self, burst: Sequence[Handed], log_end_before: int) -> None:
        """Accept appended, adjacent records from a writer; the caller holds the append lock.

        `log_end_before` is the log's end before these records, and before a blank that may precede the first record.
        """
        if self.handing:
            if log_end_before == self._handed_end and len(self.handed) < HANDED_COUNT_MAX:
                self.handed.extend(burst)
                self._handed_end = burst[-1][1].log_end
            else:
                self.handing = False

    def waiting(self) -> list[Arrival]:
        """Returns the messages that are handed over and not yet visible; other threads may be dispatching them."""
        return [arrival for queue, arrival in list(self.handed) if queue is not None]

    def unlist(self, queues: Container[ConsumeQueue]) -> None:
        """Discard the handed-over messages of these queues; the caller holds the dispatch lock and the append lock."""
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

        Only one thread may call this method at a time. The result has fewer arrivals if some records have no queue.
        Messages that a queue cannot accept are `behind` and retried on each call. Raises OSError if too many messages
        are behind, and StoreDamageError if a record is damaged. If an error occurs after some arrivals, this call
        returns the arrivals, so that waiting pulls wake, and the next call raises.
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
            # The queue becomes the last in `behind`, so that the next call begins with queues that were not tried yet.
            del self.behind[queue]
            if waiting:
                self.behind[queue] = waiting

    def _list(self, queue: ConsumeQueue, arrival: Arrival, arrivals: list[Arrival]) -> None:
        """Add a message to its queue or to `behind`; raises OSError if too many messages are behind."""
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
        # Without room, the next send to this queue is refused, so the number of waiting messages does not grow.
        queue.room_end = 0

    def _dispatch(self, limit: int, end: int, arrivals: list[Arrival]) -> None:
        handed = self.handed
        count = 0
        while handed and count < limit and self.cursor < end:
            # Remove the record after it was listed: if too many messages are behind, it must remain the next record.
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
        """Add a record read from the log to its queues, additional queues first; skip a queue that may not list it."""
        for inner, offset in self._inner_of(found):
            if not _may_list(inner, offset, found):
                continue
            # If a queue listed the record before a failure, it skips the record as a duplicate.
            self._list(inner, arrival_of(found, inner.topic, inner.queue_id, offset, self._levels_ms), arrivals)
        try:
            queue = self._queue_of(found)
        except MessageRefusedError as error:
            # This topic name is not safe as a path. The name may be damaged, because no checksum covers it.
            _tell_of_damage(found, str(error))
            queue = None
        if queue is not None and _may_list(queue, found.queue_offset, found):
            arrival = arrival_of(found, found.topic, found.queue_id, found.queue_offset, self._levels_ms)
            self._list(queue, arrival, arrivals)
        self.shown_offset = found.physical_offset
        self.cursor = found.physical_offset + found.size


def _may_list(queue: ConsumeQueue, offset: int, record: Record) -> bool:
    """Whether a record may be added to a queue at an offset.

    The offset is checked, because no checksum covers it and filling a large gap costs disk space.
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

"""From the log to the queues: a cursor that makes each message visible (`ReputMessageService.doReput`).

The log is the truth. So that a message just appended need not be decoded again, its writer also hands over what its
unit needs; the hand-over is bounded, and whenever it was missed (after opening, or when the dispatcher is far behind)
the cursor reads the log. A message whose queue cannot list it waits with that queue; other queues go on.
Leaves out who calls it and when (the service), and the notification that follows.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from longpoll_broker.errors import StoreDamageError
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.queues.consume_queue import ConsumeQueue
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import SCHEDULE_TOPIC, Damage, Record, tags_code_of
from longpoll_protocol.properties import DELAY_LEVELS_MS
from longpoll_runtime import Lock
from longpoll_runtime.logs import event

_lines = logging.getLogger(__name__)

HANDED_COUNT_MAX: Final = 262_144
"""Most messages handed over and not yet dispatched; over this the dispatcher reads the log."""
BEHIND_COUNT_MAX: Final = 262_144
"""Most messages that wait for a queue that cannot list them; over this the cursor stops."""
RETRIED_COUNT: Final = 8
"""Queues of these that are tried in one call."""


Handed: TypeAlias = tuple[ConsumeQueue | None, Arrival]
"""What a writer hands to the dispatcher: one message as it will arrive, and its queue; None when no queue lists it."""


class QueueOf(Protocol):
    """Finds, and makes if need be, the queue of a record."""

    def __call__(self, record: Record) -> ConsumeQueue | None:
        """The queue, or None when none lists the record.

        Raises OSError when it cannot be made, MessageRefusedError when it may not.
        """
        ...


InnerOf = Callable[[Record], list[tuple[ConsumeQueue, int]]]
"""The further queues that list a record, with its offset in each (`inner_queues`); raises OSError likewise."""


class Dispatcher:
    """The cursor. Invariant: every record before `cursor` is in its queue, or `behind`; `handed` begin at the cursor.

    `handing` is false from a missed hand-over until the cursor has caught up with the log; both change under the append
    lock only, so a record is either handed over or read, never both and never neither. `_handed_end` is where the log
    ended after the last hand-over: a record that does not begin there shows that one before it was missed.
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
        # The record that was shown last; -1 before the first.
        self.shown_offset = -1
        self.handed: deque[Handed] = deque()
        self.handing = cursor == log.end
        self._handed_end = cursor
        # Whether the cursor stays where the log is durable (`getConfirmOffset` of 5.x under SYNC_FLUSH).
        self.only_durable = False
        # By queue, in log order, the messages that it could not list.
        self.behind: dict[ConsumeQueue, deque[Arrival]] = {}
        self._behind_count = 0
        # Why messages could not be made visible; None while all can.
        self.trouble: OSError | StoreDamageError | None = None

    @property
    def visible_end(self) -> int:
        """Physical offset up to which every message is visible; callable from any thread."""
        # Before `behind` is looked at: a message is behind first, and then the cursor passes it.
        end = self.cursor
        for waiting in self.behind.copy().values():
            with suppress(IndexError):  # the last of them was listed meanwhile
                end = min(end, waiting[0].physical_offset)
        return end

    def hand(self, burst: Sequence[Handed], log_end_before: int) -> None:
        """Take over records just appended, one behind the other; the caller holds the append lock.

        `log_end_before` is where the log ended before them, and before a blank that the first may have needed.
        """
        if self.handing:
            if log_end_before == self._handed_end and len(self.handed) < HANDED_COUNT_MAX:
                self.handed.extend(burst)
                self._handed_end = burst[-1][1].log_end
            else:
                self.handing = False

    def begin_at(self, start: int) -> None:
        """Stand where a log that was empty begins; the caller holds the append lock."""
        assert self.handing
        self.cursor = self._handed_end = start

    def waiting(self) -> list[Arrival]:
        """The messages handed over and not visible yet, as they will arrive; other threads may be dispatching them."""
        return [arrival for queue, arrival in list(self.handed) if queue is not None]

    def unlist(self, queues: Container[ConsumeQueue]) -> None:
        """Let no queue of these list what was handed over for it; the caller holds dispatch and append lock."""
        self.handed = deque(
            (None, arrival) if queue is not None and queue in queues else (queue, arrival)
            for queue, arrival in self.handed
        )
        for queue in [queue for queue in self.behind if queue in queues]:
            self._behind_count -= len(self.behind.pop(queue))
        if not self.behind:
            self.trouble = None

    def dispatch(self, limit: int) -> list[Arrival]:
        """Move up to `limit` records into their queues; the arrivals in log order, fewer when some list in no queue.

        One caller at a time. What a queue cannot list is `behind`, and tried again with each call. Raises OSError when
        too much is, and StoreDamageError when the log holds no record where one must be; not while there are arrivals
        to tell of, for the pulls that wait for them must be woken, and the next call meets the same.
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
        """List what is behind, as far as some of its queues can."""
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
            # Those that were not tried come first the next time.
            del self.behind[queue]
            if waiting:
                self.behind[queue] = waiting

    def _list(self, queue: ConsumeQueue, arrival: Arrival, arrivals: list[Arrival]) -> None:
        """Have a queue list a message, now or once it can; raises OSError when too many wait for that."""
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
        # The next send to it is refused.
        queue.room_end = 0

    def _dispatch(self, limit: int, end: int, arrivals: list[Arrival]) -> None:
        handed = self.handed
        count = 0
        while handed and count < limit and self.cursor < end:
            # Looked at before it is taken: when too much is behind the record must stay the next one.
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
        """List a record that was read, in its further queues first; one that no queue may list is passed over."""
        for inner, offset in self._inner_of(found):
            if not _may_list(inner, offset, found):
                continue
            # One that lists it already, before a failure, is passed over.
            self._list(inner, arrival_of(found, inner.topic, inner.queue_id, offset, self._levels_ms), arrivals)
        try:
            queue = self._queue_of(found)
        except MessageRefusedError as error:
            # No checksum covers the name, and this one may become no path.
            _tell_of_damage(found, str(error))
            queue = None
        if queue is not None and _may_list(queue, found.queue_offset, found):
            arrival = arrival_of(found, found.topic, found.queue_id, found.queue_offset, self._levels_ms)
            self._list(queue, arrival, arrivals)
        self.shown_offset = found.physical_offset
        self.cursor = found.physical_offset + found.size


def _may_list(queue: ConsumeQueue, offset: int, record: Record) -> bool:
    """Whether a queue may list a record at an offset; no checksum covers that, and units of a gap fill the disk."""
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
    """How a record will arrive at an offset of a queue."""
    code = record.tags_code
    if record.topic == SCHEDULE_TOPIC:
        code = tags_code_of(record.topic, record.properties, record.store_ms, levels_ms)
    return Arrival(topic, queue_id, offset + 1, code, record.store_ms, record.physical_offset, record.size)

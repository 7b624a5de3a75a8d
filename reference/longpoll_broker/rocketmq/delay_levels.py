"""Delivers delayed messages when they are due: one thread reads the queues of the schedule topic, one queue per level.

An entry of a level's queue has the delivery time by the wall clock in place of a tags code. The wall clock may be set
back, so a message is also delivered once it has been visible for its level's delay by the monotonic clock. (RocketMQ
delivers a message at once if its delivery time is further away than the level's delay.)

Each level's progress is in `config/delayOffset.json`, which is saved twice a second. As in RocketMQ, messages that were
delivered after the last save are delivered again after a crash. Storing delayed messages: see `send.append`.

Source: `ScheduleMessageService.java` 4.9.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from attrs import define, field

from longpoll_broker.errors import TopicLeavingError
from longpoll_broker.send.append import HALF_TOPIC, Appender, brought_back
from longpoll_broker.shared.timer_offsets import DelayOffsets
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.properties import DELAY_LEVELS_MS, FORM_4_9, PropertiesForm
from longpoll_runtime.recoverable import FAULTS
from longpoll_runtime.services import ServiceThread

log = logging.getLogger(__name__)

POLL_MS: Final = 100
"""`DELAY_FOR_A_WHILE`: the interval between rounds, ms."""
SEEN_PARTS: Final = 64
"""A level's delay is divided into this many parts, and the queue's end is noted at most once per part."""
BATCH: Final = 256
"""Maximum messages of one level that are delivered together, before they become visible and the next level follows."""


@define(slots=True, eq=False)
class _Seen:
    """Notes when a level's messages were first seen.

    Invariant: each note in `notes` has a time, ns, and the queue's end at that time. The times and the ends increase
    from one note to the next.
    """

    level_ms: int
    notes: deque[tuple[int, int]] = field(factory=deque, init=False)

    def note(self, now_ns: int, offset: int, end: int) -> None:
        """Note the queue's end at this time, if the queue has messages from `offset` on that no earlier note covers."""
        self._forget_before(offset)
        last_ns, seen_end = self.notes[-1] if self.notes else (None, offset)
        if end > seen_end and (last_ns is None or now_ns - last_ns >= self.level_ms * 1_000_000 // SEEN_PARTS):
            self.notes.append((now_ns, end))

    def waited_ms(self, now_ns: int, offset: int) -> int:
        """Returns how long ago the message at `offset` was first seen, ms; deletes the notes about earlier messages."""
        self._forget_before(offset)
        return (now_ns - self.notes[0][0]) // 1_000_000 if self.notes else 0

    def _forget_before(self, offset: int) -> None:
        while self.notes and self.notes[0][1] <= offset:
            self.notes.popleft()


@define(slots=True, eq=False)
class ScheduleService(ServiceThread):
    """The thread that delivers delayed messages; `run` does one round."""

    NAME = "schedule"

    store: MessageStore
    appender: Appender
    offsets: DelayOffsets
    appended: Callable[[], None]
    """Called at the end of each round, to make the appended messages visible."""
    form: PropertiesForm = FORM_4_9
    levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """The delay of each level. If a level is removed, its messages wait until the level is configured again."""
    _seen: list[_Seen] = field(init=False)

    def __attrs_post_init__(self) -> None:
        ServiceThread.__attrs_post_init__(self)
        self._seen = [_Seen(level_ms) for level_ms in self.levels_ms]

    def _run(self) -> None:
        wait_ms = 0
        while not self._stop.wait(wait_ms / 1000):
            try:
                wait_ms = self.run()
            except FAULTS:
                log.exception("delayed messages could not be delivered; trying again")
                wait_ms = POLL_MS

    def run(self) -> int:
        """Deliver due messages; returns the milliseconds until the next round. Raises OSError."""
        wait_ms = POLL_MS
        try:
            for level in range(1, len(self.levels_ms) + 1):
                wait_ms = min(wait_ms, self._run_level(level))
        finally:
            self.appended()
        return wait_ms

    def _run_level(self, level: int) -> int:
        """Deliver one level's due messages.

        Returns the milliseconds until the level's next message is due, at most the interval between rounds.
        """
        store, queue_id = self.store, level - 1
        end = store.visible_end(SCHEDULE_TOPIC, queue_id)
        known = self.offsets.by_level.get(level, 0)
        # The store may have lost its oldest files. `broker.correct_positions` handles the loss of the newest files.
        offset = max(known, store.visible_start(SCHEDULE_TOPIC, queue_id))
        seen, level_ms = self._seen[queue_id], self.levels_ms[queue_id]
        now_ns = self.runtime.monotonic_ns()
        seen.note(now_ns, offset, end)
        for _ in range(BATCH):
            unit = store.unit(SCHEDULE_TOPIC, queue_id, offset) if offset < end else None
            if unit is None:
                return POLL_MS
            physical_offset, _size, due_ms = unit
            left_ms = min(due_ms - self.runtime.unix_ms(), level_ms - seen.waited_ms(now_ns, offset))
            if left_ms > 0:
                return min(left_ms, POLL_MS)
            try:
                self._deliver(physical_offset)
            except TopicLeavingError:
                return POLL_MS
            offset += 1
            self.offsets.put(level, offset)
        return 0

    def _deliver(self, physical_offset: int) -> None:
        try:
            record = self.store.read_record(physical_offset)
            found = brought_back(record, self.form) if record is not None else None
            if found is None or found[0].topic == HALF_TOPIC:
                log.error("the delayed message at %d of the log has no topic to go to and is dropped", physical_offset)
                return
            self.appender.append(*found)
        except MessageRefusedError as error:
            log.error("the delayed message at %d of the log cannot be delivered: %s", physical_offset, error)  # noqa: TRY400 - no fault of ours
        except (OSError, MemoryError):
            # The message is not dropped, because the next round may succeed.
            raise
        except FAULTS:
            # The message is dropped, because it would fail in every round and block later messages of its level.
            log.exception("the delayed message at %d of the log cannot be delivered and is dropped", physical_offset)

"""The flush thread: flushes the log, saves the tables, indexes keys, removes expired files, and retries failures.

The thread wakes twice a second. Expired files are removed every ten seconds, starting one minute after the start
(`cleanFilesPeriodically`); which files expire: see `store.retention`. Synchronous flushing: see `send.durability`.

Sources: `FlushRealTimeService`, `FlushConsumeQueueService`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, field

from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import ConfigFiles
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS, KeepGoing
from longpoll_runtime.services import ServiceThread

log = logging.getLogger(__name__)

DELAY_MS: Final = 60_000
"""No file is removed in the first minute, ms, so that a broker that opened the wrong store can still be stopped."""

MANUAL_ROUNDS: Final = 20
"""Number of rounds of a manual removal that ignore the hour (`MAX_MANUAL_DELETE_FILE_TIMES`)."""


@define(slots=True, eq=False)
class Retention:
    """The schedule of removals; used by one thread."""

    runtime: Runtime
    store: MessageStore
    period_ms: int
    """Interval between checks, ms (`cleanResourceInterval`)."""
    _due_ns: int = field(init=False)
    _rounds: int = field(default=0, init=False)
    """Number of coming rounds that ignore the hour."""

    def __attrs_post_init__(self) -> None:
        self._due_ns = self.runtime.monotonic_ns() + DELAY_MS * 1_000_000

    def clean_soon(self) -> None:
        """Check at the next call, and ignore the hour in the next `MANUAL_ROUNDS` (`manualDeleteFileSeveralTimes`)."""
        self._rounds = MANUAL_ROUNDS
        self._due_ns = 0

    def run_if_due(self) -> None:
        """Remove expired files, if a check is due."""
        now_ns = self.runtime.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self.period_ms * 1_000_000
        is_manual = self._rounds > 0
        self._rounds = max(self._rounds - 1, 0)
        try:
            removed = self.store.remove_expired(at_any_hour=is_manual)
        except OSError:
            log.exception("expired files could not be removed; trying again")
            return
        if removed:
            log.info("%d expired commit-log files removed; the log begins at %d", removed, self.store.log_start)


QUEUES_EVERY: Final = 20
"""Number of rounds between flushes of consume queues and checkpoint (10 s, as RocketMQ's thorough flush)."""

QUEUES_SIZE: Final = 32 * MIB
"""Bytes of new log after which queues are flushed early, because recovery must read the log after the checkpoint."""
INDEX_COUNT: Final = 256
"""Number of messages indexed before the thread checks again whether it must stop."""


@define(slots=True, eq=False)
class FlushService(ServiceThread):
    """Runs a round every `period_ms`."""

    NAME = "flusher"

    store: MessageStore
    config_files: ConfigFiles
    period_ms: int
    each_round: Mapping[str, Callable[[], None]]
    """Additional work of a round, by name; an error in one item does not affect the other items."""
    _last_error: str = field(default="", init=False)
    """The last error of flushing the log, so that a lasting error is logged once."""
    _told_of_files: str = field(default="", init=False)
    """The last error of saving the config files, so that a lasting error is logged once."""

    def stop(self) -> None:
        """End the thread and save once more."""
        super().stop()
        self._save()

    def _run(self) -> None:
        rounds = 0
        flushed_end, is_late = self.store.log_end, False
        while not self._stop.wait(self.period_ms / 1000):
            rounds += 1
            self._round()
            log_end = self.store.log_end
            grown = log_end - flushed_end
            if (grown >= QUEUES_SIZE and not is_late) or ((grown or is_late) and rounds % QUEUES_EVERY == 0):
                flushed_end, is_late = log_end, True
                with KeepGoing(log, "the queues could not be made durable; trying again"):
                    self._flush_queues()
                    is_late = False

    def _round(self) -> None:
        for what, do in self.each_round.items():
            with KeepGoing(log, f"{what}: this round was cut short; trying again"):
                do()
        self._flush()
        self._save()
        self._index()

    def _flush(self) -> None:
        """Make the log durable.

        After a failed sync every flush fails with the same error, so only a new error is logged.
        """
        told, self._last_error = self._last_error, ""
        try:
            self.store.flush()
        except FAULTS as error:
            self._last_error = str(error)
            if self._last_error != told:
                log.exception("the store could not be made durable; trying again")

    def _flush_queues(self) -> None:
        """Make the queues durable.

        Flushing tens of thousands of queues takes minutes, so rounds that become due run in between.
        """
        due_ns = self._next_due_ns()
        for _ in self.store.flush_queues_in_turns():
            if self._stop.is_set():
                # The thread must stop now. Closing the store makes the remaining queues durable.
                return
            if self.runtime.monotonic_ns() >= due_ns:
                self._round()
                due_ns = self._next_due_ns()

    def _next_due_ns(self) -> int:
        return self.runtime.monotonic_ns() + self.period_ms * 1_000_000

    def _index(self) -> None:
        with KeepGoing(log, "messages could not be indexed; trying again"):
            while not self.store.index(INDEX_COUNT) and not self._stop.is_set():
                pass

    def _save(self) -> None:
        told, self._told_of_files = self._told_of_files, ""
        try:
            self.config_files.save()
        except FAULTS as error:
            self._told_of_files = str(error)
            if self._told_of_files != told:
                log.exception("config files could not be saved; trying again")

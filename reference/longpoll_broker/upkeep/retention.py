"""Removes expired files every ten seconds, from a minute after the start (`cleanFilesPeriodically`).

The flush thread calls it. Which files expire: see `store.log.retention`.
"""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

from longpoll_broker.store.message_store import MessageStore
from longpoll_runtime import Runtime

log = logging.getLogger(__name__)

DELAY_MS: Final = 60_000
"""Nothing is removed earlier, so that a broker that opened a store by mistake can be stopped."""

MANUAL_ROUNDS: Final = 20
"""`MAX_MANUAL_DELETE_FILE_TIMES`."""


@define(slots=True, eq=False)
class Retention:
    """The schedule of removals; used by one thread."""

    runtime: Runtime
    store: MessageStore
    period_ms: int
    """`cleanResourceInterval`."""
    _due_ns: int = field(init=False)
    _rounds: int = field(default=0, init=False)
    """Number of next rounds that ignore the hour."""

    def __attrs_post_init__(self) -> None:
        self._due_ns = self.runtime.monotonic_ns() + DELAY_MS * 1_000_000

    def clean_soon(self) -> None:
        """Check at the next call, and ignore the hour for some rounds (`manualDeleteFileSeveralTimes`)."""
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

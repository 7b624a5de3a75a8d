"""Sends of a SYNC_MASTER that wait until enough slaves have them: who waits, until when, and what is answered then.

4.9 waits for the slave that is ahead, if there is one that is not too far behind; 5.x for as many as `inSyncReplicas`
says besides itself, whether there are any or not. Leaves out how far slaves are (`replicator`).

Source: `CommitLog.submitReplicaRequest`, `HAService.isSlaveOK`, `HAService.GroupTransferService` 4.9.7;
`CommitLog.handleHA`, `GroupTransferService.java` 5.x.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

from attrs import define, field

from longpoll_broker.io.channel import Outbox

WAITING_COUNT_MAX: Final = 100_000
"""Most sends that wait; one more is answered at once as if its time were over."""
SPARE_COUNT: Final = 1_000
"""Sends that are over may stay among those that wait, besides as many as these, before all are looked through."""

Copied = Callable[[bool, Outbox], None]
"""Told whether enough slaves have a message in time; writes its answer to the outbox."""


@define(slots=True, eq=False, order=False)
class SlaveWait:
    """One send that waits; `is_over` once somebody answers it."""

    log_end: int
    deadline_ns: int
    copied: Copied
    is_over: bool = field(default=False, init=False)


@define(slots=True, eq=False)
class SlaveWaits:
    """Every send that waits; its owner locks. Invariant: `count` is how many are not over."""

    count: int = field(default=0, init=False)
    _by_end: list[tuple[int, int, SlaveWait]] = field(factory=list, init=False)
    """A heap. What is over by its deadline stays until it comes up, or until most of the heap is such."""
    _by_deadline: deque[SlaveWait] = field(factory=deque, init=False)
    """As they came, for all wait as long."""
    _numbers: itertools.count[int] = field(factory=itertools.count, init=False)

    def add(self, wait: SlaveWait) -> bool:
        """Have one wait; false when too many do."""
        if self.count >= WAITING_COUNT_MAX:
            return False
        self.count += 1
        heapq.heappush(self._by_end, (wait.log_end, next(self._numbers), wait))
        self._by_deadline.append(wait)
        return True

    def take_copied(self, copied_end: int) -> list[SlaveWait]:
        """Those whose messages enough slaves have, up to `copied_end` of the log; they are over."""
        found = []
        while self._by_end and self._by_end[0][0] <= copied_end:
            wait = heapq.heappop(self._by_end)[2]
            if not wait.is_over:
                found.append(wait)
        return self._over(found)

    def take_late(self, now_ns: int | None) -> list[SlaveWait]:
        """Those whose time is over, or all of them without a time; they are over."""
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
            # A slave that stays away for hours lets each send come to its deadline and none come up.
            self._by_end = [entry for entry in self._by_end if not entry[2].is_over]
            heapq.heapify(self._by_end)
        return found

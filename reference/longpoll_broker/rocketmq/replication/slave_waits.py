"""Sends of a SYNC_MASTER that wait until enough slaves have them, with deadlines and answers.

4.9 waits for the most advanced slave, if one is near enough. 5.x waits for `inSyncReplicas` - 1 slaves, whether they
exist or not. Progress of slaves: see `replicator`.

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

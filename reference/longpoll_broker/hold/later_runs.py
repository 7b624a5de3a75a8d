"""Pulls that have left the hold table and are run in later passes, where one message, or a deleted topic, let go many.

What a pass may run at once is counted. What is over that waits here by connection, and in each pass some of each
connection's are run in their turn: who waits for one answer stands behind no herd of others.

Leaves out running them (`hold.executors`) and when a pass ends (`broker`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_broker.hold.hold_table import Cause, Pull
from longpoll_runtime import Lock

RUN_COST: Final = 8
"""A pull that is run by itself takes as long as eight that get the answer of the one before them."""
PASS_COST_MAX: Final = 2_000
"""What one pass may cost at once, and in turns once more: 250 pulls by themselves are some 4 ms."""

Leaving: TypeAlias = tuple[Pull, Cause]
"""A pull that is to be run, and why."""


def nobody() -> None:
    """Wakes no loop: one that is under way looks here before it sleeps."""


@define(slots=True, eq=False)
class LaterRuns:
    """Who waits to be run; callable from any thread.

    Invariant: `_waiting` has an entry for each connection that has pulls here, in the order of their turns.
    """

    lock: Lock
    """Guards `_waiting`."""
    wake: Callable[[], None] = nobody
    """Makes the loop that ends passes look around now."""
    _left: int = field(factory=lambda: PASS_COST_MAX, init=False)
    """What this pass may still cost; about right on several threads."""
    _is_over: bool = field(default=False, init=False)
    _waiting: OrderedDict[Hashable, deque[Leaving]] = field(factory=OrderedDict, init=False)

    @property
    def has_more(self) -> bool:
        """Whether pulls wait for a later pass; about right without the lock."""
        return bool(self._waiting)

    def spend(self, cost: int) -> bool:
        """Whether work may be done at once; then it is counted."""
        if self._left <= 0 and not self._is_over:
            return False
        self._left -= cost
        return True

    def add(self, leaving: Iterable[Leaving]) -> None:
        """Have pulls run in later passes, those of one connection in this order."""
        with self.lock:
            was_empty = not self._waiting
            for each in leaving:
                self._waiting.setdefault(each[0].channel, deque()).append(each)
        if was_empty:
            self.wake()

    def turn(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """End a pass: have some of those that wait run, whose costs `run` tells, and begin to count anew."""
        left = PASS_COST_MAX
        while left > 0 and self._waiting and (part := self._take()):
            left -= run(part)
        self._left = PASS_COST_MAX

    def finish(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """Have all that wait run now, and let everything that comes from now on be run at once."""
        self._is_over = True
        while part := self._take():
            run(part)

    def _take(self) -> list[Leaving]:
        """The next connection's next pulls: fewer the more connections wait, and at least one."""
        with self.lock:
            if not self._waiting:
                return []
            count = max(PASS_COST_MAX // RUN_COST // len(self._waiting), 1)
            channel, pulls = self._waiting.popitem(last=False)
            part = [pulls.popleft() for _ in range(min(count, len(pulls)))]
            if pulls:
                self._waiting[channel] = pulls
        return part

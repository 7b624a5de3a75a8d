"""Deadlines: a heap of distinct milliseconds, each with its items. Time is an argument.

Follows trio's `Deadlines`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """Items by deadline.

    Invariants: every value of `_due` is non-empty, and every key of `_due` is in `_heap` at least once. A millisecond
    without items leaves the heap only at the top or in a prune.
    """

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[int, dict[Item, None]] = {}
        self._heap: list[int] = []

    def add(self, item: Item, deadline_ms: int) -> None:
        """Arm one item."""
        items = self._due.get(deadline_ms)
        if items is None:
            items = self._due[deadline_ms] = {}
            heapq.heappush(self._heap, deadline_ms)
        items[item] = None

    def remove(self, item: Item, deadline_ms: int) -> None:
        """Disarm one item; does nothing when it is not armed at that time."""
        items = self._due.get(deadline_ms)
        if items is None:
            return
        items.pop(item, None)
        if not items:
            del self._due[deadline_ms]
            # As in trio: stale entries are cheap until they outnumber the live ones.
            if len(self._heap) > 2 * len(self._due) + 1000:
                self._heap = list(self._due)
                heapq.heapify(self._heap)

    @property
    def may_have_items(self) -> bool:
        """Whether any item is or recently was armed; a single read, so it needs no lock."""
        return bool(self._heap)

    def next_ms(self) -> int | None:
        """Returns the earliest armed time; None when nothing is armed."""
        while self._heap and self._heap[0] not in self._due:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop_due(self, now_ms: int, count_max: int | None = None) -> list[Item]:
        """Disarm and return the items armed at `now_ms` or before, earliest first; at most `count_max` of them."""
        due: list[Item] = []
        while self._heap and self._heap[0] <= now_ms:
            items = self._due.get(self._heap[0], {})
            room = len(items) if count_max is None else count_max - len(due)
            if len(items) > room:
                due.extend(islice(items, room))
                for item in due[len(due) - room :]:
                    del items[item]
                break
            due.extend(self._due.pop(heapq.heappop(self._heap), ()))
        return due

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._due.values() for item in items)

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

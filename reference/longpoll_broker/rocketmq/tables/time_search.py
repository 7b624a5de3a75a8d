"""Finds a queue's offset for a time by 5.x's rule: the first message at or after it, or the last before it.

4.9 takes the nearest message instead (`store.message_store.offset_by_time`). Source:
`ConsumeQueue.binarySearchInQueueByTime` 5.x.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable


class _Times:
    """The store times of a queue's messages as a sequence, read on access."""

    def __init__(self, start: int, end: int, store_ms_of: Callable[[int], int | None]) -> None:
        self._start = start
        self._count = end - start
        self._store_ms_of = store_ms_of

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        store_ms = self._store_ms_of(self._start + at)
        # A removed message is older than all existing ones.
        return -1 if store_ms is None else store_ms


def offset_at(start: int, end: int, store_ms_of: Callable[[int], int | None], time_ms: int, *, upper: bool) -> int:
    """Returns the offset for a time in [start, end); `end` if every message is older and `upper` is false."""
    times = _Times(start, end, store_ms_of)
    if not upper:
        return start + bisect_left(times, time_ms)
    return max(start + bisect_right(times, time_ms) - 1, 0)

"""Finds the message of a queue stored nearest to a time, by 4.9's rule (`ConsumeQueue.getOffsetInQueueByTime`).

An exact match wins, else the nearer neighbour, the earlier one on a tie; after the last message the last one. Java
first picks one file by its modification time; we search the whole queue. 5.x's rule: see
`rocketmq.admin.offset_processor`.
"""

from __future__ import annotations

from collections.abc import Callable


def nearest_offset(first: int, last: int, store_ms_of: Callable[[int], int | None], time_ms: int) -> int:
    """Returns the offset from `first` to `last` stored nearest to `time_ms`; 0 when there is none.

    `store_ms_of` returns a message's store time, which grows with the offset; None for a removed message.
    """
    low, high = first, last
    left = right = -1
    left_ms = right_ms = 0
    while low <= high:
        middle = (low + high) // 2
        stored_ms = store_ms_of(middle)
        if stored_ms is None:
            low = middle + 1
        elif stored_ms == time_ms:
            return middle
        elif stored_ms < time_ms:
            left, left_ms, low = middle, stored_ms, middle + 1
        else:
            right, right_ms, high = middle, stored_ms, middle - 1
    if left < 0 or right < 0:
        return max(left, right, 0)
    return right if time_ms - left_ms > right_ms - time_ms else left

"""Where a record has holes: intervals in which something may have happened that is not in it.

Absence proves something only where the record is whole. Whatever rests on it (a pull was never answered, a message
never appended, an offset never committed) asks here, and is `unknown` where a hole lies in the time that matters; it
makes no difference whether the observer told of the hole or its numbers show it. Leaves out how holes are found
(`survey`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.read.schema import INTEGER_LIMIT

Integers = NDArray[np.int64]
Interval = tuple[int, int]
"""[first moment, last moment], nanoseconds of Unix time."""
_NEVER: Final = INTEGER_LIMIT
GAPS_MAX: Final = 1_000
"""Of more holes the closest are taken for one, so that a record in shreds costs no more than others."""


@frozen(eq=False)
class RecordGaps:
    """Intervals that neither touch nor overlap, in order of time."""

    starts: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.starts)

    def touch(self, first_ns: Integers, last_ns: Integers) -> NDArray[np.bool_]:
        """Which of the intervals [first, last] has a moment in a hole."""
        if not len(self):
            return np.zeros(len(first_ns), dtype=np.bool_)
        return self.begin_from(first_ns) <= last_ns

    def begin_from(self, moment_ns: Integers) -> Integers:
        """When the first hole begins of those that do not end before each moment; far in the future without one.

        From the moment until then the record is whole, and if that lies before the moment it is in a hole.
        """
        found: Integers = np.append(self.starts, _NEVER)[np.searchsorted(self.ends, moment_ns, side="left")]
        return found


def gaps_of(intervals: Iterable[Interval]) -> RecordGaps:
    """The union of some intervals."""
    joined: list[list[int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    together = np.array(joined, dtype=np.int64).reshape(-1, 2)
    if len(together) > GAPS_MAX:
        apart = together[1:, 0] - together[:-1, 1]
        kept = np.sort(np.argsort(apart, kind="stable")[-(GAPS_MAX - 1) :])
        together = np.column_stack((together[np.append(0, kept + 1), 0], together[np.append(kept, -1), 1]))
    return RecordGaps(together[:, 0].copy(), together[:, 1].copy())


def union(several: Iterable[RecordGaps]) -> RecordGaps:
    """All the holes of some records as one."""
    filled = [holes for holes in several if len(holes)]
    if len(filled) == 1:
        return filled[0]
    return gaps_of(pair for holes in filled for pair in zip(holes.starts.tolist(), holes.ends.tolist(), strict=True))


NO_GAPS: Final = gaps_of(())

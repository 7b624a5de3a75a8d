"""Latencies as counts in buckets one per cent wide, so that they can be added up over queues in any order.

Leaves out which latencies are counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from longpoll_judge.contract.result import Percentiles

_WIDTH: Final = float(np.log(1.01))
"""Bucket n > 0 holds (1.01**(n-1), 1.01**n] nanoseconds; bucket 0 holds 0 and 1."""


def bucket_counts(latency_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The buckets that occur, ascending, and how many latencies fall into each."""
    buckets = np.ceil(np.log(np.maximum(latency_ns, 1)) / _WIDTH).astype(np.int64)
    counts = np.bincount(buckets)
    found = np.flatnonzero(counts)
    return found, counts[found]


HISTOGRAM_RATIO: Final = 25
"""Buckets of one per cent in one bar of a histogram: a step of 28 %."""


def histogram(counts: Mapping[int, int]) -> list[tuple[float, int]]:
    """Bars as (upper end in ms, count), ascending and without holes."""
    bars: dict[int, int] = {}
    for bucket, count in counts.items():
        bar = -(-bucket // HISTOGRAM_RATIO)
        bars[bar] = bars.get(bar, 0) + count
    if not bars:
        return []
    ends = range(min(bars), max(bars) + 1)
    return [(float(f"{np.exp(bar * HISTOGRAM_RATIO * _WIDTH) / 1e6:.3g}"), bars.get(bar, 0)) for bar in ends]


def percentiles(counts: Mapping[int, int], max_ns: int) -> Percentiles:
    """Milliseconds; p50 and p99 are the upper ends of their buckets, at most 1 % too high, and max is exact."""
    total = sum(counts.values())
    if not total:
        return Percentiles(count=0, p50=None, p99=None, max=None)
    return Percentiles(
        count=total,
        p50=_rank(counts, (total + 1) // 2, max_ns),
        p99=_rank(counts, -(-99 * total // 100), max_ns),
        max=max_ns / 1e6,
    )


def _rank(counts: Mapping[int, int], rank: int, max_ns: int) -> float:
    """Milliseconds of the latency of a rank, the first being 1."""
    buckets = sorted(counts)
    ranks = list(accumulate(counts[bucket] for bucket in buckets))
    bucket = buckets[bisect_left(ranks, rank)]
    return round(min(float(np.exp(bucket * _WIDTH)), max_ns) / 1e6, 6)

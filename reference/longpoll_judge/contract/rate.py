"""How often a property is broken: a share with its 95 % interval, so that two runs can be compared honestly.

`run.pipeline` counts. Source: E. B. Wilson, "Probable inference", 1927: the score interval, which also holds for the
few of many that lost wakeups are.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from longpoll_spec.tables import with_table

Z: Final = 1.959964
"""The normal quantile of a two-sided 95 % interval."""
MILLION: Final = 1_000_000


@with_table
class Rate(msgspec.Struct, frozen=True):
    """Violations per million chances to violate, between `low` and `high` with 95 % confidence."""

    violated: int
    of: int
    """Pulls that could have broken the property: that a message woke, or whose deadline came."""
    per_million: float
    low: float
    high: float


def rate(violated: int, of: int) -> Rate:
    """The rate of `violated` in `of` chances, of which there are at least `violated`, with its 95 % interval."""
    chances = max(of, violated)
    if not chances:
        return Rate(0, 0, 0.0, 0.0, 0.0)
    share = violated / chances
    square = Z * Z / chances
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square * square / 4) / (1 + square)
    low = 0.0 if not violated else max(0.0, middle - half)
    return Rate(
        violated,
        chances,
        round(share * MILLION, 3),
        round(low * MILLION, 3),
        round(min(1.0, middle + half) * MILLION, 3),
    )

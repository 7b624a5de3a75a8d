"""Reads each split twice: first to survey it, then to judge its events."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from longpoll_judge.columns.lookup import BEGINNING, NEVER
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.read.schema import DEFAULTS, has_column, integers_of
from longpoll_judge.read.source import InputSplit, read_split

Extent = tuple[int, int, int, int]
"""The number of events of a split, the lowest and the highest `after_ns`, and a checksum of the columns in `_SUMMED`.
"""
_SUMMED: Final = ("after_ns", "queue_offset", "visible_end", "code")
"""The columns whose checksums show whether a split has changed, because two different splits differ in at least one of
them. The list is short, because each column is summed twice."""
_WEIGHTS: Final = np.array([0x9E3779B97F4A7C15 * (2 * place + 1) % 2**64 for place in range(len(_SUMMED))], np.uint64)
"""One odd factor for each column, so that a value that moved to another column changes the sum."""


def extent_of(table: pa.Table) -> Extent:
    """Return the extent of these events."""
    after_ns = integers_of(table, "after_ns")
    sums = np.array([_sum_of(table, name) for name in _SUMMED], np.uint64)
    least, most = int(after_ns.min(initial=NEVER)), int(after_ns.max(initial=BEGINNING))
    return len(table), least, most, int((sums * _WEIGHTS).sum())


def _sum_of(table: pa.Table, name: str) -> int:
    if not has_column(table, name):
        return int(DEFAULTS[name]) * len(table) % 2**64
    return int(integers_of(table, name).view(np.uint64).sum())


def read_again(part: InputSplit, extent: Extent) -> pa.Table:
    """Read a surveyed split again, and check that it has this extent; columns that no event uses may be absent.

    Raises `HistoryChangedError` if the events have changed, because the survey would not apply to them.
    """
    table, _damages = read_split(part, sparse=True)
    if extent_of(table) != extent:
        raise HistoryChangedError(f"{part.path} changed during the judgement; judge again")
    return table

"""Finds and sorts many numbers, faster than numpy's general ways where they are few, close together or nearly in order.

Leaves out what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_SPREAD_MAX: Final = 4
"""Most places for each number that a table may have to be made; offsets of a log have about one."""
_FEW: Final = 8


def is_one_of(values: NDArray[Any], wanted: Iterable[int]) -> NDArray[np.bool_]:
    """Which of the values are among the wanted ones, which are few as a rule."""
    numbers = list(wanted)
    if len(numbers) > _FEW:
        return np.isin(values, np.array(numbers, dtype=np.int64))
    found = np.zeros(len(values), dtype=np.bool_)
    for one in numbers:
        found |= values == one
    return found


def are_of(codes: NDArray[np.int32], names: Sequence[str], wanted: Container[str]) -> NDArray[np.bool_]:
    """Which rows have one of these names; some comparisons cost a fraction of looking each row's name up."""
    return is_one_of(codes, [place for place, name in enumerate(names) if name in wanted])


def run_starts(*columns: NDArray[Any]) -> Integers:
    """Where in some columns of one length a row begins, none of whose values differ from row to row until the next."""
    count = len(columns[0])
    changes = np.ones(count, dtype=np.bool_)
    if count:
        changes[1:] = False
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def order_by(group: NDArray[Any], moment: Integers) -> Integers:
    """The stable order by group and then by moment; rows that are in order already, or group by group, cost little."""
    order = np.arange(len(group))
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        group, moment = group[order], moment[order]
    if ((group[1:] == group[:-1]) & (moment[1:] < moment[:-1])).any():
        order = order[np.lexsort((moment, group))]
    return order


@frozen(eq=False)
class Ascending:
    """Ascending numbers, of which it is asked how many lie below others: by a table, or else by bisection."""

    numbers: Integers

    def __len__(self) -> int:
        return len(self.numbers)

    def below(self, wanted: Integers) -> Integers:
        """How many of the numbers are less than each wanted one."""
        table = self._table
        if table is None:
            return np.searchsorted(self.numbers, wanted)
        place = wanted - self.numbers[0]
        np.maximum(place, 0, out=place)
        np.minimum(place, len(table) - 1, out=place)
        found: Integers = table[place]
        return found

    def between(self, first: Integers, end: Integers) -> Integers:
        """How many of the numbers lie in [first, end), where no end is below its first."""
        return self.below(end) - self.below(first)

    @cached_property
    def _table(self) -> Integers | None:
        """At place n how many lie below the least number plus n."""
        if not len(self.numbers):
            return None
        spread = int(self.numbers[-1]) - int(self.numbers[0]) + 1
        if spread > _SPREAD_MAX * len(self.numbers):
            return None
        counts = np.bincount(self.numbers - self.numbers[0], minlength=spread)
        return np.concatenate(([0], np.cumsum(counts)))

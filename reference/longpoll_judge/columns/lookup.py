"""Sorts and searches columns of numbers, faster than numpy if the numbers are few, dense or nearly sorted."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.read.schema import INTEGER_LIMIT

NEVER: Final = INTEGER_LIMIT
"""A time after every timestamp of a history, and a number above every offset."""
BEGINNING: Final = -INTEGER_LIMIT
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_SPREAD_MAX: Final = 4
"""The maximum size of a lookup table, in entries for each number. The offsets of a log need about one entry each."""
_FEW: Final = 8
_VIRTUAL_MAX: Final = 1 << 61
"""The limit of the virtual numbers in `Grouped`, by which the groups lie side by side in one range."""


def is_one_of(values: NDArray[Any], wanted: Iterable[int]) -> NDArray[np.bool_]:
    """Returns a mask of the values that are in `wanted`, which usually has few numbers."""
    numbers = list(wanted)
    if len(numbers) > _FEW:
        return np.isin(values, np.array(numbers, dtype=np.int64))
    found = np.zeros(len(values), dtype=np.bool_)
    for one in numbers:
        found |= values == one
    return found


def are_of(codes: NDArray[np.int32], names: Sequence[str], wanted: Container[str]) -> NDArray[np.bool_]:
    """Returns a mask of the rows with one of the wanted names.

    The function compares the codes of the names, which takes a fraction of the time of looking up each row's name.
    """
    return is_one_of(codes, [place for place, name in enumerate(names) if name in wanted])


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the different values, ascending.

    Numpy's `unique` hashes each value, which takes ten times as long as this sort.
    """
    ordered = np.sort(values)
    found: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


def run_starts(*columns: NDArray[Any]) -> Integers:
    """Returns the rows at which a new run begins; within a run, no value of any column changes."""
    count = len(columns[0])
    changes = np.ones(count, dtype=np.bool_)
    if count:
        changes[1:] = False
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def order_by(group: NDArray[Any], moment: Integers) -> Integers:
    """Returns the stable order by group and then by time.

    The sort takes little time if the rows are already sorted, or if each group's rows are adjacent.
    """
    order = np.arange(len(group))
    if (group[1:] < group[:-1]).any():
        # numpy sorts numbers of 16 bits in a fraction of the time.
        is_small = int(group.min()) >= 0 and int(group.max()) < 1 << 16
        order = np.argsort(group.astype(np.uint16) if is_small else group, kind="stable")
        group, moment = group[order], moment[order]
    if not ((group[1:] == group[:-1]) & (moment[1:] < moment[:-1])).any():
        return order
    low, span = int(moment.min()), int(moment.max()) - int(moment.min()) + 1
    if span * (int(group[-1]) + 1) < _VIRTUAL_MAX:
        # numpy's stable sort merges runs, so it sorts numbers that are nearly sorted in little time.
        return order[np.argsort(group.astype(np.int64) * span + (moment - low), kind="stable")]
    return order[np.lexsort((moment, group))]


def running(group: Integers, values: Integers) -> Integers:
    """Returns the highest value so far in each row's group. The groups must ascend."""
    if not len(values):
        return values
    low, groups = int(values.min()), int(group[-1]) + 1
    span = int(values.max()) - low + 1
    if span * groups < _VIRTUAL_MAX:
        base = group * span - low
        return np.maximum.accumulate(values + base) - base
    known, ranks = np.unique(values, return_inverse=True)
    base = group * len(known)
    return known[np.maximum.accumulate(ranks + base) - base]


def suffix_min(group: Integers, values: Integers) -> Integers:
    """Returns the lowest value from each row to the end of its group. The groups must ascend."""
    if not len(values):
        return values
    last = int(group[-1])
    return -running(last - group[::-1], -values[::-1])[::-1]


@frozen(eq=False)
class Grouped:
    """Sorted numbers of several groups. Each group is searched by a lookup table if it is dense, else by bisection.

    Invariant: the rows ascend by group, and by number within each group.
    """

    group: Integers
    numbers: Integers
    count: int
    """The number of groups. Groups are numbered from 0."""

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def bounds(self) -> Integers:
        """Returns where each group begins: group g consists of the rows [bounds[g], bounds[g + 1])."""
        return np.append(0, np.cumsum(np.bincount(self.group, minlength=self.count)))

    def below(self, group: Integers, wanted: Integers) -> Integers:
        """Returns the first row of each group whose number is not below the wanted one, or the row after the group."""
        lowest, width, base, places = self._virtual
        if places is None:
            known, ranks = self._ranked
            return ranks.below(group, np.searchsorted(known, wanted))
        at = wanted - lowest[group]
        np.maximum(at, 0, out=at)
        np.minimum(at, width[group], out=at)
        at += base[group]
        table = self._table
        found: Integers = np.searchsorted(places, at) if table is None else table[at]
        return found

    def between(self, group: Integers, first: Integers, end: Integers) -> Integers:
        """Returns how many numbers of each group lie in [first, end); `end` must never be below `first`."""
        return self.below(group, end) - self.below(group, first)

    def at(self, group: Integers, wanted: Integers) -> Integers:
        """Returns, for each pair of a group and a `wanted` number, the first row of the number in the group, or -1."""
        if not len(self):
            return np.full(len(wanted), -1, dtype=np.int64)
        place = self.below(group, wanted)
        there = np.minimum(place, len(self) - 1)
        is_there = (place < self.bounds[group + 1]) & (self.numbers[there] == wanted)
        return np.where(is_there, there, -1)

    def pick(self, group: Integers, place: Integers, values: Integers, none: int) -> Integers:
        """Returns the values at the rows in `place`, or `none` for a row after the end of its group."""
        return np.where(place < self.bounds[group + 1], np.append(values, none)[place], none)

    @cached_property
    def _virtual(self) -> tuple[Integers, Integers, Integers, Integers | None]:
        """Return each group's lowest number, its width, and where it begins if all groups lie side by side.

        The last item is the position of each number in this layout, or None if the layout would be too large.
        """
        first, end = self.bounds[:-1], self.bounds[1:]
        filled = end > first
        lowest, width = np.zeros(self.count, dtype=np.int64), np.zeros(self.count, dtype=np.int64)
        lowest[filled] = self.numbers[first[filled]]
        width[filled] = self.numbers[end[filled] - 1] - lowest[filled] + 1
        if float(width.astype(np.float64).sum()) >= _VIRTUAL_MAX:
            return lowest, width, width, None
        base = np.cumsum(width + 1) - width - 1
        return lowest, width, base, base[self.group] + self.numbers - lowest[self.group]

    @cached_property
    def _table(self) -> Integers | None:
        _lowest, width, base, places = self._virtual
        assert places is not None, "they are not so far apart"
        size = int(base[-1] + width[-1]) + 1 if self.count else 0
        if size > _SPREAD_MAX * (len(self) + self.count):
            return None
        counts = np.bincount(places, minlength=size)
        return np.append(0, np.cumsum(counts))

    @cached_property
    def _ranked(self) -> tuple[Integers, Grouped]:
        known, ranks = np.unique(self.numbers, return_inverse=True)
        return known, Grouped(self.group, ranks, self.count)


def grouped(group: Integers, numbers: Integers, count: int) -> tuple[Grouped, Integers]:
    """Returns numbers in any order as `Grouped`, and for each of its rows the index of the number in the input."""
    order = order_by(group, numbers)
    return Grouped(group[order], numbers[order], count), order


def first_of(wanted: NDArray[Any], keys: NDArray[Any]) -> Integers:
    """Returns for each wanted key its first index in `keys`; -1 if `keys` does not contain it."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    most = keys.max()
    if keys.min() >= 0 and most < _SPREAD_MAX * (len(keys) + len(wanted)):
        first = np.full(int(most) + 2, -1, dtype=np.int64)
        first[keys[::-1]] = np.arange(len(keys))[::-1]
        # A wanted number beyond the largest key is mapped to the last entry of the array, which is -1.
        return first[np.where((wanted >= 0) & (wanted <= most), wanted, most + 1).astype(np.int64)]
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    # A search for a missing key returns the position of a neighbouring key, so compare the keys.
    found: Integers = np.where(keys[order][at] == wanted, order[at], -1)
    return found


def numbered(*lots: Sequence[Integers]) -> list[Integers]:
    """Returns a small number for each row of several tables, equal for rows in which all columns are equal.

    All tables have the same number of columns.
    """
    columns = [np.concatenate(column) for column in zip(*lots, strict=True)]
    found = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        found = _paired(found, column)
    return np.split(found, np.cumsum([len(lot[0]) for lot in lots])[:-1])


def _paired(group: Integers, numbers: Integers) -> Integers:
    if not len(group):
        return group
    groups, room = int(group.max()) + 1, _SPREAD_MAX * len(group)
    least, most = int(numbers.min()), int(numbers.max())
    if (most - least + 1) * groups <= room:
        return group * (most - least + 1) + (numbers - least)
    # The offsets of one queue are close together, so their differences from the queue's lowest offset are small.
    lowest, highest = np.full(groups, most, dtype=np.int64), np.full(groups, least, dtype=np.int64)
    np.minimum.at(lowest, group, numbers)
    np.maximum.at(highest, group, numbers)
    width = np.maximum(highest.astype(np.float64) - lowest + 1, 0)
    if width.sum() <= room:
        base = (np.cumsum(width) - width).astype(np.int64) - lowest
        return base[group] + numbers
    order = np.lexsort((numbers, group))
    is_new = np.append(True, (group[order][1:] != group[order][:-1]) | (numbers[order][1:] != numbers[order][:-1]))
    found = np.empty(len(group), dtype=np.int64)
    found[order] = np.cumsum(is_new) - 1
    return found


def are_among(wanted: Integers, keys: Integers) -> Booleans:
    """Returns a mask of the small numbers in `wanted` that occur in `keys`; numbers below 0 count as absent."""
    there = np.zeros(max(int(wanted.max(initial=-1)), int(keys.max(initial=-1))) + 2, dtype=np.bool_)
    there[keys] = True
    there[-1] = False
    return there[np.maximum(wanted, -1)]


def least_of(keys: Integers, wanted: Integers, values: Integers, none: int) -> Integers:
    """Returns for each wanted small number the lowest value of the rows with this key, or `none` if no row has it."""
    least = np.full(max(int(wanted.max(initial=-1)), int(keys.max(initial=-1))) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, keys, values)
    is_there = np.zeros(len(least), dtype=np.bool_)
    is_there[keys] = True
    return np.where(is_there[wanted], least[wanted], none)


def count_of(keys: Integers, wanted: Integers) -> Integers:
    """Returns how often each wanted small number occurs among the keys."""
    return np.bincount(keys, minlength=int(wanted.max(initial=-1)) + 1)[wanted]


def highest_before(
    group: NDArray[Any], ended_ns: Integers, value: Integers, asked_group: NDArray[Any], moment_ns: Integers
) -> Integers:
    """For each query, returns the row of its group with the highest value that ended before `moment_ns`, or -1."""
    count = len(group)
    if not count or not len(asked_group):
        return np.full(len(asked_group), -1, dtype=np.int64)
    own, asked = numbered((group,), (asked_group,))
    times, order = grouped(own, ended_ns, int(max(own.max(), asked.max())) + 1)
    # Find the highest value so far, and the first row that has it.
    by_value = np.argsort(value, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[by_value] = np.arange(count)
    best = by_value[running(times.group, rank[order])]
    place = times.below(asked, moment_ns)
    return np.where(place > times.bounds[asked], np.append(best, -1)[place - 1], -1)

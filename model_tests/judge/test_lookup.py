"""Quick ways to find and to sort against numpy's general ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_judge.columns.lookup import Ascending, is_one_of, order_by, run_starts
from longpoll_judge.columns.queue_log import BEGINNING, NEVER

CLOSE = st.integers(-5, 12)
FAR = st.sampled_from([BEGINNING, -(1 << 40), 1 << 40, NEVER])
NUMBERS = st.lists(CLOSE | FAR, max_size=12).map(sorted)


def integers(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """As the judge has them."""
    return np.array(numbers, dtype=np.int64)


@given(numbers=NUMBERS | st.lists(CLOSE, max_size=30).map(sorted), wanted=st.lists(CLOSE | FAR, max_size=12))
def test_ranks_are_those_of_a_bisection(numbers: list[int], wanted: list[int]) -> None:
    """Close together or far apart, twice or missing, and also below and above all of them."""
    ascending = Ascending(integers(numbers))
    assert ascending.below(integers(wanted)).tolist() == np.searchsorted(integers(numbers), integers(wanted)).tolist()
    ends = [number + 3 for number in wanted]
    counted = [sum(first <= number < first + 3 for number in numbers) for first in wanted]
    assert ascending.between(integers(wanted), integers(ends)).tolist() == counted


@pytest.mark.parametrize(("numbers", "has_table"), [([], False), ([7], True), ([0, 4, 7], True), ([0, 1 << 40], False)])
def test_a_table_is_made_where_numbers_lie_close_together(numbers: list[int], has_table: bool) -> None:
    """One of the size of the spread: far numbers would need more memory than there is."""
    assert (Ascending(integers(numbers))._table is not None) is has_table


@given(values=st.lists(CLOSE), wanted=st.lists(CLOSE, max_size=12))
def test_membership_is_that_of_a_set(values: list[int], wanted: list[int]) -> None:
    """Of few wanted numbers and of many."""
    assert is_one_of(integers(values), wanted).tolist() == [value in set(wanted) for value in values]


ROWS = st.lists(st.tuples(st.integers(0, 3), CLOSE), max_size=20)


@given(rows=ROWS | ROWS.map(sorted) | ROWS.map(lambda rows: sorted(rows, key=lambda row: row[1])))
def test_the_order_is_by_group_and_then_by_moment_and_stable(rows: list[tuple[int, int]]) -> None:
    """In order already, in order of time, or in none."""
    groups, moments = integers([group for group, _moment in rows]), integers([moment for _group, moment in rows])
    assert order_by(groups, moments).tolist() == sorted(range(len(rows)), key=rows.__getitem__)


@given(rows=ROWS | ROWS.map(sorted))
def test_a_run_begins_where_any_column_changes(rows: list[tuple[int, int]]) -> None:
    """With the first row, if there is one."""
    columns = [integers([row[place] for row in rows]) for place in range(2)]
    wanted = [place for place, row in enumerate(rows) if place == 0 or row != rows[place - 1]]
    assert run_starts(*columns).tolist() == wanted

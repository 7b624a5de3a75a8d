"""Functions on columns, compared with plain Python: tag hashes, logs, latencies, numbers, look-ups, memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_judge.columns.expression import parse
from longpoll_judge.columns.lookup import (
    BEGINNING,
    NEVER,
    Grouped,
    are_among,
    count_of,
    distinct,
    grouped,
    highest_before,
    is_one_of,
    least_of,
    numbered,
    order_by,
    run_starts,
    running,
    suffix_min,
)
from longpoll_judge.contract.result import Percentiles
from longpoll_judge.evidence.source_survey import Run, sequence_faults
from longpoll_judge.evidence.survey import merge, survey_split
from longpoll_judge.kernel.logs import Growth, Logs, Matching
from longpoll_judge.kernel.promptness import bucket_counts, percentiles
from longpoll_judge.read.schema import fill
from longpoll_protocol.properties import java_hash

ONE = np.zeros(1, dtype=np.int64)
MOMENTS = st.integers(0, 50)
GROWTHS = st.lists(st.tuples(st.integers(0, 12), MOMENTS, st.integers(0, 9)), max_size=8)


def growth(steps: list[tuple[int, int, int]]) -> Growth:
    end, after, width = (np.array([step[place] for step in steps], dtype=np.int64) for place in range(3))
    return Growth(np.zeros(len(end), dtype=np.int64), end, after, after + width, 1)


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("TagA", 2598919), ("Aa", 2112), ("BB", 2112), ("polygenelubricants", -(1 << 31))],
)
def test_tag_hashes_equal_those_of_java(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_hashes_count_utf_16_units() -> None:
    """A character beyond the basic plane counts as two UTF-16 units, as in Java."""
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00 == 1772899


def test_expressions_are_split_as_the_broker_does() -> None:
    """Tags are trimmed, `*` means all tags only if it stands alone, and an SQL92 expression remains undecided."""
    tags = np.array([java_hash(tag) for tag in ("a", "b", "c", "", "BB")], dtype=np.int64)
    taken = {}
    for text in ("*", " a ||b", "*||a", "Aa", "||"):
        expression = parse("TAG", text)
        assert expression is not None
        taken[text] = expression.matches(tags).tolist()

    assert taken["*"] == [True] * 5
    assert taken[" a ||b"] == [True, True, False, False, False]
    assert taken["*||a"] == [True, False, False, False, False]
    assert taken["Aa"] == [False, False, False, False, True]
    assert taken["||"] == [False] * 5
    assert parse("SQL92", "a > 1") is None
    assert parse("", "") is parse("TAG", "") is None


@given(steps=GROWTHS, offset=st.integers(0, 13))
def test_an_offset_is_visible_from_the_first_end_above_it(steps: list[tuple[int, int, int]], offset: int) -> None:
    after, before = growth(steps).visible_between(ONE, np.array([offset], dtype=np.int64))

    assert after[0] == min((begin for end, begin, _width in steps if end > offset), default=NEVER)
    assert before[0] == min((begin + width for end, begin, width in steps if end > offset), default=NEVER)


@given(steps=GROWTHS, moment=MOMENTS)
def test_the_end_at_a_time_has_a_lower_and_an_upper_bound(steps: list[tuple[int, int, int]], moment: int) -> None:
    grown = growth(steps)
    at = np.array([moment], dtype=np.int64)

    assert grown.end_at_least(ONE, at)[0] == max(
        (end for end, begin, width in steps if begin + width < moment), default=0
    )
    assert grown.end_at_most(ONE, at)[0] == max((end for end, begin, _width in steps if begin <= moment), default=0)


@given(
    tags=st.lists(st.sampled_from(["a", "b", ""]), max_size=12),
    holes=st.sets(st.integers(0, 11)),
    text=st.sampled_from(["*", "a", "a || b"]),
    first=st.integers(0, 12),
    width=st.integers(0, 12),
)
def test_matching_messages_are_counted(tags: list[str], holes: set[int], text: str, first: int, width: int) -> None:
    """Messages with a tag are counted exactly. A message without a recorded tag may or may not match."""
    seen = [offset for offset in range(len(tags)) if offset not in holes]
    codes = np.array([java_hash(tags[offset]) for offset in seen], dtype=np.int64)
    known_offsets = Grouped(np.zeros(len(seen), dtype=np.int64), np.array(seen, dtype=np.int64), 1)
    none = np.zeros(0, dtype=np.int64)
    logs = Logs(known_offsets, codes, growth([]), np.array([True]), 0, ONE, (none, none))
    expression = parse("TAG", text)
    assert expression is not None
    least = Matching(logs, expression).count(ONE, np.array([first]), np.array([first + width]))
    wanted = {"*": {"a", "b", ""}, "a": {"a"}, "a || b": {"a", "b"}}[text]
    known = [offset for offset in seen if first <= offset < first + width]
    sure = sum(tags[offset] in wanted for offset in known)

    assert least[0] == (width if text == "*" else sure)


@given(values=st.lists(st.integers(0, 10**12), min_size=1, max_size=200), cut=st.integers(0, 200))
def test_percentiles_are_within_one_per_cent_and_add_up(values: list[int], cut: int) -> None:
    """However the values are divided among queues, p50 and p99 exceed the exact percentiles by at most 1 %."""
    counts: dict[int, int] = {}
    for part in (values[:cut], values[cut:]):
        buckets, numbers = bucket_counts(np.array(part, dtype=np.int64))
        for bucket, number in zip(buckets.tolist(), numbers.tolist(), strict=True):
            counts[bucket] = counts.get(bucket, 0) + number
    told = percentiles(counts, max(values))
    ranked = sorted(values)

    assert (told.count, told.max) == (len(values), max(values) / 1e6)
    for value, place in ((told.p50, (len(values) + 1) // 2), (told.p99, -(-99 * len(values) // 100))):
        assert value is not None
        true = ranked[place - 1]
        assert true * 0.999 - 2 <= value * 1e6 <= max(true * 1.011, 1) + 2


def test_percentiles_of_nothing_are_none() -> None:
    """Without values a percentile is None, because 0 would be a latency."""
    assert percentiles({}, 0) == Percentiles(count=0, p50=None, p99=None, max=None)


@pytest.mark.parametrize(("late", "p99"), [(2, 1e-06), (3, 0.000145)])
def test_one_value_in_a_hundred_exceeds_p99(late: int, p99: float) -> None:
    counts = {1: 200 - late, 500: late}
    assert percentiles(counts, 10**6) == Percentiles(count=200, p50=1e-06, p99=p99, max=1.0)


def test_no_percentile_is_over_the_maximum() -> None:
    """The maximum is exact; a percentile is the upper bound of a bucket, limited by the maximum."""
    max_ns = 123_456_789_012
    ((bucket,), (count,)) = bucket_counts(np.array([max_ns], dtype=np.int64))
    exact = 123_456.789012
    assert percentiles({int(bucket): int(count)}, max_ns) == Percentiles(count=1, p50=exact, p99=exact, max=exact)


@given(numbers=st.lists(st.integers(0, 15), max_size=20))
def test_sequence_faults_are_the_missing_and_repeated_numbers(numbers: list[int]) -> None:
    faults = sequence_faults([Run(number, number) for number in numbers])
    missing = set(range(max(numbers, default=-1) + 1)) - set(numbers)

    assert faults.missing_count == len(missing)
    assert faults.first_missing == min(missing, default=-1)
    assert faults.repeated_count == len(numbers) - len(set(numbers))


@given(starts=st.lists(st.integers(0, 400), min_size=1, max_size=8), cuts=st.sets(st.integers(1, 7)))
def test_a_clock_set_back_is_seen_wherever_splits_are_cut(starts: list[int], cuts: set[int]) -> None:
    seconds = np.array(starts, dtype=np.int64)
    borders = [0, *sorted(cut for cut in cuts if cut < len(starts)), len(starts)]
    surveys = []
    for begin, end in pairwise(borders):
        rows = [
            {"event": "expire", "after_ns": at * 10**9, "before_ns": at * 10**9, "source": "s", "sequence": number}
            for number, at in list(enumerate(starts))[begin:end]
        ]
        surveys.append(survey_split(fill(pa.Table.from_pylist(rows)), []))
    jumped = bool((np.maximum.accumulate(seconds) - seconds > 1).any())

    assert bool(merge(surveys).sources["s"].steps) == jumped


# -- fast search and sort, compared with numpy
# ---------------------------------------------------------------------------

CLOSE = st.integers(-5, 12)
FAR = st.sampled_from([BEGINNING, -(1 << 40), 1 << 40, NEVER])
NUMBERS = st.lists(CLOSE | FAR, max_size=12).map(sorted)


def integers(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


@given(numbers=NUMBERS | st.lists(CLOSE, max_size=30).map(sorted), wanted=st.lists(CLOSE | FAR, max_size=12))
def test_ranks_are_those_of_a_bisection(numbers: list[int], wanted: list[int]) -> None:
    ascending, one = Grouped(integers([0] * len(numbers)), integers(numbers), 1), integers([0] * len(wanted))
    assert (
        ascending.below(one, integers(wanted)).tolist() == np.searchsorted(integers(numbers), integers(wanted)).tolist()
    )
    ends = [number + 3 for number in wanted]
    counted = [sum(first <= number < first + 3 for number in numbers) for first in wanted]
    assert ascending.between(one, integers(wanted), integers(ends)).tolist() == counted


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), CLOSE | FAR), max_size=20),
    wanted=st.lists(st.tuples(st.integers(0, 3), CLOSE | FAR), max_size=12),
)
def test_each_group_is_looked_up_separately(rows: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    group, numbers = (integers([row[place] for row in rows]) for place in (0, 1))
    told, order = grouped(group, numbers, 4)
    asked, numbers_asked = (integers([row[place] for row in wanted]) for place in (0, 1))
    before = [sum(other < mine for other, _number in rows) for mine, _number in wanted]
    below = [sum(other == mine and value < number for other, value in rows) for mine, number in wanted]

    assert (group[order].tolist(), numbers[order].tolist()) == tuple(
        map(list, zip(*sorted(rows), strict=True))
    ) or not rows
    assert told.below(asked, numbers_asked).tolist() == [sum(pair) for pair in zip(before, below, strict=True)]
    assert [place >= 0 for place in told.at(asked, numbers_asked).tolist()] == [each in rows for each in wanted]
    by_group = np.argsort(group, kind="stable")
    group, numbers = group[by_group], numbers[by_group]
    for row in range(len(rows)):
        mine = group == group[row]
        assert running(group, numbers)[row] == numbers[: row + 1][mine[: row + 1]].max()
        assert suffix_min(group, numbers)[row] == numbers[row:][mine[row:]].min()


@pytest.mark.parametrize(("numbers", "has_table"), [([], True), ([7], True), ([0, 4, 7], True), ([0, 1 << 40], False)])
def test_dense_numbers_get_a_lookup_table(numbers: list[int], has_table: bool) -> None:
    """The lookup table has the size of the range, so it must not be used for numbers that are far apart."""
    near = Grouped(integers([0] * len(numbers)), integers(numbers), 1)
    assert (near._table is not None) is has_table


@given(values=st.lists(CLOSE), wanted=st.lists(CLOSE, max_size=12))
def test_is_one_of_agrees_with_a_set(values: list[int], wanted: list[int]) -> None:
    assert is_one_of(integers(values), wanted).tolist() == [value in set(wanted) for value in values]


ROWS = st.lists(st.tuples(st.integers(0, 3), CLOSE), max_size=20)


@given(rows=ROWS | ROWS.map(sorted) | ROWS.map(lambda rows: sorted(rows, key=lambda row: row[1])))
def test_rows_are_sorted_stably_by_group_and_time(rows: list[tuple[int, int]]) -> None:
    groups, moments = integers([group for group, _moment in rows]), integers([moment for _group, moment in rows])
    assert order_by(groups, moments).tolist() == sorted(range(len(rows)), key=rows.__getitem__)


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-(2**60), 0, 1, 2, 9, 2**60])), min_size=1, max_size=12)


@given(own=PAIRS, other=PAIRS)
def test_pairs_are_numbered_alike_where_they_are_equal(
    own: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    lots = [
        [np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)] for pairs in (own, other) if pairs
    ]
    if len(lots) < 2:
        return
    keys, wanted = numbered(*lots)

    number = dict(zip(own + other, np.concatenate((keys, wanted)).tolist(), strict=True))
    assert len(set(number.values())) == len(number)
    assert min(number.values()) >= 0
    assert [number[pair] for pair in own + other] == np.concatenate((keys, wanted)).tolist()
    assert are_among(wanted, keys).tolist() == [pair in own for pair in other]
    assert count_of(keys, wanted).tolist() == [own.count(pair) for pair in other]
    values = np.arange(len(own))[::-1].copy()
    least = [
        min((value for pair, value in zip(own, values.tolist(), strict=True) if pair == each), default=-5)
        for each in other
    ]
    assert least_of(keys, wanted, values, -5).tolist() == least
    assert distinct(keys).tolist() == sorted(set(keys.tolist()))


@given(
    ended=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 4)), max_size=12),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8),
)
def test_highest_before_returns_the_last_maximum(
    ended: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    group, ended_ns, value = (np.array([one[place] for one in ended], dtype=np.int64) for place in range(3))
    about, moment_ns = (np.array([one[place] for one in asked], dtype=np.int64) for place in range(2))
    rows = [
        [(one[2], row) for row, one in enumerate(ended) if one[0] == each[0] and one[1] < each[1]] for each in asked
    ]

    found = highest_before(group, ended_ns, value, about, moment_ns)
    assert found.tolist() == [max(several)[1] if several else -1 for several in rows]


@given(rows=ROWS | ROWS.map(sorted))
def test_a_run_begins_where_any_column_changes(rows: list[tuple[int, int]]) -> None:
    columns = [integers([row[place] for row in rows]) for place in range(2)]
    wanted = [place for place, row in enumerate(rows) if place == 0 or row != rows[place - 1]]
    assert run_starts(*columns).tolist() == wanted


# -- memory of released columns is reused -----------------------------------------------------------------------------

PAGE_BYTES = 4096
COLUMN_BYTES, COLUMNS, TIMES = 2 << 20, 4, 10
AGAIN_AND_AGAIN = f"""
import resource
from longpoll_judge.columns.memory import give_back_memory, keep_freed_memory
assert keep_freed_memory()
def faults():
    columns = [b"x" * {COLUMN_BYTES} for _ in range({COLUMNS})]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = faults()
before = [faults() for _ in range({TIMES})][-1]
give_back_memory()
print(before - first, faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_columns_of_equal_size_reuse_freed_memory() -> None:
    """A new column uses the memory of a freed column of the same size. The test runs in another process."""
    found = subprocess.run([sys.executable, "-c", AGAIN_AND_AGAIN], capture_output=True, text=True, check=True)

    kept, given_back = map(int, found.stdout.split())
    assert kept < COLUMN_BYTES // PAGE_BYTES < given_back

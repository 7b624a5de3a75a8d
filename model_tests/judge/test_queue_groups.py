"""Pulls are judged alike in groups of queues, as Spark's exchange makes them, and in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.judge.hostile import Hostile, hostile
from model_tests.support.judge.histories import added_up

from longpoll_judge.columns.batch import joined, make_batch
from longpoll_judge.columns.keys import NO_KEYS, Keys
from longpoll_judge.read.schema import coded, compute, fill
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.queue_verdict import LOG_EVENTS, RESULT_SCHEMA, judge_table, queue_rows
from longpoll_judge.run.spark import queue_groups
from longpoll_judge.run.spark.engine import event_schema
from longpoll_judge.run.spark.queue_groups import FAULTY, JUDGED_KEY, LEFT, LEFT_KEY, PULL_COLUMNS, QueueGroups
from longpoll_judge.run.wide_pulls import judge_rest
from longpoll_judge.run.window_sweep import WindowReader
from longpoll_judge.run.windows import WindowPlan

SEEDS = st.integers(0, 10**9)


def exchanged(windows: WindowReader, groups: QueueGroups) -> Iterator[pa.RecordBatch]:
    """The events as a task gets them: `QueueGroups.keyed` without Spark, all groups one after the other."""
    rows: list[tuple[int, pa.Table]] = []
    firsts = [sum(groups.salts[:bucket]) for bucket in range(len(groups.salts))]
    for window in range(groups.windows):
        table = fill(windows.events(window))
        codes, names = coded(table, "event")
        is_log = np.array([name in LOG_EVENTS for name in names], dtype=np.bool_)[codes]
        is_used = is_log | np.array([name in REQUEST_EVENTS for name in names], dtype=np.bool_)[codes]
        for name, events in make_batch(table).queues():
            bucket = queue_groups.bucket_of(name, len(groups.salts))
            mine = events.table_rows(np.arange(len(events)))
            for near in (0, -1, 1):
                at = min(max(window + near, 0), groups.windows - 1)
                group = firsts[bucket] + at * groups.salts[bucket] // groups.windows
                own = firsts[bucket] + window * groups.salts[bucket] // groups.windows
                if near and group == own:
                    continue
                chosen = mine[(is_log if near else is_used)[mine]]
                rows.append((group * groups.windows + window, table.take(pa.array(np.sort(chosen)))))
    for place, table in sorted(rows, key=lambda one: one[0]):
        plain = table.select(PULL_COLUMNS).cast(pa.schema(list(event_schema(PULL_COLUMNS))[:-1]))
        plain = plain.append_column("place", pa.array(np.full(len(plain), place)))
        yield from plain.to_batches(max_chunksize=7)


def in_groups(one: Hostile, salts: list[int]) -> list[tuple[object, ...]]:
    """The findings about a history in groups of queues."""
    plan = WindowPlan(one.overviews, one.window_events)
    windows = WindowReader(plan, one.splits.__getitem__, one.is_unplaced)
    count = len(plan.windows)
    groups = QueueGroups(count, tuple(min(salt, count) for salt in (salts[:1] if one.is_unplaced else salts)))
    held: Keys = NO_KEYS
    for _time in range(2):
        work = queue_groups.group_judge(groups, plan, one.context, held, unplaced=one.is_unplaced)
        batches = list(work(exchanged(windows, groups)))
        swept = pa.Table.from_batches(batches, queue_groups.SWEPT)
        by_kind = {
            kind: swept.filter(compute.equal(swept["kind"], kind)) for kind in (LEFT, FAULTY, JUDGED_KEY, LEFT_KEY)
        }
        judged, left = (
            by_kind[kind]["key"].to_numpy().astype(np.int64).view(np.uint64) for kind in (JUDGED_KEY, LEFT_KEY)
        )
        names, counts = np.unique(judged, return_counts=True)
        held = names[(counts > 1) | np.isin(names, left)]
        if not len(held):
            break
    is_more = compute.is_in(swept["kind"], value_set=pa.array(list(by_kind)))
    rows = swept.filter(compute.invert(is_more)).select(RESULT_SCHEMA.names)
    faulty = plan.uneven | queue_groups.faulty_queues(by_kind[FAULTY])
    wide = judge_rest(windows, queue_groups.left_events(by_kind[LEFT]), faulty, one.context)
    return added_up(pa.concat_tables([rows, wide, queue_rows(plan.queues)]))


@pytest.mark.parametrize("count", [5, pytest.param(1_000, marks=(pytest.mark.long, pytest.mark.timeout(1_200)))])
def test_hostile_histories_are_judged_alike_in_groups_of_queues(count: int) -> None:
    """With one bucket or several, and with buckets that are salted by windows."""

    @settings(max_examples=count)
    @given(seed=SEEDS, salts=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def check(seed: int, salts: list[int]) -> None:
        one = hostile(seed)
        windows = WindowReader(WindowPlan(one.overviews, one.window_events), one.splits.__getitem__, one.is_unplaced)
        whole = judge_table(windows.placed(joined(one.splits)), one.context)
        assert in_groups(one, salts) == added_up(whole)

    check()


def test_a_group_without_its_neighbours_logs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the log before its first window, it judges this history differently."""
    one = hostile(61)
    whole, honest = in_groups(one, [3]), queue_groups.GroupedWindows.log
    monkeypatch.setattr(queue_groups.GroupedWindows, "log", lambda self, window: honest(self, window).slice(0, 0))

    assert in_groups(one, [1]) == whole != in_groups(one, [3])


def test_runs_of_a_salted_bucket_follow_each_other() -> None:
    """Together they have each window once, also where the division leaves a remainder."""
    for windows in range(1, 12):
        groups = QueueGroups(windows, (min(3, windows), 1, min(5, windows)))
        runs = [groups.run_of(group) for group in range(groups.count)]
        for bucket, salts in enumerate(groups.salts):
            first = sum(groups.salts[:bucket])
            mine = runs[first : first + salts]
            assert (mine[0][0], mine[-1][1]) == (0, windows)
            assert all(end == begin for (_first, end), (begin, _end) in pairwise(mine))
            for salt, (begin, end) in enumerate(mine):
                assert {at * salts // windows for at in range(begin, end)} == {salt}

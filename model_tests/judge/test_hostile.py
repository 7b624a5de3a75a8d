"""A small hostile history is judged in stretches as in one piece, to the last word of the last finding."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.judge.hostile import Hostile, hostile
from model_tests.judge.test_stretches import told

from longpoll_judge.columns.exchange import joined
from longpoll_judge.run import home
from longpoll_judge.run.local import judge_stretches
from longpoll_judge.run.plan import Plan
from longpoll_judge.run.sweep import Stretches
from longpoll_judge.run.verdict import judge_table

SEEDS = st.integers(0, 10**9)
SOME = range(40)
LEAST = 2
"""How many of them are of each kind."""


def both(one: Hostile) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What is said of a history in stretches, and of the whole."""
    plan = Plan(one.overviews, one.stretch_events)
    stretches = Stretches(plan, one.slices.__getitem__, one.is_unplaced)
    whole = judge_table(stretches.placed(joined(one.slices)), one.context)
    return told(judge_stretches(stretches, one.context)), told(whole)


@given(seed=SEEDS)
def test_a_hostile_history_is_judged_alike_in_stretches(seed: int) -> None:
    """Whatever is said of the whole is said of it in stretches, and nothing else."""
    in_stretches, whole = both(hostile(seed))

    assert in_stretches == whole


@pytest.mark.long
@pytest.mark.timeout(1_200)
@settings(max_examples=2_000)
@given(seed=SEEDS)
def test_thousands_of_hostile_histories_are_judged_alike_in_stretches(seed: int) -> None:
    """The same, of enough to meet what comes once in a thousand."""
    in_stretches, whole = both(hostile(seed))

    assert in_stretches == whole


def test_the_histories_are_of_every_kind() -> None:
    """Deleted topics, queues that begin anew untold, holes, clocks that may be set, watchers inside and outside."""
    kinds: Counter[str] = Counter()
    for one in map(hostile, SOME):
        context = one.context
        kinds["deleted"] += bool(context.deleted)
        kinds["anew"] += bool(context.begun_anew)
        kinds["holed"] += any(map(len, context.broker_holes.values()))
        kinds["whole"] += not any(map(len, context.broker_holes.values()))
        kinds["settable"] += bool(context.settable)
        kinds["inside"] += bool(context.inside)
        kinds["outside"] += not context.inside
        kinds["cut"] += len(one.slices) > 1
        kinds["closed"] += bool(context.closes)
        if kinds["found"] < LEAST:
            kinds["found"] += any("violated" in text for _kind, _bucket, _count, text in both(one)[1])

    assert min(kinds.values()) >= LEAST, kinds


def test_a_history_that_is_judged_by_less_than_matters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were every pull judged at home, whatever lies outside, some of these histories would be judged otherwise."""
    monkeypatch.setattr(home, "is_away", lambda case, _outlook: np.zeros(len(case.pulls), dtype=np.bool_))

    assert any(len(set(map(str, both(hostile(seed))))) > 1 for seed in SOME)

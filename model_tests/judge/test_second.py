"""A second judge, written from the contract alone, beside a simulated broker that does everything right."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
from model_tests.judge.second.compare import shrunk
from model_tests.judge.second.corpus import calm, troubled
from model_tests.judge.second.faults import apply, changed_histories
from model_tests.judge.second.judge import CLAUSES, Opinion, weigh
from model_tests.judge.second.observer import History, Sight, observe
from model_tests.judge.second.parts import Plan

QUICK_HISTORIES = 60
LONG_HISTORIES = 1_000
OPEN_ENOUGH = {"evidence.not_judged", "pull.error.explained"}
"""What the second judge may leave open where nothing is missing: tags that nobody told, and errors."""


def opinion(history: History) -> Opinion:
    """What the second judge says."""
    return weigh(history.meta, history.events)


def test_a_calm_broker_is_valid_to_the_second_judge() -> None:
    """Where nothing is missing it says so: only tags and errors that nobody can know are left open, and seldom."""
    verdicts: Counter[str] = Counter()
    for seed in range(QUICK_HISTORIES):
        told = opinion(observe(*calm(seed, 100)))
        assert set(filter(None, told.clauses.split(", "))) <= OPEN_ENOUGH, (seed, told)
        verdicts[told.verdict] += 1
    assert verdicts["valid"] >= QUICK_HISTORIES * 2 // 3


@pytest.mark.parametrize("count", [QUICK_HISTORIES, pytest.param(LONG_HISTORIES, marks=pytest.mark.long)])
def test_nothing_that_befalls_a_correct_broker_is_held_against_it_by_the_second_judge(count: int) -> None:
    """Deletions, kills, restarts, cut records, holes, clocks that are set, clients that do not read."""
    accused = {}
    for seed in range(count):
        told = opinion(observe(*troubled(seed, 100)))
        if told.verdict == "invalid":
            accused[seed] = told.reasons
    assert accused == {}


@cache
def convicting() -> Counter[str]:
    """How often each clause of the second judge convicts, of some thousand changed histories."""
    used: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    for seed in range(100):
        for changed in changed_histories(observe(*calm(seed, 50)), seed, 40, used):
            for reason in opinion(changed.history).reasons:
                counts[reason.split(": ")[0]] += 1
    return counts


@pytest.mark.long
@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_of_the_second_judge_convicts_of_something(clause: str) -> None:
    """A clause that no fault ever breaks would be no check."""
    counts = convicting()
    assert counts[clause] + counts[f"? {clause}"] > 0


def test_a_history_is_shrunk_to_what_makes_the_difference() -> None:
    """Of a hundred events the few remain without which the second judge would not convict of the same."""
    history = observe(Plan(8, 200, jumps=0.5), Sight())
    places = [place for place, one in enumerate(history.events) if len(one.get("offsets", [])) > 1]
    changed = history.with_events(apply(list(history.events), places[0], "set offsets -1", random.Random(0)))
    assert "pull.found.ordered" in opinion(changed).clauses
    small = shrunk(changed, lambda one: "pull.found.ordered" in opinion(one).clauses)
    assert "pull.found.ordered" in opinion(small).clauses
    assert [event["event"] for event in small.events] == ["request_received", "answer_sent"]

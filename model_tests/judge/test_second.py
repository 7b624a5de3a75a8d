"""A second judge, written from the contract alone, beside a simulated broker that does everything right."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from model_tests.judge.second.compare import judge_it, shrunk
from model_tests.judge.second.corpus import calm, troubled
from model_tests.judge.second.faults import apply
from model_tests.judge.second.judge import Opinion, weigh
from model_tests.judge.second.observer import History, Sight, observe
from model_tests.judge.second.parts import MS, Plan, Told

QUICK_HISTORIES = 25
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


def test_nothing_that_befalls_a_correct_broker_is_held_against_it_by_the_second_judge() -> None:
    """Deletions, kills, restarts, cut records, holes, clocks that are set, clients that do not read."""
    accused = {}
    for seed in range(QUICK_HISTORIES):
        told = opinion(observe(*troubled(seed, 100)))
        if told.verdict == "invalid":
            accused[seed] = told.reasons
    assert accused == {}


def test_a_history_is_shrunk_to_what_makes_the_difference() -> None:
    """Of a hundred events the few remain without which the second judge would not convict of the same."""
    history = observe(Plan(8, 200, jumps=0.5), Sight())
    places = [place for place, one in enumerate(history.events) if len(one.get("offsets", [])) > 1]
    changed = history.with_events(apply(list(history.events), places[0], "set offsets -1", random.Random(0)))
    assert "pull.found.ordered" in opinion(changed).clauses
    small = shrunk(changed, lambda one: "pull.found.ordered" in opinion(one).clauses)
    assert "pull.found.ordered" in opinion(small).clauses
    assert [event["event"] for event in small.events] == ["request_received", "answer_sent"]


# -- what the two did not agree about, as the smallest histories -------------------------------------------------------


def told(*events: Told, clock: str = "monotonic", hold_limit: int = -1) -> History:
    """A history of one source; an event's `at` is its moment in ms."""
    source = {"name": "b#0", "clock": clock, "offset_ns": 0, "uncertainty_ns": 0, "hold_limit": hold_limit}
    rows = [
        {"source": "b#0", "broker": "b", "sequence": number, "after_ns": at * MS, "before_ns": at * MS + 1, **fields}
        for number, (at, fields) in enumerate(
            (event["at"], {k: v for k, v in event.items() if k != "at"}) for event in events
        )
    ]
    return History({"format_version": 1, "policy": "strict", "sources": [source]}, tuple(rows))


def pulled(at: int, connection: str, **fields: object) -> Told:
    """A pull of an empty queue, received."""
    return {
        "at": at, "event": "request_received", "topic": "T", "queue": 0, "request": f"{connection}-1",
        "connection": connection, "code": 11, "group": "g", "offset": 0, "count_max": 32, "may_hold": True,
        "timeout_ms": 10, "expression_type": "TAG", "expression": "*", **fields,
    }  # fmt: skip


def answered(at: int, connection: str) -> Told:
    """Its answer: nothing new."""
    return {
        "at": at, "event": "answer_sent", "topic": "T", "queue": 0, "request": f"{connection}-1",
        "connection": connection, "code": 19, "offset_next": 0, "offset_min": 0, "offset_max": 0,
    }  # fmt: skip


START, STOP = {"at": 0, "event": "source_started"}, {"at": 60_000, "event": "source_stopped"}


@pytest.mark.parametrize(("clock", "verdict"), [("monotonic", "invalid"), ("unix", "unknown")])
def test_a_clock_that_may_be_set_convicts_nobody_of_being_late(clock: str, verdict: str, tmp_path: Path) -> None:
    """A clock set forward by 20 s while a pull is held looks like a broker that is late by as much."""
    history = told(START, pulled(5, "1"), answered(20_015, "1"), STOP, clock=clock)
    assert judge_it(history, tmp_path).verdict == opinion(history).verdict == verdict


@pytest.mark.parametrize(("closes", "verdict"), [(False, "invalid"), (True, "valid")])
def test_who_has_gone_is_not_held(closes: bool, verdict: str, tmp_path: Path) -> None:
    """A hold does not name its connection, its request does; a pull of a closed connection is not certainly held."""
    events: list[Told] = [START]
    for number, at in ((1, 10), (2, 40)):
        events.append(pulled(at, f"{number}", timeout_ms=50_000))
        events.append({"at": at + 1, "event": "hold", "topic": "T", "queue": 0, "request": f"{number}-1"})
        if closes:
            events.append({"at": at + 10, "event": "connection_closed", "connection": f"{number}"})
    events += [pulled(45, "3", may_hold=False), answered(46, "3"), {"at": 70, "event": "source_stopped"}]
    history = told(*events, hold_limit=1)
    convicted = {"hold.limit.kept"} if verdict == "invalid" else set()
    assert judge_it(history, tmp_path).violated & {"hold.limit.kept"} == convicted
    assert opinion(history).violated & {"hold.limit.kept"} == convicted


def test_a_closed_connection_is_told_by_a_clock(tmp_path: Path) -> None:
    """That an answer came after the close is certain only of a clock that was not set back."""
    close = {"at": 40, "event": "connection_closed", "connection": "1"}
    history = told(
        START, pulled(50, "1"), answered(61, "1"), {"at": 9_000, "event": "lost", "lost_count": 1}, close, STOP
    )
    assert judge_it(history, tmp_path).verdict == opinion(history).verdict == "unknown"

"""Pops: the clause of each injected fault reports it, and the two judges agree on any change of the record.

On Spark: `test_cluster.test_a_hot_queue_and_many_buckets_change_nothing`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.judge.second.compare import Agreement
from model_tests.judge.second.faults import changed_histories
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History
from model_tests.judge.test_evidence import not_convicting
from model_tests.support.judge.pops import FAULTS, META, World
from model_tests.support.judge.recording import write

from longpoll_judge.contract.pops import POP_CLAUSES
from longpoll_judge.contract.result import Result
from longpoll_judge.read.schema import event_dict
from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge_on
from longpoll_spec.history import Event

HOW: Final[dict[str, Any]] = {"wake_ms": 100.0, "late_ms": 50.0, "say": lambda _text: None}
OTHERS: Final = {
    "swapped": {"pop.wake.prompt"},
    "never_answered": {"pop.wake.prompt"},
    "strange_code": {"pop.wake.prompt"},
}
"""Fault -> further clauses that it may violate, because a message waits or the wrong request gets it."""
CHANGED: Final = {"": 14, "after_ack": 6}


def history_of(events: list[Event]) -> History:
    """The history as the second judge reads it."""
    told = tuple(event_dict(msgspec.structs.asdict(event)) for event in events)
    return History(msgspec.to_builtins(META), told)


def judged(directory: Path, events: list[Event], engine: Any = None) -> Result:
    """The judge's result, by default with one window."""
    write(directory, events, META)
    return judge_on(engine or LocalEngine(), find([directory]), **HOW)


def said(result: Result) -> set[tuple[str, ...]]:
    """The texts of the findings."""
    return {(one.clause, one.verdict, one.request, one.why) for one in result.findings}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_its_clause(name: str, tmp_path: Path) -> None:
    """The result is the same in windows of a few events and from the evidence alone, and the second judge agrees."""
    fault, events = FAULTS[name], World(seed=0, fault=name).run()
    result = judged(tmp_path / "whole", events)
    clauses = {one.clause for one in result.findings}

    assert {fault.clause} <= clauses <= {fault.clause} | OTHERS.get(name, set())
    assert result.verdict == ("invalid" if fault.is_certain else "unknown"), result.findings
    assert result.gaps == []
    assert said(judged(tmp_path / "cut", events, LocalEngine(threads=1, window_events=60))) == said(result)
    assert not_convicting(result, tmp_path) == []
    history = history_of(events)
    opinion = weigh(history.meta, history.events)
    assert opinion.verdict == result.verdict, opinion.reasons
    assert opinion.violated == {one.clause for one in result.findings if one.verdict == "violated"}


@pytest.mark.parametrize("seed", range(3))
def test_a_correct_broker_is_valid(seed: int, tmp_path: Path) -> None:
    """Pops, wakes, redeliveries and changes were each judged."""
    events = World(seed=seed).run()
    result = judged(tmp_path / "history", events)
    counts = Counter((one.event, one.code, one.cause) for one in events)

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.shares["pops"].judged > 100
    assert result.rates["pop.wake.prompt"].of > 30
    assert min(counts["message_popped", -1, "retry"], counts["request_received", 200_053, ""]) > 0
    assert weigh(history_of(events).meta, history_of(events).events).verdict == "valid"


@pytest.mark.parametrize("name", CHANGED)
def test_both_judges_agree_on_changed_records(name: str, tmp_path: Path) -> None:
    """One event of each record is dropped, duplicated, moved or changed."""
    found, used = Agreement(), Counter[tuple[str, str]]()
    history = history_of(World(seed=5, fault=name, seconds=30).run())
    for changed in changed_histories(history, 1, CHANGED[name], used):
        found.compare(changed.history, f"{changed.operation} {changed.place}", tmp_path / "history", was_open=False)
    assert not found.disagreements, found.told()


def test_each_clause_has_a_fault() -> None:
    assert {fault.clause for fault in FAULTS.values()} - {"answer.once"} == {clause.id for clause in POP_CLAUSES}

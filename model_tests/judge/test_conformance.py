"""The judge checks histories of steps against the specification, and explains each forbidden step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest
from model_tests.support.judge.convert import convert
from model_tests.support.judge.generate import START_NS
from model_tests.support.judge.generate_steps import FAULTS, STEP_NS, Fault, StepLoad, meta_of, observed, run_of
from model_tests.support.judge.recording import write

from longpoll_judge.conformance import judge_run
from longpoll_judge.contract.result import FOLLOWS_THE_LAW, Finding, Result
from longpoll_judge.read.schema import DEFAULTS
from longpoll_judge.read.source import find
from longpoll_judge.run.pipeline import judge, judge_on
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.step_reader import model_of
from longpoll_spec.engines.conform import Checker
from longpoll_spec.history import Event, Law
from longpoll_spec.policy import PRESETS

LAW: Final = Law(requests=2, queues=2, aspects=["commits", "channels"])
LOAD: Final = StepLoad(LAW)
SEEDS: Final = range(3)


def as_dicts(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [{**DEFAULTS, **msgspec.structs.asdict(event)} for event in events]


def found(load: StepLoad, *, is_whole: bool = True) -> list[Finding]:
    checker = Checker(model_of(load.policy, load.law), frozenset(load.law.hidden))
    return judge_run(checker, as_dicts(run_of(load).events), is_whole=is_whole)[0]


def judged(directory: Path, load: StepLoad, events: Iterable[Event] | None = None) -> Result:
    write(directory, observed(load) if events is None else events, meta_of(load), events_per_part=50)
    return judge([directory], engine="local")


@pytest.mark.parametrize("policy", PRESETS)
def test_random_runs_of_a_policy_have_no_finding(policy: str) -> None:
    assert [found(attrs.evolve(LOAD, policy=policy, seed=seed)) for seed in SEEDS] == [[], [], []]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", ["strict-clone", "rocketmq-5"])
def test_a_fault_is_found_at_the_forbidden_step(policy: str, fault: Fault) -> None:
    for seed in SEEDS:
        load = attrs.evolve(LOAD, policy=policy, fault=fault, seed=seed, overlapping=0.0)
        wrong_at = run_of(load).wrong_at
        (finding,) = found(load)

        assert wrong_at is not None
        assert (finding.property, finding.verdict) == (FOLLOWS_THE_LAW, "violated")
        moment_ns = START_NS + wrong_at * STEP_NS
        assert [event["after_ns"] for event in finding.shown()] == [moment_ns]
        assert f"after {wrong_at} steps of {policy} the specification does not allow this step" in finding.why
        assert " needs " in finding.why or "was seen" in finding.why


def test_a_run_of_another_policy_is_a_violation() -> None:
    as_it_was = attrs.evolve(LOAD, policy="rocketmq-4.9", law=Law(requests=2))
    checker = Checker(model_of("strict", as_it_was.law))

    assert found(as_it_was) == []
    assert judge_run(checker, as_dicts(run_of(as_it_was).events), is_whole=True)[0]


def test_the_whole_pipeline_judges_histories_of_steps(tmp_path: Path) -> None:
    faulty = attrs.evolve(LOAD, fault="disabled_step", overlapping=0.0)
    result = judged(tmp_path / "wrong", faulty)
    convert(tmp_path / "wrong", tmp_path / "parquet", into="parquet")

    assert judged(tmp_path / "right", LOAD).verdict == "valid"
    assert result.verdict == "invalid"
    assert [finding.property for finding in result.findings] == [FOLLOWS_THE_LAW]
    assert judge([tmp_path / "parquet"], engine="local").findings == result.findings


def test_a_truncated_queue_of_a_history_of_steps_is_valid(tmp_path: Path) -> None:
    load = attrs.evolve(LOAD, law=Law(requests=2, aspects=["truncate", "crash"]), steps=300)

    assert judged(tmp_path / "history", load).verdict == "valid"


def test_a_lost_step_makes_the_verdict_unknown(tmp_path: Path) -> None:
    load = attrs.evolve(LOAD, overlapping=0.0)
    events = list(observed(load))
    lost = next(at for at, event in enumerate(events) if event.event == "pull_read")
    declared = msgspec.structs.replace(events[lost], event="lost", lost_count=1, actors="")

    for number, rest in enumerate(
        (events[:lost] + events[lost + 1 :], [*events[:lost], declared, *events[lost + 1 :]])
    ):
        result = judged(tmp_path / str(number), load, rest)
        assert (result.verdict, [finding.verdict for finding in result.findings]) == ("unknown", ["unknown"])


def test_actions_that_are_not_recorded_may_have_happened() -> None:
    """A history without ticks and pulls follows the specification only if it declares ticks and pulls as hidden."""
    hidden = ["tick", "next_pull"]
    events = as_dicts(event for event in run_of(LOAD).events if event.event not in hidden)

    assert not judge_run(Checker(model_of("strict", LAW), frozenset(hidden)), events, is_whole=True)[0]
    assert judge_run(Checker(model_of("strict", LAW)), events, is_whole=True)[0]


def test_actors_may_be_missing() -> None:
    for rewritten in ("", "?"):
        for fault in ("", "disabled_step"):
            events = as_dicts(run_of(attrs.evolve(LOAD, law=Law(requests=2), fault=fault, overlapping=0.0)).events)
            for event in events:
                if event["event"] == "pull_read":
                    event["actors"] = rewritten
            assert bool(judge_run(Checker(model_of("strict", Law(requests=2))), events, is_whole=True)[0]) == bool(
                fault
            )


@pytest.mark.parametrize(
    ("policy", "law"), [("no-such", LAW), ("strict+expiry=never", LAW), ("strict", Law(requests=0)), ("", LAW)]
)
def test_an_unknown_specification_is_a_gap(tmp_path: Path, policy: str, law: Law) -> None:
    declared = attrs.evolve(LOAD, policy=policy, law=law)
    write(tmp_path / "history", observed(LOAD), meta_of(declared))
    result = judge([tmp_path / "history"], engine="local")

    assert result.verdict == "unknown"
    assert [gap["kind"] for gap in result.gaps] == ["unknown law"]


@pytest.mark.parametrize("actors", ["7", "0,q9,t0", "q" + "9" * 5000, "²", ",,,"])
def test_unknown_actors_fit_no_step(actors: str) -> None:
    events = as_dicts([Event(event="hold", after_ns=1, before_ns=1, source="a", sequence=0, actors=actors)])
    ((finding,), _placed) = judge_run(Checker(model_of("strict", LAW)), events, is_whole=True)

    assert "there is no such action" in finding.why


def test_too_many_possibilities_are_unknown() -> None:
    checker = Checker(model_of("strict", LAW), frozenset({"tick", "next_pull"}), possible_max=3)
    ((finding,), _placed) = judge_run(checker, as_dicts(run_of(LOAD).events), is_whole=True)

    assert finding.verdict == "unknown"
    assert "3 possibilities" in finding.why


def test_an_observed_value_is_compared_with_the_state() -> None:
    law = Law(requests=1)
    events = as_dicts(run_of(attrs.evolve(LOAD, law=law, overlapping=0.0)).events)
    next(event for event in events if event["event"] == "pull_read")["offset"] += 1
    ((finding,), _placed) = judge_run(Checker(model_of("strict", law)), events, is_whole=True)

    assert "was seen" in finding.why


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_judges_steps_with_the_same_result(tmp_path: Path, spark_engine: SparkEngine) -> None:
    faults: dict[str, Fault] = {"right": "", "wrong": "disabled_step"}
    for name, fault in faults.items():
        load = attrs.evolve(LOAD, fault=fault)
        write(tmp_path / name, observed(load), meta_of(load), events_per_part=50)
    for paths in ([tmp_path / "wrong"], [tmp_path / "right", tmp_path / "wrong"]):
        found = judge_on(spark_engine, find(paths), wake_ms=100, late_ms=50, say=lambda _stage: None)
        expected = judge(paths, engine="local")
        assert (found.verdict, found.findings, found.gaps) == ("invalid", expected.findings, expected.gaps)

"""TLC agrees with our engines: on counts, violations, fairness and histories."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs
import msgspec
import pytest
from _pytest.mark import ParameterSet
from model_tests.support.judge.generate_steps import FAULTS, Fault, StepLoad, run_of
from model_tests.support.spec.tlc import (
    TlcRun,
    TlcViolation,
    keeps,
    only_invariants,
    placed_by_tlc,
    run_tlc,
    why_no_tlc,
)

from longpoll_judge.read.schema import DEFAULTS
from longpoll_judge.rules.step_reader import model_of, reader_of
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.conform import Checker, Conformance
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.engines.python import unanswered
from longpoll_spec.history import Law
from longpoll_spec.model import Model, Property, SeenStep, order_of
from longpoll_spec.policy import PRESETS, policy_named, preset
from longpoll_spec.render.export.tla import ANSWERED, FAIRNESS, NEVER, TIME_PASSES, tla_configuration_of, tla_of
from longpoll_spec.render.export.tla_parametric import (
    parametric_name_of,
    tla_parametric_configuration_of,
    tla_parametric_of,
)
from longpoll_spec.render.notation import name_of, parameters_of
from longpoll_spec.specification import fairness_of, properties_of, specification_of
from longpoll_spec.terms import TRUE

pytestmark = [pytest.mark.peers]

TINY = [entry for entry in pinned() if entry.bounds == "tiny"]
SMALL = [entry for entry in pinned() if entry.bounds == "small"]
ASPECTS = [entry for entry in pinned() if entry.bounds in EXPLORATIONS]
QUICK_STATES = 50_000
"""A space of more states takes TLC over 10 s with every property."""


class _Export:
    """The module and configuration of a pinned entry."""

    def __init__(self, entry: Entry) -> None:
        policy = preset(entry.policy)
        self.model = specification_of(policy, named(entry.bounds, policy))
        self.properties = properties_of(self.model)
        self.name = name_of(self.model)
        self.module = tla_of(self.model, self.properties)
        self.configuration = tla_configuration_of(self.model, self.properties)

    def property(self, name: str) -> Property:
        return next(item for item in self.properties if item.name == name)

    def check(self, directory: Path, invariants: Iterable[str] | None = None) -> TlcRun | TlcViolation:
        """Run TLC on the export as it is, or with these invariants only."""
        chosen = self.configuration if invariants is None else only_invariants(self.configuration, invariants)
        return run_tlc(self.name, self.module, chosen, directory)


def _counts(entry: Entry) -> TlcRun:
    return TlcRun(entry.distinct_states, entry.transitions, entry.depth)


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.policy)
def test_tlc_runs_the_export_unchanged(entry: Entry, tmp_path: Path) -> None:
    """As exported a sound policy passes with the pinned counts, and a faulty one stops at a violated property."""
    found = _Export(entry).check(tmp_path)

    if entry.violated:
        assert isinstance(found, TlcViolation)
        assert found.invariant in entry.violated
    else:
        assert found == _counts(entry)


def _case(entry: Entry) -> ParameterSet:
    marks = () if entry.distinct_states <= QUICK_STATES else pytest.mark.long
    return pytest.param(entry, marks=marks, id=f"{entry.policy}-{entry.bounds}")


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize("entry", [_case(entry) for entry in (*TINY, *ASPECTS)])
def test_tlc_finds_the_pinned_counts(entry: Entry, tmp_path: Path) -> None:
    """With every property that holds TLC goes through all states, and counts what our engines count."""
    assert _Export(entry).check(tmp_path, ["TypeOK", *entry.holds]) == _counts(entry)


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize("policy", ["strict+recheck_after_hold=in_lock", "strict-clone+heap_entry=one_shot+tick=free"])
def test_tlc_agrees_on_policies_with_knobs(policy: str, tmp_path: Path) -> None:
    """Off the presets too TLC counts what the packed engine counts in the same law."""
    chosen = policy_named(policy)
    model = specification_of(chosen, named("tiny", chosen))
    ours = explore(model)
    configuration = only_invariants(tla_configuration_of(model, ()), ["TypeOK"])

    assert run_tlc(name_of(model), tla_of(model, ()), configuration, tmp_path) == TlcRun(
        ours.distinct_states, ours.transitions, ours.depth
    )


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.long
@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: entry.policy)
def test_tlc_finds_the_pinned_counts_at_small(entry: Entry, tmp_path: Path) -> None:
    assert _Export(entry).check(tmp_path, ["TypeOK"]) == _counts(entry)


def _length(export: _Export, name: str, nearest: int) -> int:
    """TLC stops at a state from which a step breaks the property; our run ends with that step."""
    item = export.property(name)
    return nearest + (item.here is TRUE and bool(item.closing))


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.policy)
def test_tlc_finds_every_violation_at_its_shortest(entry: Entry, tmp_path: Path) -> None:
    export = _Export(entry)
    lengths: dict[str, int] = {}
    for name in entry.violated:
        found = export.check(tmp_path, [name])
        assert isinstance(found, TlcViolation), name
        lengths[name] = _length(export, name, found.length)

    assert lengths == entry.violated


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.long
@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.policy)
def test_tlc_reaches_what_must_be_reached(entry: Entry, tmp_path: Path) -> None:
    export = _Export(entry)
    lengths: dict[str, int] = {}
    for name in entry.reached:
        found = export.check(tmp_path, [NEVER + name])
        assert isinstance(found, TlcViolation), name
        lengths[name] = _length(export, name, found.length)

    assert lengths == entry.reached


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
def test_every_preset_and_every_aspect_is_compared() -> None:
    assert {entry.policy for entry in TINY} == {entry.policy for entry in SMALL} == set(PRESETS)
    assert {(entry.policy, entry.bounds) for entry in ASPECTS} == {
        (policy, aspect) for policy in PRESETS for aspect in EXPLORATIONS
    }


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
def test_a_module_that_tlc_cannot_read_is_no_result(tmp_path: Path) -> None:
    export = _Export(TINY[0])
    export.module = export.module.replace("Next ==", "Next =")

    with pytest.raises(RuntimeError, match="TLC did not finish"):
        export.check(tmp_path)


CUT: Final = frozenset({"truncate"})
ONE_QUEUE: Final = named("truncate", preset("strict"))
TWO_TAGS: Final = Bounds("two-tags", requests=1, messages=1, tags=2, aspects=CUT)


def _is_answered(model: Model, assumed: str, directory: Path) -> bool:
    """Whether TLC finds every pull answered under what is assumed of a run."""
    module = tla_of(model, ()).replace("====\n", f"Tried == Spec /\\ {assumed}\n====\n")
    assert module.count("Tried ==") == 1
    return keeps(name_of(model), module, parameters_of(model), ANSWERED, directory)


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize(
    ("bounds", "assumed", "answered"),
    [
        (ONE_QUEUE, "WF_vars(Next)", False),
        (ONE_QUEUE, FAIRNESS, True),
        (TWO_TAGS, FAIRNESS, False),
        (TWO_TAGS, f"{FAIRNESS} /\\ {TIME_PASSES}", True),
    ],
    ids=["next", "each", "each-with-tags", "time-passes-with-tags"],
)
def test_tlc_finds_pulls_answered_under_the_exported_fairness(
    bounds: Bounds, assumed: str, answered: bool, tmp_path: Path
) -> None:
    """Of `Next` as a whole it is not enough; of each urgent action and of tick it is, where nothing is filtered."""
    assert _is_answered(specification_of(preset("strict"), bounds), assumed, tmp_path) == answered


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize("name", ["strict", "strict-clone", "rocketmq-4.9"])
@pytest.mark.parametrize("time_passes", [False, True])
def test_tlc_agrees_with_our_own_search(name: str, time_passes: bool, tmp_path: Path) -> None:
    model = specification_of(preset(name), ONE_QUEUE)
    ours = unanswered(model, attrs.evolve(fairness_of(model), time_passes=time_passes))
    assumed = f"{FAIRNESS} /\\ {TIME_PASSES}" if time_passes else FAIRNESS

    assert _is_answered(model, assumed, tmp_path) == (ours is None)


WORLDS: Final = (
    Law(requests=3),
    Law(requests=2, queues=2, tags=2),
    Law(requests=2, aspects=["commits", "channels", "capacity"]),
)
LOADS: Final = [StepLoad(law, policy=policy, steps=110) for policy in PRESETS for law in WORLDS]
"""Eighteen laws; with the two of hidden time there are twenty starts of TLC."""
HIDING: Final = [
    StepLoad(Law(requests=2, hidden=["tick", "next_pull"]), policy=policy, steps=140)
    for policy in ("strict-clone", "rocketmq-4.9")
]
RUNS: Final = 50
"""Runs of one start: 1,000 in all."""
KINDS: Final[tuple[Fault, ...]] = ("", FAULTS[0], "", FAULTS[1])


def runs_of(load: StepLoad, count: int) -> list[list[SeenStep]]:
    """Runs of one spec, every other one with a fault, half of them without uncertain times or hidden variables.

    In every tenth run every other step has its action but no actors.
    """
    reader = reader_of(model_of(load.policy, load.law))
    found = []
    for seed in range(count):
        overlapping = 0.3 if seed // len(KINDS) % 2 else 0.0
        run = run_of(attrs.evolve(load, seed=seed, fault=KINDS[seed % len(KINDS)], overlapping=overlapping))
        events = [event for event in run.events if event.event not in load.law.hidden]
        if seed % 10 == 9:
            events = [msgspec.structs.replace(event, actors=event.actors * (event.sequence % 2)) for event in events]
        found.append([reader.step({**DEFAULTS, **msgspec.structs.asdict(event)}) for event in events])
    return found


def compare(load: StepLoad, count: int, directory: Path) -> tuple[list[Conformance], float, float]:
    """The judge's verdicts on runs of which TLC says the same, and the seconds that the judge and TLC took."""
    model = model_of(load.policy, load.law)
    runs = runs_of(load, count)
    began = time.perf_counter()
    checker = Checker(model, frozenset(load.law.hidden))
    ours = [checker.check(run) for run in runs]
    judged = time.perf_counter()
    directory.mkdir()
    theirs = placed_by_tlc(model, [order_of(run) for run in runs], load.law.hidden, directory)
    seconds = judged - began, time.perf_counter() - judged
    lengths = [len(run) for run in runs]
    assert min(lengths) >= 100
    assert [found.placed == length for found, length in zip(ours, lengths, strict=True)] == [
        found.conforms for found in ours
    ]
    assert theirs == [found.placed for found in ours]
    return ours, *seconds


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.parametrize("load", [LOADS[4], HIDING[0]], ids=["strict-clone", "hidden"])
def test_tlc_places_as_many_steps_as_the_judge(load: StepLoad, tmp_path: Path) -> None:
    """On a few runs of two laws TLC gets exactly as far as the judge, with and without a fault."""
    ours, _judge_s, _tlc_s = compare(load, 12, tmp_path / "runs")

    assert {found.conforms for found in ours} == {True, False}


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_thousand_histories_have_the_same_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand histories of a hundred steps and more, half with a fault, in twenty starts: the same every time."""
    judge_s = tlc_s = 0.0
    found: list[Conformance] = []
    for number, load in enumerate((*LOADS, *HIDING)):
        ours, judge_one_s, tlc_one_s = compare(load, RUNS, tmp_path / str(number))
        found += ours
        judge_s, tlc_s = judge_s + judge_one_s, tlc_s + tlc_one_s
    with capsys.disabled():
        steps = sum(len(one.order.steps) for one in found)
        told = f"{len(found)} runs, {steps} steps, {sum(one.conforms for one in found)} of them runs of the law"
        print(f"\n{told}: judge {judge_s:.1f} s, TLC {tlc_s:.1f} s, ratio {tlc_s / judge_s:.0f}")  # noqa: T201 - the figure is what is wanted

    assert len(found) == 1000
    assert 450 <= sum(one.conforms for one in found) <= 550


def _parametric(policy: str, bounds: Bounds, checked: Iterable[str], directory: Path) -> TlcRun | TlcViolation:
    """TLC on the parametric module, with these lines of its configuration in addition to the types."""
    model = specification_of(preset(policy), bounds)
    configuration = tla_parametric_configuration_of(model)
    assert set(checked) <= set(configuration.splitlines())
    chosen = "\n".join([only_invariants(configuration, ["TypeOK"]), *checked, ""])
    return run_tlc(parametric_name_of(model), tla_parametric_of(model), chosen, directory)


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.long
@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9"])
@pytest.mark.parametrize(("requests", "queues"), [(2, 1), (3, 1), (2, 2)])
def test_tlc_finds_our_counts_in_the_parametric_module(policy: str, requests: int, queues: int, tmp_path: Path) -> None:
    """One text, whose sizes are constants: two requests and three, one queue and two."""
    bounds = named("tiny", preset(policy), requests=requests, queues=queues)
    ours = explore(specification_of(preset(policy), bounds))

    assert _parametric(policy, bounds, [], tmp_path) == TlcRun(ours.distinct_states, ours.transitions, ours.depth)


@pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}")
@pytest.mark.long
@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9"])
def test_tlc_finds_our_verdicts_in_the_parametric_module(policy: str, tmp_path: Path) -> None:
    """TLC violates each property of the module that our engine violates, at the same length, and keeps the others."""
    entry = next(each for each in TINY if each.policy == policy)
    bounds = named("tiny", preset(policy))
    lines = tla_parametric_configuration_of(specification_of(preset(policy), bounds)).splitlines()
    checked = {line.split()[1]: line for line in lines if line.startswith(("INVARIANT", "PROPERTY"))}
    assert set(entry.violated) < set(checked)

    kept = [line for name, line in checked.items() if name not in entry.violated and name != "TypeOK"]
    assert _parametric(policy, bounds, kept, tmp_path) == _counts(entry)
    for name, length in entry.violated.items():
        found = _parametric(policy, bounds, [checked[name]], tmp_path)
        assert isinstance(found, TlcViolation), name
        export = _Export(entry).property(name)
        ends_before = checked[name].startswith("INVARIANT") and export.here is TRUE and bool(export.closing)
        assert (found.invariant, found.length + ends_before) == (name, length)

"""Every engine finds the same states and verdicts, and random runs and shortest runs show what they say."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.spec.cases import breaks_its_property, model_named, quick_if
from model_tests.support.spec.strategies import runs

from longpoll.cli import main
from longpoll_spec import engines
from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, trace_of, values_of
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import entry_of, pinned, pinned_entry
from longpoll_spec.engines.minimise import fewest_switches, minimised, shortest_token, switches_in
from longpoll_spec.engines.packed import simulate
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.python import Question, question, shorten, successors
from longpoll_spec.engines.simplify import extent
from longpoll_spec.engines.survey import Survey, survey
from longpoll_spec.engines.tokens import replay, token_of
from longpoll_spec.errors import BoundsError, UnknownPropertyError
from longpoll_spec.findings import FACTS
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.terms import Bool

ENGINES = engines.EXPLORERS
VARIANTS = [
    *PRESETS,
    "strict+recheck_after_hold=in_lock",
    "strict-clone+heap_entry=one_shot+tick=free",
    "strict-clone+on_throw=keep_rest",
]


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "rocketmq-5"))
def test_small_bounds_find_the_pinned_numbers(policy: str) -> None:
    """The packed engine at small: at least a hundred thousand states, nothing vacuous, and all as pinned."""
    entry = pinned_entry(policy, "small")

    assert entry_of(explore(model_named(policy, "small"))) == entry
    assert entry.distinct_states >= 100_000
    assert not entry.unreached


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-5"}))
@pytest.mark.parametrize("bounds", quick_if(TIMEOUTS, lambda name: name != "timeout-8"))
def test_longer_timeouts_find_the_pinned_numbers(policy: str, bounds: str) -> None:
    """The packed engine with timeouts of several ticks: all as pinned, and nothing vacuous but what takes two."""
    entry = pinned_entry(policy, bounds)

    assert entry.hold_ticks >= 3
    assert entry_of(explore(model_named(policy, bounds))) == entry
    assert set(entry.unreached) <= ({"bucket_in_two_lists"} if entry.requests == 1 else set())


def test_the_manifest_has_every_preset() -> None:
    assert {(entry.policy, entry.bounds) for entry in pinned()} == {
        (name, bounds) for name in PRESETS for bounds in ("tiny", "small", *EXPLORATIONS, *TIMEOUTS)
    }


@pytest.mark.parametrize("name", quick_if(VARIANTS, lambda name: name == "rocketmq-5"))
def test_engines_agree(name: str) -> None:
    """Counts, what each action instance fired, verdicts and lengths are equal, and every token replays."""
    model = model_named(name)
    plain, fast = (explore(model, engine=engine) for engine in ("python", "packed"))

    assert dict(plain.fired) == dict(fast.fired)
    assert entry_of(plain) == entry_of(fast)
    for result in (plain, fast):
        for verdict in result.verdicts:
            if verdict.token is not None:
                assert replay(verdict.token).depth == verdict.depth


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_leaves_unknowns(engine: str) -> None:
    """An exploration that ends early claims neither that something holds nor that it is unreached."""
    result = explore(model_named("strict"), engine=engine, limit_states=200)

    verdicts = {verdict.verdict for verdict in result.verdicts if not verdict.by_construction}
    assert not result.complete
    assert 200 <= result.distinct_states < 2650
    assert verdicts == {"unknown", "reached"}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_keeps_what_was_explored(engine: str) -> None:
    """Ctrl-C, as a real signal in the middle, gives the counts so far, and `unknown` where nothing was decided."""
    reports: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        reports.append(progress)
        if progress.depth == 5:
            signal.raise_signal(signal.SIGINT)

    result = explore(model_named("strict"), engine=engine, report=interrupt)

    assert reports[-1].depth == result.depth == 5
    assert not result.complete
    assert 0 < result.distinct_states < 2650
    assert result.verdict("no_lost_wakeup").verdict == "unknown"


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict-clone"))
@given(data=st.data())
def test_packing_loses_nothing(name: str, data: st.DataObject) -> None:
    model = model_named(name)
    _, state = data.draw(runs(model))
    layout = layout_of(model)

    assert layout.unpack(layout.pack(state)) == state


def test_what_has_no_bound_is_refused() -> None:
    policy = preset("strict")

    with pytest.raises(BoundsError, match="only a proof can leave the log unbounded"):
        explore(specification_of(policy, Bounds("proof", requests=2, messages=None)))


@pytest.mark.parametrize("requests", [6, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "options",
    quick_if(
        [{}, {"workers": 2}, {"memory_mb": 2000}, {"symmetry": True}],
        lambda options: options == {"symmetry": True},
    ),
    ids=str,
)
def test_states_of_several_words_agree_with_the_python_engine(requests: int, options: Mapping[str, Any]) -> None:
    """Bounds that need two or three words give the python engine's counts, verdicts and lengths as far as they go."""
    policy = preset("strict-clone")
    model = specification_of(policy, named("tiny", policy, requests=requests))
    judged = [item for item in properties_of(model) if item.kind == "always"]
    limit = {6: 600, 12: 1_000}[requests]
    plain = explore(model, judged, engine="python", limit_states=limit)
    fast = explore(model, judged, limit_states=limit, **options)

    assert layout_of(model).words == requests // 6 + 1
    assert entry_like(plain) == entry_like(fast)


def entry_like(result: Exploration) -> object:
    """The results that two searches that end at the same level share."""
    verdicts = [(verdict.name, verdict.verdict, verdict.depth) for verdict in result.verdicts]
    return (result.distinct_states, result.transitions, result.depth, dict(result.fired), verdicts)


def test_wide_columns_agree_with_narrow_ones() -> None:
    """More messages than a signed byte holds make wider columns, and the same counts as the Python engine."""
    policy = preset("rocketmq-4.9")
    model = specification_of(policy, named("tiny", policy, requests=1, messages=200))

    assert extent(model, [model.state.log_end])[1] > np.iinfo(np.int8).max
    plain, fast = (explore(model, [], engine=engine, limit_states=4000) for engine in ("python", "packed"))
    assert (plain.distinct_states, plain.transitions) == (fast.distinct_states, fast.transitions)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict-clone"))
@given(data=st.data())
def test_compiled_questions_mean_what_terms_mean(name: str, data: st.DataObject) -> None:
    model = model_named(name)
    _, state = data.draw(runs(model, 20))

    for item, ask in _questions(name):
        assert bool(ask(state)) == bool(evaluate(item, values_of(model, state)))


def _questions(name: str) -> list[tuple[Bool, Question]]:
    if name not in _COMPILED:
        model = model_named(name)
        _COMPILED[name] = [(item.term, question(model, item.term)) for item in properties_of(model)]
    return _COMPILED[name]


_COMPILED: dict[str, list[tuple[Bool, Question]]] = {}


def _plainly(model: Model, judged: Sequence[Property], _asked: bool) -> Exploration:
    return explore(model, judged)


def _hastily(model: Model, judged: Sequence[Property], asked: bool) -> Exploration:
    return explore(model, judged, limit_states=50 if asked else None)


def _survey(name: str, *names: str, alone: bool = False) -> Survey:
    return survey(preset(name), named("tiny", preset(name)), _plainly, names=names, alone=alone)


@pytest.mark.long
@pytest.mark.parametrize("name", PRESETS)
def test_the_table_is_whole(name: str) -> None:
    """Every property has one row, broken are those that the facts name, and all that is meant to be reached is."""
    found = _survey(name)
    rows = {row.verdict.name: row.verdict.verdict for row in found.rows}

    assert len(rows) == len(found.rows)
    assert {each for each, verdict in rows.items() if verdict == "violated"} == set(FACTS[name])
    assert set(rows.values()) <= {"violated", "holds", "reached"}
    assert [each.model.bounds.name for each in found.explorations] == ["tiny", *EXPLORATIONS, "timeout"]
    assert [bound.name for bound in found.response] == ["late", "woken"]


def test_a_named_property_is_looked_for_where_it_is_stated() -> None:
    """In the bounds that were asked for if they state it, and else in its aspect only."""
    base, aspect = _survey("rocketmq-lmq", "lost_by_hold"), _survey("rocketmq-lmq", "no_orphan")

    assert [each.model.bounds.name for each in base.explorations] == ["tiny"]
    assert [each.model.bounds.name for each in aspect.explorations] == ["tiny", "buckets"]
    assert [(row.verdict.name, row.verdict.verdict, row.bounds) for row in aspect.rows] == [
        ("no_orphan", "violated", "buckets")
    ]
    assert not aspect.response
    with pytest.raises(UnknownPropertyError, match="did you mean 'no_orphan'"):
        _survey("strict", "no_orphen")


def test_alone_is_alone() -> None:
    """Without the aspects there is one exploration, and a property of an aspect is not known."""
    assert len(_survey("strict", alone=True).explorations) == 1
    with pytest.raises(UnknownPropertyError):
        _survey("strict", "no_orphan", alone=True)


def test_an_exploration_that_ends_early_is_the_last() -> None:
    """A property left open by the first exploration is not covered up by an exploration of a feature."""
    found = survey(preset("strict"), named("tiny", preset("strict")), _hastily, alone=False)

    assert len(found.explorations) == 1
    assert {row.verdict.verdict for row in found.rows if not row.verdict.by_construction} == {"unknown", "reached"}
    assert not found.response


def _simulated(model: Model, runs: int = 2000, seed: int = 1) -> Exploration:
    return explore(model, engine="simulate", runs=runs, steps=40, seed=seed)


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
def test_only_what_is_so_is_found(policy: str) -> None:
    """Nothing is violated or reached that exploring does not find, none in fewer steps, and nothing is said to hold."""
    model, entry = model_named(policy), pinned_entry(policy, "tiny")
    known = entry.violated | entry.reached
    found = _simulated(model)

    for verdict in found.verdicts:
        # A run shows nothing that holds, but what the text itself says needs no run.
        assert verdict.verdict in {"violated", "reached", "unknown"} or verdict.by_construction
        if verdict.token is not None:
            assert verdict.depth is not None
            assert verdict.depth >= known[verdict.name]
            assert replay(verdict.token).depth == verdict.depth
    assert not found.complete
    assert 0 < found.distinct_states <= entry.distinct_states


@pytest.mark.long
def test_a_seed_finds_the_hazards_of_the_real_broker() -> None:
    """Lost wakeups by hold and by keep, lateness and drops are found at bounds that are not explored, and shown."""
    model = model_named("rocketmq-4.9", "wide")
    found = explore(model, engine="simulate", runs=20_000, steps=40, seed=3)
    stated = {item.name: item for item in properties_of(model)}

    for name in ("lost_by_hold", "lost_by_keep", "queued_by_deadline", "dropped_by_reject", "dropped_by_throw"):
        verdict = found.verdict(name)
        assert verdict.verdict == "violated", name
        assert verdict.token is not None
        ends = [values_of(model, step.state) for step in replay(verdict.token).steps[-2:]]
        assert 0 in [evaluate(stated[name].term, end) for end in ends]


def test_equal_seeds_give_equal_runs() -> None:
    model = model_named("strict", "small")
    first, again, other = (_simulated(model, runs=200, seed=seed) for seed in (1, 1, 2))

    assert (first.verdicts, first.fired, first.seen) == (again.verdicts, again.fired, again.seen)
    assert first.fired != other.fired


def test_every_run_takes_legal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that are counted are the steps that were taken, from the first state, each where it is enabled."""
    monkeypatch.setattr(simulate, "BATCH_RUNS", 7)
    model = model_named("rocketmq-4.9")
    found = explore(model, engine="simulate", runs=20, steps=11)

    assert sum(found.fired.values()) == found.transitions <= 20 * 11
    assert found.depth <= 11


def test_steps_are_drawn_evenly() -> None:
    """Of what may happen first, with nothing left out, everything is taken about as often: within five deviations."""
    model, runs = model_named("strict"), 20_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "LEFT_OUT", 0.0)
        found = explore(model, engine="simulate", runs=runs, steps=1)
    taken = [count for count in found.fired.values() if count]
    expected = runs / len(taken)

    assert len(taken) > 2
    assert sum(taken) == runs
    assert max(abs(count - expected) for count in taken) < 5 * np.sqrt(expected)


def test_a_run_loses_the_steps_it_does_not_need() -> None:
    """A shortened run still breaks the property, and no single step more can be left out."""
    model = model_named("rocketmq-4.9")
    item = next(each for each in properties_of(model) if each.name == "lost_by_hold")
    token = explore(model, [item]).verdicts[0].token
    assert token is not None
    by_label = {action.label: action for action in model.actions}
    shortest = [by_label[step.action.label] for step in replay(token).steps if step.action is not None]
    long = [by_label["tick"], by_label["tick"], *shortest]

    assert len(shorten(model, item, long)) == len(shortest)
    assert shorten(model, item, shortest) == shortest


def test_an_interrupt_tells_what_was_seen() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.depth == 5:
            signal.raise_signal(signal.SIGINT)

    found = explore(model_named("strict"), engine="simulate", runs=500, report=interrupt)
    assert found.depth == 5
    assert found.transitions > 0
    assert found.verdict("no_lost_wakeup").verdict == "unknown"


POLICIES = ("rocketmq-4.9", "strict+recheck_after_hold=none", "strict-clone+on_throw=drop_rest")
LENGTH_MAX = 8
"""Every run of so many steps is looked at: some hundred thousand."""


@cache
def _explored(name: str) -> Exploration:
    return explore(model_named(name), engine="python")


def _runs(model: Model, length: int) -> Iterator[tuple[list[int], list[tuple[int, ...]]]]:
    """Every run of so many steps: its actions' numbers, and the states that it goes through."""
    step = successors(model)
    taken: list[int] = []
    states = [model.initial]

    def grow() -> Iterator[tuple[list[int], list[tuple[int, ...]]]]:
        if len(taken) == length:
            yield taken, states
            return
        for index, after in step(states[-1]):
            taken.append(index)
            states.append(after)
            yield from grow()
            taken.pop()
            states.pop()

    return grow()


def _least(model: Model, item: Property, length: int) -> int:
    """The fewest switches of all runs of so many steps that break the property, by looking at each."""
    ends = question(model, ~item.here)
    closes = {label: question(model, condition) for label, condition in item.closing}
    labels = [action.label for action in model.actions]
    least = length
    for taken, states in _runs(model, length):
        last = labels[taken[-1]]
        if ends(states[-1]) or (last in closes and closes[last](states[-2])):
            least = min(least, switches_in([model.actions[index] for index in taken]))
    return least


def _broken(found: Exploration) -> list[tuple[Property, int]]:
    stated = {item.name: item for item in properties_of(found.model)}
    return [
        (stated[verdict.name], verdict.depth)
        for verdict in found.verdicts
        if verdict.verdict == "violated" and verdict.depth is not None and verdict.depth <= LENGTH_MAX
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_shortest_run_switches_less(policy: str) -> None:
    """Of all runs of the shortest length that break a property, looked at one by one, none has fewer switches."""
    found = _explored(policy)
    broken = _broken(found)
    runs = fewest_switches(found.model, broken)

    assert broken
    for (item, length), run in zip(broken, runs, strict=True):
        assert run is not None
        assert len(run) == length
        assert breaks_its_property(trace_of(found.model, run, item.name))
        assert switches_in(run) == _least(found.model, item, length), item.name


def test_every_token_is_replaced_by_one_as_long() -> None:
    """`minimised` changes runs only: verdicts and lengths stay, and each token still shows its property."""
    found = _explored("rocketmq-4.9")
    calm = minimised(found, properties_of(found.model))

    for before, now in zip(found.verdicts, calm.verdicts, strict=True):
        assert (now.name, now.verdict, now.depth) == (before.name, before.verdict, before.depth)
        if now.token is not None:
            trace = replay(now.token)
            assert trace.depth == now.depth
            assert now.kind == "sometimes" or breaks_its_property(trace)


def _command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["explain", *words])
    return done.exit_code, done.output


def test_a_long_run_is_told_by_a_shortest_one() -> None:
    found = _explored("rocketmq-4.9")
    model = found.model
    (tick,) = model.named("tick")
    direct = [step.action for step in replay(found.verdict("lost_by_hold").token or "").steps if step.action]
    detour = token_of(model, [tick, *direct], "lost_by_hold")
    code, told = _command(detour, "--shortest")

    assert breaks_its_property(replay(detour))
    assert code == 0
    assert "in 6 steps" in told
    assert "in 7 steps" in _command(detour)[1]
    assert replay(shortest_token(replay(detour))).depth == 6


def test_a_run_without_a_property_has_no_shortest() -> None:
    model = _explored("rocketmq-4.9").model
    code, told = _command(token_of(model, model.named("append")), "--shortest")

    assert code == 2
    assert "names no property" in told


def test_a_pass_that_ends_early_keeps_the_runs_it_was_given() -> None:
    found = _explored("rocketmq-4.9")
    stated = properties_of(found.model)
    limited = minimised(found, stated, limit_states=50)

    assert fewest_switches(found.model, [(stated[2], 11)], limit_states=50) == [None]
    assert limited.verdict("lost_by_keep").token == found.verdict("lost_by_keep").token

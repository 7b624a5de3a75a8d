"""Every engine finds the same states and verdicts, and random runs are real runs."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.spec.cases import breaks_its_property, model_named, quick_if
from model_tests.support.spec.strategies import runs

from longpoll_spec import engines
from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, trace_of, values_of
from longpoll_spec.engines.exploration import Exploration, Ledger, Progress
from longpoll_spec.engines.manifest import entry_of, pinned, pinned_entry
from longpoll_spec.engines.packed import random_runs as chance
from longpoll_spec.engines.packed.compile import expand_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.random_runs import random_runs
from longpoll_spec.engines.packed.words import words_of
from longpoll_spec.engines.python import Question, question, shorten, successors
from longpoll_spec.engines.simplify import extent
from longpoll_spec.engines.survey import Survey, survey
from longpoll_spec.engines.tokens import replay
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
    entry = pinned_entry(policy, "small")

    assert entry_of(explore(model_named(policy, "small"))) == entry
    assert entry.distinct_states >= 100_000
    assert not entry.unreached


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-5"}))
@pytest.mark.parametrize("bounds", quick_if(TIMEOUTS, lambda name: name != "timeout-8"))
def test_longer_timeouts_find_the_pinned_numbers(policy: str, bounds: str) -> None:
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
    model = model_named(name)
    plain, fast = (explore(model, engine=engine) for engine in ("python", "packed"))

    assert dict(plain.fired) == dict(fast.fired)
    assert entry_of(plain) == entry_of(fast)
    for result in (plain, fast):
        for verdict in result.verdicts:
            if verdict.token is not None:
                assert replay(verdict.token).depth == verdict.depth


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_of_states_leaves_unknown_verdicts(engine: str) -> None:
    result = explore(model_named("strict"), engine=engine, limit_states=200)

    verdicts = {verdict.verdict for verdict in result.verdicts if not verdict.by_construction}
    assert not result.complete
    assert 200 <= result.distinct_states < 2650
    assert verdicts == {"unknown", "reached"}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_keeps_what_was_explored(engine: str) -> None:
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


def test_an_unbounded_log_is_refused() -> None:
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
    policy = preset("strict-clone")
    model = specification_of(policy, named("tiny", policy, requests=requests))
    judged = [item for item in properties_of(model) if item.kind == "always"]
    limit = {6: 600, 12: 1_000}[requests]
    plain = explore(model, judged, engine="python", limit_states=limit)
    fast = explore(model, judged, limit_states=limit, **options)

    assert layout_of(model).words == requests // 6 + 1
    assert entry_like(plain) == entry_like(fast)


def entry_like(result: Exploration) -> object:
    """Return the results on which two searches must agree if they end at the same level."""
    verdicts = [(verdict.name, verdict.verdict, verdict.depth) for verdict in result.verdicts]
    return (result.distinct_states, result.transitions, result.depth, dict(result.fired), verdicts)


def test_wide_columns_agree_with_narrow_ones() -> None:
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
def test_a_survey_has_one_row_per_property(name: str) -> None:
    found = _survey(name)
    rows = {row.verdict.name: row.verdict.verdict for row in found.rows}

    assert len(rows) == len(found.rows)
    assert {each for each, verdict in rows.items() if verdict == "violated"} == set(FACTS[name])
    assert set(rows.values()) <= {"violated", "holds", "reached"}
    assert [each.model.bounds.name for each in found.explorations] == ["tiny", *EXPLORATIONS, "timeout"]
    assert [bound.name for bound in found.response] == ["late", "woken"]


def test_a_named_property_is_checked_in_bounds_that_state_it() -> None:
    base, aspect = _survey("rocketmq-lmq", "lost_by_hold"), _survey("rocketmq-lmq", "no_orphan")

    assert [each.model.bounds.name for each in base.explorations] == ["tiny"]
    assert [each.model.bounds.name for each in aspect.explorations] == ["tiny", "buckets"]
    assert [(row.verdict.name, row.verdict.verdict, row.bounds) for row in aspect.rows] == [
        ("no_orphan", "violated", "buckets")
    ]
    assert not aspect.response
    with pytest.raises(UnknownPropertyError, match="did you mean 'no_orphan'"):
        _survey("strict", "no_orphen")


def test_alone_explores_only_the_requested_bounds() -> None:
    assert len(_survey("strict", alone=True).explorations) == 1
    with pytest.raises(UnknownPropertyError):
        _survey("strict", "no_orphan", alone=True)


def test_no_exploration_follows_one_that_ends_early() -> None:
    found = survey(preset("strict"), named("tiny", preset("strict")), _hastily, alone=False)

    assert len(found.explorations) == 1
    assert {row.verdict.verdict for row in found.rows if not row.verdict.by_construction} == {"unknown", "reached"}
    assert not found.response


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [("strict", "tiny"), ("rocketmq-4.9", "tiny"), pytest.param("rocketmq-4.9", "wide", marks=pytest.mark.long)],
)
def test_each_random_run_decides_its_property(policy: str, bounds: str) -> None:
    model, entry = model_named(policy, bounds), pinned_entry(policy, "tiny")
    stated = {item.name: item for item in properties_of(model)}
    found = random_runs(model, list(stated.values()), runs=2_000 if bounds == "tiny" else 20_000, steps=40, seed=3)

    for name, run in found.items():
        trace = trace_of(model, run, name)
        assert bounds != "tiny" or len(run) >= (entry.violated | entry.reached)[name]
        if stated[name].kind != "sometimes":
            assert breaks_its_property(trace)
    assert {"some_held"} <= set(found)
    if policy == "rocketmq-4.9":
        assert {"lost_by_hold", "queued_by_deadline", "dropped_by_reject", "dropped_by_throw"} <= set(found)
    few = {seed: random_runs(model, list(stated.values()), runs=200, steps=40, seed=seed) for seed in (1, 2)}
    assert few[1] == random_runs(model, list(stated.values()), runs=200, steps=40, seed=1) != few[2]


def test_random_steps_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chance, "LEFT_OUT", 0.0)
    model, count = model_named("strict"), 20_000
    layout = layout_of(model)
    made = chance._Runs(model, Ledger([]), layout, expand_of(model, layout, []), np.random.default_rng(0), 1)
    states = np.repeat(words_of([layout.pack(model.initial)], layout.words), count, axis=1)
    choice, _ = made._offer(states, made._left_out(count))
    taken = [int(times) for times in np.bincount(choice.actions) if times]

    assert len(taken) == sum(1 for _ in successors(model)(model.initial)) > 2
    assert sum(taken) == count
    assert max(abs(times - count / len(taken)) for times in taken) < 5 * np.sqrt(count / len(taken))


def test_a_run_loses_the_steps_it_does_not_need() -> None:
    model = model_named("rocketmq-4.9")
    item = next(each for each in properties_of(model) if each.name == "lost_by_hold")
    token = explore(model, [item]).verdicts[0].token
    assert token is not None
    by_label = {action.label: action for action in model.actions}
    shortest = [by_label[step.action.label] for step in replay(token).steps if step.action is not None]
    long = [by_label["tick"], by_label["tick"], *shortest]

    assert len(shorten(model, item, long)) == len(shortest)
    assert shorten(model, item, shortest) == shortest

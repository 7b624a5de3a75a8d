from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_spec import engines
from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.analysis.intervals import extent
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import Entry, entry_of, pinned, pinned_entry
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.python.compile import Question, question
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import BoundsError, UnknownEngineError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.terms import Bool
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.models import model_named
from longpoll_spec.testing.strategies import runs

ENGINES = engines.EXPLORERS
QUICK_STATES: Mapping[str, int] = {"strict": 95_000, "rocketmq-5": 20_000}
"""Preset -> its aspects of no more states than this are explored each time."""
VARIANTS = [
    *PRESETS,
    "strict+recheck_after_hold=in_lock",
    "strict-clone+heap_entry=one_shot+tick=free",
    "strict-clone+on_throw=keep_rest",
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("entry", [each for each in pinned() if each.bounds == "tiny"], ids=lambda each: each.policy)
def test_every_engine_finds_the_pinned_numbers(engine: str, entry: Entry) -> None:
    """States, transitions, depth and every verdict with its length are what the manifest says."""
    assert entry_of(explore(model_named(entry.policy), engine=engine)) == entry


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "rocketmq-5"))
def test_small_bounds_find_the_pinned_numbers(policy: str) -> None:
    """The packed engine at small: at least a hundred thousand states, nothing vacuous, and all as pinned."""
    entry = pinned_entry(policy, "small")

    assert entry_of(explore(model_named(policy, "small"))) == entry
    assert entry.distinct_states >= 100_000
    assert not entry.unreached


@pytest.mark.parametrize(
    "case",
    quick_if(
        [(policy, bounds) for policy in PRESETS for bounds in EXPLORATIONS],
        lambda case: pinned_entry(*case).distinct_states <= QUICK_STATES.get(case[0], 0),
    ),
)
def test_every_aspect_finds_the_pinned_numbers(case: tuple[str, str]) -> None:
    """The packed engine on each aspect's own exploration, with two requests: all as pinned, and nothing vacuous."""
    policy, bounds = case
    entry = pinned_entry(policy, bounds)

    assert entry.requests >= 2
    assert entry_of(explore(model_named(policy, bounds))) == entry
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
    """No preset goes unpinned."""
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
def test_a_counterexample_shows_what_it_says(engine: str) -> None:
    """A run to a violated state property ends in a state where the property is false."""
    model = model_named("rocketmq-4.9")
    broken = {item.name: item for item in properties_of(model) if not item.closing}
    result = explore(model, engine=engine)

    violated = [verdict for verdict in result.verdicts if verdict.verdict == "violated" and verdict.name in broken]
    assert violated
    for verdict in violated:
        assert verdict.token is not None
        end = replay(verdict.token).steps[-1].state
        assert evaluate(broken[verdict.name].term, values_of(model, end)) == 0


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


def test_an_unknown_engine_is_refused() -> None:
    """The error lists the engines there are."""
    with pytest.raises(UnknownEngineError, match="packed, python"):
        explore(model_named("strict"), engine="quantum")


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict-clone"))
@given(data=st.data())
def test_packing_loses_nothing(name: str, data: st.DataObject) -> None:
    """A state comes back from its word, so equal words are equal states."""
    model = model_named(name)
    _, state = data.draw(runs(model))
    layout = layout_of(model)

    assert layout.unpack(layout.pack(state)) == state


def test_what_has_no_bound_is_refused() -> None:
    """An unbounded log is named, with who can take it."""
    policy = preset("strict")

    with pytest.raises(BoundsError, match="only a proof can leave the log unbounded"):
        explore(law_of(policy, Bounds("proof", requests=2, messages=None)))


@pytest.mark.parametrize("requests", [6, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "options",
    quick_if(
        [{}, {"workers": 2}, {"memory_mb": 2000}, {"symmetry": True}],
        lambda options: options in ({}, {"symmetry": True}),
    ),
    ids=str,
)
def test_states_of_several_words_agree_with_the_python_engine(requests: int, options: Mapping[str, Any]) -> None:
    """Bounds that need two or three words give the python engine's counts, verdicts and lengths as far as they go."""
    policy = preset("strict-clone")
    model = law_of(policy, named("tiny", policy, requests=requests))
    judged = [item for item in properties_of(model) if item.kind == "always"]
    limit = {6: 1_500, 12: 1_000}[requests]
    plain = explore(model, judged, engine="python", limit_states=limit)
    fast = explore(model, judged, limit_states=limit, **options)

    assert layout_of(model).words == requests // 6 + 1
    assert entry_like(plain) == entry_like(fast)


def entry_like(result: Exploration) -> object:
    """What two searches that end at the same level must have in common."""
    verdicts = [(verdict.name, verdict.verdict, verdict.depth) for verdict in result.verdicts]
    return (result.distinct_states, result.transitions, result.depth, dict(result.fired), verdicts)


def test_wide_columns_agree_with_narrow_ones() -> None:
    """More messages than a signed byte holds make wider columns, and the same counts as the Python engine."""
    policy = preset("rocketmq-4.9")
    model = law_of(policy, named("tiny", policy, requests=1, messages=200))

    assert extent(model, [model.state.log_end])[1] > np.iinfo(np.int8).max
    plain, fast = (explore(model, [], engine=engine, limit_states=4000) for engine in ("python", "packed"))
    assert (plain.distinct_states, plain.transitions) == (fast.distinct_states, fast.transitions)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict-clone"))
@given(data=st.data())
def test_compiled_questions_mean_what_terms_mean(name: str, data: st.DataObject) -> None:
    """The compiled form of every property agrees with the plain walk over its term."""
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

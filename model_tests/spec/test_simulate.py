"""The simulator: what it finds is so, what it does not find it leaves open, and equal seeds give equal runs."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.engines.packed import simulate
from longpoll_spec.engines.python.shorten import shortened
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import EngineLimitError
from longpoll_spec.law import properties_of
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.models import model_named


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
    """The whole result is the same for one seed, and another for another."""
    model = model_named("strict", "small")
    first, again, other = _simulated(model), _simulated(model), _simulated(model, seed=2)

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

    assert len(shortened(model, item, long)) == len(shortest)
    assert shortened(model, item, shortest) == shortest


def test_an_interrupt_tells_what_was_seen() -> None:
    """Ctrl-C, as a real signal in the middle, gives the counts so far."""

    def interrupt(progress: Progress) -> None:
        if progress.depth == 5:
            signal.raise_signal(signal.SIGINT)

    found = explore(model_named("strict"), engine="simulate", runs=500, report=interrupt)
    assert found.depth == 5
    assert found.transitions > 0
    assert found.verdict("no_lost_wakeup").verdict == "unknown"


def test_an_option_of_the_simulator_is_not_taken_by_others() -> None:
    """Exploring has no runs."""
    with pytest.raises(EngineLimitError, match="the packed engine has no runs; use --engine simulate"):
        explore(model_named("strict"), runs=3)

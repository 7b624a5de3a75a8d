"""The run that `check` gives is a shortest one, and no shortest one switches less: held to every run there is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.minimise import fewest_switches, minimised, shortest_token, switches_in
from longpoll_spec.engines.python.compile import question, successors
from longpoll_spec.engines.tokens import replay, token_of
from longpoll_spec.law import properties_of
from longpoll_spec.model import Model, Property
from longpoll_spec.testing.models import model_named
from longpoll_spec.testing.traces import breaks_its_property

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
    """`explain --shortest` shows, for a run that takes detours, what `check` would have given."""
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
    """There is nothing that a shorter run would have to show."""
    model = _explored("rocketmq-4.9").model
    code, told = _command(token_of(model, model.named("append")), "--shortest")

    assert code == 2
    assert "names no property" in told


def test_a_pass_that_ends_early_keeps_the_runs_it_was_given() -> None:
    """Past its limit the pass gives nothing, and the engine's own run stays."""
    found = _explored("rocketmq-4.9")
    stated = properties_of(found.model)
    limited = minimised(found, stated, limit_states=50)

    assert fewest_switches(found.model, [(stated[2], 11)], limit_states=50) == [None]
    assert limited.verdict("lost_by_keep").token == found.verdict("lost_by_keep").token

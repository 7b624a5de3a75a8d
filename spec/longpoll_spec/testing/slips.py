"""Planted slips: the law with one small mistake in one action, to see that something goes red.

A slip changes every instance of one action, as a mistake in its text would, and before time is told what to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.law import assemble
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import Policy
from longpoll_spec.state import State, state_of
from longpoll_spec.terms import Bool, Effect, Term, all_of

Change: TypeAlias = Callable[[State, Action], Action]


def slipped(policy: Policy, bounds: Bounds, name: str, change: Change) -> Model:
    """The model in which every instance of action `name` is changed."""
    state = state_of(policy, bounds)
    actions = list(actions_of(state))
    assert any(action.name == name for action in actions), f"{policy.name} has no action {name}"
    return assemble(state, [change(state, action) if action.name == name else action for action in actions])


def without(policy: Policy, bounds: Bounds, name: str) -> Model:
    """The model that lacks an action altogether."""
    state = state_of(policy, bounds)
    return assemble(state, [action for action in actions_of(state) if action.name != name])


def conjuncts(action: Action) -> tuple[Bool, ...]:
    """The parts of an action's guard, all of which must hold."""
    return action.guard.args if action.guard.op == "and" else (action.guard,)


def dropping_conjunct(position: int) -> Change:
    """A slip that forgets one part of the guard."""

    def change(_state: State, action: Action) -> Action:
        parts = conjuncts(action)
        return attrs.evolve(action, guard=all_of(part for index, part in enumerate(parts) if index != position))

    return change


def with_effect(make: Callable[[State, Action], Effect]) -> Change:
    """A slip in the effect: what `make` gives replaces those variables' new values."""

    def change(state: State, action: Action) -> Action:
        return attrs.evolve(action, effect={**action.effect, **make(state, action)})

    return change


def forgetting(prefix: str) -> Change:
    """A slip that forgets to write the variables whose name begins with `prefix`."""

    def change(_state: State, action: Action) -> Action:
        kept: dict[str, Term] = {key: value for key, value in action.effect.items() if not key.startswith(prefix)}
        assert len(kept) < len(action.effect), f"{action.label} does not write {prefix}"
        return attrs.evolve(action, effect=kept)

    return change


def guard_slips(policy: Policy, bounds: Bounds) -> Iterator[tuple[str, int, Change]]:
    """Every slip that forgets one part of one action's guard, as (action, position, change)."""
    seen: set[str] = set()
    for action in _first_instances(actions_of(state_of(policy, bounds)), seen):
        for position in range(len(conjuncts(action))):
            yield action.name, position, dropping_conjunct(position)


def _first_instances(actions: Iterable[Action], seen: set[str]) -> Iterator[Action]:
    for action in actions:
        if action.name not in seen:
            seen.add(action.name)
            yield action

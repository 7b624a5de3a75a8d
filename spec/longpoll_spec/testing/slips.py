"""Planted slips: the law with one small mistake in one action, to see that something goes red.

A slip changes every instance of one action, as a mistake in its text would, and before time is told what to wait for.
`slips_of` makes them for every action there is: it forgets each part of each guard, forgets each variable that an
effect writes, and takes the other case of each choice.

Leaves out what must go red: the tests say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import attrs
from attrs import frozen

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.compile_python import Packed, question, successors
from longpoll_spec.law import assemble
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import Policy
from longpoll_spec.state import State, state_of
from longpoll_spec.terms import Bool, Effect, Int, Term, all_of, any_of, bool_variable, int_variable, ite

Change: TypeAlias = Callable[[State, Action], Action]


@frozen
class Slip:
    """One small mistake in the text of one action."""

    action: str
    kinds: tuple[str, ...]
    """Of its actors, for two texts may share a name, and each notifier has variables of its own."""
    what: str
    """What the mistake is, in a few words."""
    change: Change

    def touches(self, action: Action) -> bool:
        """Whether the action is an instance of the text."""
        return action.name == self.action and kinds_of(action) == self.kinds

    def planted(self, policy: Policy, bounds: Bounds) -> Model:
        """The law with the mistake."""
        state = state_of(policy, bounds)
        return assemble(state, [self._slipped(state, action) for action in actions_of(state)])

    def shows(self, model: Model, states: Iterable[Packed]) -> bool:
        """Whether the mistake acts otherwise in one of the states: can happen or cannot, or leads elsewhere.

        Where it acts so in no state that is reached, it is no mistake under these bounds.
        """
        right = [action for action in actions_of(model.state) if self.touches(action)]
        differs = any_of(_differ(action, self.change(model.state, action)) for action in right)
        return any(map(question(model, differs), states))

    def _slipped(self, state: State, action: Action) -> Action:
        return self.change(state, action) if self.touches(action) else action


def kinds_of(action: Action) -> tuple[str, ...]:
    """What each actor is: its name without its number, so that requests are alike, and queues, and tags."""
    return tuple(re.sub(r"\d+$", "", str(actor)) for actor in action.actors)


def called(variable: str) -> str:
    """A variable's name without the number of its request or queue."""
    return re.sub(r"_q?\d+$", "", variable)


def _differ(right: Action, wrong: Action) -> Bool:
    names = dict.fromkeys((*right.effect, *wrong.effect))
    elsewhere = any_of(
        _unequal(right.effect.get(name, _itself(name, wrong)), wrong.effect.get(name, _itself(name, right)))
        for name in names
    )
    return ~right.guard.is_(wrong.guard) | (right.guard & elsewhere)


def _itself(name: str, other: Action) -> Term:
    """The variable as a term of the kind that the other action gives it; unused where neither writes it."""
    return bool_variable(name) if isinstance(other.effect.get(name), Bool) else int_variable(name)


def _unequal(first: Term, second: Term) -> Bool:
    if isinstance(first, Bool):
        assert isinstance(second, Bool)
        return ~first.is_(second)
    assert isinstance(second, Int)
    return ~first.is_(second)


def reached(model: Model) -> list[Packed]:
    """Every state that a run reaches."""
    step = successors(model)
    known, waiting = {model.initial}, [model.initial]
    while waiting:
        for _, after in step(waiting.pop()):
            if after not in known:
                known.add(after)
                waiting.append(after)
    return list(known)


def slips_of(policy: Policy, bounds: Bounds) -> Iterator[Slip]:
    """Every slip of these kinds in every action, by the action's first instance."""
    firsts: dict[tuple[str, tuple[str, ...]], Action] = {}
    for action in actions_of(state_of(policy, bounds)):
        firsts.setdefault((action.name, kinds_of(action)), action)
    for (name, kinds), action in firsts.items():
        for position in range(len(conjuncts(action))):
            yield Slip(name, kinds, f"forgets part {position} of its guard", dropping_conjunct(position))
        for target in dict.fromkeys(map(called, action.effect)):
            yield Slip(name, kinds, f"forgets to write {target}", forgetting(target))
            if any(term.op == "ite" for variable, term in action.effect.items() if called(variable) == target):
                yield Slip(name, kinds, f"takes the other case for {target}", _other_case(target))


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


def forgetting(name: str) -> Change:
    """A slip that forgets to write the variables of this name, of whichever request or queue."""

    def change(_state: State, action: Action) -> Action:
        kept: dict[str, Term] = {key: value for key, value in action.effect.items() if called(key) != name}
        assert len(kept) < len(action.effect), f"{action.label} does not write {name}"
        return attrs.evolve(action, effect=kept)

    return change


def _other_case(name: str) -> Change:
    """A slip that takes the first case of a choice where it should take the other, and the other way round."""

    def change(_state: State, action: Action) -> Action:
        return attrs.evolve(
            action,
            effect={key: _exchanged(term) if called(key) == name else term for key, term in action.effect.items()},
        )

    return change


def _exchanged(term: Term) -> Term:
    if term.op != "ite":
        return term
    condition, then, otherwise = term.args
    other: Term = ite(condition, otherwise, then)
    return other

"""Mutants by rule: the specification with one small mistake in one action, to show that a property or test fails.

A mutant changes every instance of one action, before `tick` is made to wait for the urgent actions. `mutants_of`
returns all mutants: it drops each part of each guard, drops each assignment of an effect, and swaps the cases of each
choice.

The tests define which property or check must fail for each mutant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeAlias

import attrs
from attrs import frozen

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, question, successors
from longpoll_spec.model import ACTION_NAMES, Action, Model
from longpoll_spec.policy import Policy
from longpoll_spec.specification import assemble
from longpoll_spec.state import State, state_of
from longpoll_spec.state.variables import THREADS
from longpoll_spec.terms import (
    Bool,
    Effect,
    Int,
    Term,
    all_of,
    any_of,
    bool_variable,
    int_variable,
    ite,
    variables_of,
)

Change: TypeAlias = Callable[[State, Action], Action]


@frozen
class Mutant:
    """A mutant: one small mistake in one action."""

    action: str
    kinds: tuple[str, ...]
    """The kinds of the action's actors, which distinguish the actions of several notifiers that share a name."""
    what: str
    """A short description of the mistake."""
    change: Change

    def touches(self, action: Action) -> bool:
        """Whether this mutant changes the action."""
        return action.name == self.action and kinds_of(action) == self.kinds

    def planted(self, policy: Policy, bounds: Bounds) -> Model:
        """The model of a policy under bounds, with the mistake."""
        state = state_of(policy, bounds)
        return assemble(state, [self._slipped(state, action) for action in actions_of(state)])

    def is_in(self, policy: Policy, bounds: Bounds) -> bool:
        """Whether the mistake changes the model. Under some bounds, the variable that it changes does not exist."""
        state = state_of(policy, bounds)
        return any(not same_text(action, self.change(state, action)) for action in self._touched(state))

    def _touched(self, state: State) -> Iterator[Action]:
        return filter(self.touches, actions_of(state))

    def shows(self, model: Model, states: Iterable[Packed]) -> bool:
        """Whether the mistake shows in one of these states: the action's guard or its result differs there.

        A mistake that shows in no reachable state changes nothing under these bounds.
        """
        right = [action for action in actions_of(model.state) if self.touches(action)]
        differs = any_of(_differ(action, self.change(model.state, action)) for action in right)
        return any(map(question(model, differs), states))

    def _slipped(self, state: State, action: Action) -> Action:
        return self.change(state, action) if self.touches(action) else action


def kinds_of(action: Action) -> tuple[str, ...]:
    """The acting threads by name, and "" for each acting request, because requests are interchangeable.

    Queues and tags are left out, because an action does not name the queue or tag of a model with only one.
    """
    acting = ("" if isinstance(actor, int) else actor for actor in action.actors)
    return tuple(each for each in acting if not each or each in THREADS)


def thread_of_mutant(kinds: tuple[str, ...]) -> str:
    """The threads among these kinds, in parentheses, which distinguish actions of the same name; may be empty."""
    threads = [kind for kind in kinds if kind]
    return f"({', '.join(threads)})" if threads else ""


def called(variable: str) -> str:
    """A variable's name without the number of its request or queue."""
    return re.sub(r"_q?\d+$", "", variable)


def same_text(one: Action, other: Action) -> bool:
    """Whether two actions have the same label and the same terms."""
    effects = [{name: id(term) for name, term in action.effect.items()} for action in (one, other)]
    return one.label == other.label and one.guard is other.guard and effects[0] == effects[1]


def _differ(right: Action, wrong: Action) -> Bool:
    names = dict.fromkeys((*right.effect, *wrong.effect))
    elsewhere = any_of(
        _unequal(right.effect.get(name, _itself(name, wrong)), wrong.effect.get(name, _itself(name, right)))
        for name in names
    )
    return ~right.guard.is_(wrong.guard) | (right.guard & elsewhere)


def _itself(name: str, other: Action) -> Term:
    return bool_variable(name) if isinstance(other.effect.get(name), Bool) else int_variable(name)


def _unequal(first: Term, second: Term) -> Bool:
    if isinstance(first, Bool):
        assert isinstance(second, Bool)
        return ~first.is_(second)
    assert isinstance(second, Int)
    return ~first.is_(second)


def reached(model: Model) -> list[Packed]:
    """Every reachable state."""
    step = successors(model)
    known, waiting = {model.initial}, [model.initial]
    while waiting:
        for _, after in step(waiting.pop()):
            if after not in known:
                known.add(after)
                waiting.append(after)
    return list(known)


def mutants_of(policy: Policy, bounds: Bounds) -> Iterator[Mutant]:
    """Every mutant that the rules give for an action of the policy.

    The first instance of an action has the parts and assignments that the mutants change.
    """
    firsts: dict[tuple[str, tuple[str, ...]], Action] = {}
    for action in actions_of(state_of(policy, bounds)):
        firsts.setdefault((action.name, kinds_of(action)), action)
    for (name, kinds), action in firsts.items():
        for part in part_names(policy, action):
            yield Mutant(name, kinds, f"forgets {part}", _forgetting_part(part))
        for target in dict.fromkeys(map(called, action.effect)):
            yield Mutant(name, kinds, f"forgets to write {target}", _not_writing(target))
            if any(term.op == "ite" for variable, term in action.effect.items() if called(variable) == target):
                yield Mutant(name, kinds, f"takes the other case for {target}", _other_case(target))


def mutated(policy: Policy, bounds: Bounds, name: str, change: Change) -> Model:
    """The model in which every instance of the action `name` is changed, if the bounds have this action."""
    assert name in ACTION_NAMES, f"the specification has no action {name}"
    state = state_of(policy, bounds)
    return assemble(state, [change(state, action) if action.name == name else action for action in actions_of(state)])


def without(policy: Policy, bounds: Bounds, name: str) -> Model:
    """The model without the action of this name."""
    state = state_of(policy, bounds)
    return assemble(state, [action for action in actions_of(state) if action.name != name])


def conjuncts(action: Action) -> tuple[Bool, ...]:
    """The conjuncts of an action's guard."""
    return action.guard.args if action.guard.op == "and" else (action.guard,)


@cache
def _plain_variables(policy: Policy) -> frozenset[str]:
    return frozenset(called(each.name) for each in state_of(policy, Bounds("plain")).variables)


def part_names(policy: Policy, action: Action) -> tuple[str, ...]:
    """The names of the parts of an action's guard, by the variables that each part reads.

    A name does not depend on the bounds. If several parts read the same variables, all but the first get a number.
    """
    plain = _plain_variables(policy)
    names: list[str] = []
    counted: Counter[str] = Counter()
    for part in conjuncts(action):
        read = {called(name) for name in variables_of(part)}
        about = ", ".join(sorted(read & plain or read))
        counted[about] += 1
        number = f" ({counted[about]})" if counted[about] > 1 else ""
        names.append(f"what its guard says of {about}{number}")
    return tuple(names)


def _forgetting_part(part: str) -> Change:
    def change(state: State, action: Action) -> Action:
        parts = part_names(state.policy, action)
        return dropping_conjunct(parts.index(part))(state, action) if part in parts else action

    return change


def dropping_conjunct(position: int) -> Change:
    """A change that drops one conjunct of the guard."""

    def change(_state: State, action: Action) -> Action:
        parts = conjuncts(action)
        return attrs.evolve(action, guard=all_of(part for index, part in enumerate(parts) if index != position))

    return change


def with_effect(make: Callable[[State, Action], Effect]) -> Change:
    """A change of the effect: the assignments that `make` returns replace or extend those of the action."""

    def change(state: State, action: Action) -> Action:
        return attrs.evolve(action, effect={**action.effect, **make(state, action)})

    return change


def forgetting(name: str) -> Change:
    """A change that drops the assignments to the variables of this name, whatever their request or queue."""
    forgets = _not_writing(name)

    def change(state: State, action: Action) -> Action:
        slipped_action = forgets(state, action)
        assert len(slipped_action.effect) < len(action.effect), f"{action.label} does not write {name}"
        return slipped_action

    return change


def _not_writing(name: str) -> Change:
    """A change like `forgetting`, except that an action which assigns no such variable stays as it is."""

    def change(_state: State, action: Action) -> Action:
        kept: dict[str, Term] = {key: value for key, value in action.effect.items() if called(key) != name}
        return attrs.evolve(action, effect=kept)

    return change


def _other_case(name: str) -> Change:
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

"""The law of one policy under bounds: state, actions and properties put together.

The one thing that is decided here is time: under maximal progress `tick` waits for every urgent action. Everything
else is the text of `actions` and `properties`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import attrs
from attrs import frozen

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Action, Model, Property, Said
from longpoll_spec.policy import Policy
from longpoll_spec.properties import ALWAYS, INDUCTIVE
from longpoll_spec.reachability import sometimes_of
from longpoll_spec.state import State, state_of
from longpoll_spec.terms import all_of


def specification_of(policy: Policy, bounds: Bounds) -> Model:
    """The model of a policy under bounds."""
    state = state_of(policy, bounds)
    return assemble(state, actions_of(state))


def assemble(state: State, actions: Iterable[Action]) -> Model:
    """The model of a state and its actions, before `tick` waits for the urgent ones."""
    together = tuple(actions)
    if state.policy.tick == "maximal_progress":
        together = tuple(_waiting(action, together) for action in together)
    return Model(state.policy, state.bounds, state, together)


def _waiting(action: Action, actions: tuple[Action, ...]) -> Action:
    if action.name != "tick":
        return action
    idle = all_of(~other.guard for other in actions if other.urgent)
    return attrs.evolve(action, guard=action.guard & idle)


@frozen
class Fairness:
    """What is assumed of a run that goes on for ever."""

    weak: tuple[str, ...]
    """Labels of action instances that come about, if from some moment on they could always: weak fairness of each."""
    time_passes: bool
    """Time passes again and again, unless in the end it changes nothing any more."""


def fairness_of(model: Model) -> Fairness:
    """Every urgent action comes about in the end, and so does time.

    No more is assumed: nobody need append, pull, commit, fail or stop. Fairness of `Next` as a whole is not enough: of
    a queue that can be cut back a message is appended, shown and cut off again for ever, and nobody is answered. Weak
    fairness of each urgent action and of `tick` is enough in one queue without tags. Among several, or where walkers
    put back what they keep, appends and cuts can come so densely that `tick` is never enabled for long, or at all: that
    they do not, in one tick endlessly, has to be assumed, and `time_can_pass` shows that no state forbids it.
    """
    return Fairness(tuple(action.label for action in model.actions if action.urgent or action.name == "tick"), True)


def properties_of(model: Model) -> tuple[Property, ...]:
    """Every property that makes sense for the model's policy: always, inductive, sometimes."""
    return _properties_of(Said(model))


@lru_cache(maxsize=64)
def _properties_of(said: Said) -> tuple[Property, ...]:
    """They are asked for again and again, and cost five times what the actions do."""
    model = said.model
    stated = [made for text in ALWAYS if (made := text(model)) is not None]
    needed = [attrs.evolve(made, kind="inductive") for text in INDUCTIVE if (made := text(model)) is not None]
    return (*stated, *needed, *sometimes_of(model))

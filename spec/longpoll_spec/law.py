"""The law of one policy under bounds: state, actions and properties put together.

The one thing that is decided here is time: under maximal progress `tick` waits for every urgent action. Everything
else is the text of `actions` and `properties`.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.policy import Policy
from longpoll_spec.properties import ALWAYS, INDUCTIVE
from longpoll_spec.reached import sometimes_of
from longpoll_spec.state import State, state_of
from longpoll_spec.terms import all_of


def law_of(policy: Policy, bounds: Bounds) -> Model:
    """The model of a policy under bounds."""
    state = state_of(policy, bounds)
    return assemble(state, actions_of(state))


def assemble(state: State, actions: Iterable[Action]) -> Model:
    """The model of a state and its actions, before time is told to wait for the urgent ones."""
    together = tuple(actions)
    if state.policy.tick == "maximal_progress":
        together = tuple(_waiting(action, together) for action in together)
    return Model(state.policy, state.bounds, state, together)


def _waiting(action: Action, actions: tuple[Action, ...]) -> Action:
    if action.name != "tick":
        return action
    idle = all_of(~other.guard for other in actions if other.urgent)
    return attrs.evolve(action, guard=action.guard & idle)


def properties_of(model: Model) -> tuple[Property, ...]:
    """Every property that makes sense for the model's policy: always, inductive, sometimes."""
    stated = [made for text in ALWAYS if (made := text(model)) is not None]
    needed = [attrs.evolve(made, kind="inductive") for text in INDUCTIVE if (made := text(model)) is not None]
    return (*stated, *needed, *sometimes_of(model))

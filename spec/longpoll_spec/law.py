"""The law of one policy under bounds: state, actions and properties put together.

The one thing that is decided here is time: under maximal progress `tick` waits for every urgent action. Everything
else is the text of `actions` and `properties`.
"""

from __future__ import annotations

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.policy import Policy
from longpoll_spec.properties import ALWAYS, INDUCTIVE
from longpoll_spec.reached import sometimes_of
from longpoll_spec.state import state_of
from longpoll_spec.terms import all_of


def law_of(policy: Policy, bounds: Bounds) -> Model:
    """The model of a policy under bounds."""
    state = state_of(policy, bounds)
    actions = tuple(actions_of(state))
    if policy.tick == "maximal_progress":
        actions = tuple(_waiting(action, actions) for action in actions)
    return Model(policy, bounds, state, actions)


def _waiting(action: Action, actions: tuple[Action, ...]) -> Action:
    if action.name != "tick":
        return action
    idle = all_of(~other.guard for other in actions if other.urgent)
    return attrs.evolve(action, guard=action.guard & idle)


def properties_of(model: Model) -> tuple[Property, ...]:
    """Every property that makes sense for the model's policy: always, inductive, sometimes."""
    texts = (*ALWAYS, *INDUCTIVE)
    stated = [made for text in texts if (made := text(model)) is not None]
    return (*stated, *sometimes_of(model))

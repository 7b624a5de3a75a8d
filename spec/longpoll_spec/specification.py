"""The specification of one policy under bounds: state, actions and properties put together.

Only time is decided here: under maximal progress `tick` waits for every urgent action. Everything else is in `actions`
and `properties`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import attrs
from attrs import frozen

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Action, LeadsTo, Model, Property, Said
from longpoll_spec.policy import Policy
from longpoll_spec.properties import ALWAYS, INDUCTIVE
from longpoll_spec.properties.order import stays_in_range
from longpoll_spec.properties.progress import time_can_pass
from longpoll_spec.properties.statement import Text
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
    """The fairness assumed of an infinite run."""

    weak: tuple[str, ...]
    """Labels of action instances with weak fairness: each occurs if it is enabled continuously from some point on."""
    time_passes: bool
    """Time passes again and again, until it changes nothing any more."""


def fairness_of(model: Model) -> Fairness:
    """Every urgent action eventually occurs, and time passes.

    Nothing else is assumed: appends, pulls, commits, faults and stops may never occur. Fairness of `Next` as a whole is
    not enough: in a queue that can be truncated a message may be appended, shown and cut off for ever, with no pull
    answered. With one queue and no tags, weak fairness of each urgent action and of `tick` is enough. With several
    queues, or where notifiers put back requests, dense appends and truncations may keep `tick` disabled. We assume that
    they do not continue endlessly within one tick; `time_can_pass` shows that no state forbids it.
    """
    return Fairness(tuple(action.label for action in model.actions if action.urgent or action.name == "tick"), True)


def properties_of(model: Model) -> tuple[Property, ...]:
    """Every property that applies to the model's policy: always, inductive, sometimes."""
    return _properties_of(Said(model))


@lru_cache(maxsize=64)
def _properties_of(said: Said) -> tuple[Property, ...]:
    """Cached: they are requested often, and cost five times as much as the actions."""
    return (*stated_of(said.model), *sometimes_of(said.model))


def stated_of(model: Model) -> tuple[Property, ...]:
    """The properties that must always hold, also those that only a proof needs."""
    always, inductive = texts_of(model.policy)
    stated = [made for text in always if (made := text(model)) is not None]
    needed = [attrs.evolve(made, kind="inductive") for text in inductive if (made := text(model)) is not None]
    return (*stated, *needed)


def texts_of(policy: Policy) -> tuple[tuple[Text, ...], tuple[Text, ...]]:
    """The properties of a policy, and those that only a proof needs; the ones of its specification file come last.

    The rank of `time_can_pass` knows no other actions than those of the presets, so for a file `progress_of` has it.
    """
    own = policy.extension
    if own is None:
        return ALWAYS, INDUCTIVE
    known: tuple[Text, ...] = () if own.is_alone else tuple(text for text in ALWAYS if text is not time_can_pass)
    return (*known, *own.properties), (stays_in_range,) if own.is_alone else INDUCTIVE


def leads_to_of(model: Model) -> tuple[LeadsTo, ...]:
    """The statements of the model's specification file about every fair run."""
    own = model.policy.extension
    return () if own is None else tuple(said for text in own.leads_to for said in text(model))

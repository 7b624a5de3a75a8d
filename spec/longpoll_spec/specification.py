"""The specification of a policy under bounds: it combines the state, the actions and the properties.

This module decides only when time passes: under maximal progress `tick` waits for every urgent action. The modules of
`actions` and `properties` decide everything else.
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
    """The model of a policy under bounds; raises `BoundsError` for features that its specification file lacks."""
    state = state_of(policy, bounds)
    return assemble(state, actions_of(state))


def assemble(state: State, actions: Iterable[Action]) -> Model:
    """The model of a state and actions; under maximal progress, it makes `tick` wait for the urgent actions."""
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
    """The fairness that is assumed of an infinite run."""

    weak: tuple[str, ...]
    """The labels of action instances with weak fairness: each of them occurs if it stays enabled from some time on."""
    time_passes: bool
    """Whether ticks occur again and again, unless a tick would change nothing."""


def fairness_of(model: Model) -> Fairness:
    """The fairness of a model's runs: every urgent action that stays enabled occurs, and time passes.

    Nothing else is assumed, so appends, pulls, commits, faults and stops may never occur. Fairness of all actions
    together (`Next` in TLA+) is not enough: in a queue that can be truncated, a message may be appended, shown and
    truncated for ever while no pull is answered. With one queue and no tags, weak fairness of each urgent action and of
    `tick` is enough. With several queues, or if notifiers put requests back, appends and truncations may keep `tick`
    disabled. We assume that appends and truncations do not continue for ever within one tick; the property
    `time_can_pass` shows that a tick can be reached from every state.
    """
    return Fairness(tuple(action.label for action in model.actions if action.urgent or action.name == "tick"), True)


def properties_of(model: Model) -> tuple[Property, ...]:
    """Every property that applies to a model, in the order `always`, `inductive`, `sometimes`."""
    return _properties_of(Said(model))


@lru_cache(maxsize=64)
def _properties_of(said: Said) -> tuple[Property, ...]:
    """The properties, cached because they are requested often and take five times as long as the actions."""
    return (*stated_of(said.model), *sometimes_of(said.model))


def stated_of(model: Model) -> tuple[Property, ...]:
    """The properties that must always hold, including those that only a proof needs."""
    always, inductive = texts_of(model.policy)
    stated = [made for text in always if (made := text(model)) is not None]
    needed = [attrs.evolve(made, kind="inductive") for text in inductive if (made := text(model)) is not None]
    return (*stated, *needed)


def texts_of(policy: Policy) -> tuple[tuple[Text, ...], tuple[Text, ...]]:
    """The properties of a policy, and those that only a proof needs. Properties of a specification file come last.

    The rank in `time_can_pass` is right for the actions of presets only, so for a file `survey.progress_of` checks that
    time can pass.
    """
    own = policy.extension
    if own is None:
        return ALWAYS, INDUCTIVE
    known: tuple[Text, ...] = () if own.is_alone else tuple(text for text in ALWAYS if text is not time_can_pass)
    return (*known, *own.properties), (stays_in_range,) if own.is_alone else INDUCTIVE


def leads_to_of(model: Model) -> tuple[LeadsTo, ...]:
    """The statements about fair runs in the model's specification file; none for a preset."""
    own = model.policy.extension
    return () if own is None else tuple(said for text in own.leads_to for said in text(model))

"""A policy's whole table: explored under the bounds that were asked for, and then with each aspect of the world.

Every property gets one verdict: that of the first exploration which breaks it, else of the first which leaves it open,
else of the first which states it. Leaves out how an engine explores, and which bounds those are (`bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, Bounds
from longpoll_spec.engines import EXPLORERS
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.response import ResponseBound, response_bounds
from longpoll_spec.model import Model, Property, select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of, specification_of

Explore = Callable[[Model, Sequence[Property], bool], Exploration]
"""Explores a model and judges properties; the truth value says whether it is the exploration that was asked for."""


@frozen
class Row:
    """What is known of one property, and under which bounds."""

    verdict: Verdict
    bounds: str


@frozen
class Survey:
    """The explorations, that which was asked for first, and what they say together."""

    policy: Policy
    explorations: tuple[Exploration, ...]
    rows: tuple[Row, ...]
    response: tuple[ResponseBound, ...]

    @property
    def asked(self) -> Exploration:
        """The exploration under the bounds that were asked for."""
        return self.explorations[0]


def survey(policy: Policy, bounds: Bounds, explore: Explore, *, names: Sequence[str] = (), alone: bool) -> Survey:
    """Explore a policy under bounds and then, unless `alone`, every aspect and a longer timeout.

    The named properties are judged, or all.
    A property that is named is looked for in an aspect only where the bounds do not state it. An exploration that ended
    early is the last. Raises `UnknownPropertyError`.
    """
    asked = specification_of(policy, bounds)
    worlds = (
        [asked]
        if alone
        else [asked, *(specification_of(policy, each) for each in (*EXPLORATIONS.values(), TIMEOUTS["timeout"]))]
    )
    stated = [properties_of(model) for model in worlds]
    wanted = {item.name for item in select([item for each in stated for item in each], names)}
    done: list[Exploration] = []
    for model, properties in zip(worlds, stated, strict=True):
        judged = [item for item in properties if item.name in wanted]
        if judged or model is asked:
            done.append(explore(model, judged, model is asked))
        if not done[-1].complete:
            break
        wanted -= {item.name for item in judged} if names else set()
    whole = done[-1].complete and not alone and not names
    engine = done[0].engine if done[0].engine in EXPLORERS else EXPLORERS[0]
    return Survey(policy, tuple(done), _rows(done), response_bounds(policy, engine=engine) if whole else ())


def _rows(explorations: Sequence[Exploration]) -> tuple[Row, ...]:
    """One row for each property, in the order in which the explorations state them."""
    found: dict[str, Row] = {}
    for each in explorations:
        for verdict in each.verdicts:
            known = found.get(verdict.name)
            if known is None or _weight(verdict) > _weight(known.verdict):
                found[verdict.name] = Row(verdict, each.model.bounds.name)
    return tuple(found.values())


def _weight(verdict: Verdict) -> int:
    """How much a verdict tells: one that an exploration breaks or reaches stands against any number that do not.

    What holds by construction says least: a verdict of any other exploration, in which the property has something to
    say, goes before it.
    """
    if verdict.by_construction:
        return 0
    return {"violated": 3, "reached": 3, "unknown": 2}.get(verdict.verdict, 1)

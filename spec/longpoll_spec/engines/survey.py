"""A policy's whole table: explored under the requested bounds, and then with each feature.

A property gets the verdict of the first exploration that breaks it, else of the first that leaves it open, else of the
first that states it.
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
"""Explores a model and decides properties; the flag marks the exploration under the requested bounds."""


@frozen
class Row:
    """The verdict on one property, and under which bounds."""

    verdict: Verdict
    bounds: str


@frozen
class Survey:
    """The explorations, the requested one first, and their combined verdicts."""

    policy: Policy
    explorations: tuple[Exploration, ...]
    rows: tuple[Row, ...]
    response: tuple[ResponseBound, ...]

    @property
    def asked(self) -> Exploration:
        """The exploration under the requested bounds."""
        return self.explorations[0]


def survey(policy: Policy, bounds: Bounds, explore: Explore, *, names: Sequence[str] = (), alone: bool) -> Survey:
    """Explore a policy under bounds and then, unless `alone`, with every feature and a longer timeout.

    Decides the named properties, by default all. A named property is checked under a feature only if the bounds do not
    state it. An exploration that ended early is the last. Raises `UnknownPropertyError`.
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
    """The weight of a verdict: one exploration that breaks or reaches a property outweighs any number that do not.

    A vacuous verdict weighs least: a verdict of any exploration in which the property is not vacuous comes before it.
    """
    if verdict.by_construction:
        return 0
    return {"violated": 3, "reached": 3, "unknown": 2}.get(verdict.verdict, 1)

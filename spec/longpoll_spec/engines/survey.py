"""A policy's whole table: explored under the requested bounds, and then with each feature; and its response times.

A property gets the verdict of the first exploration that breaks it, else of the first that leaves it open, else of the
first that states it.

Worst-case response times are tight bounds on how late a policy answers, found by search. With the feature `lateness`
every request counts its own lateness. The greatest count that any run reaches is the bound: the token shows a run that
reaches it, and no run exceeds it. A stopped broker owes no answer, and dropped requests get none; neither counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, Bounds
from longpoll_spec.engines import EXPLORERS, explore
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Model, Property, select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import Request
from longpoll_spec.terms import Int, any_of

BOUNDS: Final = Bounds("lateness", requests=1, messages=1, aspects=frozenset({"lateness"}))
"""Large enough for every bound: one request alone waits as long as one among several."""

_COUNTS: Final[dict[str, Callable[[Request], Int]]] = {
    "late": lambda request: request.late,
    "woken": lambda request: request.waited,
}
_SENTENCES: Final = {
    "late": "Ticks between a pull's deadline and its answer.",
    "woken": "Ticks from a message becoming visible to the answer of the request that waits for it.",
}


@frozen
class ResponseBound:
    """One tight bound. `ticks` is None if lateness is unbounded: it reaches the end of the count."""

    name: str
    sentence: str
    ticks: int | None
    token: str | None
    """A run that takes `ticks` ticks; None for a bound of 0 ticks."""


def response_bounds(policy: Policy, bounds: Bounds = BOUNDS, engine: str = EXPLORERS[0]) -> tuple[ResponseBound, ...]:
    """The tight bounds of a policy, `late` and `woken`; none under free time, which promises nothing.

    Raises `BoundsError` for bounds without the feature `lateness`.
    """
    if not bounds.has("lateness"):
        raise BoundsError("response bounds need the feature lateness; add it")
    if policy.tick == "free":
        return ()
    model = specification_of(policy, bounds)
    found = explore(
        model,
        [_reaches(model, name, ticks) for name in _COUNTS for ticks in range(1, bounds.late_max + 1)],
        engine=engine,
    )
    return tuple(_tight(name, bounds.late_max, {each.name: each.token for each in found.verdicts}) for name in _COUNTS)


def _reaches(model: Model, name: str, ticks: int) -> Property:
    term = any_of(_COUNTS[name](request) >= ticks for request in model.state.requests)
    return Property(f"{name}_by_{ticks}", "sometimes", _SENTENCES[name], term, here=term)


def _tight(name: str, ticks_max: int, tokens: dict[str, str | None]) -> ResponseBound:
    reached = [ticks for ticks in range(1, ticks_max + 1) if tokens[f"{name}_by_{ticks}"] is not None]
    ticks = max(reached, default=0)
    token = tokens[f"{name}_by_{ticks}"] if ticks else None
    return ResponseBound(name, _SENTENCES[name], None if ticks == ticks_max else ticks, token)


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

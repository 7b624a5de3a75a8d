"""A survey explores a policy under the requested bounds and then with each feature, and finds its response times.

Each property gets one verdict: from the first exploration that breaks the property, or else the first that leaves it
open, or else the first that states it.

Worst-case response times are tight bounds on how late a policy answers. With the feature `lateness` every request
counts its own lateness, and a search finds the greatest count that any run reaches. The greatest count is the bound: a
token shows a run that reaches it, and no run exceeds it. A stopped broker need not answer and a dropped request gets no
answer, so neither is counted as late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs
from attrs import frozen

from longpoll_spec.bounds import EXPLORATIONS, SIZES, TIMEOUTS, Bounds, named
from longpoll_spec.engines import EXPLORERS, explore
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.python import Endless, graph_of, never_after, no_time
from longpoll_spec.engines.tokens import parse, token_of
from longpoll_spec.errors import BoundsError, EngineLimitError, SpecificationFileError
from longpoll_spec.model import Model, Property, select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import leads_to_of, properties_of, specification_of
from longpoll_spec.state import Request
from longpoll_spec.terms import Int, any_of

BOUNDS: Final = Bounds("lateness", requests=1, messages=1, aspects=frozenset({"lateness"}))
"""The bounds of the search. One request is enough, because a request alone may wait as long as one among several."""

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
    """One worst-case response time. `ticks` is None if a run reaches the end of the count, so lateness is unbounded."""

    name: str
    sentence: str
    ticks: int | None
    token: str | None
    """The token of a run that is late by `ticks` ticks, or by the whole count; None if every answer is on time."""


def response_bounds(policy: Policy, bounds: Bounds = BOUNDS, engine: str = EXPLORERS[0]) -> tuple[ResponseBound, ...]:
    """The worst-case response times of a policy, `late` and `woken`; empty if the policy lets time pass freely.

    A policy with `tick=free` promises no response time. Raises `BoundsError` for bounds without the feature `lateness`.
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
"""Explores a model and decides properties; the flag is true for the exploration under the requested bounds."""


@frozen
class Row:
    """The verdict on one property, and the name of the bounds of the exploration that gave it."""

    verdict: Verdict
    bounds: str


@frozen
class Survey:
    """The result of a survey: the explorations, the requested one first, and the combined verdicts."""

    policy: Policy
    explorations: tuple[Exploration, ...]
    rows: tuple[Row, ...]
    response: tuple[ResponseBound, ...]

    @property
    def asked(self) -> Exploration:
        """The exploration under the requested bounds."""
        return self.explorations[0]


def survey(policy: Policy, bounds: Bounds, explore: Explore, *, names: Sequence[str] = (), alone: bool) -> Survey:
    """Explore a policy under bounds and then, unless `alone`, with each feature and with a longer timeout.

    Decides the named properties, by default all. A named property is checked under a feature only if no earlier
    exploration states the property. If an exploration ends early, no further exploration follows. Raises
    `UnknownPropertyError` for an unknown name.
    """
    asked = specification_of(policy, bounds)
    worlds = [asked] if alone else [asked, *(specification_of(policy, each) for each in explorations_of(policy))]
    stated = [properties_of(model) for model in worlds]
    of_runs = {"time_can_pass", *(said.name for said in leads_to_of(asked))} if policy.extension else set[str]()
    of_states = [name for name in names if name not in of_runs]
    every = select([item for each in stated for item in each], of_states)
    wanted = {item.name for item in every if not names or of_states} | ({RANGE} if policy.extension else set())
    done: list[Exploration] = []
    for model, properties in zip(worlds, stated, strict=True):
        judged = [item for item in properties if item.name in wanted]
        if judged or model is asked:
            done.append(in_range(explore(model, judged, model is asked)))
        if not done[-1].complete:
            break
        wanted -= {item.name for item in judged} if names else set()
    whole = done[-1].complete and not alone and not names and policy.extension is None
    engine = done[0].engine if done[0].engine in EXPLORERS else EXPLORERS[0]
    is_small = done[0].complete and done[0].distinct_states <= STATES_MAX
    asked_of_runs = not names or not of_runs.isdisjoint(names)
    progress = progress_of(policy, bounds if is_small else runs_of(policy)) if asked_of_runs else ()
    told = tuple(row for row in (*_rows(done), *progress) if not names or row.verdict.name in names)
    return Survey(policy, tuple(done), told, response_bounds(policy, engine=engine) if whole else ())


RANGE: Final = "stays_in_range"
"""The property that no step takes a variable out of its range. If this property is violated, the specification file has
a mistake."""


def explorations_of(policy: Policy) -> Sequence[Bounds]:
    """The bounds that a survey explores after the requested ones. A file based on the core has no features."""
    own = policy.extension
    longer = TIMEOUTS["timeout"]
    if own is not None and own.is_alone:
        queues = attrs.evolve(EXPLORATIONS["queues"], requests=1) if own.is_preset else EXPLORATIONS["queues"]
        return *([queues] if own.queues_max is None else ()), attrs.evolve(longer, tags=1)
    return *EXPLORATIONS.values(), longer


def in_range(found: Exploration) -> Exploration:
    """Return the exploration; raises `SpecificationFileError` if a step of the file violates a variable's range."""
    model = found.model
    broken = [each.token for each in found.verdicts if each.name == RANGE and each.token is not None]
    if model.policy.extension is not None and broken:
        run = parse(broken[0], model.policy).actions
        last = model.actions[run[-1]]
        where = f"{model.policy.extension.path}:{last.place.partition(':')[2]}"
        said = f"{last.label} takes a variable out of its range, after {len(run) - 1} steps"
        raise SpecificationFileError(f"{where}: {said}; its guard must exclude that")
    return found


STATES_MAX: Final = 20_000
"""The greatest number of states for which `progress_of` searches for endless runs."""


def runs_of(policy: Policy) -> Bounds:
    """The bounds under which properties of runs are checked if the requested bounds have too many states."""
    own = policy.extension
    return named(SIZES[0], policy, requests=1 if own is not None and own.is_preset else None)


def progress_of(policy: Policy, bounds: Bounds) -> tuple[Row, ...]:
    """The verdicts on `time_can_pass` and on the progress properties of a specification file.

    The verdicts are unknown if the bounds have more than `STATES_MAX` states.
    """
    if policy.extension is None:
        return ()
    model = specification_of(policy, bounds)
    stated = leads_to_of(model)
    try:
        graph = graph_of(model, STATES_MAX)
    except EngineLimitError:
        names = dict.fromkeys(("time_can_pass", *(said.name for said in stated)))
        return tuple(Row(Verdict(name, "leads_to", "unknown"), bounds.name) for name in names)
    found = {"time_can_pass": no_time(model, graph)}
    for said in stated:
        found[said.name] = found.get(said.name) or never_after(model, said, graph)
    return tuple(Row(_verdict(model, name, endless), bounds.name) for name, endless in found.items())


def _verdict(model: Model, name: str, found: Endless | None) -> Verdict:
    if found is None:
        return Verdict(name, "leads_to", "holds")
    run = [model.actions[index] for index in found.run]
    return Verdict(name, "leads_to", "violated", len(run), token_of(model, run, name))


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
    """The weight of a verdict: an exploration that breaks or reaches a property outweighs every other exploration.

    A vacuous verdict weighs least, so any exploration in which the property is not vacuous outweighs it.
    """
    if verdict.by_construction:
        return 0
    return {"violated": 3, "reached": 3, "unknown": 2}.get(verdict.verdict, 1)

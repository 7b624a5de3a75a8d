"""Refutation by exploring: search small bounds for runs that break a property, before a solver unrolls any.

A hundred thousand states take a second, and many violating runs are longer than a solver reaches in a minute. So the
world of a proof is explored up to that size, with two requests, one or two messages and a timeout of one tick or three.
If that does not reach all states, random runs follow. A run is reported as a token. Finding none decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.bounded import Refutation
from longpoll_spec.model import Model
from longpoll_spec.specification import properties_of

ModelOf: TypeAlias = Callable[[Bounds], Model]
Report: TypeAlias = Callable[[str], None]
STATES: Final = 200_000
"""A search ends with the level in which the number of its states reaches this."""
SIZES: Final = ((1, 1), (1, 3), (2, 1))
"""(messages, ticks of a timeout), tried in order: one tick hides a deadline that is restarted."""
RANDOM: Final[Mapping[str, Any]] = {"engine": "simulate", "runs": 16_384, "steps": 40}


def explored(
    model_of: ModelOf, world: Bounds, requests: int, names: Sequence[str], report: Report | None = None
) -> Mapping[str, Refutation]:
    """The named properties that a run breaks in the world, each with the first run found.

    `model_of` gives the model under bounds; names that it does not state are ignored. `report` gets each search before
    it begins.
    """
    found: dict[str, Refutation] = {}
    for bounds in _small(world, requests):
        left = [name for name in names if name not in found]
        if left:
            found.update(_broken(model_of(bounds), left, report))
    return found


def _small(world: Bounds, requests: int) -> Iterator[Bounds]:
    for messages, hold_ticks in SIZES:
        yield attrs.evolve(world, requests=requests, messages=messages, hold_ticks=hold_ticks)


def _broken(model: Model, names: Sequence[str], report: Report | None) -> Iterator[tuple[str, Refutation]]:
    judged = [item for item in properties_of(model) if item.name in names]
    if not judged:
        return
    if report is not None:
        bounds = model.bounds
        report(f"exploring: {bounds.requests} requests, {bounds.messages} messages, timeout {bounds.hold_ticks}")
    options: Mapping[str, Any] = {"limit_states": STATES}
    while True:
        searched = explore(model, judged, **options)
        for each in searched.verdicts:
            if each.verdict == "violated" and each.depth is not None:
                yield each.name, Refutation(each.depth, searched.seconds, each.token)
        decided = {each.name for each in searched.verdicts if each.verdict != "unknown"}
        judged = [item for item in judged if item.name not in decided]
        if not judged or options is RANDOM:
            return
        options = RANDOM

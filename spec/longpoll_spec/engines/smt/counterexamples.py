"""Refutation by exploring: runs that break a property, looked for under small bounds before a solver unrolls any.

To go through a hundred thousand states takes a second, and many a run that breaks something is longer than a solver
reaches in a minute. So the world of a proof is explored as far as that, with two requests, one or two messages and a
timeout of one tick or three; where that does not come to all states random runs follow. What is found is a token like
any other. Leaves out saying that there is none: what is not found here is unknown.
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
"""(messages, ticks of a timeout), one after the other: one tick hides a deadline that is set anew."""
RANDOM: Final[Mapping[str, Any]] = {"engine": "simulate", "runs": 16_384, "steps": 40}


def explored(
    model_of: ModelOf, world: Bounds, requests: int, names: Sequence[str], report: Report | None = None
) -> Mapping[str, Refutation]:
    """Those of the named properties that a run breaks in the world, each with the first run that was found.

    `model_of` gives the law under bounds, of which names that it does not state are passed over; `report` hears of each
    search before it begins.
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

"""Worst-case response times: the tight bounds on how late a policy answers, found by search.

With the feature `lateness` every request counts its own lateness. The greatest count that any run reaches is the bound:
the token shows a run that reaches it, and no run exceeds it. A stopped broker owes no answer, and dropped requests get
none; neither counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import EXPLORERS, explore
from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of
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

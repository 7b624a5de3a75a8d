"""How large a state space to explore: requests, messages and ticks, as data.

A bound cuts the law's space, never its meaning: guards disable at a bound and nothing is clamped. Leaves out the
policy's knobs (how a broker behaves) and an engine's own limits on memory and time.
"""

from __future__ import annotations

from typing import Final

import attrs
from attrs import frozen

from longpoll_spec.errors import BoundsError
from longpoll_spec.policy import Policy

REQUESTS_MAX: Final = 64
MESSAGES_MAX: Final = 255
TICKS_MAX: Final = 255


@frozen
class Bounds:
    """One choice of bounds. `messages=None` leaves the log unbounded, which only a proof can take."""

    name: str
    requests: int = 2
    """Request slots, one a consumer: a consumer has one pull in flight."""
    messages: int | None = 1
    """Messages that are ever appended."""
    hold_ticks: int = 1
    """A pull's deadline, in ticks from its receipt."""
    scan_ticks: int = 2
    """Ticks between two scans. With one tick every scan comes at once and lateness cannot be seen, so two or more."""

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be explored; raises `BoundsError`."""
        _within("requests", self.requests, 1, REQUESTS_MAX)
        if self.messages is not None:
            _within("messages", self.messages, 1, MESSAGES_MAX)
        _within("hold_ticks", self.hold_ticks, 1, TICKS_MAX)
        _within("scan_ticks", self.scan_ticks, 2, TICKS_MAX)


def _within(name: str, value: int, lower: int, upper: int) -> None:
    if not lower <= value <= upper:
        raise BoundsError(f"{name} must be from {lower} to {upper}, not {value}")


NAMES: Final = ("tiny", "small", "wide", "bench")


def named(
    name: str,
    policy: Policy,
    *,
    requests: int | None = None,
    messages: int | None = None,
    hold_ticks: int | None = None,
    scan_ticks: int | None = None,
) -> Bounds:
    """The bounds of this name for this policy, with what is given set by hand; raises `BoundsError`.

    A policy that walks in place has fewer interleavings, so one more request fits the same name.
    """
    more = 1 if policy.take == "in_place" else 0
    table = {
        "tiny": Bounds("tiny", requests=2, messages=1),
        "small": Bounds("small", requests=3 + more, messages=2),
        "wide": Bounds("wide", requests=4 + more, messages=3),
        "bench": Bounds("bench", requests=4 + more, messages=2),
    }
    if name not in table:
        raise BoundsError(f"unknown bounds {name!r}; known: {', '.join(NAMES)}")
    given = {"requests": requests, "messages": messages, "hold_ticks": hold_ticks, "scan_ticks": scan_ticks}
    changed = {key: value for key, value in given.items() if value is not None and value != getattr(table[name], key)}
    if not changed:
        return table[name]
    text = "".join(f"+{key}={value}" for key, value in changed.items())
    return attrs.evolve(table[name], name=f"{name}{text}", **changed)

"""Which failure happens when: a schedule drawn from a seed, as plain values. `play` applies it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, Literal

from attrs import field, frozen

Kind = Literal[
    "reset",
    "slow",
    "black hole",
    "half-open",
    "restart",
    "kill",
    "names refuse",
    "names mute",
    "names half-open",
    "join",
    "leave",
    "die",
]
NETWORK: Final[tuple[Kind, ...]] = ("reset", "slow", "black hole", "half-open")
SERVERS: Final[tuple[Kind, ...]] = ("restart", "kill")
NAMES: Final[tuple[Kind, ...]] = ("names refuse", "names mute", "names half-open")
MEMBERS_MAX: Final = 3
CALM_S: Final = 2.0
"""Nothing begins in the first and the last seconds of a schedule."""


@frozen
class Event:
    """Something that happens."""

    at_s: float
    """From the schedule's begin."""
    kind: Kind
    lasts_s: float = field(default=0.0)
    pick: int = field(default=0)
    """A number for what is still to be chosen: which member dies, or of which kind one that joins is."""


@frozen
class Plan:
    """One schedule."""

    seed: int
    length_s: float
    events: tuple[Event, ...]
    """In order of time; of each kind none begins before the one before it has ended."""


def draw(seed: int, length_s: float, pace: float = 1.0) -> Plan:
    """A schedule of so many seconds; with a higher pace more happens in it."""
    chance = random.Random(seed)

    def line(kinds: tuple[Kind, ...], gap_s: tuple[float, float], lasts_s: tuple[float, float]) -> Iterator[Event]:
        at_s = CALM_S
        while True:
            at_s += chance.uniform(*gap_s) / pace
            kind = chance.choice(kinds)
            lasts = 0.0 if kind.endswith("half-open") else chance.uniform(*lasts_s)
            if at_s + lasts > length_s - CALM_S:
                return
            yield Event(at_s, kind, lasts, chance.randrange(1 << 16))
            at_s += lasts

    events = [
        *line(NETWORK, (5.0, 20.0), (0.3, 6.0)),
        *line(SERVERS, (20.0, 50.0), (0.2, 4.0)),
        *line(NAMES, (15.0, 40.0), (2.0, 20.0)),
        *_membership(line(("join",), (6.0, 18.0), (0.0, 0.0)), chance.random),
    ]
    return Plan(seed, length_s, tuple(sorted(events, key=lambda event: event.at_s)))


def _membership(moments: Iterator[Event], chance: Callable[[], float]) -> Iterator[Event]:
    """At each moment a member joins, leaves or dies; there are one to three, and two at the begin."""
    count = 2
    for moment in moments:
        joins = count == 1 or (count < MEMBERS_MAX and chance() < 0.5)
        kind: Kind = "join" if joins else "leave" if chance() < 0.5 else "die"
        count += 1 if joins else -1
        yield Event(moment.at_s, kind, 0.0, moment.pick)

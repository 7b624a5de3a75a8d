"""A run as text: each actor's points, line by line, and the turns that differ from the default order."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

from longpoll_simulation.world import Actor, Turn

EDGE: Final = 3
"""Points shown at the start and the end of a long stretch."""
LINES_MAX: Final = 400
"""The longest story; its end is kept."""


@define
class Told:
    """One point."""

    actor: str
    number: int
    point: int
    what: str


@define(eq=False)
class Notes:
    """Records a run's points, as a world's `note`. Invariant: `told` are in order of occurrence."""

    told: list[Told] = field(factory=list)

    def __call__(self, actor: Actor, operation: str, thing: object) -> None:
        """Record a point."""
        what = _line(str(thing)) if operation == "line" else f"{operation} {'' if thing is None else thing}".rstrip()
        self.told.append(Told(str(actor), actor.number, actor.points, what))


def _line(place: str) -> str:
    path, _, number = place.rpartition(":")
    return f"{Path(path).name}:{number}  {linecache.getline(path, int(number)).strip()}"


def tell(told: Sequence[Told], turns: Iterable[Turn], names: Sequence[str]) -> str:
    """The story, one actor's stretch after another; `>>` marks a turn that differs from the default order.

    Only the first and last points of a long stretch are shown; a repeated stretch is only counted.
    """
    turned = {(turn.actor, turn.point): turn.to for turn in turns}
    width = max((len(one.actor) for one in told), default=0)
    lines: list[str] = []
    seen: set[tuple[str, ...]] = set()
    alike = 0
    for stretch in _stretches(told):
        end = stretch[-1]
        to = turned.get((end.number, end.point))
        said = [f"{one.actor:{width}}  {one.what}" if one else f"{'':{width}}  ..." for one in _edges(stretch)]
        if to is None and tuple(said) in seen:
            alike += 1
            continue
        seen.add(tuple(said))
        if alike:
            lines.append(f"{'':{width}}  ({alike} like some above)")
            alike = 0
        lines += said
        if to is not None:
            lines.append(f"{'':{width}}  >> {f'{names[to]} goes on' if to >= 0 else f'stands still for {-to} ms'}")
    if len(lines) > LINES_MAX:
        lines = [f"({len(lines) - LINES_MAX} lines before)", *lines[-LINES_MAX:]]
    return "\n".join(lines)


def _stretches(told: Sequence[Told]) -> Iterator[Sequence[Told]]:
    """One actor's consecutive points."""
    start = 0
    for place in range(1, len(told) + 1):
        if place == len(told) or told[place].number != told[start].number:
            yield told[start:place]
            start = place


def _edges(stretch: Sequence[Told]) -> list[Told | None]:
    if len(stretch) <= 2 * EDGE + 1:
        return list(stretch)
    return [*stretch[:EDGE], None, *stretch[-EDGE:]]

"""The phases of a request as a state machine in SVG, drawn from the effects of a policy's actions.

Moves: `longpoll_spec.phase_changes`. Layout: `graph`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from longpoll_spec.phase_changes import PhaseChange
from longpoll_spec.render.pictures.graph import Edge, render

START: Final = "[*]"
FIRST: Final = "idle"
"""The first phase of every request."""


def phases(moves: Iterable[PhaseChange], title: str) -> str:
    """The moves as one `<svg>` element: an arrow from one phase to another, labelled with its actions."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        arrows.setdefault((move.before, move.after), []).append(move.action)
    edges = [Edge(START, FIRST)]
    edges += [Edge(before, after, ", ".join(dict.fromkeys(found))) for (before, after), found in arrows.items()]
    names = dict.fromkeys([START, FIRST, *(end for pair in arrows for end in pair)], "")
    return render({key: key.replace("_", " ") for key in names}, edges, title=title, dots=frozenset({START}))

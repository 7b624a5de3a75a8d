"""The specification as a book, with the pinned result of each mutant; `longpoll_spec.render.book` writes the pages."""

from __future__ import annotations

from model_tests.support.spec.slip_table import STANDS, Row, pinned

from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.render.book import Slipped, pages

BOOK = "book/"


def book() -> dict[str, str]:
    """Place in the site -> text."""
    return {f"{BOOK}{place}": text for place, text in pages([_slipped(row) for row in pinned()]).items()}


def _slipped(row: Row) -> Slipped:
    action = next(name for name in sorted(ACTION_NAMES, key=len, reverse=True) if row.slip.startswith(name))
    what = row.slip.removeprefix(action).strip()
    proved = {world: found[-1] for world, found in row.worlds.items() if found[-1] != STANDS}
    proof = next((f"`{each}` is proved no more" for each in proved.values()), STANDS)
    return Slipped(action, what, row.policy, row.bounds, row.broken, row.steps, proof)

"""Shorten a failing run: leave out parts, such as its turns, as long as it fails in the same way.

Source: delta debugging (Zeller and Hildebrandt, IEEE TSE 2002), here with halves, quarters and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
TRIES_MAX: Final = 2_000
"""Runs after which the shortest one found so far is accepted."""


def shorten(
    whole: Sequence[T], fails: Callable[[Sequence[T]], Sequence[T] | None], tries_max: int = TRIES_MAX
) -> list[T]:
    """A minimal set of parts that still fails: no single remaining part can be left out.

    `fails` runs with some of the parts, in order; it returns those that mattered if the run fails as before, otherwise
    None. After `tries_max` runs the result is the shortest found so far.
    """
    kept, parts, tries = list(whole), 2, 0
    while kept and tries < tries_max:
        size = max(len(kept) // parts, 1)
        for start in range(0, len(kept), size):
            tries += 1
            made = fails(kept[:start] + kept[start + size :])
            if made is not None and len(made) < len(kept):
                kept, parts = list(made), max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return kept

"""Find the smallest conversation that shows a difference: leave out steps while the same difference remains.

Sizes of messages and texts in them are not reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from longpoll_conform.compare import Difference
from longpoll_conform.vectors import Vector

TRIES_MAX: Final = 40
UNTIL_MS: Final = 300
"""How long to wait for a queue to reach an offset, in case its messages were left out."""
PARTS: Final = ("after", "during", "setup")
KEPT: Final = frozenset({34, 200})
"""Heartbeats and group settings: right answers depend on them, but a broker that ignores them answers the same
without.
"""
CODE: Final = "response.code"


def minimise(
    vector: Vector, differences: Sequence[Difference], play: Callable[[Vector], Sequence[Difference]]
) -> tuple[Vector, int]:
    """The vector without the steps that its first difference does not need, and their number.

    `play` returns the differences of a vector. Only answers of the request itself are compared, because the places of
    steps change. A step is also needed if a different difference appears without it, or another code: then the recorded
    answer does not apply, for example because a topic was not created.
    """
    wanted = next((each for each in differences if each.where.startswith("response")), None)
    if wanted is None:
        return vector, 0
    places = {each.where for each in differences}
    left_out, tries, best = 0, 0, vector
    for part in PARTS:
        for number in reversed(range(len(best.case.get(part, ())))):
            if tries >= TRIES_MAX:
                return best, left_out
            if best.case[part][number].get("code") in KEPT:
                continue
            less = evolve(best, case=_without(best.case, part, number))
            tries += 1
            found = [each for each in play(less) if not each.where.startswith(PARTS)]
            is_same = any((each.where, each.got) == (wanted.where, wanted.got) for each in found)
            if is_same and {each.where for each in found} <= places and _codes(found) == _codes(differences):
                best, left_out = less, left_out + 1
    return best, left_out


def _codes(differences: Sequence[Difference]) -> set[str]:
    """The wrong response code, if the code differed."""
    return {each.got for each in differences if each.where == CODE}


def _without(case: Mapping[str, Any], part: str, number: int) -> Mapping[str, Any]:
    found = {name: [_hasty(step) for step in case.get(name, ())] for name in PARTS}
    del found[part][number]
    return {**case, **found}


def _hasty(step: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**step, "limit_ms": UNTIL_MS} if "until_max_offset" in step else step

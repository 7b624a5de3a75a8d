"""The smallest conversation that shows a difference: steps are left out as long as the same thing differs.

Leaves out the sizes of messages and the texts in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from longpoll_conform.compare import Difference
from longpoll_conform.vectors import Vector

TRIES_MAX: Final = 40
UNTIL_MS: Final = 300
"""How long a queue is waited for to come to an offset, where what it was to come from may be left out."""
PARTS: Final = ("after", "during", "setup")
KEPT: Final = frozenset({34, 200})
"""Heartbeats and the settings of groups: what is right hangs on them, and who does not heed them answers the same
without them."""
CODE: Final = "response.code"


def minimise(
    vector: Vector, differences: Sequence[Difference], play: Callable[[Vector], Sequence[Difference]]
) -> tuple[Vector, int]:
    """The vector less the steps that its first difference does not need, and how many these are.

    `play` says what differs of a vector. Only answers of the request itself are looked at: of those of its steps the
    place would be another one. A step is needed as well where without it something else differs: the recorded answer is
    no longer the right one then, as that of a topic that nobody has made; and where it is answered by another code.
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
    """The code that was answered instead of the right one, if it was another."""
    return {each.got for each in differences if each.where == CODE}


def _without(case: Mapping[str, Any], part: str, number: int) -> Mapping[str, Any]:
    found = {name: [_hasty(step) for step in case.get(name, ())] for name in PARTS}
    del found[part][number]
    return {**case, **found}


def _hasty(step: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**step, "limit_ms": UNTIL_MS} if "until_max_offset" in step else step

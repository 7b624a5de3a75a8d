"""Send the requests of vectors to a broker and record its answers as new vectors.

The new vector lists the same values that may vary (`normalised`). Each request is sent twice, with different names. If
the two answers differ, the differences are reported instead of the vector. If an answer is outside the request's time
window, the request is repeated, because a busy host makes any answer late, and a window around a late answer would fail
a fast broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from attrs import frozen

from longpoll_conform.compare import PROMPT_MS, Difference, compare
from longpoll_conform.connection import SilentError
from longpoll_conform.play import Place, Played, play
from longpoll_conform.vectors import RECORDED_AS, Vector
from longpoll_conform.wire import each_text

BESIDE: Final = 8
"""The number of vectors that are recorded at the same time, because most vectors only wait."""
TRIES: Final = 3


@frozen
class Recorded:
    """The result of recording one vector."""

    vector: Vector
    """The vector with the broker's answers."""
    differences: tuple[Difference, ...]
    """The differences between two answers to the same request. A vector with differences proves nothing."""


def record(
    vectors: Sequence[Vector], place: Place, run_name: str, version: str, told: Callable[[], None] = lambda: None
) -> list[Recorded]:
    """Record the answers to each vector; return the results in the order of the vectors. Raises SilentError."""

    def one(vector: Vector) -> Recorded:
        found = _record(vector, place, run_name, version)
        told()
        return found

    # Record the vectors of a stored log one at a time, because their answers depend on earlier requests.
    stored = [vector for vector in vectors if vector.profile == "store"]
    found = {vector.id: one(vector) for vector in stored}
    with ThreadPoolExecutor(BESIDE) as pool:
        others = [vector for vector in vectors if vector.profile != "store"]
        found |= {vector.id: recorded for vector, recorded in zip(others, pool.map(one, others), strict=True)}
    return [found[vector.id] for vector in vectors]


def _record(vector: Vector, place: Place, run_name: str, version: str) -> Recorded:
    """Return the first answer in the time window that a second answer confirms, or the last one and the differences."""
    kept = _asked(vector, place, f"{run_name}-1", version)
    differences: tuple[Difference, ...] = ()
    window = vector.case.get("timing")
    if vector.profile == "store":
        return Recorded(kept, ())
    for number in range(TRIES):
        run = f"{run_name}-again-{number}"
        named = kept.named_for(run)
        played = _play(named, place)
        differences = tuple(compare(named.case, played.case, RECORDED_AS, played.variables))
        # A vector without a recorded time window has no late answers.
        if not differences and (window is None or kept.case["timing"] == window):
            break
        kept = _kept(vector, played, run, version)
    return Recorded(kept, differences)


def _asked(vector: Vector, place: Place, run: str, version: str) -> Vector:
    return _kept(vector, _play(vector.named_for(run), place), run, version)


def _play(vector: Vector, place: Place) -> Played:
    played = play(vector, place)
    errors = played.case.get("errors")
    if errors and not played.case.get("response"):
        raise SilentError(f"{vector.id} cannot be played: {errors[0]}")
    return played


def _kept(vector: Vector, played: Played, run: str, version: str) -> Vector:
    names = {played.variables[name]: recorded for name, recorded in RECORDED_AS.items()}
    called = each_text(played.case, lambda text: names.get(text, text))
    case = {name: value for name, value in called.items() if name != "errors"}
    return vector.with_answers({**case, "timing": _timing(vector.case.get("timing"), case)}, run, version)


def _timing(before: Mapping[str, Any] | None, case: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the recorded time window if the answer arrived in it; otherwise return a new window around the answer."""
    held_ms = case["held_ms"]
    if not case.get("response") or "closed" in case["response"]:
        return None
    if before and before["not_before_ms"] <= held_ms <= before["not_after_ms"]:
        return dict(before)
    return {"kind": "seen", "not_before_ms": max(0, held_ms - PROMPT_MS), "not_after_ms": held_ms + PROMPT_MS}

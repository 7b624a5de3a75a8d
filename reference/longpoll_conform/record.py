"""Asks a broker the questions of vectors, and keeps what it answers as vectors of its own: nothing is frozen by age.

What may be otherwise (`normalised`) stays as it was. Each question is asked twice, with other names: what then differs
from the first answer is no vector, and is said. An answer that comes outside the question's window is asked for again,
for a machine that does other work makes any answer late: the window of a late one would fail the broker when it is
quick. Leaves out which vectors apply (`suite`), and where they are written.
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

BESIDE: Final = 8
"""How many questions are asked at once; most only wait."""
TRIES: Final = 3


@frozen
class Recorded:
    """What came of one question."""

    vector: Vector
    """With the broker's answers."""
    differences: tuple[Difference, ...]
    """Between two answers to it: it says nothing of the broker where there are any."""


def record(
    vectors: Sequence[Vector], place: Place, run_name: str, version: str, told: Callable[[], None] = lambda: None
) -> list[Recorded]:
    """Ask each, in any order, and keep the answers in theirs. Raises SilentError when nobody listens any more."""

    def one(vector: Vector) -> Recorded:
        found = _record(vector, place, run_name, version)
        told()
        return found

    # What a stored log is asked depends on what was asked before.
    stored = [vector for vector in vectors if vector.profile == "store"]
    found = {vector.id: one(vector) for vector in stored}
    with ThreadPoolExecutor(BESIDE) as pool:
        others = [vector for vector in vectors if vector.profile != "store"]
        found |= {vector.id: recorded for vector, recorded in zip(others, pool.map(one, others), strict=True)}
    return [found[vector.id] for vector in vectors]


def _record(vector: Vector, place: Place, run_name: str, version: str) -> Recorded:
    """The first answer within the question's window that another one is like; else the last one, with what differs."""
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
        # Where the question has no window no answer is late.
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
    case = {name: value for name, value in _called(played.case, names).items() if name != "errors"}
    return vector.with_answers({**case, "timing": _timing(vector.case.get("timing"), case)}, run, version)


def _called(value: Any, names: Mapping[str, str]) -> Any:
    """Any JSON with the broker called as every recorded one."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, Mapping):
        return {_called(name, names): _called(each, names) for name, each in value.items()}
    return [_called(each, names) for each in value] if isinstance(value, list) else value


def _timing(before: Mapping[str, Any] | None, case: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The question's window, where the answer came within it; else one around the answer."""
    held_ms = case["held_ms"]
    if not case.get("response") or "closed" in case["response"]:
        return None
    if before and before["not_before_ms"] <= held_ms <= before["not_after_ms"]:
        return dict(before)
    return {"kind": "seen", "not_before_ms": max(0, held_ms - PROMPT_MS), "not_after_ms": held_ms + PROMPT_MS}

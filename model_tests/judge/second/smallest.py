"""Builds small histories that both judges judge: the events of one queue, from one or several sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from model_tests.judge.second.observer import History
from model_tests.judge.second.parts import MS, Told

MONOTONIC, SETTABLE = "monotonic", "unix"
QUEUE: Final[Told] = {"topic": "T", "queue": 0}


def strictly(
    *sources: Sequence[Told], clock: str = MONOTONIC, policy: str = "strict", declared: Told | None = None
) -> History:
    """Return a history of the sources `b#0`, `b#1`, ... of broker `b`; an event's `at` is its time in ms."""
    headers: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for number, told in enumerate(sources):
        source = f"b#{number}"
        headers.append({"name": source, "clock": clock, "offset_ns": 0, "uncertainty_ns": 0, **(declared or {})})
        for sequence, one in enumerate(told):
            moment = {"after_ns": int(one["at"] * MS), "before_ns": int(one["at"] * MS) + 1}
            fields = {key: value for key, value in one.items() if key != "at"}
            events.append({"source": source, "broker": "b", "sequence": sequence, **moment, **fields})
    return History({"format_version": 1, "policy": policy, "sources": headers}, tuple(events))


def watched(begin: float, end: float, *events: list[Told]) -> list[Told]:
    inner = [one for several in events for one in several]
    return [{"at": begin, "event": "source_started"}, *inner, {"at": end, "event": "source_stopped"}]


def acknowledged(at: float, offset: int, request: str = "") -> list[Told]:
    place = QUEUE | {"queue_offset": offset}
    return [{"at": at, "event": "message_acknowledged", **place, **({"request": request} if request else {})}]


def pull(at: float, name: str, offset: int, code: int, *, end: int, took: float = 1, **fields: object) -> list[Told]:
    place = {**QUEUE, "request": name, "connection": "1"}
    offsets = {"offsets": list(range(offset, end))} if code == 0 else {}
    asked = {"code": 11, "offset": offset, "count_max": 32, "expression_type": "TAG", "expression": "*", "group": "g"}
    asked["may_hold"] = False
    answer = {"code": code, "offset_next": end, "offset_min": 0, "offset_max": end, **offsets}
    return [
        {"at": at, "event": "request_received", **place, **asked, **fields},
        {"at": at + took, "event": "answer_sent", **place, **answer},
    ]

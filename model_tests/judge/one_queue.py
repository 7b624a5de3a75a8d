"""Writes the history of one queue by hand, as the judge sees it: events in milliseconds, joined and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from longpoll_judge.columns.batch import make_batch
from longpoll_judge.evidence.source_survey import RecordGaps, gaps_of
from longpoll_judge.evidence.survey import Context, SourceFacts
from longpoll_judge.read.schema import PLAIN_SCHEMA, fill
from longpoll_judge.rules.queue_case import Case, Suspects, make_cases, make_log
from longpoll_judge.rules.queue_columns import MS

LATE_MS: Final = 10
WAKE_MS: Final = 10
LONG_MS: Final = 10**6
"""When every source ends by default; far behind any limit."""
PLACE: Final = {"source": "s", "broker": "b", "topic": "T", "queue": 0, "connection": "c"}
Moment = float | tuple[float, float]
"""One that is known, or between which two it lies, milliseconds."""
Row = dict[str, Any]


def ns(moment_ms: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(moment_ms * MS)


def facts(last_ms: float = LONG_MS, *, holes: RecordGaps | None = None, is_steady: bool = True) -> SourceFacts:
    """A source that was watched for that long."""
    found = SourceFacts(ns(last_ms), None, is_steady=is_steady)
    return found if holes is None else SourceFacts(ns(last_ms), None, holes, is_steady=is_steady)


def holes(*pairs: tuple[float, float]) -> RecordGaps:
    """From moment to moment, milliseconds."""
    return gaps_of((ns(start), ns(end)) for start, end in pairs)


def context(**fields: Any) -> Context:
    """The context of a verdict; by default two sources inside the broker that go on for long."""
    known: dict[str, Any] = {
        "wake_ns": ns(WAKE_MS), "late_ns": ns(LATE_MS), "answers_on_stop": False, "closes": {},
        "sources": {name: facts() for name in ("s", "t")}, "inside": frozenset({"s", "t"}),
    }  # fmt: skip
    return Context(**(known | fields))


def event(kind: str, at: Moment, **fields: Any) -> Row:
    """One event of the queue."""
    after, before = at if isinstance(at, tuple) else (at, at)
    return PLACE | {"event": kind, "after_ns": ns(after), "before_ns": ns(before)} | fields


def asked(at: Moment = 0, request: str = "r", **fields: Any) -> Row:
    """A pull's receipt; by default one at offset 3 that may be held for 100 ms."""
    pull = {"code": 11, "offset": 3, "count_max": 32, "may_hold": True, "timeout_ms": 100, "expression": "*"}
    return event("request_received", at, request=request, **(pull | {"expression_type": "TAG"} | fields))


def told(at: Moment, code: int = 19, request: str = "r", **fields: Any) -> Row:
    """Its answer; by default that there is nothing new."""
    ends = {"offset_next": 3, "offset_min": 0, "offset_max": 3}
    return event("answer_sent", at, request=request, code=code, **(ends | fields))


def case_of(rows: Sequence[Row], known: Context) -> Case:
    """The one case of these events, of one queue with one life."""
    numbered = [{"sequence": number} | row for number, row in enumerate(rows)]
    batch = make_batch(fill(pa.Table.from_pylist(numbered, schema=PLAIN_SCHEMA)))
    ((name, events),) = batch.queues()
    (case,) = make_cases(name, events, make_log(events, known), known)
    return case


def said(found: Sequence[Suspects], case: Case) -> list[tuple[str, str, list[str]]]:
    """Each suspect: its clause, with a `?` where it is not certain, its words, and the events that it shows."""
    lines = []
    for suspects in found:
        for member in suspects.members.tolist():
            why = suspects.explain(member)
            events = [case.events.text("event", row) for row in why.rows]
            lines.append((why.clause + "?" * (suspects.verdict == "unknown"), why.why, events))
    return lines

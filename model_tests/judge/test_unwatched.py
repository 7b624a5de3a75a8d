"""Across a hole of the record a queue may have begun anew: what was seen of it before convicts nobody after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import SOURCE, simulated_meta, write
from longpoll_judge.testing.recording import MS, change
from longpoll_spec.history import Event

PLACE = {"broker": "broker-a", "topic": "orders", "queue": 0, "connection": "1"}
LOST = 5
"""How many events are missing in a hole."""


def event(name: str, moment_ms: int, **fields: Any) -> Event:
    """Something that a proxy saw."""
    after_ns = moment_ms * MS
    return Event(event=name, after_ns=after_ns, before_ns=after_ns + MS, source=SOURCE, sequence=0, **fields)


def sent(moment_ms: int, request: str, offset: int) -> list[Event]:
    """A send and its acknowledgement."""
    asked = event("request_received", moment_ms, **PLACE, request=request, code=310)
    told = event("message_acknowledged", moment_ms + 10, **PLACE, request=request, queue_offset=offset, tag="a")
    return [asked, told]


def pulled(moment_ms: int, request: str, offset: int, **told: Any) -> list[Event]:
    """A pull that may not be held, and its answer."""
    asked = event(
        "request_received",
        moment_ms,
        **PLACE,
        request=request,
        code=11,
        offset=offset,
        count_max=8,
        expression_type="TAG",
        expression="*",
    )
    return [asked, event("answer_sent", moment_ms + 10, **PLACE, request=request, offset_min=0, **told)]


EARLY, LATE = 1_000, 9_000
BROKEN = {
    "send.sequential": (sent(EARLY, "1-1", 5), sent(LATE, "1-2", 0)),
    "send.delivered.after_request": (
        pulled(EARLY, "1-1", 0, code=0, offsets=[0], offset_next=1, offset_max=1),
        sent(LATE, "1-2", 0),
    ),
    "pull.max.never_falls": (
        pulled(EARLY, "1-1", 5, code=19, offset_next=5, offset_max=5),
        pulled(LATE, "1-2", 0, code=19, offset_next=0, offset_max=0),
    ),
}


def clauses(directory: Path, clause: str, hole_ms: int | None) -> set[str]:
    """What is violated of a history with these events, where some are missing around a moment."""
    earlier, later = BROKEN[clause]
    seen = [event("source_started", 0), *earlier, *later]
    seen += [event("connection_opened", moment_ms, connection="2") for moment_ms in range(100, 20_000, 1_000)]
    seen = [*sorted(seen, key=lambda each: each.after_ns), event("source_stopped", 20_000)]
    skip = 0
    for number, each in enumerate(seen):
        skip += LOST if hole_ms is not None and skip == 0 and each.after_ns > hole_ms * MS else 0
        seen[number] = change(each, sequence=number + skip)
    write(directory, seen, simulated_meta())
    result = judge([directory], engine="local")
    return {finding.clause for finding in result.findings if finding.verdict == "violated"}


@pytest.mark.parametrize("clause", BROKEN)
def test_what_was_seen_before_a_hole_convicts_nobody_after_it(tmp_path: Path, clause: str) -> None:
    """A hole in between excuses, and one that comes later does not."""
    assert clause in clauses(tmp_path / "whole", clause, None)
    assert clause in clauses(tmp_path / "later", clause, 15_000)
    assert clauses(tmp_path / "between", clause, 5_000) == set()

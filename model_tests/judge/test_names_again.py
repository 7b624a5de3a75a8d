"""A connection's name that comes again is that of another connection: what closed the first one says nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_tests.support.judge.histories import written

from longpoll_judge.generate import BROKER, SOURCE, START_NS, simulated_meta
from longpoll_judge.recording import Recording
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import Event, Meta

MS = 1_000_000
Told = tuple[int, dict[str, Any]]
"""A moment in ms, and what happened then."""


def opened(ms: int) -> Told:
    """The connection is opened."""
    return ms, {"event": "connection_opened", "connection": "c"}


def closed(ms: int) -> Told:
    """It is closed."""
    return ms, {"event": "connection_closed", "connection": "c"}


def asked(ms: int, request: str, *, may_hold: bool = False) -> Told:
    """A pull at the end of an empty queue."""
    place = {"topic": "t", "queue": 0, "group": "g", "offset": 0, "expression_type": "TAG", "expression": "*"}
    pull = {"code": 11, "count_max": 1, "may_hold": may_hold, "timeout_ms": 200}
    return ms, {"event": "request_received", "request": request, "connection": "c", **place, **pull}


def answered(ms: int, request: str) -> Told:
    """An answer without new messages."""
    place = {"topic": "t", "queue": 0, "offset_next": 0, "offset_min": 0, "offset_max": 0}
    return ms, {"event": "answer_sent", "request": request, "connection": "c", "code": 19, **place}


def sent(ms: int, request: str) -> Told:
    """A message is sent."""
    return ms, {"event": "request_received", "request": request, "connection": "c", "code": 310}


def acknowledged(ms: int, request: str) -> Told:
    """And acknowledged."""
    place = {"topic": "t", "queue": 1, "queue_offset": 0, "tag": ""}
    return ms, {"event": "message_acknowledged", "request": request, "connection": "c", **place}


FIRST = (opened(2), asked(3, "r1"), answered(4, "r1"), closed(5), opened(10))
HISTORIES: dict[str, tuple[tuple[Told, ...], list[tuple[str, str]]]] = {
    "answered by the second": ((*FIRST, asked(11, "r2"), answered(12, "r2")), []),
    "never answered by the second": ((*FIRST, asked(11, "r2", may_hold=True)), [("pull.answered", "r2")]),
    "answered after its own close": (
        (opened(2), asked(3, "r1"), closed(5), opened(10), answered(11, "r1"), closed(20)),
        [("answer.open_connection", "r1")],
    ),
    "answered after the only close": (
        (opened(2), asked(3, "r1"), closed(5), answered(11, "r1")),
        [("answer.open_connection", "r1")],
    ),
    "asked again by the second": (
        (opened(2), asked(3, "r1"), closed(5), opened(10), asked(11, "r1"), answered(12, "r1"), closed(20)),
        [],
    ),
    "not answered before its own close": ((opened(2), asked(3, "r1", may_hold=True), closed(5), opened(10)), []),
    "a send by the second": ((*FIRST, sent(11, "s"), acknowledged(12, "s")), []),
    "a send that was acknowledged after its own close": (
        (*FIRST, sent(11, "s"), closed(12), opened(13), acknowledged(14, "s"), closed(20)),
        [("send.acknowledged.open_connection", "s")],
    ),
    "a send that the second never acknowledged": ((*FIRST, sent(11, "s")), [("send.answered", "s")]),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_name_that_comes_again_is_another_connection(name: str, tmp_path: Path) -> None:
    """The close of an earlier connection of that name proves and explains nothing."""
    told, wanted = HISTORIES[name]
    rows = [(0, {"event": "source_started"}), *told, (30_000, {"event": "source_stopped"})]
    events = [
        Event(after_ns=START_NS + ms * MS, before_ns=START_NS + ms * MS + 1_000, source=SOURCE, sequence=n, **fields)
        for n, (ms, fields) in enumerate([(ms, {"broker": BROKER} | fields) for ms, fields in rows])
    ]
    result = judge([written(Recording(events, simulated_meta()), tmp_path / "history")], engine="local")

    assert [(one.clause, one.request) for one in result.findings if one.verdict == "violated"] == wanted
    for finding in result.findings:
        alone = [Event(**event) for event in finding.evidence]
        meta = msgspec.convert(finding.meta, Meta)
        again = judge([written(Recording(alone, meta), tmp_path / "alone")], engine="local")
        assert [(one.clause, one.request) for one in again.findings] == wanted

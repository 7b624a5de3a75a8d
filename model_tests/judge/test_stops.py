"""A broker that stops may tell 19 of whatever it holds, and what would show its stop may be hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from longpoll_judge.contract.result import Result
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import SOURCE, simulated_meta, write
from longpoll_judge.testing.recording import MS, change
from longpoll_spec.history import Event

BROKER = "broker-a"
END_NS = 20_000 * MS


def event(name: str, moment_ns: int, **fields: Any) -> Event:
    """Something that a proxy saw."""
    return Event(event=name, after_ns=moment_ns, before_ns=moment_ns + MS, source=SOURCE, sequence=0, **fields)


def told_at_a_stop(close_ns: int | None, *, end_ns: int = END_NS) -> list[Event]:
    """A pull that passed by three messages is told 19 long before its deadline; perhaps its connection closes then."""
    place = {"broker": BROKER, "topic": "orders", "queue": 0, "connection": "1"}
    asked = {"request": "1-1", "code": 11, "offset": 1, "count_max": 8, "may_hold": True, "timeout_ms": 15_000}
    told = {"request": "1-1", "code": 19, "offset_next": 1, "offset_min": 0, "offset_max": 3}
    events = [
        event("source_started", 0),
        event("connection_opened", 10 * MS, connection="1", broker=BROKER),
        *(
            event("message_acknowledged", (20 + offset) * MS, **place, queue_offset=offset, tag="other")
            for offset in range(3)
        ),
        event("request_received", 2_500 * MS, **place, **asked, expression_type="TAG", expression="mine"),
        event("answer_sent", 3_000 * MS, **place, **told),
        event("connection_opened", 3_010 * MS, connection="2", broker=BROKER),
        *([] if close_ns is None else [event("connection_closed", close_ns, connection="1", broker=BROKER)]),
        event("source_stopped", end_ns),
    ]
    return [change(each, sequence=number) for number, each in enumerate(events)]


def judged(directory: Path, events: list[Event], *, clock: str = "monotonic") -> Result:
    """The verdict on what was seen by this clock."""
    meta = simulated_meta()
    meta = msgspec.structs.replace(meta, sources=[msgspec.structs.replace(meta.sources[0], clock=clock)])
    write(directory, events, meta)
    return judge([directory], engine="local")


def at_end(result: Result) -> list[str]:
    """What is found of a 19 before the end, and of one before its deadline."""
    clauses = ("pull.none.at_end", "pull.hold.not_early")
    told = [one for finding in result.findings for one in finding.told()]
    return [one.verdict for one in told if one.clause in clauses]


def test_a_19_of_a_broker_that_goes_on_convicts(tmp_path: Path) -> None:
    """Its connection stays open, or closes long after, and nothing is hidden."""
    assert at_end(judged(tmp_path / "open", told_at_a_stop(None))) == ["violated", "violated"]
    assert at_end(judged(tmp_path / "closed", told_at_a_stop(12_000 * MS))) == ["violated", "violated"]


def test_a_19_of_a_broker_that_stops_is_right(tmp_path: Path) -> None:
    """Its connection closes soon after."""
    assert "violated" not in at_end(judged(tmp_path / "history", told_at_a_stop(3_100 * MS)))


@pytest.mark.parametrize("kept", ["a hole", "a cut end", "a damaged line", "an early end", "a clock that was set"])
def test_a_close_that_may_be_hidden_leaves_it_open(tmp_path: Path, kept: str) -> None:
    """The close lies in a hole, behind the end of the record, or a settable clock tells it late: unknown."""
    events, clock = told_at_a_stop(3_100 * MS), "monotonic"
    place = next(n for n, each in enumerate(events) if each.event == "connection_closed")
    if kept == "a hole":
        del events[place]
    elif kept == "a cut end":
        del events[place:]
    elif kept == "a damaged line":
        events[place] = change(events[place], event="connection_close")
    elif kept == "an early end":
        events = told_at_a_stop(None, end_ns=3_050 * MS)
    else:
        events, clock = told_at_a_stop(12_000 * MS), "unix"
    result = judged(tmp_path / "history", events, clock=clock)

    assert at_end(result) == ["unknown", "unknown"]
    assert result.verdict == "unknown"

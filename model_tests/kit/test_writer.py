"""A service that records its own history: a correct history is valid, and the judge finds each fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_recorder.recorder import RecordError

MS: Final = 1_000_000


Event = tuple[Any, ...]
"""A method of the writer with its arguments, or `pass` with a number of ms.

`answered` and `abandoned` concern the last poll."""
GOOD: Final[list[Event]] = [
    *(
        event
        for number in range(3)
        for event in (
            ("polled", "mail", number, 1_000), ("pass", 10), ("published", "mail", number), ("answered", [number]),
            ("published", "jobs", number),
        )
    ),
    ("polled", "mail", 0, 1_000), ("answered", [0, 1, 2]),
    ("polled", "jobs", 0, 1_000, 2), ("answered", [0, 1]),
    ("polled", "mail", 3, 100), ("pass", 100), ("answered",),
    ("polled", "mail", 3, 1_000), ("abandoned",),
]  # fmt: skip
"""A correct history with woken, found, expired and abandoned polls, and with events of another queue."""
FAULTY: Final[dict[str, tuple[str, list[Event]]]] = {
    "nothing at the deadline, with a message there": (
        "no_lost_wakeup", [("polled", "mail", 0, 1_000), ("published", "mail", 0), ("pass", 1_000), ("answered",)],
    ),
    "a message long after it came": (
        "no_lost_wakeup", [("polled", "mail", 0, 30_000), ("published", "mail", 0), ("pass", 2_000), ("answered", [0])],
    ),
    "nothing long after the deadline": (
        "answered_by_deadline", [("polled", "mail", 0, 100), ("pass", 1_000), ("answered",)],
    ),
    "never, and not abandoned": ("answered_by_deadline", [("polled", "mail", 0, 100)]),
    "twice": (
        "answered_once", [("published", "mail", 0), ("polled", "mail", 0, 100), ("answered", [0]), ("answered", [0])],
    ),
    "a gap": (
        "answer_is_right",
        [*(("published", "mail", n) for n in range(3)), ("polled", "mail", 0, 100), ("answered", [0, 2])],
    ),
    "nothing, with a message there before": (
        "answer_is_right",
        [("published", "mail", 0), ("pass", 1_000), ("polled", "mail", 0, 100), ("pass", 100), ("answered",)],
    ),
    "an end before what the service holds": (
        "answer_is_right",
        [
            ("published", "mail", 0), ("published", "mail", 1), ("pass", 1_000),
            ("polled", "mail", 0, 100), ("answered", [0], 1),
        ],
    ),
}  # fmt: skip
"""Name of the fault -> the violated property, and the events."""


class Clock(longpoll.RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10**9
        self.monotonic_ns = lambda: self.now_ns


def judged(directory: Path, events: Sequence[Event], since_ms: int | None = None) -> Result:
    """Return the verdict on a history of these events, in which no answer was sent before `since_ms`."""
    clock = Clock()
    poll: Any = None
    with longpoll.HistoryWriter(clock, directory) as history:
        for what, *arguments in [*events, ("pass", 5_000)]:
            if what == "pass":
                clock.now_ns += arguments[0] * MS
            elif what == "polled":
                queue, offset, timeout_ms, *count_max = arguments
                poll = history.polled(queue, offset, timeout_ms, **dict(zip(["count_max"], count_max, strict=False)))
            elif what == "answered":
                offsets, *end = arguments or [()]
                since_ns = None if since_ms is None else 10**9 + since_ms * MS
                history.answered(poll, offsets, end=end[0] if end else None, since_ns=since_ns)
            elif what == "abandoned":
                history.abandoned(poll)
            else:
                history.published(*arguments)
    return longpoll.judge(directory)


def test_a_correct_history_is_valid(tmp_path: Path) -> None:
    result = judged(tmp_path, GOOD)

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert (result.requests, result.queues) == (7, 2)


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_found(tmp_path: Path, name: str) -> None:
    prop, events = FAULTY[name]
    result = judged(tmp_path, events)

    assert result.verdict == "invalid"
    assert prop in {finding.property for finding in result.findings if finding.verdict == "violated"}


def test_an_answer_that_may_have_been_sent_in_time_is_not_late(tmp_path: Path) -> None:
    _prop, events = FAULTY["a message long after it came"]

    assert judged(tmp_path, events, since_ms=0).verdict != "invalid"


def test_an_empty_history_is_unknown(tmp_path: Path) -> None:
    assert judged(tmp_path, [("published", "mail", 0)]).verdict == "unknown"


def test_a_closed_history_accepts_no_event(tmp_path: Path) -> None:
    history = longpoll.HistoryWriter(longpoll.RealRuntime(), tmp_path / "history")
    history.published("mail", 0)
    history.close()
    history.close()
    history.published("mail", 1)
    (part,) = (tmp_path / "history").glob("part-*")

    assert part.read_text().count("message_acknowledged") == 1
    assert '"source_stopped"' in part.read_text().splitlines()[-1]
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="choose a writable directory"):
        longpoll.HistoryWriter(longpoll.RealRuntime(), tmp_path / "file")

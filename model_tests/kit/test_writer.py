"""A service that records itself: a correct history is valid, and each fault in it is found by the judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_recorder.recorder import RecordError

MS: Final = 1_000_000


class Clock(longpoll.RealRuntime):
    """Time as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10**9
        self.monotonic_ns = lambda: self.now_ns

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS


Writes = Callable[[longpoll.HistoryWriter, Clock], object]


def judged(directory: Path, writes: Writes) -> Result:
    """The verdict on what is written."""
    clock = Clock()
    with longpoll.HistoryWriter(clock, directory) as history:
        writes(history, clock)
        clock.pass_ms(5_000)
    return longpoll.judge(directory)


def good(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """Woken, found, expired and abandoned polls; another queue has events too."""
    for number in range(3):
        poll = history.polled("mail", number, 1_000)
        clock.pass_ms(10)
        history.published("mail", number)
        history.answered(poll, [number])
        history.published("jobs", number)
    history.answered(history.polled("mail", 0, 1_000), [0, 1, 2])
    history.answered(history.polled("jobs", 0, 1_000, count_max=2), [0, 1])
    poll = history.polled("mail", 3, 100)
    clock.pass_ms(100)
    history.answered(poll)
    history.abandoned(history.polled("mail", 3, 1_000))


def lost_wakeup(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """Told nothing at the deadline, with a message there."""
    poll = history.polled("mail", 0, 1_000)
    history.published("mail", 0)
    clock.pass_ms(1_000)
    history.answered(poll)


def slow_wakeup(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """Given the message long after it came."""
    poll = history.polled("mail", 0, 30_000)
    history.published("mail", 0)
    clock.pass_ms(2_000)
    history.answered(poll, [0])


def late(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """Told nothing long after the deadline."""
    poll = history.polled("mail", 0, 100)
    clock.pass_ms(1_000)
    history.answered(poll)


def never(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """Not answered, and not abandoned."""
    history.polled("mail", 0, 100)


def twice(history: longpoll.HistoryWriter, clock: Clock) -> None:
    history.published("mail", 0)
    poll = history.polled("mail", 0, 100)
    history.answered(poll, [0])
    history.answered(poll, [0])


def with_a_gap(history: longpoll.HistoryWriter, clock: Clock) -> None:
    for number in range(3):
        history.published("mail", number)
    history.answered(history.polled("mail", 0, 100), [0, 2])


def passed_over(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """Told nothing, with a message there before the poll came."""
    history.published("mail", 0)
    clock.pass_ms(1_000)
    poll = history.polled("mail", 0, 100)
    clock.pass_ms(100)
    history.answered(poll)


def with_a_wrong_end(history: longpoll.HistoryWriter, clock: Clock) -> None:
    """A service that says itself that the queue ends before what it holds."""
    history.published("mail", 0)
    history.published("mail", 1)
    clock.pass_ms(1_000)
    history.answered(history.polled("mail", 0, 100), [0], end=1)


def test_a_correct_history_is_valid(tmp_path: Path) -> None:
    result = judged(tmp_path, good)

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert (result.requests, result.queues) == (7, 2)


@pytest.mark.parametrize(
    ("writes", "property_name"),
    [
        (lost_wakeup, "no_lost_wakeup"),
        (slow_wakeup, "no_lost_wakeup"),
        (late, "answered_by_deadline"),
        (never, "answered_by_deadline"),
        (twice, "answered_once"),
        (with_a_gap, "answer_is_right"),
        (passed_over, "answer_is_right"),
        (with_a_wrong_end, "answer_is_right"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_fault_is_found(tmp_path: Path, writes: Writes, property_name: str) -> None:
    """By the property that it breaks."""
    result = judged(tmp_path, writes)

    assert result.verdict == "invalid"
    assert property_name in {finding.property for finding in result.findings if finding.verdict == "violated"}


def test_what_was_told_late_convicts_nobody(tmp_path: Path) -> None:
    """An answer that may have been sent any time since the message came is not late for certain."""

    def told_late(history: longpoll.HistoryWriter, clock: Clock) -> None:
        poll = history.polled("mail", 0, 30_000)
        history.published("mail", 0)
        since_ns = history.now_ns()
        clock.pass_ms(2_000)
        history.answered(poll, [0], since_ns=since_ns)

    assert judged(tmp_path, told_late).verdict != "invalid"


def test_nothing_written_is_unknown(tmp_path: Path) -> None:
    """A history without a poll shows nothing."""
    assert judged(tmp_path, lambda history, _clock: history.published("mail", 0)).verdict == "unknown"


def test_a_closed_history_takes_no_more(tmp_path: Path) -> None:
    """A second end does nothing, and an impossible directory is an error."""
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

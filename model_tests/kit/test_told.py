"""A run that is recorded as a history: the judge finds the same faults, and passes correct services."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field
from hypothesis import settings
from model_tests.kit import services
from model_tests.kit.services import Feed, InMemory, TakeQueue
from model_tests.kit.test_kit import BAD, GOOD, PATIENT, SEED, excuse_nothing, limits_for, machine
from model_tests.kit.test_verdicts import LateOnce
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_kit.errors import SubjectError
from longpoll_kit.example import Example
from longpoll_kit.history import RecordedHistory
from longpoll_kit.model import Allowances, Ask, OffsetQueue
from longpoll_kit.run import KitReport
from longpoll_kit.subject import Polled
from longpoll_runtime.real import RealRuntime

FAULTS: Final = {
    services.NeverWakes: {"no_lost_wakeup"},
    services.WakesOne: {"no_lost_wakeup"},
    services.Late: {"answered_by_deadline"},
    services.BeginsOneBefore: {"answer_is_right"},
    services.RepeatsItself: {"answer_is_right"},
    services.LeavesOneOut: {"answer_is_right"},
}
"""A service with a fault -> the judge's properties by which its history may be convicted."""
FEW: Final = settings(max_examples=3, stateful_step_count=10, database=None)
QUICK: Final = {services.WakesOne, services.LeavesOneOut}
"""One of time and one of content."""


def told(
    directory: Path, service: type[Feed], chosen: settings, **attributes: Any
) -> tuple[KitReport, Result, dict[str, set[str]]]:
    """The kit's result, the judge's result for the same run's history, and the findings' properties.

    The properties are grouped by the findings' verdicts.
    """
    with longpoll.HistoryWriter(longpoll.RealRuntime(), directory) as history:
        report = machine(lambda: InMemory(service()), **attributes).exercise(chosen, SEED, history=history)
    result = longpoll.judge(directory, wake_ms=attributes["wake_ms"], late_ms=attributes["late_ms"])
    found: dict[str, set[str]] = {"violated": set(), "unknown": set()}
    for finding in result.findings:
        found[finding.verdict].add(finding.property)
    return report, result, found


def test_the_judge_convicts_no_correct_service(tmp_path: Path) -> None:
    """With polls found, woken, expired, cancelled and under restarts; and it has looked at each."""
    report, result, found = told(tmp_path, Feed, settings(GOOD, max_examples=3), **PATIENT)

    assert report.verdict == "valid", report
    assert result.verdict in {"valid", "unknown"}
    assert found["violated"] == set()
    assert result.requests >= sum(report.counts.values()) / 2


@pytest.mark.parametrize("service", quick_if(FAULTS, QUICK.__contains__), ids=lambda fault: fault.__name__)
def test_the_judge_convicts_a_faulty_one(service: type[Feed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge finds the fault in the history of the same run."""
    report, result, found = told(tmp_path, service, BAD, **limits_for(monkeypatch, FAULTS[service]))

    assert report.verdict == "invalid", report
    assert result.verdict == "invalid"
    assert found["violated"] & FAULTS[service]


@pytest.mark.long
@pytest.mark.parametrize("is_planted", [False, True])
def test_one_delay_convicts_nobody(is_planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have caused it, so it is not recorded. Injected: recorded as seen, it is a violation."""
    monkeypatch.setattr(LateOnce, "was_late", False)
    excuse_nothing(monkeypatch)
    if is_planted:
        tell = Example._tell_answered
        monkeypatch.setattr(Example, "_tell_answered", lambda *of, **_doubted: tell(*of, is_doubted=False))
    report, result, found = told(tmp_path, LateOnce, FEW, wake_ms=1_500, late_ms=1_000, long_ms=5_000)

    assert LateOnce.was_late
    assert report.verdict == "unknown", report
    assert (result.verdict == "invalid") is is_planted
    assert found["violated"] == ({"answered_by_deadline"} if is_planted else set())


@pytest.mark.parametrize(
    ("service", "attributes", "said"),
    [(TakeQueue, {}, "the judge needs offsets"), (Feed, {"visible_ms": 20}, "set visible_ms to 0")],
)
def test_what_the_contract_says_nothing_of_is_not_told(
    service: type[Feed], attributes: dict[str, int], said: str, tmp_path: Path
) -> None:
    """A mistake in the call, with what to do next."""
    mine = machine(lambda: InMemory(service()), **attributes)
    with (
        longpoll.HistoryWriter(longpoll.RealRuntime(), tmp_path) as history,
        pytest.raises(SubjectError, match=said),
    ):
        mine.exercise(GOOD, SEED, history=history)


@define
class Heard:
    """A history that keeps its events in memory."""

    told: list[tuple[object, ...]] = field(factory=list)

    def published(self, queue: str, offset: int, *, since_ns: int | None = None) -> None:
        self.told.append(("published", queue, offset, since_ns))

    def polled(self, queue: str, offset: int, timeout_ms: int, *, since_ns: int | None = None) -> str:
        """Keep the poll; its event identifies it."""
        self.told.append(("polled", queue, offset, timeout_ms, since_ns))
        return f"poll from {offset}"

    def answered(
        self, poll: Any, offsets: Sequence[int] = (), *, end: int | None = None, since_ns: int | None = None
    ) -> None:
        self.told.append(("answered", poll, list(offsets), end, since_ns))

    def abandoned(self, poll: Any) -> None:
        self.told.append(("abandoned", poll))


def test_what_is_told_claims_no_more_than_was_seen() -> None:
    """The earliest possible begin and a certain end; nothing about a poll whose end is uncertain."""
    heard = Heard()
    teller = RecordedHistory(heard, RealRuntime().lock())
    queue = OffsetQueue("q", Allowances())
    for number, acked_ns in enumerate((10, 20, 30, None)):
        message = queue.publish(b"%d" % number, 5)
        message.acked_ns = acked_ns
        if acked_ns:
            teller.published(queue, message)
    found, nothing, cancelled, left, late = (Ask(n, "q", n, None, 100, 25) for n in range(5))
    for ask in (found, nothing, cancelled, left):
        teller.sent(ask)
    found.answer, nothing.answer = Polled([b"0"]), Polled()
    teller.answered(queue, found, lambda: 40)
    teller.answered(queue, nothing, lambda: 41)
    teller.abandoned(cancelled)
    cancelled.answer = Polled([b"2", b"unheard of"])
    teller.answered(queue, cancelled, lambda: 42)
    teller.left()
    teller.sent(late)
    teller.left()

    assert heard.told[:3] == [("published", "q", number, 5) for number in range(3)]
    assert heard.told[3:7] == [("polled", "q", number, 100, 25) for number in range(4)]
    assert heard.told[7:] == [
        ("answered", "poll from 0", [0], 2, 40),
        ("answered", "poll from 1", [], None, 41),
        ("abandoned", "poll from 2"),
        ("abandoned", "poll from 3"),
    ]


def test_a_message_that_was_never_published_is_told_as_one_that_is_not_there() -> None:
    """Its number is that of no message, so its offset lies behind the end."""
    heard = Heard()
    teller = RecordedHistory(heard, RealRuntime().lock())
    queue = OffsetQueue("q", Allowances())
    queue.publish(b"0", 5)
    ask = Ask(1, "q", 0, None, 100, 25)
    teller.sent(ask)
    ask.answer = Polled([b"0", b"unheard of"])
    teller.answered(queue, ask, lambda: 40)

    assert heard.told[1:] == [("answered", "poll from 0", [0, 1], 2, 40)]

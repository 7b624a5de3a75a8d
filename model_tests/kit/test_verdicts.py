"""Verdicts are no stronger than the evidence; a host pause is not a fault; user mistakes get errors."""

from __future__ import annotations

import time
import unittest
from typing import Any

import pytest
from hypothesis import Phase, settings
from model_tests.kit.services import (
    AnswersEarly,
    AnswersNothingAtTimes,
    CutsBodies,
    Early,
    Feed,
    InMemory,
    Late,
    Poll,
    SlowToHold,
    WakesOne,
)
from model_tests.kit.test_kit import IMPATIENT, PATIENT, excuse_nothing, machine

import longpoll
from longpoll_kit.errors import StandstillError, SubjectError, ViolationError
from longpoll_kit.example import EXPIRED, FOUND, WOKEN, Example
from longpoll_kit.polls import PATIENCE_MAX_MS, Polls
from longpoll_runtime.host_pauses import HostPauseWatch

FAILING_CALLS = {"subject": 14, "cancel": 4, "restart": 2, "close": 14}
"""Method -> which of its calls fails; of the others a later one."""
FEW = settings(max_examples=1, stateful_step_count=1, database=None)


class LateOnce(Feed):
    """One poll of all waits for too long."""

    was_late = False

    def poll(self, poll: Poll) -> list[bytes]:
        if poll.timeout_ms < 100 and not LateOnce.was_late:
            LateOnce.was_late = True
            poll.timeout_ms += 2_000
        return super().poll(poll)


class AnswersTwice(InMemory):
    """A subject that has seen a second answer."""

    def answered_again(self, handle: Poll) -> bool:
        """To the first poll that there was."""
        return handle.timeout_ms > 0


class AnswersOnce(InMemory):
    """A subject that has looked for a second answer."""

    def answered_again(self, handle: Poll) -> bool:
        return handle.timeout_ms < 0


def test_what_was_not_seen_is_unknown() -> None:
    """One step of one example cannot show it all; the case is skipped, and says why."""
    mine = machine(lambda: InMemory(Feed()), **PATIENT)
    report = mine.exercise(FEW)
    mine.TestCase.settings = FEW
    result = unittest.TestResult()
    mine.TestCase().run(result)

    assert report.verdict == "unknown"
    assert report.why.startswith("no poll was seen ")
    assert WOKEN in report.why
    assert "run more examples" in str(report)
    assert len(result.skipped) == 1
    assert "unknown" in result.skipped[0][1]
    assert (result.failures, result.errors) == ([], [])


def test_a_case_fails_with_the_steps() -> None:
    """As an assertion, so that pytest and unittest show it as such."""
    mine = machine(lambda: InMemory(Early()), seed=14)
    mine.TestCase.settings = settings(max_examples=5, database=None, phases=(Phase.generate,))
    result = unittest.TestResult()
    mine.TestCase().run(result)

    assert len(result.failures) == 1
    assert "invalid: not_early: poll" in result.failures[0][1]
    assert "  1. " in result.failures[0][1]
    assert result.errors == []


def test_two_machines_have_cases_of_their_own() -> None:
    """Settings of one say nothing of the other."""
    one, other = machine(lambda: InMemory(Feed())), machine(lambda: InMemory(Feed()))
    one.TestCase.settings = FEW

    assert one.TestCase is one.TestCase
    assert other.TestCase.settings is not FEW


def test_one_delay_is_unknown_and_two_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateOnce, "was_late", False)
    excuse_nothing(monkeypatch)
    many = settings(max_examples=4, stateful_step_count=15, database=None)
    once = machine(lambda: InMemory(LateOnce()), late_ms=1_000, wake_ms=2_000, long_ms=5_000).exercise(many, 14)

    assert LateOnce.was_late
    assert once.verdict == "unknown", once
    assert "can be the machine's doing: answered_by_deadline" in once.why


def test_a_machine_that_stands_still_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is late while nothing runs is not late; the same one is found without the stall."""
    monkeypatch.setattr(HostPauseWatch, "stalled_ms", lambda _watch, begin_ns, end_ns: (end_ns - begin_ns) / 1e6)
    few = settings(max_examples=4, stateful_step_count=10, database=None, phases=(Phase.generate,))
    mine = machine(lambda: InMemory(Late()), **IMPATIENT, short_ms=(10, 500, 500))
    report = mine.exercise(few, 14)

    assert report.property == "", report
    assert report.counts[EXPIRED] > 0
    assert (report.verdict, report.excused > 0) == ("unknown", True)
    assert f"excused, because the host paused: {report.excused} delays" in str(report)
    excuse_nothing(monkeypatch)
    assert mine.exercise(few, 14).property == "answered_by_deadline"


def test_a_machine_that_never_goes_on_ends_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, and the verdict is unknown."""

    def stands_still(_polls: Polls, *_arguments: Any) -> bool:
        raise StandstillError("the machine stood still")

    monkeypatch.setattr(Polls, "wait_any", stands_still)
    report = machine(lambda: InMemory(Feed()), long_ms=100).exercise(
        settings(max_examples=2, stateful_step_count=10, database=None), 14
    )

    assert PATIENCE_MAX_MS > 10_000
    assert (report.verdict, report.excused > 0) == ("unknown", True)
    assert "the host paused" in report.why


def test_a_second_answer_is_seen_where_one_can_look() -> None:
    """A service without that view gets a note."""
    few = settings(max_examples=4, stateful_step_count=15, database=None, phases=(Phase.generate,))
    twice = machine(lambda: AnswersTwice(Feed())).exercise(few, 14)
    once = machine(lambda: AnswersOnce(Feed()), **PATIENT).exercise(few, 14)

    assert (twice.verdict, twice.property) == ("invalid", "answered_once")
    assert (once.verdict, once.left_out) == ("valid", ())


class Wrong(InMemory):
    """A subject with a mistake."""

    def __init__(self) -> None:
        super().__init__(Feed())


class NoSemantics(Wrong):
    """It does not declare its kind of service."""

    def __init__(self) -> None:
        super().__init__()
        self.semantics = "queue"  # type: ignore[assignment] # the mistake


class ReturnsNone(Wrong):
    """Its answers are none."""

    def finish_poll(self, handle: Poll) -> Any:
        super().finish_poll(handle)


class NoPosition(Wrong):
    """Its answers do not say where to go on."""

    def finish_poll(self, handle: Poll) -> longpoll.Polled:
        return longpoll.Polled(super().finish_poll(handle).bodies)


class Incomplete:
    """Not derived, and without polls."""

    semantics = "offsets"

    def publish(self, queue: str, body: bytes) -> None:
        """Publish nothing."""


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (NoSemantics, "NoSemantics.semantics is 'queue'; set it to 'consuming' or 'offsets'"),
        (ReturnsNone, r"ReturnsNone.finish_poll returned None; return longpoll.Polled\("),
        (NoPosition, "an answer with messages needs a position_next"),
        (Incomplete, "Incomplete has no start_poll and no finish_poll"),
        (None, "Mine.subject is not set"),
    ],
)
def test_a_subject_with_a_mistake_is_told_so(subject: Any, said: str) -> None:
    """The sentence says what to write; it is not a fault of the service."""

    class Mine(longpoll.LongPollMachine):
        pass

    mine = machine(subject) if subject else Mine
    with pytest.raises(SubjectError, match=said):
        mine.exercise(settings(max_examples=5, stateful_step_count=15, database=None, phases=(Phase.generate,)), 14)
    assert issubclass(SubjectError, longpoll.UserError)


def test_what_a_subject_raises_comes_through() -> None:
    """A connection that is refused says nothing of long polling."""

    class Refuses(Wrong):
        def publish(self, queue: str, body: bytes) -> None:
            raise ConnectionRefusedError("nobody listens")

    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        machine(Refuses).exercise(settings(max_examples=5, database=None, phases=(Phase.generate,)), 14)


@pytest.mark.parametrize("where", ["subject", "publish", "start_poll", "finish_poll", "cancel", "restart", "close"])
def test_an_error_that_comes_once_is_the_subject_s_own(where: str) -> None:
    """Hypothesis would call it flaky; the user gets the exception and its step."""
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        if calls == FAILING_CALLS.get(where, 60):
            raise ConnectionResetError("by peer")

    class Unsteady(Wrong):
        def __init__(self) -> None:
            super().__init__()
            if where == "subject":
                fails()

        def close(self) -> None:
            pass

    if where != "subject":
        plain = getattr(Unsteady, where)

        def unsteady(subject: InMemory, *arguments: Any) -> Any:
            fails()
            return plain(subject, *arguments)

        setattr(Unsteady, where, unsteady)
    mine = machine(Unsteady, **PATIENT, burst=4)
    with pytest.raises(ConnectionResetError, match="by peer") as caught:
        mine.exercise(settings(max_examples=12, stateful_step_count=15, database=None, phases=(Phase.generate,)), 14)

    assert any(note.startswith("raised in step ") for note in caught.value.__notes__)
    assert "machine = Mine()" in caught.value.__notes__[-1]


def test_a_failure_is_one_step_with_a_timeline_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of step is tried alone first; the code raises the same violation."""
    excuse_nothing(monkeypatch)
    mine = machine(lambda: InMemory(WakesOne()), **IMPATIENT)
    report = mine.exercise(FEW, 14)

    assert report.property == "no_lost_wakeup"
    assert report.steps == ("wake(queue=0, payload=b'', count=2)",)
    assert 4 <= len(report.timeline) <= 12
    assert report.timeline[0].startswith("      0.0 ms  poll 1 of ")
    assert any("message 0 " in line and " is published to " in line for line in report.timeline)
    assert all(line in str(report) for line in (*report.timeline, *report.code.splitlines(), report.bounds))
    with pytest.raises(ViolationError, match="no_lost_wakeup"):
        exec(report.code, {"Mine": mine})  # noqa: S102 - the report's own


def test_a_verdict_reports_its_bounds() -> None:
    """With the user's own, and what is beyond them is not tried."""
    wide = machine(lambda: InMemory(CutsBodies()), **IMPATIENT, short_ms=(10, 70), body_max=70_000, burst=5)
    narrow = machine(lambda: InMemory(CutsBodies()), **PATIENT, body_max=1_000, burst=5)

    report = wide.exercise(FEW, 14)
    assert report.property == "right_messages"
    assert report.bounds == (
        "waits of 1, 10, 70, 300 ms to their deadlines; 5 messages in a row; bodies of up to 70,000 bytes; "
        "8 polls at once; 2 queues"
    )
    assert narrow.exercise(FEW, 14).property == ""


def test_a_service_may_answer_early_where_its_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And still not lose a message that was there, nor leave a poll waiting that a message came for."""
    excuse_nothing(monkeypatch)
    allowed = {"may_answer_early": True, "burst": 5}

    assert machine(lambda: InMemory(AnswersEarly()), **IMPATIENT, burst=5).exercise(FEW, 14).property == "not_early"
    assert machine(lambda: InMemory(AnswersEarly()), **PATIENT, **allowed).exercise(FEW, 14).property == ""
    lost = machine(lambda: InMemory(WakesOne()), **IMPATIENT, **allowed).exercise(FEW, 14)
    passed = machine(lambda: InMemory(AnswersNothingAtTimes()), **IMPATIENT, **allowed).exercise(FEW, 14)
    assert (lost.property, passed.property) == ("no_lost_wakeup", "nothing_lost")


def test_a_race_is_met_where_no_line_can_be_stopped_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll is on its way while the publish waits for its moment: that takes no turn of the processor from it."""
    excuse_nothing(monkeypatch)
    mine = machine(lambda: InMemory(SlowToHold()), **IMPATIENT)()
    with pytest.raises(longpoll.LongpollError, match="no_lost_wakeup"):
        mine.cross(queue=0, payload=b"", rounds=16, gap_us=2_000)
    mine.teardown()


def test_a_machine_runs_by_itself_too() -> None:
    """As Hypothesis's own tools make one: the violation is raised at the step."""
    mine = machine(lambda: InMemory(Early()))()
    with pytest.raises(longpoll.LongpollError, match="not_early"):
        mine.expire(queue=0, which=2)
    mine.teardown()

    assert isinstance(mine.example, Example)
    assert mine.run.counts[EXPIRED] == mine.run.counts[FOUND] == 0
    begun_ns = time.monotonic_ns()
    mine.run.watch.wait_seen(begun_ns + 10**12)
    assert time.monotonic_ns() - begun_ns < 10**10

"""The kit finds faults of a service, passes correct services, and claims no more than a run showed."""

from __future__ import annotations

import time
import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field
from hypothesis import Phase, settings
from model_tests.kit import services
from model_tests.kit.services import (
    AnswersEarly,
    AnswersNothingAtTimes,
    CutsBodies,
    Early,
    Feed,
    HttpService,
    HttpSubject,
    InMemory,
    Late,
    Poll,
    SlowToHold,
    TakeQueue,
    WakesOne,
)
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_kit import example as kit_example
from longpoll_kit.errors import StandstillError, SubjectError, ViolationError
from longpoll_kit.example import EXPIRED, FOUND, WOKEN, Example
from longpoll_kit.history import RecordedHistory
from longpoll_kit.model import Allowances, Ask, OffsetQueue
from longpoll_kit.polls import PATIENCE_MAX_MS, Polls
from longpoll_kit.run import KitReport
from longpoll_kit.subject import Polled
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.real import RealRuntime

GOOD: Final = settings(max_examples=6, stateful_step_count=15, database=None)
BAD: Final = settings(max_examples=60, stateful_step_count=15, database=None, phases=(Phase.generate,))
SEED: Final = 14
SMALL: Final = {"polls_max": 8, "silence_ms": 0}
"""Without the steps that `test_contracts` is about."""
IMPATIENT: Final = {"wake_ms": 200, "late_ms": 150, "long_ms": 500, **SMALL}
"""These limits find a faulty service sooner."""
TIMED: Final = {"no_lost_wakeup": "wake_ms", "answered_by_deadline": "late_ms"}
"""Properties whose violation a host pause excuses, with their limits."""
PATIENT: Final = {"wake_ms": 3_000, "late_ms": 3_000, "long_ms": 3_500, **SMALL}
"""A machine that is busy with other tests delays a correct one."""

FAULTS: Final = {
    services.LooksThenWaits: {"no_lost_wakeup"},
    services.NotifiesThenAppends: {"no_lost_wakeup"},
    services.WakesOne: {"no_lost_wakeup"},
    services.NeverWakes: {"no_lost_wakeup"},
    services.Late: {"answered_by_deadline"},
    services.Early: {"not_early"},
    services.GivesUpOnOthers: {"not_early"},
    services.BeginsOneBefore: {"in_order", "answered_once"},
    services.RepeatsItself: {"answered_once"},
    services.LeavesOneOut: {"nothing_lost"},
    services.MixesQueues: {"right_messages"},
    services.ForgetsOnRestart: {"kept_by_restart"},
    services.TakesAfterCancel: {"nothing_lost", "kept_by_restart", "cancelled_is_over"},
    services.DropsAtCancel: {"nothing_lost", "kept_by_restart"},
    services.GivesToAll: {"answered_once"},
    services.TakesLastFirst: {"in_order"},
    services.AnswersNothingAtTimes: {"not_early", "nothing_lost"},
    services.NeverEndsAMillisecond: {"answered_by_deadline"},
    services.DropsWhatIsBuffered: {"nothing_lost"},
    services.TakesMoreThanItGives: {"nothing_lost"},
    services.CutsBodies: {"right_messages"},
}
"""A service with a fault -> the properties by which it may be found first."""

QUICK: Final = {
    services.WakesOne,
    services.Early,
    services.RepeatsItself,
    services.LeavesOneOut,
    services.MixesQueues,
    services.DropsWhatIsBuffered,
    services.CutsBodies,
    services.Late,
}
"""One of each kind that no other test has; the others say the same of a fault that is like it.

`GivesToAll` is not among them: it needs two threads to meet between two calls, and a slow machine misses that.
"""


def machine(subject: Any, **attributes: Any) -> type[longpoll.LongPollMachine]:
    """A machine class for a subject, as a user would derive it."""
    return type("Mine", (longpoll.LongPollMachine,), {"subject": staticmethod(subject), **SMALL, **attributes})


@contextmanager
def served(feed: Feed) -> Iterator[HttpService]:
    service = HttpService(feed)
    try:
        yield service
    finally:
        service.stop()


def exercise(service: type[Feed], chosen: settings, **attributes: Any) -> KitReport:
    """The kit's report on a service in memory."""
    return machine(lambda: InMemory(service()), **attributes).exercise(chosen, SEED)


def excuse_nothing(patch: pytest.MonkeyPatch) -> None:
    """Make the kit ignore host pauses, so that a busy host hides no fault."""
    patch.setattr(HostPauseWatch, "stalled_ms", lambda *_interval: 0.0)


def limits_for(patch: pytest.MonkeyPatch, properties: set[str]) -> dict[str, int]:
    """Limits with which a busy host neither hides a violation of these properties nor causes another."""
    if properties & TIMED.keys():
        excuse_nothing(patch)
    return {**IMPATIENT, **{TIMED[name]: 3_000 for name in TIMED.keys() - properties}}


@pytest.mark.parametrize("service", [Feed, pytest.param(TakeQueue, marks=pytest.mark.long)])
def test_a_correct_service_is_valid(service: type[Feed]) -> None:
    """The report counts each ability of the subject."""
    report = exercise(service, GOOD, **PATIENT)

    assert report.verdict == "valid", report
    assert report.left_out == ("acknowledge", "answered_again")
    assert min(report.counts.values()) > 0


@pytest.mark.parametrize("service", quick_if(FAULTS, QUICK.__contains__), ids=lambda fault: fault.__name__)
def test_each_fault_is_found(service: type[Feed], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit names the property that the fault breaks, and the steps that lead there."""
    report = exercise(service, BAD, **limits_for(monkeypatch, FAULTS[service]))

    assert report.verdict == "invalid", report
    assert report.property in FAULTS[service], report
    assert report.steps


def test_a_correct_service_behind_http_is_valid() -> None:
    """The connections are real; polls are held while others are sent."""
    with served(TakeQueue()) as service:
        report = machine(lambda: HttpSubject(service), **PATIENT).exercise(
            settings(GOOD, max_examples=4, stateful_step_count=10), SEED
        )

    assert report.verdict == "valid", report
    assert set(report.left_out) == {"acknowledge", "answered_again", "restart"}


def test_a_lost_wakeup_behind_http_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a look and the wait, where no line can be stopped at."""
    excuse_nothing(monkeypatch)
    with served(SlowToHold()) as service:
        report = machine(lambda: HttpSubject(service), **IMPATIENT).exercise(BAD, SEED)

    assert (report.verdict, report.property) == ("invalid", "no_lost_wakeup"), report


FAILING_CALLS = {"subject": 14, "cancel": 4, "restart": 2, "close": 14}
"""Method -> which of its calls fails; of the others a later one."""
FEW = settings(max_examples=1, stateful_step_count=1, database=None)


class LateOnce(Feed):
    """Exactly one poll waits too long."""

    was_late = False

    def poll(self, poll: Poll) -> list[bytes]:
        if poll.timeout_ms < 100 and not LateOnce.was_late:
            LateOnce.was_late = True
            poll.timeout_ms += 2_000
        return super().poll(poll)


class AnswersTwice(InMemory):
    """A subject that reports a second answer."""

    def answered_again(self, handle: Poll) -> bool:
        """The first poll was answered again."""
        return handle.timeout_ms > 0


class AnswersOnce(InMemory):
    """A subject that looked for a second answer and found none."""

    def answered_again(self, handle: Poll) -> bool:
        return handle.timeout_ms < 0


def test_what_was_not_seen_is_unknown() -> None:
    """One step of one example shows too little: the case is skipped with the reason."""
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
    """The violation is an AssertionError, so pytest and unittest report a failure."""
    mine = machine(lambda: InMemory(Early()), seed=14)
    mine.TestCase.settings = settings(max_examples=5, database=None, phases=(Phase.generate,))
    result = unittest.TestResult()
    mine.TestCase().run(result)

    assert len(result.failures) == 1
    assert "invalid: not_early: poll" in result.failures[0][1]
    assert "  1. " in result.failures[0][1]
    assert result.errors == []


def test_two_machines_have_cases_of_their_own() -> None:
    """Each has its own settings."""
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
    """A delay during a host pause is excused; without the pause it is a violation."""
    monkeypatch.setattr(HostPauseWatch, "stalled_ms", lambda _watch, begin_ns, end_ns: (end_ns - begin_ns) / 1e6)
    few = settings(max_examples=4, stateful_step_count=10, database=None, phases=(Phase.generate,))
    mine = machine(lambda: InMemory(Late()), **IMPATIENT, short_ms=(10, 500, 500))
    report = mine.exercise(few, 14)

    assert report.property == "", report
    assert report.counts[EXPIRED] > 0
    assert (report.verdict, report.excused > 0) == ("unknown", True)
    assert f"excused, because the host paused: {report.excused} late answers" in str(report)
    excuse_nothing(monkeypatch)
    assert mine.exercise(few, 14).property == "answered_by_deadline"


def test_a_machine_that_never_goes_on_ends_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit counts it, and the verdict is unknown."""

    def stands_still(_polls: Polls, *_arguments: Any) -> bool:
        raise StandstillError("the machine stood still")

    monkeypatch.setattr(Polls, "wait_any", stands_still)
    report = machine(lambda: InMemory(Feed()), long_ms=100).exercise(
        settings(max_examples=2, stateful_step_count=10, database=None), 14
    )

    assert PATIENCE_MAX_MS > 10_000
    assert report.verdict == "unknown"
    assert "while the host paused" in report.why


def test_a_second_answer_is_seen_where_one_can_look() -> None:
    """For a subject that cannot look, the report has a note."""
    few = settings(max_examples=4, stateful_step_count=15, database=None, phases=(Phase.generate,))
    twice = machine(lambda: AnswersTwice(Feed())).exercise(few, 14)
    once = machine(lambda: AnswersOnce(Feed()), **PATIENT).exercise(few, 14)

    assert (twice.verdict, twice.property) == ("invalid", "answered_once")
    assert (once.verdict, once.left_out) == ("valid", ("acknowledge",))


class HoldsWhatMayNotWait(Feed):
    """A poll that may not wait is held until a message comes."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms = poll.timeout_ms or 3_600_000
        return super().poll(poll)


def test_a_poll_that_may_not_wait_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step waits for the answer, although no message is there."""
    monkeypatch.setattr(kit_example, "GIVEN_UP_MS", 50)
    mine = machine(lambda: InMemory(HoldsWhatMayNotWait()), late_ms=50)()
    queue = mine.example.queues[0]
    with pytest.raises(ViolationError, match="answered_by_deadline"):
        mine.do("poll", {}, lambda: mine.example.poll(queue, "end", 0, 1))
    mine.example.subject.publish(queue.name, b"")
    mine.teardown()


class GarbledAtCancel(InMemory):
    """A subject whose poll ends with a broken answer after its cancellation."""

    def finish_poll(self, handle: Poll) -> longpoll.Polled:
        answer = super().finish_poll(handle)
        if handle.is_cancelled:
            raise ViolationError("right_messages", "half an answer")
        return answer


def test_a_cancelled_poll_may_fail_but_not_break_a_property() -> None:
    """Only a ViolationError counts; the kit ignores other exceptions of a cancelled poll."""
    mine = machine(lambda: GarbledAtCancel(Feed()), **PATIENT)()
    with pytest.raises(ViolationError, match="half an answer"):
        mine.cancel(queue=0, payload=b"", order="cancel only", gap_us=0)
    mine.teardown()


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
    """Its polls return None."""

    def finish_poll(self, handle: Poll) -> Any:
        super().finish_poll(handle)


class NoPosition(Wrong):
    """Its answers lack the next position."""

    def finish_poll(self, handle: Poll) -> longpoll.Polled:
        return longpoll.Polled(super().finish_poll(handle).bodies)


class Incomplete:
    """It is not derived from `LongPollSubject`, and has no polls."""

    semantics = "offsets"

    def publish(self, queue: str, body: bytes) -> None:
        """Publish nothing."""


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (
            NoSemantics,
            "NoSemantics.semantics is 'queue'; set it to 'consuming' or 'offsets' or 'confirming' or 'newest'",
        ),
        (ReturnsNone, r"ReturnsNone.finish_poll returned None; return longpoll.Polled\("),
        (NoPosition, "an answer with messages needs a position_next"),
        (Incomplete, "Incomplete has no start_poll and no finish_poll"),
        (None, "Mine.subject is not set"),
    ],
)
def test_a_subject_with_a_mistake_is_told_so(subject: Any, said: str) -> None:
    """The error names the fix, and is not reported as a fault of the service."""

    class Mine(longpoll.LongPollMachine):
        pass

    mine = machine(subject) if subject else Mine
    with pytest.raises(SubjectError, match=said):
        mine.exercise(settings(max_examples=5, stateful_step_count=15, database=None, phases=(Phase.generate,)), 14)
    assert issubclass(SubjectError, longpoll.UserError)


def test_what_a_subject_raises_comes_through() -> None:
    """A refused connection is not a violation."""

    class Refuses(Wrong):
        def publish(self, queue: str, body: bytes) -> None:
            raise ConnectionRefusedError("nobody listens")

    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        machine(Refuses).exercise(settings(max_examples=5, database=None, phases=(Phase.generate,)), 14)


@pytest.mark.parametrize("where", ["subject", "publish", "start_poll", "finish_poll", "cancel", "restart", "close"])
def test_an_error_that_comes_once_is_the_subject_s_own(where: str) -> None:
    """The user gets the exception and its step, instead of Hypothesis's report of a flaky test."""
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
    mine = machine(lambda: InMemory(WakesOne()), **limits_for(monkeypatch, {"no_lost_wakeup"}))
    report = mine.exercise(FEW, 14)

    assert report.property == "no_lost_wakeup"
    assert report.steps == ("wake(queue=0, payload=b'', count=2)",)
    assert 4 <= len(report.timeline) <= 12
    assert report.timeline[0].startswith("      0.0 ms  poll 1 of ")
    assert any("message 0 " in line and " is published to " in line for line in report.timeline)
    assert all(line in str(report) for line in (*report.timeline, *report.code.splitlines(), report.bounds))
    names: dict[str, Any] = {"Mine": mine}
    with pytest.raises(ViolationError, match="no_lost_wakeup"):
        exec(report.code, names)  # noqa: S102 - the report's own
    names["machine"].teardown()


def test_a_message_of_another_queue_must_not_end_a_wait() -> None:
    """It is published halfway, when the service has certainly held the poll."""
    mine = machine(lambda: InMemory(services.GivesUpOnOthers()), **PATIENT)()
    with pytest.raises(ViolationError, match="not_early"):
        mine.wait(queue=0, timeout_ms=1_000)
    (message,), (ask,) = mine.example.queues[-1].messages, mine.example._asks
    assert message.begun_ns - ask.begun_ns >= 500_000_000
    mine.teardown()


def test_a_verdict_reports_its_bounds() -> None:
    """They include the user's settings, and the kit stays within them."""
    wide = machine(lambda: InMemory(CutsBodies()), **IMPATIENT, short_ms=(10, 70), body_max=70_000, burst=5)
    narrow = machine(lambda: InMemory(CutsBodies()), **PATIENT, body_max=1_000, burst=5)

    report = wide.exercise(FEW, 14)
    assert report.property == "right_messages"
    assert report.bounds == (
        "waits of 0, 1, 10, 70, 300 ms to their deadlines; 5 messages in a row; bodies of up to 70,000 bytes; "
        "8 polls at once; 2 queues"
    )
    assert narrow.exercise(FEW, 14).property == ""


def test_a_service_may_answer_early_where_its_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must still answer with an available message, and wake a poll for a new one."""
    excuse_nothing(monkeypatch)
    allowed = {"may_answer_early": True, "burst": 5}

    assert machine(lambda: InMemory(AnswersEarly()), **IMPATIENT, burst=5).exercise(FEW, 14).property == "not_early"
    assert machine(lambda: InMemory(AnswersEarly()), **PATIENT, **allowed).exercise(FEW, 14).property == ""
    lost = machine(lambda: InMemory(WakesOne()), **IMPATIENT, **allowed).exercise(FEW, 14)
    passed = machine(lambda: InMemory(AnswersNothingAtTimes()), **IMPATIENT, **allowed).exercise(FEW, 14)
    assert (lost.property, passed.property) == ("no_lost_wakeup", "nothing_lost")


def test_a_race_is_met_where_no_line_can_be_stopped_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher waits without taking processor time from the poll in flight."""
    excuse_nothing(monkeypatch)
    mine = machine(lambda: InMemory(SlowToHold()), **IMPATIENT)()
    with pytest.raises(longpoll.LongpollError, match="no_lost_wakeup"):
        mine.cross(queue=0, payload=b"", rounds=16, gap_us=2_000)
    mine.teardown()


def test_a_machine_runs_by_itself_too() -> None:
    """Hypothesis's tools can run it: the step raises the violation."""
    mine = machine(lambda: InMemory(Early()))()
    with pytest.raises(longpoll.LongpollError, match="not_early"):
        mine.expire(queue=0, which=2)
    mine.teardown()

    assert isinstance(mine.example, Example)
    assert mine.run.counts[EXPIRED] == mine.run.counts[FOUND] == 0
    begun_ns = time.monotonic_ns()
    mine.run.watch.wait_seen(begun_ns + 10**12)
    assert time.monotonic_ns() - begun_ns < 10**10


JUDGED_FAULTS: Final = {
    services.NeverWakes: {"no_lost_wakeup"},
    services.WakesOne: {"no_lost_wakeup"},
    services.Late: {"answered_by_deadline"},
    services.BeginsOneBefore: {"answer_is_right"},
    services.RepeatsItself: {"answer_is_right"},
    services.LeavesOneOut: {"answer_is_right"},
}
"""A service with a fault -> the judge's properties by which its history may be convicted."""
FEW_SHORT: Final = settings(max_examples=3, stateful_step_count=10, database=None)
JUDGED_QUICK: Final = {services.WakesOne, services.LeavesOneOut}
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
    """It judges found, woken, expired, cancelled and restarted polls."""
    report, result, found = told(tmp_path, Feed, settings(GOOD, max_examples=3), **PATIENT)

    assert report.verdict == "valid", report
    assert result.verdict in {"valid", "unknown"}
    assert found["violated"] == set()
    assert result.requests >= sum(report.counts.values()) / 2


@pytest.mark.parametrize(
    "service", quick_if(JUDGED_FAULTS, JUDGED_QUICK.__contains__), ids=lambda fault: fault.__name__
)
def test_the_judge_convicts_a_faulty_one(service: type[Feed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge finds the fault in the history of the same run."""
    report, result, found = told(tmp_path, service, BAD, **limits_for(monkeypatch, JUDGED_FAULTS[service]))

    assert report.verdict == "invalid", report
    assert result.verdict == "invalid"
    assert found["violated"] & JUDGED_FAULTS[service]


@pytest.mark.long
@pytest.mark.parametrize("is_planted", [False, True])
def test_one_delay_convicts_nobody(is_planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host may have caused it, so it is not recorded. With the injected fault it is, and is a violation."""
    monkeypatch.setattr(LateOnce, "was_late", False)
    excuse_nothing(monkeypatch)
    if is_planted:
        tell = Example._tell_answered
        monkeypatch.setattr(Example, "_tell_answered", lambda *of, **_doubted: tell(*of, is_doubted=False))
    report, result, found = told(tmp_path, LateOnce, FEW_SHORT, wake_ms=1_500, late_ms=1_000, long_ms=5_000)

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
    """An unsupported subject is a mistake in the call, and the error names the next step."""
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
    """The history has the earliest possible begin and a certain end, and no poll with an uncertain end."""
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
    """Its offset is behind the end, because no message has its number."""
    heard = Heard()
    teller = RecordedHistory(heard, RealRuntime().lock())
    queue = OffsetQueue("q", Allowances())
    queue.publish(b"0", 5)
    ask = Ask(1, "q", 0, None, 100, 25)
    teller.sent(ask)
    ask.answer = Polled([b"0", b"unheard of"])
    teller.answered(queue, ask, lambda: 40)

    assert heard.told[1:] == [("answered", "poll from 0", [0, 1], 2, 40)]

"""The kit's reports, verdicts and reasons, mistakes in subjects, host pauses, and histories."""

from __future__ import annotations

import time
import unittest
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field
from hypothesis import settings
from model_tests.kit import services, virtual
from model_tests.kit.services import Feed, InMemory, LateOnce, Poll, SlowToHold, TakeQueue
from model_tests.kit.test_services import FAULTS, of
from model_tests.kit.virtual import FEW, SEED, SOME, NoPauses, in_world

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_kit.errors import StandstillError, SubjectError, ViolationError
from longpoll_kit.example import EXPIRED, FOUND, NEEDED, TIMED, WOKEN, Example
from longpoll_kit.history import RecordedHistory
from longpoll_kit.model import Allowances, Ask, ConsumingQueue, OffsetQueue, Queue
from longpoll_kit.polls import PATIENCE_MAX_MS, Polls
from longpoll_kit.run import KitReport, Run, interval
from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_runtime import Runtime
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.real import RealRuntime

SMALL: Final[dict[str, Any]] = {"polls_max": 8, "silence_ms": 0, "burst": 20}
IMPATIENT: Final = {"wake_ms": 200, "late_ms": 150, "long_ms": 500, **SMALL}
"""Limits that find a fault sooner in real time; on a busy machine even a correct service would exceed them."""
PATIENT: Final = {"wake_ms": 3_000, "late_ms": 3_000, "long_ms": 3_500, **SMALL}
"""Limits that a correct service keeps on a machine that is busy with other tests."""


def machine(subject: Any, **attributes: Any) -> type[longpoll.LongPollMachine]:
    return type("Mine", (longpoll.LongPollMachine,), {"subject": staticmethod(subject), **SMALL, **attributes})


# -- real time ---------------------------------------------------------------------------------------------------------


def excuse_nothing(patch: pytest.MonkeyPatch) -> None:
    """Make the kit ignore host pauses, so that a busy host hides no fault."""
    patch.setattr(HostPauseWatch, "stalled_ms", lambda *_interval: 0.0)


@pytest.mark.parametrize(
    ("service", "who"), [(services.LooksThenWaits, "poll"), (services.NotifiesThenAppends, "publish")]
)
def test_a_race_between_two_lines_is_found_at_once(
    service: type[Feed], who: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kit pauses a thread before each line, so it finds the race at once."""
    excuse_nothing(monkeypatch)
    mine = machine(lambda: InMemory(service()), **IMPATIENT)()
    with pytest.raises(ViolationError, match="no_lost_wakeup"):
        mine.preempt(queue=0, payload=b"", who=who)
    mine.teardown()


def test_a_race_is_found_if_no_line_can_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher waits without using processor time, so the poll in flight can continue."""
    excuse_nothing(monkeypatch)
    mine = machine(lambda: InMemory(SlowToHold()), **IMPATIENT)()
    with pytest.raises(ViolationError, match="no_lost_wakeup"):
        mine.cross(queue=0, payload=b"", rounds=16, gap_us=2_000)
    mine.teardown()


def test_a_paused_poll_is_not_counted_as_held() -> None:
    """A paused poll may reach the service only after its message was published."""
    mine = machine(InMemory, **PATIENT)()
    mine.preempt(queue=0, payload=b"", who="poll")
    counts = dict(mine.run.counts)
    mine.teardown()

    assert WOKEN not in counts
    assert sum(counts.values()) > 0


def test_a_machine_also_runs_under_hypothesis_alone() -> None:
    """Hypothesis's own runner can execute the machine, whose step raises the violation."""
    mine = machine(lambda: InMemory(Feed(holds=lambda ms: ms // 2)))()
    with pytest.raises(longpoll.LongpollError, match="not_early"):
        mine.expire(queue=0, which=2)
    mine.teardown()

    assert isinstance(mine.example, Example)
    assert mine.run.counts[EXPIRED] == mine.run.counts[FOUND] == 0
    begun_ns = time.monotonic_ns()
    mine.run.watch.wait_seen(begun_ns + 10**12)
    assert time.monotonic_ns() - begun_ns < 10**10


# -- reports and verdicts ----------------------------------------------------------------------------------------------


def case(make: virtual.Make, chosen: settings) -> tuple[unittest.TestResult, KitReport]:
    def main(runtime: Runtime) -> tuple[unittest.TestResult, KitReport]:
        mine, result = virtual.machine(make, runtime), unittest.TestResult()
        mine.TestCase.settings = chosen
        mine.TestCase().run(result)
        return result, mine.TestCase.report

    return in_world(main)


def test_too_little_evidence_is_unknown() -> None:
    """One step of one example is too little evidence, so the case is skipped with the reason."""
    result, report = case(of(Feed), FEW)

    assert report.verdict == "unknown"
    assert report.why.startswith("no poll was seen ")
    assert WOKEN in report.why
    assert "run more examples" in str(report)
    assert (len(result.skipped), "unknown" in result.skipped[0][1]) == (1, True)
    assert (result.failures, result.errors) == ([], [])


def test_a_case_fails_with_the_steps() -> None:
    result, _report = case(of(Feed, holds=lambda ms: ms // 2), SOME)

    assert len(result.failures) == 1
    assert "invalid: not_early: poll" in result.failures[0][1]
    assert "  1. " in result.failures[0][1]
    assert result.errors == []


def test_two_machines_have_separate_cases() -> None:
    one, other = machine(InMemory), machine(InMemory)
    one.TestCase.settings = FEW

    assert one.TestCase is one.TestCase
    assert other.TestCase.settings is not FEW


def test_a_failure_is_minimal_with_a_timeline_and_code() -> None:
    """The kit tries each kind of step alone first, and the code in its report raises the same violation."""

    def main(runtime: Runtime) -> None:
        mine = virtual.machine(of(Feed, wakes=1), runtime)
        report = mine.exercise(FEW, SEED)
        assert report.property == "no_lost_wakeup"
        assert report.steps == ("wake(queue=0, payload=b'', count=2)",)
        assert 4 <= len(report.timeline) <= 12
        assert report.timeline[0].startswith("      0.0 ms  poll 1 of ")
        assert any("message 0 " in line and " is published to " in line for line in report.timeline)
        assert all(line in str(report) for line in (*report.timeline, *report.code.splitlines()))
        names: dict[str, Any] = {"Mine": mine}
        with pytest.raises(ViolationError, match="no_lost_wakeup"):
            exec(report.code, names)  # noqa: S102 - the report's own
        names["machine"].teardown()

    in_world(main)


def test_a_report_names_each_axis_and_how_far_it_went() -> None:
    wide: dict[str, Any] = {"short_ms": (10, 70), "body_max": 70_000, "burst": 5, "polls_max": 8, "silence_ms": 0}
    right = virtual.exercise(of(Feed), **wide)
    cut = virtual.exercise(of(Feed, keeps=lambda body: body[: 1 << 15]), **wide)
    reached = {"queues": "2", "waits": "up to 500 ms", "polls at once": "8 woken, 8 to their deadlines"}

    assert right.axes.items() >= {**reached, "burst": "5 messages", "bodies": "24 of 70,000 bytes"}.items()
    assert {"deadlines", "positions", "cancelled polls", "restart"} <= right.axes.keys()
    assert all(reached and f"{axis} {reached}" in str(right) for axis, reached in right.axes.items())
    assert "a stopped poll" in right.axes
    assert (cut.property, cut.axes.items() >= reached.items(), "bodies" in cut.axes) == ("right_messages", True, False)
    assert virtual.exercise(of(Feed, keeps=lambda body: body[: 1 << 15]), body_max=1_000).property == ""


@pytest.mark.parametrize(
    ("hits", "tries", "bounds"),
    [(0, 0, (0.0, 1.0)), (0, 1_000, (0.0, 0.0038)), (1, 1_000, (0.0002, 0.0056)), (5, 10, (0.2366, 0.7634))],
)
def test_a_rate_has_bounds(hits: int, tries: int, bounds: tuple[float, float]) -> None:
    assert interval(hits, tries) == pytest.approx(bounds, abs=1e-4)


def test_one_delay_is_unknown_and_two_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateOnce, "was_late", False)
    once = virtual.exercise(of(LateOnce), SOME)

    assert LateOnce.was_late
    assert (once.verdict, once.late) == ("unknown", 1), once
    assert "can be the machine's doing: answered_by_deadline" in once.why
    assert "run it again" in once.why
    assert f"late without a host pause: 1 of {once.timed} " in str(once)


def test_a_second_delay_of_a_run_is_a_violation() -> None:
    run = Run(RealRuntime(), "kit")
    run.suspect(ViolationError("answered_by_deadline", "first"))
    with pytest.raises(ViolationError, match="second"):
        run.suspect(ViolationError("answered_by_deadline", "second"))


@pytest.mark.parametrize(
    ("queue", "bodies", "cancelled_ns", "prop"),
    [
        (OffsetQueue("q", Allowances()), [b"0"], 9, "cancelled_is_over"),
        (OffsetQueue("q", Allowances()), [b"0"], 11, None),
        (ConsumingQueue("q", Allowances(), redelivery_ms=0), [b"0"], 9, "cancelled_is_over"),
        (ConsumingQueue("q", Allowances(), redelivery_ms=0), [b"0", b"0"], None, "answered_once"),
        (ConsumingQueue("q", Allowances(), redelivery_ms=0), [b"0"], None, None),
    ],
)
def test_an_answer_is_judged(queue: Queue, bodies: list[bytes], cancelled_ns: int | None, prop: str | None) -> None:
    """No message may come after a cancel, or twice in one answer, whatever the subject declares."""
    queue.publish(b"0", 10).acked_ns = 12
    ask = Ask(1, "q", 0, None, 100, 5, cancelled_ns=cancelled_ns, ended_ns=20, answer=Polled(bodies, position_next=1))
    with pytest.raises(ViolationError, match=prop) if prop else nullcontext():
        queue.judge(ask)


@pytest.mark.parametrize(
    ("reached", "late", "why"),
    [
        ("40 woken (no further, because the host paused)", 0, ""),
        ("not shown (no further, because the host paused)", 0, "in each try of polls at once; run it on a host"),
        ("200 woken", 9, "0 wakes and 9 deadlines were late"),
    ],
)
def test_pauses_in_one_step_affect_only_its_axis(reached: str, late: int, why: str) -> None:
    """One pause makes all polls of a thundering herd late, which would outweigh the random steps."""
    run = Run(RealRuntime(), "kit", counts=Counter(dict.fromkeys([*NEEDED, TIMED], 1)), excused_alone=500)
    run.axes["polls at once"] = reached
    run.excused[TIMED] = late
    report = run.report()

    assert (report.verdict, report.excused) == ("unknown" if why else "valid", 500 + late)
    assert why in report.why


class Stalled(NoPauses):
    """A host monitor that reports a pause for the whole time."""

    def stalled_ms(self, begin_ns: int, end_ns: int) -> float:
        return (end_ns - begin_ns) / 1e6


def test_a_host_pause_causes_no_violation() -> None:
    """A delay during a host pause is excused, and without the pause it is a violation."""
    late = of(Feed, holds=lambda ms: 2 * ms)
    report = virtual.exercise(late, SOME, watch=Stalled(), short_ms=(10, 500, 500), **SMALL)

    assert report.property == "", report
    assert report.counts[EXPIRED] > 0
    assert (report.verdict, report.excused > 0) == ("unknown", True)
    assert "run it on a host that is less busy" in report.why
    assert f"excused, because the host paused: {report.excused} late answers" in str(report)
    assert virtual.exercise(late, SOME).property == "answered_by_deadline"


def test_an_endless_host_pause_ends_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit counts the examples that a host pause ended, and the verdict is unknown."""

    def stands_still(_polls: Polls, *_arguments: Any) -> bool:
        raise StandstillError("the machine stood still")

    monkeypatch.setattr(Polls, "wait_any", stands_still)
    report = virtual.exercise(of(Feed), settings(SOME, max_examples=2))

    assert PATIENCE_MAX_MS > 10_000
    assert report.verdict == "unknown"
    assert "while the host paused" in report.why


# -- mistakes and optional abilities of subjects ----------------------------------------------------------------------


class Looks(InMemory):
    """A subject that reports a second answer to polls with certain timeouts."""

    again = range(0)

    def answered_again(self, handle: Poll) -> bool:
        return handle.timeout_ms in self.again


def test_a_second_answer_is_detected_if_the_subject_can_see_it() -> None:
    """For a subject that cannot see a second answer, the report has a note."""
    twice, once = (
        virtual.exercise(of(Feed, Looks, AGAIN=range(end)), settings(SOME, max_examples=6)) for end in (100_000, 0)
    )

    assert (twice.verdict, twice.property) == ("invalid", "answered_once")
    assert (once.verdict, "answered_again" in once.left_out) == ("valid", False)


def test_a_poll_that_may_not_wait_is_answered_at_once() -> None:
    """The step waits for the answer, although there is no message."""

    def main(runtime: Runtime) -> None:
        mine = virtual.machine(of(Feed, holds=lambda ms: ms or 20_000), runtime)()
        queue = mine.example.queues[0]
        with pytest.raises(ViolationError, match="answered_by_deadline"):
            mine.do("poll", {}, lambda: mine.example.poll(queue, "end", 0, 1))

    in_world(main)


class GarbledAtCancel(InMemory):
    """A subject whose poll ends with a broken answer after its cancellation."""

    def finish_poll(self, handle: Poll) -> Polled:
        answer = super().finish_poll(handle)
        if handle.is_cancelled:
            raise ViolationError("right_messages", "half an answer")
        return answer


class ReturnsNone(InMemory):
    def finish_poll(self, handle: Poll) -> Any:
        super().finish_poll(handle)


class NoPosition(InMemory):
    def finish_poll(self, handle: Poll) -> Polled:
        return Polled(super().finish_poll(handle).bodies)


class Incomplete:
    """A class that is not derived from `LongPollSubject` and has no polls."""

    semantics = "offsets"

    def publish(self, queue: str, body: bytes) -> None:
        """Publish nothing."""


class Refuses(InMemory):
    def publish(self, queue: str, body: bytes) -> None:
        raise ConnectionRefusedError("nobody listens")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            of(Feed, SEMANTICS="queue"),
            SubjectError,
            "InMemory.semantics is 'queue'; set it to 'consuming' or 'offsets' or 'confirming' or 'newest'",
        ),
        (of(Feed, ReturnsNone), SubjectError, r"ReturnsNone.finish_poll returned None; return longpoll.Polled\("),
        (of(Feed, NoPosition), SubjectError, "an answer with messages needs a position_next"),
        (lambda _runtime: Incomplete(), SubjectError, "Incomplete has no start_poll and no finish_poll"),
        (of(Feed, Refuses), ConnectionRefusedError, "nobody listens"),
    ],
)
def test_a_mistake_in_a_subject_is_raised(make: Any, error: type[Exception], said: str) -> None:
    """The error says how to fix the subject, and the kit does not report the mistake as a fault of the service."""
    with pytest.raises(error, match=said):
        virtual.exercise(make, SOME)


def test_a_mistake_in_a_machine_is_raised() -> None:
    """A machine without a subject is an error. A violation that a subject raises counts even for a cancelled poll."""
    with pytest.raises(SubjectError, match=r"LongPollMachine\.subject is not set"):
        longpoll.LongPollMachine.exercise(FEW)
    assert issubclass(SubjectError, longpoll.UserError)
    report = virtual.exercise(of(Feed, GarbledAtCancel))
    assert (report.property, "half an answer" in report.why) == ("right_messages", True)


FAILING_CALLS: Final = {"subject": 14, "cancel": 4, "restart": 2, "close": 14}
"""Method -> the number of its call that fails."""


@pytest.mark.parametrize("where", ["subject", "publish", "start_poll", "finish_poll", "cancel", "restart", "close"])
def test_an_error_that_occurs_once_is_raised_as_it_is(where: str) -> None:
    """The user gets the exception and its step, instead of Hypothesis's report of a flaky test."""
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        if calls == FAILING_CALLS.get(where, 60):
            raise ConnectionResetError("by peer")

    class Unsteady(InMemory):
        def close(self) -> None:
            pass

    if where != "subject":
        plain = getattr(Unsteady, where)

        def unsteady(subject: InMemory, *arguments: Any) -> Any:
            fails()
            return plain(subject, *arguments)

        setattr(Unsteady, where, unsteady)

    def make(runtime: Runtime) -> LongPollSubject:
        if where == "subject":
            fails()
        return Unsteady(Feed(runtime))

    with pytest.raises(ConnectionResetError, match="by peer") as caught:
        virtual.exercise(make, SOME)

    assert any(note.startswith("raised in step ") for note in caught.value.__notes__)
    assert "machine = Mine()" in caught.value.__notes__[-1]


# -- histories ---------------------------------------------------------------------------------------------------------


def told(directory: Path, make: virtual.Make) -> tuple[KitReport, Result, dict[str, set[str]]]:
    report = virtual.exercise(
        make, settings(SOME, max_examples=6), history=lambda runtime: longpoll.HistoryWriter(runtime, directory)
    )
    result = longpoll.judge(directory, wake_ms=500, late_ms=250)
    found: dict[str, set[str]] = {"violated": set(), "unknown": set()}
    for finding in result.findings:
        found[finding.verdict].add(finding.property)
    return report, result, found


def test_the_judge_reports_no_violation_of_a_correct_service(tmp_path: Path) -> None:
    report, result, found = told(tmp_path, of(Feed))

    assert report.verdict == "valid", report
    assert result.verdict in {"valid", "unknown"}
    assert found["violated"] == set()
    assert result.requests >= sum(report.counts.values()) / 2


@pytest.mark.parametrize(
    ("name", "prop"),
    [
        ("a message wakes none", "no_lost_wakeup"),
        ("a message wakes one", "no_lost_wakeup"),
        ("a wait of twice its time", "answered_by_deadline"),
        ("one before the position", "answer_is_right"),
        ("the first message twice", "answer_is_right"),
        ("one is left out", "answer_is_right"),
    ],
)
def test_the_judge_finds_a_fault_in_the_same_run(name: str, prop: str, tmp_path: Path) -> None:
    report, result, found = told(tmp_path, FAULTS[name][1])

    assert report.verdict == "invalid", report
    assert result.verdict == "invalid"
    assert prop in found["violated"]


@pytest.mark.parametrize("is_planted", [False, True])
def test_one_delay_is_no_violation(is_planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single late poll is not recorded, because the host may be the cause. If recorded, it is a violation."""
    monkeypatch.setattr(LateOnce, "was_late", False)
    if is_planted:
        tell = Example._tell_answered
        monkeypatch.setattr(Example, "_tell_answered", lambda *of, **_doubted: tell(*of, is_doubted=False))
    report, result, found = told(tmp_path, of(LateOnce))

    assert LateOnce.was_late
    assert report.verdict == "unknown", report
    assert (result.verdict == "invalid") is is_planted
    assert found["violated"] == ({"answered_by_deadline"} if is_planted else set())


@pytest.mark.parametrize(
    ("service", "attributes", "said"),
    [(TakeQueue, {}, "the judge needs offsets"), (Feed, {"visible_ms": 20}, "set visible_ms to 0")],
)
def test_an_unsupported_subject_has_no_history(
    service: type[Feed], attributes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SubjectError, match=said):
        virtual.exercise(of(service), history=lambda runtime: longpoll.HistoryWriter(runtime, tmp_path), **attributes)


@define
class Heard:
    told: list[tuple[object, ...]] = field(factory=list)

    def published(self, queue: str, offset: int, *, since_ns: int | None = None) -> None:
        self.told.append(("published", queue, offset, since_ns))

    def polled(self, queue: str, offset: int, timeout_ms: int, *, since_ns: int | None = None) -> str:
        self.told.append(("polled", queue, offset, timeout_ms, since_ns))
        return f"poll from {offset}"

    def answered(
        self, poll: Any, offsets: Sequence[int] = (), *, end: int | None = None, since_ns: int | None = None
    ) -> None:
        self.told.append(("answered", poll, list(offsets), end, since_ns))

    def abandoned(self, poll: Any) -> None:
        self.told.append(("abandoned", poll))


def test_a_history_claims_only_observed_times() -> None:
    """The history has each poll's earliest possible begin and certain end. A poll with an uncertain end is left out.

    A message whose publish failed gets an offset after the queue's last message.
    """
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
    found.answer, nothing.answer = Polled([b"0", b"unheard of"]), Polled()
    teller.answered(queue, found, lambda: 40)
    teller.answered(queue, nothing, lambda: 41)
    teller.abandoned(cancelled)
    cancelled.answer = Polled([b"2"])
    teller.answered(queue, cancelled, lambda: 42)
    teller.left()
    teller.sent(late)
    teller.left()

    assert heard.told[:3] == [("published", "q", number, 5) for number in range(3)]
    assert heard.told[3:7] == [("polled", "q", number, 100, 25) for number in range(4)]
    assert heard.told[7:] == [
        ("answered", "poll from 0", [0, 4], 5, 40),
        ("answered", "poll from 1", [], None, 41),
        ("abandoned", "poll from 2"),
        ("abandoned", "poll from 3"),
    ]

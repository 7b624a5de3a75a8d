"""`verify --broker` has a row for every stage with any broker, and reports only broken promises of the policy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest
from attrs import define, field
from click.testing import CliRunner
from model_tests.judge.second import observer
from model_tests.judge.second.smallest import strictly, watched
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.judge.faults import plant
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.recording import write

from longpoll.cli import main
from longpoll.output import Exit
from longpoll.verification import limits as limits_module
from longpoll.verification import stages as command
from longpoll.verification.broker_process import HostLatency
from longpoll.verification.limits import Declared, Limits, by_promises, declared, limits_of
from longpoll.verification.report import Outcome, Page, Row
from longpoll.wire import load
from longpoll.wire import race as racing_topic
from longpoll.wire.load import LoadPlan
from longpoll_client.remoting import RemotingClient
from longpoll_conform import capabilities
from longpoll_conform.vectors import recorded
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    COMMIT_NEVER_REGRESSES,
    NO_LOST_WAKEUP,
    Finding,
    FindingVerdict,
    Follow,
    Percentiles,
    Rate,
    Result,
    Verdict,
)
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, with_knob

PATIENCE_MS = 300


def job_for(place: tuple[str, int], directory: Path, known: Declared | None = None) -> command.Job:
    known = known or declared(STRICT)
    return command.Job(known, known.policy.name, (), place, None, 0.1, directory / "history", directory, RealRuntime())


@pytest.fixture
def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, int]], Page]:
    def judge_locally(paths: list[Path], **options: object) -> Result:
        limits = {name: options[name] for name in ("wake_ms", "late_ms")}
        return judge(paths, engine="local", **limits)  # type: ignore[arg-type] # numbers, both

    monkeypatch.setattr(load, "STALL_S", 1.0)
    monkeypatch.setattr(racing_topic, "ANSWER_S", PATIENCE_MS / 1000)
    monkeypatch.setattr(command, "judge", judge_locally)
    monkeypatch.setattr(command, "LoadPlan", lambda topic: LoadPlan(topic, message_count=60, queue_count=2))
    monkeypatch.setattr(capabilities, "ANSWER_S", PATIENCE_MS / 1000)
    monkeypatch.setattr(capabilities, "KNOWN_S", PATIENCE_MS / 1000)
    monkeypatch.setattr(command, "recorded", lambda version: recorded(version)[:2])

    def run(place: tuple[str, int]) -> Page:
        page = Page()
        command._named_broker(page, job_for(place, tmp_path))
        return page

    return run


def silent(_peer: Peer, _command: Command) -> None:
    """Read every request and send no answer."""


def closing(peer: Peer, _command: Command) -> None:
    peer.close()


def babbling(peer: Peer, _command: Command) -> None:
    peer.send_bytes(b"\x00\x00\x00\x10nonsense-nonsense")


def hollow(peer: Peer, request: Command) -> None:
    peer.answer(request, 0, {"queueOffset": "x", "nextBeginOffset": "1e9", "msgId": "?"}, b"\x01" * 200)


def dying(peer: Peer, _command: Command) -> None:
    peer.server.refuse_connections()
    peer.close()


@pytest.mark.parametrize("handler", [silent, closing, babbling, hollow, dying], ids=lambda handler: handler.__name__)
def test_verify_writes_a_complete_page_for_any_broker(
    handler: Callable[[Peer, Command], None], page_of: Callable[[tuple[str, int]], Page]
) -> None:
    """Silence, closed connections and malformed answers become rows; only an unreadable message is a violation."""
    with ScriptedServer(handler) as server:
        page = page_of((server.host, server.port))

    outcomes = {row.part: row.outcome for row in page.rows}
    assert outcomes.keys() == {"broker", "clauses", "races", "history"}
    assert outcomes["broker"] == ("violated" if handler is hollow else "unknown")
    assert outcomes["races"] == "unknown"
    assert "ok" not in outcomes.values(), page.rows
    assert handler is not dying or set(outcomes.values()) == {"unknown"}
    assert page.exit_code in {Exit.VIOLATED, Exit.UNKNOWN}


def test_a_failing_stage_is_a_row_and_its_traceback_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Row]:
        raise ZeroDivisionError("in [a] stage")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    page = Page()
    page.stage("a [stage]", broken, part="races")

    assert page.exit_code == Exit.UNKNOWN
    assert "internal error of longpoll" in page.rows[0].detail
    assert ["ZeroDivisionError: in [a] stage" in file.read_text() for file in tmp_path.iterdir()] == [True]


def test_an_interrupt_leaves_a_page_with_the_results_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Outcome] = ["ok", "violated"]
    for outcome in outcomes:
        page = Page()

        def law(page: Page, outcome: Outcome = outcome) -> None:
            page.add([Row("law", "first", outcome, "")])
            raise KeyboardInterrupt

        monkeypatch.setattr(command, "_law", law)
        command.run_all(page, job_for(("127.0.0.1", 1), tmp_path))
        assert page.result is None
        assert [row.outcome for row in page.rows] == [outcome, "unknown"]
        assert page.exit_code == (Exit.UNKNOWN if outcome == "ok" else Exit.VIOLATED)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--broker", "127.0.0.1:1"], "cannot connect to --broker 127.0.0.1:1"),
        (["--broker", "127.0.0.1:99999"], "is not an address"),
        (["--broker", "host.invalid:1"], "cannot connect to"),
        (["--name-server", "127.0.0.1:1"], "--name-server needs --broker"),
        (["--knob", "expiry=never"], "expiry"),
        (["--record", "."], "has no option --record any more"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_a_usage_error_of_verify_is_reported_before_the_work(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "something").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_law", lambda _page: pytest.fail("it worked first"))
    done = CliRunner().invoke(main, ["verify", *words])

    assert (done.exit_code, done.stderr.count("\n")) == (Exit.USER, 1), done.stderr
    assert said in done.stderr


# -- behaviour that a policy does not promise ----------------------------------------------------------------------


def test_a_policy_must_keep_the_properties_that_its_specification_has() -> None:
    old, ours = declared(ROCKETMQ_4_9), declared(STRICT)
    timed = declared(with_knob(STRICT, "expiry=scan"))

    assert set(old.broken) == {
        "no_lost_wakeup", "answered_by_deadline", "answered_on_stop", "commit_never_regresses",
    }  # fmt: skip
    assert old.name_of("no_lost_wakeup") == "no_lost_wakeup (a, b, slave)"
    assert (old.most.wake_ms, old.most.late_ms) == (5_500, 5_500)
    assert (ours.broken, ours.most) == ({}, Limits(0, 0))
    assert (set(timed.broken), timed.most) == ({"answered_by_deadline"}, Limits(0, 5_500))


@pytest.fixture
def late_history(tmp_path: Path) -> Path:
    write(tmp_path / "made", simulate(Load(events=3_000)), simulated_meta())
    plant(tmp_path / "made", "answer_delayed", tmp_path / "late")
    return tmp_path / "late"


def test_a_declared_delay_is_reported_and_another_one_is_a_violation(late_history: Path) -> None:
    """The scan of 4.9 permits a delay of half a second. Strict has no scan, and a scan every 0.1 s permits less."""
    directory = late_history
    limits = limits_of(0)
    found = judge([directory], engine="local", wake_ms=limits.wake_ms, late_ms=limits.late_ms)
    assert found.verdict == "invalid"

    scanned, excused = by_promises(found, directory, declared(ROCKETMQ_4_9), limits)
    strictly, none = by_promises(found, directory, declared(STRICT), limits)
    quickly = attrs.evolve(declared(ROCKETMQ_5), scan_ms=100)
    too_late, _some = by_promises(found, directory, quickly, limits)

    assert scanned.verdict == "valid"
    assert dict(excused)["answered_by_deadline"] == 1
    assert (strictly.verdict, list(none)) == ("invalid", [])
    assert too_late.verdict == "invalid"
    assert msgspec.json.encode(strictly) == msgspec.json.encode(found)


def test_limits_follow_the_slowest_echo() -> None:
    assert limits_of(40) == Limits(180, 130)


def test_an_echo_measures_a_slow_broker_and_stops_with_a_silent_one() -> None:
    asked = RealRuntime().event()
    waited_s = 0.05

    def slow(peer: Peer, request: Command) -> None:
        assert request.code == RequestCode.GET_MAX_OFFSET
        RealRuntime().event().wait(waited_s)
        peer.answer(request, 17)
        asked.set()

    with ScriptedServer(slow) as server, HostLatency(RealRuntime(), (server.host, server.port), "T") as echo:
        assert asked.wait(10)
        while not echo.rounds:
            asked.wait(0)
    assert echo.worst_ms >= waited_s * 1000

    with ScriptedServer(silent) as server, HostLatency(RealRuntime(), (server.host, server.port), "T") as echo:
        pass
    assert echo.rounds == 0


# -- behaviour that a correct broker may show ------------------------------------------------------------------------


def test_a_send_for_which_there_is_no_room_is_repeated() -> None:
    runtime = RealRuntime()
    codes = iter([2, 215, 2, 0])
    with (
        ScriptedServer(lambda peer, request: peer.answer(request, next(codes))) as server,
        contextlib.closing(RemotingClient(runtime, server.host, server.port)) as client,
    ):
        run = load._Run(runtime, LoadPlan("T"), runtime.condition())
        load._send(run, client, 0, "red")

    assert (run.sent.total(), run.problems, run.troubles) == (1, [], [])


LIMITS: Final = Limits(100, 50)
RACES: Final = Declared(ROCKETMQ_4_9, {NO_LOST_WAKEUP: ("a", "b")}, 0)
"""A policy that may lose a wakeup until the deadline of the pull, and permits no other violation."""
SCANS: Final = Declared(ROCKETMQ_4_9, {ANSWERED_BY_DEADLINE: ("c",)}, 1_000)
BOTH: Final = Declared(ROCKETMQ_4_9, {NO_LOST_WAKEUP: ("a",), ANSWERED_BY_DEADLINE: ("c",)}, 1_000)
OTHERS: Final = Declared(ROCKETMQ_4_9, {ANSWERED_ON_STOP: ("p",), COMMIT_NEVER_REGRESSES: ("h",)}, 1_000)


def finding(name: str, *follows: str, verdict: FindingVerdict = "violated", at_ms: float = 0) -> Finding:
    """Return a violation of a property, with the properties that the same cause violates."""
    place: dict[str, Any] = {"clause": name, "verdict": verdict, "topic": "T", "queue": 0, "why": f"{name} at {at_ms}"}
    return Finding(
        property=name,
        **place,
        request="1-1",
        window_start_ms=at_ms,
        window_end_ms=at_ms,
        evidence=[],
        follows=[Follow(property=each, **place, count=1, requests=[]) for each in follows],
    )


def said(verdict: Verdict, *findings: Finding, gaps: Sequence[str] = (), requests: int = 9, **fields: object) -> Result:
    nothing = Percentiles(0, None, None, None)
    one = Result(
        verdict=verdict,
        events=10,
        queues=1,
        requests=requests,
        seconds=0,
        start_seconds=0,
        engine="local",
        findings=list(findings),
        findings_left_out=0,
        gaps=[{"why": why} for why in gaps],
        latency={"wake_ms": nothing, "late_ms": nothing},
        thresholds={"wake_ms": 100, "late_ms": 50},
    )
    return msgspec.structs.replace(one, **fields)


@define
class Script:
    says: list[Result] = field(factory=list)
    asked: list[tuple[float, float]] = field(factory=list)
    """The limits of each call: lateness of a wake and of a deadline, in ms."""

    def judge(self, _paths: Sequence[Path], *, wake_ms: float, late_ms: float, **_options: object) -> Result:
        self.asked.append((wake_ms, late_ms))
        return self.says.pop(0)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    one = Script()
    monkeypatch.setattr(command, "judge", one.judge)
    monkeypatch.setattr(limits_module, "judge", one.judge)
    return one


def promised(script: Script, known: Declared, found: Result, again: Result) -> tuple[Result, dict[str, int]]:
    script.says.append(again)
    result, excused = by_promises(found, Path("h"), known, LIMITS)
    return result, dict(excused)


def row_of(script: Script, known: Declared, result: Result, limits: Limits = LIMITS) -> Sequence[Row]:
    script.says += [result, result]
    return command.judged(Path("h"), known, limits, lambda _text: None)[1]


@pytest.mark.parametrize(
    ("known", "asked"),
    [(RACES, (10_100, 50)), (SCANS, (100, 1_150)), (BOTH, (1_200, 1_150))],
    ids=["races", "scan", "both"],
)
def test_each_limit_is_extended_by_its_own_fallback(
    known: Declared, asked: tuple[float, float], script: Script
) -> None:
    """The fallback for lost wakeups extends only the limit for wakes, and the scan only the limit for deadlines."""
    (name, *_rest) = known.broken
    found = said("invalid", finding(name))
    result, excused = promised(script, known, found, said("valid"))

    assert script.asked == [asked]
    assert (result.verdict, result.findings, excused) == ("valid", [], {name: 1})
    assert result.thresholds == found.thresholds | dict(
        zip(("declared_wake_ms", "declared_late_ms"), asked, strict=True)
    )


LATE, EARLY = (finding(NO_LOST_WAKEUP, at_ms=at_ms) for at_ms in (3, 2))
DOUBTED: Final = finding(ANSWER_IS_RIGHT, verdict="unknown", at_ms=1)
MIXED: Final = (
    finding(NO_LOST_WAKEUP, ANSWER_IS_RIGHT),
    finding(ANSWER_IS_RIGHT, NO_LOST_WAKEUP),
    finding(ANSWER_IS_RIGHT),
)


@pytest.mark.parametrize(
    ("known", "found", "again", "kept", "permitted"),
    [
        # One of the two late answers is later than any scan permits, so its finding remains.
        *((BOTH, [finding(each), finding(each, at_ms=7)], [finding(each, at_ms=7)], [finding(each, at_ms=7)], {each: 1})
          for each in (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE)),
        # No fallback repairs a lost answer, so the property remains permitted when the judge finds it again.
        *((OTHERS, [finding(each)], [finding(each)], [], {each: 1})
          for each in (ANSWERED_ON_STOP, COMMIT_NEVER_REGRESSES)),
        # A permitted finding and a violation in one result are counted separately.
        *((RACES, [finding(NO_LOST_WAKEUP), each], [each], [each], {NO_LOST_WAKEUP: 1}) for each in MIXED),
        # Rows with violations come first.
        (RACES, [EARLY, LATE, DOUBTED], [LATE, EARLY], [EARLY, LATE, DOUBTED], {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("gaps", [[], ["a hole"]], ids=["whole", "with a hole"])
def test_permitted_findings_are_counted_and_the_others_remain(
    *, known: Declared, found: list[Finding], again: list[Finding], kept: list[Finding], permitted: dict[str, int],
    gaps: list[str], script: Script,
) -> None:  # fmt: skip
    """A gap in the evidence leaves a violation as it is, and makes a run without violations unknown."""
    result, excused = promised(script, known, said("invalid", *found, gaps=gaps), said("invalid", *again))

    verdict = "invalid" if kept else "unknown" if gaps else "valid"
    assert (result.verdict, result.findings, excused) == (verdict, kept, permitted)


def test_unlisted_late_answers_are_counted(script: Script) -> None:
    """A queue lists at most 50 late answers, but the rate counts all of them."""
    found = said("invalid", finding(NO_LOST_WAKEUP), rates={NO_LOST_WAKEUP: Rate(70, 100)})

    assert promised(script, RACES, found, said("valid"))[1] == {NO_LOST_WAKEUP: 70}


def test_only_policy_4_9_permits_a_pull_to_lower_an_offset(tmp_path: Path) -> None:
    """Policy 4.9 lets a pull overwrite a newer offset (finding h); strict promises that no pull does so."""
    events: list[dict[str, Any]] = []
    for number, (code, asked, told) in enumerate([(15, {"commit_offset": 9}, {}), (14, {}, {"offset": 5})]):
        about = {"topic": "T", "queue": 0, "connection": "2", "request": f"2-{number}", "at": 50 + 10 * number}
        events.append({**about, **asked, "event": "request_received", "code": code, "group": "g"})
        events.append({**about, **told, "event": "answer_sent", "code": 0, "at": 51 + 10 * number})
    made = strictly(watched(10, 900, events), policy="")
    observer.write(made, tmp_path)
    found = judge([tmp_path], engine="local", wake_ms=100, late_ms=50)
    old, excused = by_promises(found, tmp_path, declared(ROCKETMQ_4_9), LIMITS)

    assert [one.property for one in found.findings] == [COMMIT_NEVER_REGRESSES]
    assert (found.verdict, old.verdict, dict(excused)) == ("invalid", "valid", {COMMIT_NEVER_REGRESSES: 1})
    assert by_promises(found, tmp_path, declared(STRICT), LIMITS) == (found, [])


@pytest.mark.parametrize(
    ("result", "coarse", "outcome"),
    [
        (said("valid"), False, "ok"),
        (said("valid"), True, "unknown"),
        (said("valid", requests=0), False, "unknown"),
        (said("unknown", gaps=["a hole"]), False, "unknown"),
        (said("invalid", finding(ANSWER_IS_RIGHT)), True, "violated"),
        (said("invalid", finding(ANSWER_IS_RIGHT), requests=0), False, "violated"),
    ],
    ids=[
        "valid",
        "by coarse limits",
        "without a pull",
        "unknown",
        "invalid by coarse limits",
        "invalid without a pull",
    ],
)
@pytest.mark.parametrize("known", [RACES, SCANS], ids=["races", "scan"])
def test_a_row_has_longer_limits_only_after_a_valid_run(
    known: Declared, result: Result, coarse: bool, outcome: str, script: Script
) -> None:
    rows = row_of(script, known, result, Limits(100, 50, are_coarse=coarse))

    assert [row.outcome for row in rows] == [outcome]
    assert "a hole" in rows[0].detail or not result.gaps
    script.says.clear()
    assert row_of(script, BOTH, said("valid"), Limits(100, 50, are_coarse=True))[0].outcome == "ok"


def test_permitted_findings_have_their_own_row(script: Script) -> None:
    script.says += [said("invalid", finding(NO_LOST_WAKEUP)), said("valid")]
    result, rows = command.judged(Path("h"), RACES, LIMITS, lambda _text: None)

    assert (result.verdict, [row.outcome for row in rows]) == ("valid", ["ok", "ok"])
    assert rows[1].what == "not promised by rocketmq-4.9"
    assert "no_lost_wakeup (a, b) 1 times" in rows[1].detail
    assert "wake 10100 ms, late 50 ms" in rows[1].detail

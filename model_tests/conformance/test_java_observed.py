"""Java's brokers, tested with the judge, our model, the conformance clauses and the policies of their versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from click.testing import CliRunner
from model_tests.conformance.java_broker import VERSIONS, JavaBroker
from model_tests.support.broker.observed import events_of
from model_tests.support.broker.raw_client import RawClient
from model_tests.support.captures import wait_until_captured
from model_tests.support.java import java_broker_of
from model_tests.support.suite import ROCKETMQ, RemoteBroker, run_suite

from longpoll.cli import main
from longpoll.options import values
from longpoll.output import Exit
from longpoll.verification import races
from longpoll.verification.limits import declared
from longpoll.wire.load import LoadPlan, LoadReport, drive
from longpoll.wire.race import QUEUE_IDS, RacePlan, RaceReport, race
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP, Result
from longpoll_judge.run.pipeline import judge
from longpoll_observe import Observer
from longpoll_observe.capture import CaptureReport, read_captures
from longpoll_protocol.admin_headers import CreateTopicRequestHeader
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5

pytestmark = [pytest.mark.peers]

WAKE_MS = 500.0
"""The limit for a wake in ms, because the dispatch thread creates the files of new queues, which takes up to 150 ms."""
STALLED = "answers were late at this instant"
"""Part of the reason that the judge gives if several answers are late at once, which is no fault of the broker."""
QUEUES = 4
LOSSES_WANTED = 3
RACE_S, RACES_MAX = 10.0, 9
READY_S = 30.0
OWN = dict(zip(VERSIONS, (ROCKETMQ_4_9, ROCKETMQ_5), strict=True))
"""Maps a version of Java's broker to the policy that describes this version."""


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    with java_broker_of(tmp_path_factory.mktemp("java"), request.param) as broker:
        yield broker


def make_topic(door: tuple[str, int], topic: str) -> None:
    """Create a topic, with retries while the broker starts."""
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=QUEUES, write_queue_nums=QUEUES
    )
    deadline_s = time.monotonic() + READY_S
    with RawClient(door) as client:
        while (reply := client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())).code != 0:
            assert time.monotonic() < deadline_s, reply.remark


def judged(history: Path, late_ms: float = 50.0) -> Result:
    result = judge([history], engine="local", wake_ms=WAKE_MS, late_ms=late_ms)
    print(result.verdict, result.events, result.latency, [finding.why for finding in result.findings[:3]])  # noqa: T201
    return result


def test_java_misses_its_deadlines_and_nothing_else_is_wrong(java: JavaBroker, tmp_path: Path) -> None:
    with Observer.start(RealRuntime(), brokers=[java.address], record_directory=str(tmp_path / "history")) as proxy:
        (door,) = proxy.doors.values()
        make_topic(door, topic := f"load-{uuid.uuid4().hex}")
        report = drive(RealRuntime(), door, LoadPlan(topic, message_count=6_000, queue_count=QUEUES))
    assert list(report.problems) == []
    result = judged(tmp_path / "history")
    named = Counter((finding.property, finding.verdict) for finding in result.findings)
    assert (result.verdict, result.gaps) == ("invalid", [])
    assert named[ANSWERED_BY_DEADLINE, "violated"] >= 1
    assert {name for name, _verdict in named} <= {ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}
    latest_ms = result.latency["late_ms"].max
    assert latest_ms is not None
    assert latest_ms > 50
    assert result.requests >= report.pull_count


def late_in(history: Path) -> Counter[tuple[int, int]]:
    """Count, by queue and offset, the pulls answered more than `WAKE_MS` after both pull and message had arrived."""
    events, found = events_of(history), Counter[tuple[int, int]]()
    pulls = {event.request: event for event in events if event.event == "request_received"}
    stored_ns = {
        (event.topic, event.queue, event.queue_offset): event.before_ns
        for event in events
        if event.event == "message_acknowledged"
    }
    for event in events:
        pull = pulls.get(event.request) if event.event == "answer_sent" and event.code == 0 else None
        since_ns = stored_ns.get((pull.topic, pull.queue, pull.offset)) if pull is not None else None
        if pull is not None and since_ns is not None:
            is_late = event.after_ns - max(since_ns, pull.before_ns) > WAKE_MS * 1e6
            found[pull.queue, pull.offset] += is_late
    return found


def test_java_loses_wakeups_and_the_judge_finds_each(java: JavaBroker, tmp_path: Path) -> None:
    """Sends race pulls until some are late. The judge reports these pulls and no other violation."""
    reports: list[RaceReport] = []
    with Observer.start(RealRuntime(), brokers=[java.address], record_directory=str(tmp_path / "history")) as proxy:
        (door,) = proxy.doors.values()
        for number in range(RACES_MAX):
            make_topic(door, topic := f"race-{uuid.uuid4().hex}")
            # This limit exceeds the judge's limit by more than the width of the proxy's intervals, so race and judge
            # count the same pulls.
            plan = RacePlan(topic, RACE_S, QUEUES, late_ms=WAKE_MS + 200, seed=number)
            reports.append(race(door, plan, process_id=java.process_id))
            if sum(len(report.unexplained) for report in reports) >= LOSSES_WANTED:
                break
    assert [report.trouble for report in reports if report.trouble is not None] == []
    # If the host paused, the judge's history shows whether broker or client was late, but the race cannot know.
    late = [delivery for report in reports for delivery in report.unexplained]
    delivered = sum(report.delivered_count for report in reports)
    print(f"{len(late)} of {delivered} deliveries came late: {1e6 * len(late) / delivered:.0f} per million")  # noqa: T201
    result = judged(tmp_path / "history")
    assert {finding.property for finding in result.findings} <= {NO_LOST_WAKEUP}
    assert result.gaps == []
    found = Counter(
        (event["queue"], event["offset"])
        for finding in result.findings
        if finding.verdict == "violated" or STALLED in finding.why
        for event in finding.evidence
        if event["event"] == "request_received"
    )
    # If an answer is late only on its way from the broker to the client, the judge reports no fault of Java.
    shown = Counter((delivery.queue, delivery.offset) for delivery in late) & late_in(tmp_path / "history")
    assert shown - found == Counter()
    assert shown, f"none of {delivered} deliveries came late: the race was not provoked on this machine"
    assert result.verdict == "invalid"


def test_java_keeps_the_promises_of_its_policy(java: JavaBroker, request: pytest.FixtureRequest) -> None:
    """`longpoll verify` counts the lost wakeups that Java's scan repairs, and no row of the report fails."""
    runtime, topic = RealRuntime(), f"races-{uuid.uuid4().hex}"
    policy = OWN[request.node.callspec.params["java"]]
    row = races.races(
        runtime, java.address, topic, values.RACE_S, lambda _done, _all: None,
        known=declared(policy), process_id=java.process_id,
    )  # fmt: skip
    print(row.detail)  # noqa: T201
    assert row.outcome == "ok", row.detail
    assert row.detail.partition(" on ")[2].startswith(f"{len(QUEUE_IDS)} queues;")


@pytest.fixture(scope="module")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    with java_broker_of(tmp_path_factory.mktemp("java")) as broker:
        yield broker


@pytest.mark.timeout(900)
def test_the_java_broker_keeps_the_model(java_broker: JavaBroker) -> None:
    """Every answer of the real broker agrees with the model, at most one scan period late."""
    report = run_suite(RealRuntime(), RemoteBroker(java_broker.address, ROCKETMQ), max_examples=3, step_count=30)
    assert report.verdict != "invalid", report


@pytest.mark.timeout(900)
def test_the_java_broker_breaks_strict_time_limits(java_broker: JavaBroker) -> None:
    """The real broker scans every five seconds, so it misses a limit of half a second."""
    expectations = attrs.evolve(ROCKETMQ, scan_period_ms=None, late_ms=500)
    subject = RemoteBroker(java_broker.address, expectations)
    report = run_suite(RealRuntime(), subject, max_examples=30, step_count=30, shrink=False)
    assert (report.verdict, report.property) == ("invalid", "answered_by_deadline"), report


RUNS = 5
BUSY = "while True: pass"
POLICY = {"4.9.7": "rocketmq-4.9", "5.5.0": "rocketmq-5"}


@pytest.fixture(params=POLICY)
def fresh_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, JavaBroker]]:
    """Yields a version and a new broker of this version; skips the test if Java or its jars are missing."""
    with java_broker_of(tmp_path, request.param) as broker:
        yield request.param, broker


@contextmanager
def busy_machine() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(process.kill)
        yield


def verified(broker: JavaBroker, policy: str, directory: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the rows of the report of one `longpoll verify` run."""
    places = [f"--broker={broker.address[0]}:{broker.address[1]}", "--name-server={}:{}".format(*broker.name_server)]
    done = subprocess.run(
        [sys.executable, "-m", "longpoll", "verify", "--json", *places, f"--policy={policy}", f"--report={directory}"],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["rows"]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.whole_machine
def test_stock_brokers_pass_their_own_policy(fresh_broker: tuple[str, JavaBroker], tmp_path: Path) -> None:
    version, broker = fresh_broker
    with busy_machine():
        for number in range(RUNS):
            code, rows = verified(broker, POLICY[version], tmp_path / str(number))
            assert code == Exit.OK, [row for row in rows if row["outcome"] not in {"ok", "skipped"}]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_stock_brokers_violate_strict(fresh_broker: tuple[str, JavaBroker], tmp_path: Path) -> None:
    """The exit code is 1, because Java checks deadlines every five seconds and strict promises exact ones."""
    _version, broker = fresh_broker
    code, rows = verified(broker, "strict", tmp_path / "report")

    assert code == Exit.VIOLATED
    assert {row["part"] for row in rows if row["outcome"] == "violated"} <= {"history", "clauses", "races"}
    (judged,) = (row for row in rows if row["part"] == "history")
    assert judged["outcome"] == "violated"
    # A run may also have rows about behaviour that strict does not promise, before or after this row.
    assert "answered_by_deadline" in judged["detail"], judged


POLICY_OF = {"4.9.7": "rocketmq-4.9", "5.4.0": "rocketmq-5", "5.5.0": "rocketmq-5"}
AGAIN = ("--only=PULL-READ-*", "--only=SEND-*", "--only=OFFSET-*")
ALSO = pytest.param("5.4.0", marks=pytest.mark.long)
"""A version whose broker must conform to the recordings of 5.5.0."""


def conform(broker: JavaBroker, *words: str) -> tuple[int, dict[str, Any]]:
    places = ["--broker={}:{}".format(*broker.address), "--name-server={}:{}".format(*broker.name_server)]
    done = CliRunner().invoke(main, ["conform", *places, *words, "--json"])
    assert done.stdout, done.output
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [*VERSIONS, ALSO])
def test_the_java_broker_passes_its_own_clauses(version: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The broker passes the clauses of its version, some also on a used store, and fails one of the other version."""
    with java_broker_of(tmp_path_factory.mktemp("java"), version) as broker:
        for words, least in (((), 100), *([(AGAIN, 20)] if version == VERSIONS[0] else [])):
            code, told = conform(broker, "--policy", POLICY_OF[version], *words)
            failed = {each["vector"]: each["why"] for each in told["results"] if each["outcome"] == "FAIL"}
            assert failed == {}
            assert code == 0
            assert told["counts"]["PASS"] >= least
        _code, told = conform(broker, "--only", "LOCK-3")
        assert (told["policy"], told["policy_chosen"]["by"]) == (POLICY_OF[version], "version")
        other = next(each for each in VERSIONS if POLICY_OF[each] != POLICY_OF[version])
        code, told = conform(broker, "--policy", POLICY_OF[other], "--only", "PULL-CHECK-*")
        assert code == 1
        assert told["clauses"]["PULL-CHECK-8"] == "FAIL"


BUFFER_KIB: Final = 64 * 1024
"""tcpdump's buffer in KiB, large enough that it drops no packet on a busy machine."""
END_S: Final = 20.0
MESSAGES: Final = 3_000
LAST: Final = MESSAGES // QUEUES
TAKES: Final = 4
"""The maximum number of recordings. A recording is repeated if the capture's clock is unknown because of other load."""
LATE_MS: Final = 1_000.0
"""A limit in ms that exceeds the uncertainty of proxy and capture, and is far below the 5 s by which Java is late."""


@pytest.fixture(scope="module")
def captured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    if shutil.which("tcpdump") is None or os.geteuid() != 0:
        pytest.skip("CAPTURES NOT TRIED: tcpdump is not installed, or this is not root")
    with java_broker_of(tmp_path_factory.mktemp("java")) as broker:
        yield broker


@contextmanager
def capturing(port: int, file: Path) -> Iterator[None]:
    words = [
        "tcpdump",
        "-i",
        "lo",
        "-U",
        "-Z",
        "root",
        "-B",
        str(BUFFER_KIB),
        "-w",
        str(file),
        "tcp",
        "port",
        str(port),
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "listening on" in said, said
        try:
            yield
            wait_until_captured(process, port, file, END_S)
        finally:
            process.terminate()
            rest = process.stderr.read()
            process.wait(END_S)
    assert "\n0 packets dropped by kernel" in f"\n{rest}", rest


def asked_and_told(history: Path) -> Counter[tuple[object, ...]]:
    """Count the pulls, each with its answer, without times and connection names."""
    pulls = {
        event.request: (event.topic, event.queue, event.offset, event.group, event.expression)
        for event in events_of(history)
        if event.event == "request_received" and event.count_max >= 0
    }
    answers = {
        event.request: (event.code, event.offset_next, *event.offsets)
        for event in events_of(history)
        if event.event == "answer_sent"
    }
    return Counter((*asked, answers.get(request)) for request, asked in pulls.items())


def answered(told: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    return Counter({each: count for each, count in told.items() if each[-1] is not None})


def found(result: Result) -> Counter[tuple[object, ...]]:
    """Count the violations by property, queue and offset."""
    return Counter(
        (finding.property, finding.topic, finding.queue, finding.offsets.get("offset"))
        for finding in result.findings
        if finding.verdict == "violated"
    )


def recorded_twice(
    captured_broker: JavaBroker, by_proxy: Path, by_capture: Path, file: Path
) -> tuple[LoadReport, CaptureReport]:
    """Record a load of a minute with the proxy and with a capture of the broker's port."""
    with (
        capturing(captured_broker.address[1], file),
        Observer.start(RealRuntime(), brokers=[captured_broker.address], record_directory=str(by_proxy)) as proxy,
    ):
        (door,) = proxy.doors.values()
        make_topic(door, topic := f"captured-{uuid.uuid4().hex}")
        report = drive(RealRuntime(), door, LoadPlan(topic, message_count=MESSAGES, queue_count=QUEUES))
    assert list(report.problems) == []
    read = read_captures(RealRuntime(), [file], brokers=[captured_broker.address], record_directory=str(by_capture))
    print(read)  # noqa: T201
    return report, read


def places(directory: Path) -> Iterator[Path]:
    for take in range(TAKES):
        place = directory / f"take-{take}"
        place.mkdir()
        yield place


def test_a_capture_is_judged_as_the_proxys_record_of_the_same_minute(
    captured_broker: JavaBroker, tmp_path: Path
) -> None:
    takes = (
        (each, *recorded_twice(captured_broker, each / "proxy", each / "capture", each / "port.pcap"))
        for each in places(tmp_path)
    )
    # A host pause of 25 ms between a sender and the capture looks like a changed clock.
    even = next((take for take in takes if take[2].clock == "monotonic"), None)
    assert even is not None, f"the clock looked set in each of {TAKES} takes"
    place, report, read = even
    by_proxy, by_capture = place / "proxy", place / "capture"
    assert read.gaps == 0
    told, told_by_proxy = asked_and_told(by_capture), asked_and_told(by_proxy)
    assert answered(told) == answered(told_by_proxy)
    # A client that ends may send one more pull and disconnect at once, which only one observer may see.
    assert {each[2] for each in (told - answered(told)) + (told_by_proxy - answered(told_by_proxy))} <= {LAST}
    verdicts = judged(by_proxy, LATE_MS), judged(by_capture, LATE_MS)
    assert [each.verdict for each in verdicts] == ["invalid", "invalid"]
    assert [each.gaps for each in verdicts] == [[], []]
    assert min(each.requests for each in verdicts) >= answered(told).total() >= report.pull_count
    # With less exact times the judge reports no additional violation.
    by_both = found(verdicts[0]) & found(verdicts[1])
    assert by_both == found(verdicts[1]) != Counter()

"""The real Java brokers 4.9.7 and 5.5.0 behind the recording proxy, and what the judge finds in its history.

Two facts of both carry these tests (`docs/observe.md` tells them with figures): pulls expire at a scan every
5 s, and a message that comes between a pull's read and its hold waits for that scan.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaBroker, JavaUnavailableError, resolve, running

from longpoll.racing.load import race
from longpoll.racing.plan import QUEUE_IDS, RacePlan, RaceReport
from longpoll.verification import races
from longpoll.verification.declared import declared, limits_of
from longpoll.verification.echo import Echo
from longpoll_broker.testing.load import LoadPlan, drive
from longpoll_broker.testing.raw_client import RawClient
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP, Result
from longpoll_judge.run.job import judge
from longpoll_observe import Observer
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import CreateTopicRequestHeader
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5

WAKE_MS = 500.0
"""The first message of a queue makes its files on the dispatch thread, one queue after the other: up to 150 ms here."""
QUEUES = 4
LOSSES_WANTED = 3
RACE_S, RACES_MAX = 10.0, 9
READY_S = 30.0
OWN = dict(zip(VERSIONS, (ROCKETMQ_4_9, ROCKETMQ_5), strict=True))
"""The policy of each version."""


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    """Name server and broker of one version, for the tests of this module."""
    try:
        class_path = resolve(tmp_path_factory.mktemp("maven"), request.param)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA BROKER NOT TRIED: {error}")
    with running(class_path, tmp_path_factory.mktemp("java") / "home") as broker:
        yield broker


def make_topic(door: tuple[str, int], topic: str) -> None:
    """Create a topic; a broker that has just begun to listen may not know how yet."""
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=QUEUES, write_queue_nums=QUEUES
    )
    deadline_s = time.monotonic() + READY_S
    with RawClient(door) as client:
        while (reply := client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())).code != 0:
            assert time.monotonic() < deadline_s, reply.remark


def judged(history: Path, late_ms: float = 50.0) -> Result:
    """The verdict, without Spark."""
    result = judge([history], engine="local", wake_ms=WAKE_MS, late_ms=late_ms)
    print(result.verdict, result.events, result.latency, [finding.why for finding in result.findings[:3]])  # noqa: T201
    return result


@pytest.mark.peers
def test_java_misses_its_deadlines_and_nothing_else_is_wrong(java: JavaBroker, tmp_path: Path) -> None:
    """Under load every answer is right and given once; those at the end of a hold come up to 5 s late."""
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
    assert 50 < latest_ms < 6_000
    assert result.requests >= report.pull_count


@pytest.mark.peers
def test_java_loses_wakeups_and_the_judge_finds_each(java: JavaBroker, tmp_path: Path) -> None:
    """Sends race re-pulls until some came late; the judge names these pulls, and accuses Java of nothing else."""
    reports: list[RaceReport] = []
    with Observer.start(RealRuntime(), brokers=[java.address], record_directory=str(tmp_path / "history")) as proxy:
        (door,) = proxy.doors.values()
        for number in range(RACES_MAX):
            make_topic(door, topic := f"race-{uuid.uuid4().hex}")
            # Beyond the judge's threshold by more than the proxy's interval, so that both mean the same pulls.
            plan = RacePlan(topic, RACE_S, QUEUES, late_ms=WAKE_MS + 200, seed=number)
            reports.append(race(door, plan))
            if sum(len(report.late) for report in reports) >= LOSSES_WANTED:
                break
    assert [report.trouble for report in reports if report.trouble is not None] == []
    late = [delivery for report in reports for delivery in report.late]
    delivered = sum(report.delivered_count for report in reports)
    print(f"{len(late)} of {delivered} deliveries came late: {1e6 * len(late) / delivered:.0f} per million")  # noqa: T201
    result = judged(tmp_path / "history")
    assert {finding.property for finding in result.findings} <= {NO_LOST_WAKEUP}
    assert result.gaps == []
    found = Counter(
        (event["queue"], event["offset"])
        for finding in result.findings
        if finding.verdict == "violated"
        for event in finding.evidence
        if event["event"] == "request_received"
    )
    assert Counter((delivery.queue, delivery.offset) for delivery in late) - found == Counter()
    assert late, f"none of {delivered} deliveries came late: the race was not provoked on this machine"
    assert result.verdict == "invalid"


@pytest.mark.peers
def test_java_is_held_to_what_its_policy_declares(java: JavaBroker, request: pytest.FixtureRequest) -> None:
    """The racing load of `longpoll verify`: wakes that are lost are found by the scan, and counted; no row is red."""
    runtime, topic = RealRuntime(), f"races-{uuid.uuid4().hex}"
    policy = OWN[request.node.callspec.params["java"]]
    with Echo(runtime, java.address, topic) as echo:
        row = races.races(
            runtime, java.address, topic, races.RACE_S, lambda _done, _all: None,
            known=declared(policy), limits=lambda: limits_of(echo.worst_ms, wake_ms=None, late_ms=None),
            process_id=java.process_id,
        )  # fmt: skip
    print(row.detail)  # noqa: T201
    assert row.outcome == "ok", row.detail
    assert row.detail.partition(" on ")[2].startswith(f"{len(QUEUE_IDS)} queues;")

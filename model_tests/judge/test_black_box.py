"""Histories that a proxy recorded from outside a broker: valid of a good one, and each fault found and named."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from longpoll.racing.load import race
from longpoll.racing.plan import RacePlan
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.load import LoadPlan, drive
from longpoll_broker.testing.raw_client import RawClient
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP, Result
from longpoll_judge.run.job import judge
from longpoll_judge.testing.plant import plant
from longpoll_observe import Observer
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import CreateTopicRequestHeader
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.stalls import StallWatch
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy

ALLOWED_MS = 1_000
"""What a machine busy with other tests may delay a good broker; the faults here are slower, or no matter of time."""
SCAN_MS = 2_500


class SlowToHold(RealRuntime):
    """A runtime that takes 2 ms from a pull's read to its hold: the race of #7358 with a wide window."""

    def step(self, action: str) -> None:
        """Be slow at one step point."""
        if action == "hold":
            self.sleep(0.002)


@contextmanager
def stalls() -> Iterator[Callable[[], float]]:
    """What is called inside tells how many ms the machine has stood still since: no broker answers meanwhile."""
    begin_ns = time.monotonic_ns()
    with StallWatch() as watch:
        yield lambda: watch.stalled_ms(begin_ns, time.monotonic_ns())


@contextmanager
def observed(directory: Path, policy: Policy, runtime: RealRuntime | None = None) -> Iterator[tuple[str, int]]:
    """A broker behind a proxy; the history lies in `directory/history` at the end."""
    with ExitStack() as stack:
        broker = stack.enter_context(
            Broker.start(
                runtime or RealRuntime(),
                str(directory / "store"),
                policy=policy,
                config=BrokerConfig(scan_period_ms=SCAN_MS),
                store_config=SMALL_STORE,
            )
        )
        proxy = stack.enter_context(
            Observer.start(RealRuntime(), brokers=[broker.address], record_directory=str(directory / "history"))
        )
        (door,) = proxy.doors.values()
        yield door


def judged(history: Path, *, wake_ms: float = ALLOWED_MS, late_ms: float = ALLOWED_MS) -> Result:
    """The verdict of the engine without Spark."""
    return judge([history], engine="local", wake_ms=wake_ms, late_ms=late_ms)


def violated(result: Result) -> Counter[str]:
    """How often each property is certainly broken."""
    return Counter(finding.property for finding in result.findings if finding.verdict == "violated")


def run_load(directory: Path, policy: Policy) -> Path:
    """A load through the proxy; its history."""
    with observed(directory, policy) as door:
        report = drive(RealRuntime(), door, LoadPlan("LOAD", message_count=600, queue_count=4))
    assert list(report.problems) == []
    return directory / "history"


@pytest.fixture(scope="module")
def strict_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The strict broker under load, recorded from outside."""
    return run_load(tmp_path_factory.mktemp("strict"), STRICT)


@pytest.fixture(scope="module")
def strict_latest_ms(strict_history: Path) -> float:
    """The longest that the strict broker took there to answer what had come, or a pull that was due."""
    latency = judged(strict_history).latency
    return max(latency["wake_ms"].max or 0, latency["late_ms"].max or 0)


def test_the_strict_broker_is_valid_from_outside(tmp_path: Path) -> None:
    """Every wakeup in time, every deadline kept, every answer explained by some moment; nothing was missed."""
    with stalls() as stalled_ms:
        history = run_load(tmp_path, STRICT)
        allowed_ms = ALLOWED_MS + stalled_ms()
    result = judged(history, wake_ms=allowed_ms, late_ms=allowed_ms)
    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.queues == 4
    assert result.latency["wake_ms"].count > 100
    assert result.latency["late_ms"].count >= 12


def test_rocketmqs_late_answers_are_found_from_outside(tmp_path: Path) -> None:
    """A pull of half a second waits for the scan; what the answers say is right all the same."""
    result = judged(run_load(tmp_path, ROCKETMQ_4_9), late_ms=200)
    assert result.verdict == "invalid"
    assert violated(result)[ANSWERED_BY_DEADLINE] >= 1
    assert {finding.property for finding in result.findings} <= {ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}
    assert all("after its deadline" in f.why for f in result.findings if f.property == ANSWERED_BY_DEADLINE)


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9, STRICT], ids=lambda policy: policy.name)
def test_lost_wakeups_are_found_from_outside(policy: Policy, tmp_path: Path) -> None:
    """Sends race re-pulls: what the load itself saw come late is what the judge finds, and strict loses none."""
    queues = 4
    with stalls() as stalled_ms, observed(tmp_path, policy, SlowToHold()) as door:
        header = CreateTopicRequestHeader(topic="RACE", read_queue_nums=queues, write_queue_nums=queues)
        with RawClient(door) as client:
            assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()).code == 0
        report = race(door, RacePlan("RACE", seconds=2, queue_count=queues, late_ms=ALLOWED_MS))
        excused_ms = stalled_ms() if policy is STRICT else 0
    assert report.trouble is None
    result = judged(tmp_path / "history", wake_ms=ALLOWED_MS / 2 + excused_ms)
    assert {finding.property for finding in result.findings} <= {NO_LOST_WAKEUP}
    assert result.requests >= report.delivered_count >= queues
    found = {
        (event["queue"], event["offset"])
        for finding in result.findings
        for event in finding.evidence
        if event["event"] == "request_received"
    }
    assert {(late.queue, late.offset) for late in report.unexplained} <= found
    if policy is ROCKETMQ_4_9:
        assert violated(result)
    else:
        assert (report.unexplained, violated(result)) == ((), Counter())


# -- planted faults ----------------------------------------------------------------------------------------------------


FROM_OUTSIDE = (
    "answer_delayed",
    "answer_duplicated",
    "next_wrong",
    "message_missing",
    "too_many_messages",
    "messages_out_of_order",
    "next_stays",
    "wrong_tag",
    "legal_called_illegal",
    "half_line",
    "meta_missing",
    "sequence_gap",
)
"""Faults that show without a look inside the broker. A history from outside does not bound what was visible, so neither
messages nor ends that are too high are among them, nor, within the time allowed for a wake, ends that are too low."""


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_planted_faults_are_found_from_outside(
    strict_history: Path, strict_latest_ms: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The same faults as in histories from inside, with the same verdicts and names.

    As late as the history itself came, as the machine was, nothing is a fault.
    """
    monkeypatch.setattr("longpoll_judge.testing.plant.ALLOWANCE_MS", math.ceil(strict_latest_ms) + 500)
    fault = plant(strict_history, name, tmp_path / "planted")
    result = judged(tmp_path / "planted", late_ms=strict_latest_ms, wake_ms=strict_latest_ms)
    named = {finding.property for finding in result.findings}
    assert result.verdict == fault.verdict, (fault.sentence, result.findings, result.gaps)
    assert named <= fault.properties
    assert bool(named) == bool(fault.properties)


def test_a_torn_tail_is_named(strict_history: Path, tmp_path: Path) -> None:
    """A proxy that was killed leaves half a line and no end: unknown, with both reasons given."""
    (tmp_path / "torn").mkdir()
    (part,) = strict_history.glob("part-*.ndjson")
    (tmp_path / "torn" / part.name).write_bytes(part.read_bytes()[:-25])
    (tmp_path / "torn" / "meta.json").write_bytes((strict_history / "meta.json").read_bytes())
    result = judged(tmp_path / "torn")
    assert result.verdict == "unknown"
    assert ["damaged line" in gap["why"] for gap in result.gaps if gap["kind"] == "damage"] == [True]

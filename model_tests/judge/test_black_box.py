"""Histories that a proxy recorded outside a broker: valid for a correct broker, and each fault is found."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.judge.faults import plant

from longpoll.wire.load import LoadPlan, drive
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, MESSAGE_IS_DELIVERED, NO_LOST_WAKEUP, Result
from longpoll_judge.run.pipeline import judge
from longpoll_observe import Observer
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy

pytestmark = pytest.mark.xdist_group("black_box")  # Recordings take long, so each one is made once.
SCAN_MS = 2_500
LIMIT_MS_MAX = 20_000
"""A limit in ms that exceeds any hold of the load, so that a message that is never delivered is found."""


@contextmanager
def observed(directory: Path, policy: Policy) -> Iterator[tuple[str, int]]:
    """A broker behind a proxy; at the end the history is in `directory/history`."""
    with ExitStack() as stack:
        broker = stack.enter_context(
            Broker.start(
                RealRuntime(),
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


def judged(history: Path, limit_ms: float) -> Result:
    return judge([history], engine="local", wake_ms=limit_ms, late_ms=limit_ms)


def run_load(directory: Path, policy: Policy) -> Path:
    with observed(directory, policy) as door:
        report = drive(RealRuntime(), door, LoadPlan("LOAD", message_count=600, queue_count=4))
    assert list(report.problems) == []
    return directory / "history"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the strict broker's history under load, recorded from outside, and a limit in ms that it keeps here."""
    history, limit_ms = run_load(tmp_path_factory.mktemp("strict"), STRICT), 100.0
    while judged(history, limit_ms).findings and limit_ms < LIMIT_MS_MAX:
        limit_ms *= 2
    return history, limit_ms


def test_the_strict_broker_is_valid_from_outside(strict: tuple[Path, float]) -> None:
    result = judged(*strict)
    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.queues == 4
    assert result.latency["wake_ms"].count > 100
    assert result.latency["late_ms"].count >= 12


@pytest.mark.long
def test_rocketmqs_late_answers_are_found_from_outside(tmp_path: Path) -> None:
    """RocketMQ's scan answers a pull with a deadline of 0.5 s too late, but with the right contents."""
    result = judged(run_load(tmp_path, ROCKETMQ_4_9), 200)
    assert ANSWERED_BY_DEADLINE in {one.property for one in result.findings if one.verdict == "violated"}
    assert {finding.property for finding in result.findings} <= {ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}
    assert all("after its deadline" in f.why for f in result.findings if f.property == ANSWERED_BY_DEADLINE)


FROM_OUTSIDE = ("answer_delayed", "answer_duplicated", "message_missing", "wrong_tag", "half_line", "sequence_gap")
"""Faults that are visible from outside the broker.

A history from outside does not bound the visible messages. Therefore the list has no faults about unknown messages,
about max offsets that are too high, or about max offsets that are too low for less than the wake limit."""


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_injected_faults_are_found_from_outside(
    strict: tuple[Path, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    history, limit_ms = strict
    monkeypatch.setattr("model_tests.support.judge.faults.ALLOWANCE_MS", math.ceil(limit_ms) + 500)
    fault = plant(history, name, tmp_path / "planted")
    result = judged(tmp_path / "planted", limit_ms)
    named = {finding.property for finding in result.findings}
    # If the policy is unknown, retention may have removed the message, unless a later answer delivers the message.
    says = {"unknown", "invalid"} if name == "message_missing" else {fault.verdict}
    assert result.verdict in says, (fault.sentence, result.findings, result.gaps)
    # After the fault is injected, other answers show a different message at the same offset.
    assert named <= fault.properties | {MESSAGE_IS_DELIVERED}
    assert bool(named) == bool(fault.properties)


def test_a_torn_tail_is_reported(strict: tuple[Path, float], tmp_path: Path) -> None:
    """A killed proxy leaves half a line and no end event, so the verdict is unknown for these two reasons."""
    (tmp_path / "torn").mkdir()
    (part,) = strict[0].glob("part-*.ndjson")
    (tmp_path / "torn" / part.name).write_bytes(part.read_bytes()[:-25])
    (tmp_path / "torn" / "meta.json").write_bytes((strict[0] / "meta.json").read_bytes())
    result = judged(tmp_path / "torn", strict[1])
    assert result.verdict == "unknown"
    assert ["damaged line" in gap["why"] for gap in result.gaps if gap["kind"] == "damage"] == [True]

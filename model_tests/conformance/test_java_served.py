"""The property suite against the real Java broker: it keeps RocketMQ's promises, and not the strict ones."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from model_tests.conformance.java_broker import JavaBroker, JavaUnavailableError, resolve, running

from longpoll_broker.testing.served import ROCKETMQ, RemoteSubject, run_suite
from longpoll_runtime.real import RealRuntime

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    """A fresh broker; skipped where Java or its jars cannot be had."""
    try:
        class_path = resolve(tmp_path_factory.mktemp("jars"))
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    with running(class_path, tmp_path_factory.mktemp("java") / "home") as broker:
        yield broker


def test_the_java_broker_keeps_the_model(java_broker: JavaBroker) -> None:
    """Every answer of the real broker is the model's, late by a scan at most: so the model is RocketMQ's, not ours."""
    report = run_suite(RealRuntime(), RemoteSubject(java_broker.address, ROCKETMQ), max_examples=8, step_count=30)
    assert report.holds, f"seed {report.seed}: {report.failure}\n{report.falsifying_example}"


def test_the_java_broker_is_late_by_strict_promises(java_broker: JavaBroker) -> None:
    """Asked to answer within half a second of each deadline, the real broker is late: it looks every five seconds."""
    expectations = attrs.evolve(ROCKETMQ, scan_period_ms=None, late_ms=500)
    subject = RemoteSubject(java_broker.address, expectations)
    report = run_suite(RealRuntime(), subject, max_examples=30, step_count=30, shrink=False)
    assert report.failure is not None, f"seed {report.seed}"
    assert "not answered 500 ms after its deadline" in report.failure

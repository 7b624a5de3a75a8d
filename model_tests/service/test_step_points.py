"""One vocabulary: the served broker's step points carry the names of the law's actions."""

from __future__ import annotations

from pathlib import Path

from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import pull_fields, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy

THE_BROKERS = {
    "append", "make_visible", "pull_read", "hold", "recheck", "expire", "run", "stop",
    "notify_start", "notify_each", "notify_end", "scan_start", "scan_each", "scan_end",
}  # fmt: skip
"""What the broker's own threads do in the scenario below; the walk of a recheck needs a race, which
`test_hold_service.py` plays, and the rest of the law's actions is what clients, time and faults do."""


class NotingRuntime(RealRuntime):
    """Notes every step point that is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[str] = set()

    def step(self, action: str) -> None:
        self.passed.add(action)


def steps_of(policy: Policy, directory: Path, start_broker: StartBroker, connect: Connect) -> set[str]:
    """The step points that a wake, a late pull and a stop with a held pull pass."""
    runtime = NotingRuntime()
    broker = start_broker(
        runtime=runtime, directory=str(directory / policy.name), policy=policy, config=BrokerConfig(scan_period_ms=20)
    )
    puller, sender = connect(broker.address), connect(broker.address)
    send_message(sender, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    opaque = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=30_000))
    wait_until(lambda: len(broker.hold_service) == 1)
    send_message(sender, "T")
    assert puller.reply(opaque) is not None
    late = puller.call(RequestCode.PULL_MESSAGE, pull_fields("T", 2, timeout_ms=50))
    assert late.code == 19
    puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 2, timeout_ms=30_000))
    wait_until(lambda: len(broker.hold_service) == 1)
    broker.stop()
    return runtime.passed


def test_the_step_points_are_the_laws_actions(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    passed = [steps_of(policy, tmp_path, start_broker, connect) for policy in (STRICT, STRICT_CLONE, ROCKETMQ_4_9)]
    for steps in passed:
        assert steps <= set(ACTION_NAMES)
    assert set().union(*passed) == THE_BROKERS

"""The race of upstream issue #7358, played in one chosen order through the step points.

A pull reads and finds nothing; before it stands in the table a message comes and its notifier finds the bucket empty.
Under `rocketmq-4.9` the pull then waits for the scan, under `strict` its recheck answers it at once, and with the
recheck taken out of `strict` (the planted fault) nothing answers it before its deadline.
"""

from __future__ import annotations

import pytest
from model_tests.support.broker.brokers import Connect, StartBroker
from model_tests.support.broker.gates import GatedRuntime
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_message

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Outbox
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy

LONG_MS = 30_000
SHORT_S = 0.3
"""How long an answer that must not come is waited for."""


def lose_the_wakeup(policy: Policy, start_broker: StartBroker, connect: Connect) -> tuple[Broker, RawClient, int]:
    """Stop a pull between its read and its hold, let a message be stored and notified, let the pull go on."""
    runtime = GatedRuntime()
    # Two I/O threads: the first connection is served by one of them and stops there, the others by the other one.
    config = BrokerConfig(io_thread_count=2, scan_period_ms=1_000_000)
    broker = start_broker(runtime=runtime, policy=policy, config=config)
    puller = connect(broker.address)
    puller.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    puller.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("MARK"))
    gate = runtime.gate("hold")
    opaque = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=LONG_MS))
    gate.wait_reached()
    sender = connect(broker.address)
    # The marker's pull is held and woken by a later message, so the notifier of the first one has ended by then.
    marker = sender.send(RequestCode.PULL_MESSAGE, pull_fields("MARK", 0, timeout_ms=LONG_MS))
    send_message(sender, "T")
    send_message(sender, "MARK")
    assert sender.answer(marker).code == 0
    gate.open()
    return broker, puller, opaque


def is_found(reply: Command | None) -> bool:
    return reply is not None and reply.code == 0


def test_rocketmq_loses_the_wakeup_until_the_scan(start_broker: StartBroker, connect: Connect) -> None:
    """The message is visible and the pull is held; only the scanner finds that out."""
    broker, puller, opaque = lose_the_wakeup(ROCKETMQ_4_9, start_broker, connect)
    assert puller.reply(opaque, SHORT_S) is None
    assert broker.store.visible_end("T", 0) == 1
    assert len(broker.hold_service) == 1
    outbox = Outbox()
    broker.hold_service.scan(outbox)
    outbox.flush()
    assert is_found(puller.reply(opaque))


def test_the_recheck_answers_once_when_a_notifier_was_first(start_broker: StartBroker, connect: Connect) -> None:
    """Stopped between insert and recheck, the notifier takes the pull and answers; the recheck then does nothing."""
    runtime = GatedRuntime()
    broker = start_broker(runtime=runtime, config=BrokerConfig(io_thread_count=2))
    puller = connect(broker.address)
    puller.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    gate = runtime.gate("recheck")
    opaque = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=LONG_MS))
    gate.wait_reached()
    sender = connect(broker.address)
    send_message(sender, "T")
    assert is_found(puller.reply(opaque))
    gate.open()
    # The connection's next reply is the next request's: nothing was answered twice.
    assert puller.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
    assert puller.reply(opaque, SHORT_S) is None
    assert len(broker.hold_service) == 0


def scan(broker: Broker) -> None:
    outbox = Outbox()
    broker.hold_service.scan(outbox)
    outbox.flush()


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=lambda policy: policy.name)
def test_a_recheck_answers_at_once(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    broker, puller, opaque = lose_the_wakeup(policy, start_broker, connect)
    assert is_found(puller.reply(opaque, LONG_MS / 1000 / 2))
    assert len(broker.hold_service) == 0


def topic_fields(topic: str) -> dict[str, str]:
    return {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}

"""When a pull is answered, by which clock, and by which message; and how long that took."""

from __future__ import annotations

import time
from typing import Any

import pytest

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.tables.statistics import Statistics
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import pull_fields, records_of, send_fields, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE

PULL = RequestCode.PULL_MESSAGE
LONG_MS = 30_000
"""A deadline that no passing test waits for."""


class SteppingClock(RealRuntime):
    """A wall clock that a test sets forward and back; the monotonic one goes on."""

    step_ms = 0

    def unix_ms(self) -> int:
        return super().unix_ms() + self.step_ms


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_deadlines_do_not_go_by_the_wall_clock(
    policy: object, step_ms: int, start_broker: StartBroker, connect: Connect
) -> None:
    runtime = SteppingClock()
    broker = start_broker(policy=policy, runtime=runtime, config=BrokerConfig(scan_period_ms=50))
    client = connect(broker.address)
    send_message(client, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    began_ns = time.monotonic_ns()
    opaque = client.send(PULL, pull_fields("T", 1, timeout_ms=200))
    wait_until(lambda: len(broker.hold_service) == 1)
    runtime.step_ms = step_ms
    reply = client.reply(opaque)
    assert time.monotonic_ns() - began_ns >= 200_000_000
    assert reply is not None
    assert reply.code == 19


def test_what_is_counted_as_latency_is_not_negative(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    count_get = Statistics.count_get

    def noting(table: Statistics, *place: Any, latency_ms: int, **sums: Any) -> None:
        counted.append(latency_ms)
        count_get(table, *place, latency_ms=latency_ms, **sums)

    monkeypatch.setattr(Statistics, "count_get", noting)
    broker = start_broker()
    client, sender = connect(broker.address), connect(broker.address)
    send_message(sender, "T")
    assert client.call(PULL, pull_fields("T", 0)).code == 0
    opaque = client.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    send_message(sender, "T")
    assert client.reply(opaque) is not None
    assert len(counted) == 2
    assert all(0 <= latency_ms < LONG_MS for latency_ms in counted)


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_message_wakes_who_waits_for_its_queue_and_nobody_else(
    policy: object, start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(policy=policy, config=BrokerConfig(scan_period_ms=100_000))
    client, sender = connect(broker.address), connect(broker.address)
    topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "20", "writeQueueNums": "20", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
    asked = {queue: client.send(PULL, pull_fields("T", 0, queue_id=queue, timeout_ms=LONG_MS)) for queue in range(20)}
    wait_until(lambda: len(broker.hold_service) == 20)
    batch = encode_batch([BatchMessage(b"b", "")])
    for number, queue in enumerate(reversed(range(20))):
        fields_sent = send_fields("T", queue)
        if number % 3 == 0:
            assert sender.call(RequestCode.SEND_MESSAGE_V2, fields_sent, b"x").code == 0
        elif number % 3 == 1:
            assert sender.call(RequestCode.SEND_BATCH_MESSAGE, fields_sent | {"m": "true"}, batch).code == 0
        else:
            [opaque] = sender.send_burst(RequestCode.SEND_MESSAGE_V2, [(fields_sent, b"y")])
            assert sender.reply(opaque) is not None
        reply = client.reply(asked[queue])
        assert reply is not None, f"nobody is woken by queue {queue}"
        assert [record.queue_id for record in records_of(reply)] == [queue]
        assert len(broker.hold_service) == 19 - number

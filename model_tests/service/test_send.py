"""Batches and ends of transactions that RocketMQ refuses for what they ask, as both Java versions were seen to."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import send_fields
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

BATCH = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"m" + struct.pack(">h", 0)
POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)


@POLICIES
def test_a_batch_is_no_part_of_a_transaction_and_not_delayed(
    policy: Policy, start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(policy=policy)
    client = connect(broker.address)

    def code(sys_flag: int, properties: str = "", body: bytes = BATCH) -> int:
        fields = send_fields("T", properties=properties) | {"m": "true", "f": str(sys_flag)}
        return client.call(RequestCode.SEND_BATCH_MESSAGE, fields, body).code

    assert [code(flag) for flag in (4, 8, 12, 31, -1)] == [13] * 5
    assert code(0, "DELAY\x013\x02") == 13
    assert code(0, "DELAY\x01x\x02") == 1
    assert [code(flag, body=b"") for flag in (0, 4)] == [1, 1]
    assert broker.store.log_end == 0
    assert [code(flag) for flag in (0, 1, 2, 16, 64)] == [0] * 5
    assert code(0, "DELAY\x010\x02") == 0
    wait_until(lambda: broker.store.visible_end("T", 0) == 6)


@pytest.mark.parametrize(("policy", "answered"), [(STRICT, True), (ROCKETMQ_4_9, False), (ROCKETMQ_5, False)])
def test_how_a_transaction_must_not_end(
    policy: Policy, answered: bool, start_broker: StartBroker, connect: Connect
) -> None:
    client = connect(start_broker(policy=policy).address)
    fields = {"producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0"}

    def end(how: str) -> int:
        return client.send(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": how})

    undecided = end("0")
    for how in ("4", "-1", "31"):
        reply = client.reply(end(how))
        assert reply is not None
        assert reply.code == 1
    # Answers come in the order of the requests.
    assert (client.reply(undecided, 0.01) is not None) is answered


@POLICIES
def test_a_send_that_names_no_queue_goes_to_each_in_turn(
    policy: Policy, start_broker: StartBroker, connect: Connect
) -> None:
    """Queue -1 leaves the choice to the broker, which must not make it 0 for everybody; one by one and in bursts."""
    broker = start_broker(policy=policy)
    client = connect(broker.address)
    client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"first")
    topic = broker.topics.get("T")
    assert topic is not None
    count = topic.write_queue_nums
    assert count > 1

    def queue_of(reply: Command | None) -> int:
        assert reply is not None
        assert reply.code == 0
        assert reply.ext_fields is not None
        return int(reply.ext_fields["queueId"])

    alone = [queue_of(client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", -1), b"x")) for _ in range(2 * count)]
    burst = client.send_burst(RequestCode.SEND_MESSAGE_V2, [(send_fields("T", -1), b"y")] * 2 * count)
    together = [queue_of(client.reply(opaque)) for opaque in burst]
    for queues in (alone, together):
        assert Counter(queues) == dict.fromkeys(range(count), 2)

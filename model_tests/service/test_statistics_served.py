"""What the broker tells of its groups: statistics by code 315, and the events of moved offsets."""

from __future__ import annotations

import json

import pytest

from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import pull_fields, records_of, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy


def test_what_a_group_got_is_told(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    client = connect(broker.address)
    send_message(client, "T")
    client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    reply = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@G"})
    assert reply.code == 0
    assert json.loads(bytes(reply.body))["statsMinute"] == {"sum": 0, "tps": 0.0, "avgpt": 0.0}
    broker.shared.statistics.sample(0)
    client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    broker.shared.statistics.sample(10**9)
    found = broker.shared.statistics.snapshots("GROUP_GET_NUMS", "T@G")
    assert found is not None
    assert found["statsMinute"].sum == 1
    unknown = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@H"})
    assert unknown.code == 1
    assert "T@H" in (unknown.remark or "")


def test_what_the_broker_gave_is_told_by_its_clusters_name(start_broker: StartBroker, connect: Connect) -> None:
    client = connect(start_broker().address)
    send_message(client, "T")
    client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    codes = [
        client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}).code
        for name, key in (
            ("BROKER_GET_NUMS", "DefaultCluster"),
            ("BROKER_GET_NUMS", "T@G"),
            ("GROUP_GET_SIZE", "T@G"),
            ("GROUP_GET_LATENCY", "0@T@G"),
            ("GROUP_GET_LATENCY", "T@G"),
            ("NO_SUCH_NUMS", "T@G"),
        )
    ]
    assert codes == [0, 1, 0, 0, 1, 1]


def test_4_9_stores_an_event_of_a_moved_offset(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(policy=ROCKETMQ_4_9)
    client = connect(broker.address)
    send_message(client, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 77)).code == 21
    wait_until(lambda: broker.store.visible_end("OFFSET_MOVED_EVENT", 0) == 1)
    (record,) = records_of(
        client.call(RequestCode.PULL_MESSAGE, pull_fields("OFFSET_MOVED_EVENT", 0, subscription="G"))
    )
    assert json.loads(bytes(record.body)) == {
        "consumerGroup": "G",
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
        "offsetNew": 1,
        "offsetRequest": 77,
    }


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_nobody_else_does(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(policy=policy)
    client = connect(broker.address)
    send_message(client, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 77)).code == 21
    assert broker.store.visible_end("OFFSET_MOVED_EVENT", 0) == 0

"""What a group's heartbeats make of its pulls: tags, filters and their versions, as the Java brokers were seen to."""

from __future__ import annotations

import msgspec
import pytest
from model_tests.service.subscription_script import play, play_strict
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import pull_fields, records_of, send_message
from model_tests.support.service import served

from longpoll_broker.config import BrokerConfig
from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

CONFIG = BrokerConfig(property_filter=True)


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_heartbeats_count_as_in_rocketmq(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    """Strict parses the tags itself, and a group that comes again begins anew."""
    played = play_strict if policy is STRICT else play
    assert played(connect(start_broker(policy=policy, config=CONFIG).address)) == []


@pytest.mark.parametrize(
    ("policy", "codes"), [(STRICT, (23, 0, 27)), (ROCKETMQ_4_9, (23, 0, 27)), (ROCKETMQ_5, (0, 0, 0))],
    ids=["strict", "4.9", "5.x"],
)  # fmt: skip
def test_parts_of_texts_are_compared_where_the_version_does(
    policy: Policy, codes: tuple[int, int, int], start_broker: StartBroker, connect: Connect
) -> None:
    broker, client = served(start_broker, connect, policy=policy, config=CONFIG)
    expression = "TAGS NOT CONTAINS 'blue' AND TAGS STARTSWITH 're'"
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}').code == 0
    for tag in ("blue", "red"):
        send_message(client, "T", tag.encode(), properties=f"TAGS\x01{tag}\x02")
    wait_until(lambda: broker.store.visible_end("T", 0) == 2)
    wanted = {"topic": "T", "subString": expression, "expressionType": "SQL92", "subVersion": 1}
    asked = {"clientId": "me", "group": "G", "subscriptionData": wanted}
    consumer = {"groupName": "G", "subscriptionDataSet": [wanted]}
    beat = msgspec.json.encode({"clientID": "me", "consumerDataSet": [consumer]})
    brought = pull_fields("T", 0) | {"subscription": expression, "expressionType": "SQL92"}
    checked = client.call(RequestCode.CHECK_CLIENT_CONFIG, {}, msgspec.json.encode(asked))
    assert client.call(RequestCode.HEART_BEAT, {}, beat).code == 0
    known = pull_fields("T", 0) | {"sysFlag": "0", "subVersion": "1"}
    found = [client.call(RequestCode.PULL_MESSAGE, fields) for fields in (brought, known)]
    assert (checked.code, *(each.code for each in found)) == codes
    # A pull whose own expression cannot be read is given everything, as in RocketMQ.
    wanted_bodies = [b"blue", b"red"] if codes[0] else [b"red"]
    assert [bytes(record.body) for record in records_of(found[0])] == wanted_bodies
    if found[1].code == 0:
        assert [bytes(record.body) for record in records_of(found[1])] == [b"red"]

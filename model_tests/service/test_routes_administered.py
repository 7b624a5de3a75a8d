"""What administrators ask a name server: settings, permissions of routes, topics by cluster, and what nobody knows."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from longpoll_broker.core.tables import kv_settings, routes
from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.protocol_page import sections
from longpoll_broker.testing.raw_client import RawClient, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

ADDRESS = "10.0.0.9:10911"
UNKNOWN = (0, -1, 2, 219, 313, 9999, 70_000)
"""Codes that neither server has: the last does not fit a binary header."""
AT_ONCE_S = 2.0
"""A client of Java gives up after 3 or 5 s."""


def register(client: RawClient, *topics: str, name: str = "other", counter: int = 1) -> int:
    """Register another broker of cluster C with these topics; the answer's code."""
    rows = {topic: {"topicName": topic, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6} for topic in topics}
    wrapper = {"topicConfigTable": rows, "dataVersion": {"counter": counter, "timestamp": 7}}
    fields = {"brokerName": name, "brokerAddr": ADDRESS, "clusterName": "C", "haServerAddr": "", "brokerId": "0"}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
    return client.call(RequestCode.REGISTER_BROKER, fields, body).code


def permissions(client: RawClient, topic: str) -> dict[str, int]:
    """What a topic's route says may be done at each broker; empty without a route."""
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    queues: list[dict[str, Any]] = json.loads(bytes(answer.body))["queueDatas"] if answer.code == 0 else []
    return {queue["brokerName"]: queue["perm"] for queue in queues}


def listed(answer: Command) -> list[str]:
    """The names in a list of topics."""
    found: list[str] = json.loads(bytes(answer.body))["topicList"]
    return found


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_an_unknown_code_is_answered_at_once(start_broker: StartBroker, connect: Connect, policy: Policy) -> None:
    broker = start_broker(policy=policy)
    for address in (broker.address, broker.name_server_address):
        client = connect(address)
        is_silent = policy is ROCKETMQ_4_9 and address == broker.name_server_address
        opaques = [client.send(code) for code in UNKNOWN]
        if is_silent:
            assert client.call(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
            assert [client.reply(opaque, 0.0) for opaque in opaques] == [None] * len(UNKNOWN)
            continue
        for code, opaque in zip(UNKNOWN, opaques, strict=True):
            reply = client.reply(opaque, AT_ONCE_S)
            assert reply is not None, f"code {code} is not answered"
            assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


def test_no_code_waits_for_a_time_out(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    for address in (broker.address, broker.name_server_address):
        client = connect(address)
        for code in RequestCode:
            assert client.reply(client.send(code), AT_ONCE_S) is not None, code.name


def test_a_setting_is_kept_and_forgotten(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(start_broker().name_server_address)
    place = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    assert client.call(RequestCode.GET_KV_CONFIG, place).code == 22
    assert client.call(RequestCode.PUT_KV_CONFIG, place | {"value": "a:4"}).code == 0
    assert client.call(RequestCode.GET_KV_CONFIG, place).ext_fields == {"value": "a:4"}
    assert client.call(RequestCode.GET_KV_CONFIG, place | {"namespace": "other"}).code == 22
    monkeypatch.setattr(kv_settings, "SETTING_COUNT_MAX", 1)
    refused = client.call(RequestCode.PUT_KV_CONFIG, place | {"key": "U", "value": ""})
    assert (refused.code, "delete one first" in str(refused.remark)) == (1, True)
    assert client.call(RequestCode.PUT_KV_CONFIG, place | {"value": "b:4"}).code == 0
    assert client.call(RequestCode.DELETE_KV_CONFIG, place).code == 0
    assert client.call(RequestCode.DELETE_KV_CONFIG, place).code == 0
    assert client.call(RequestCode.GET_KV_CONFIG, place).code == 22


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"namespace": "n" * 256, "key": "k", "value": "v"}, "longer than 255"),
        ({"namespace": "n", "key": "k" * 256, "value": "v"}, "longer than 255"),
        ({"namespace": "n", "key": "k", "value": "v" * 4097}, "over the limit of 4096"),
        ({"namespace": "n", "key": "k"}, "value"),
    ],
)
def test_a_setting_that_cannot_be_kept_is_refused(
    start_broker: StartBroker, connect: Connect, fields: dict[str, str], words: str
) -> None:
    answer = connect(start_broker().name_server_address).call(RequestCode.PUT_KV_CONFIG, fields)
    assert answer.code == 1
    assert words in str(answer.remark)


def test_a_broker_is_written_to_no_more_and_again(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    client = connect(broker.name_server_address)
    assert register(client, "T", "U") == 0
    made = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    admin = connect(broker.address)
    assert admin.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == 0
    for name in ("other", "broker-a"):
        before = permissions(client, "T")
        wiped = client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
        assert permissions(client, "T") == before | {name: 4}
        added = client.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": name})
        assert permissions(client, "T") == before
        topics = 2 if name == "other" else len(broker.topics.by_name)
        assert (wiped.ext_fields, added.ext_fields) == ({"wipeTopicCount": str(topics)}, {"addTopicCount": str(topics)})
    client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert admin.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made | {"readQueueNums": "5"}).code == 0
    assert permissions(client, "T")["broker-a"] == 6
    nobody = client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"})
    assert (nobody.code, nobody.ext_fields) == (0, {"wipeTopicCount": "0"})


def test_a_deleted_topic_has_no_route_until_it_is_registered_again(start_broker: StartBroker, connect: Connect) -> None:
    client = connect(start_broker().name_server_address)
    assert register(client, "T", "U") == 0
    elsewhere = {"topic": "T", "clusterName": "elsewhere"}
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, elsewhere).code == 0
    assert permissions(client, "T") == {"other": 6}
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "C"}).code == 0
    assert permissions(client, "T") == {}
    assert permissions(client, "U") == {"other": 6}
    assert register(client, "T", "U") == 0
    assert permissions(client, "T") == {"other": 6}
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "TBW102"}).code == 0
    assert permissions(client, "TBW102") == {"broker-a": 7}


def make(client: RawClient, topic: str) -> None:
    """Make a topic of four queues."""
    fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0


def test_a_broker_that_tells_of_one_new_topic_keeps_its_others(start_broker: StartBroker, connect: Connect) -> None:
    client = connect(start_broker().name_server_address)
    assert register(client, "T") == 0
    assert register(client, "U", counter=2) == 0
    assert permissions(client, "T") == permissions(client, "U") == {"other": 6}


def test_a_broker_that_tells_of_others_each_time_fills_no_memory(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "TOLD_COUNT_MAX", 3)
    client = connect(start_broker().name_server_address)
    for number in range(1, 8):
        assert register(client, f"T{number}", counter=number) == 0
    assert permissions(client, "T7") == {"other": 6}
    assert sum(bool(permissions(client, f"T{number}")) for number in range(1, 8)) == 3
    assert register(client, "T7", counter=8) == 0
    assert permissions(client, "T7") == {"other": 6}
    assert sum(bool(permissions(client, f"T{number}")) for number in range(1, 8)) == 3


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_a_deleted_topics_route_stays_until_216_under_rocketmq(
    start_broker: StartBroker, connect: Connect, policy: Policy
) -> None:
    broker = start_broker(policy=policy)
    client, admin = connect(broker.name_server_address), connect(broker.address)
    kept = {} if policy is STRICT else {"broker-a": 6}
    make(admin, "T")
    assert admin.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert permissions(client, "T") == kept
    listing = listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}))
    assert ("T" in listing) == bool(kept)
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}).code == 0
    assert permissions(client, "T") == {}
    make(admin, "T")
    assert permissions(client, "T") == {"broker-a": 6}


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_216_hides_a_topic_that_is_there_under_rocketmq(
    start_broker: StartBroker, connect: Connect, policy: Policy
) -> None:
    broker = start_broker(policy=policy)
    client, admin = connect(broker.name_server_address), connect(broker.address)
    hidden = {"broker-a": 6} if policy is STRICT else {}
    forget = partial(client.call, RequestCode.DELETE_TOPIC_IN_NAMESRV)
    make(admin, "T")
    assert forget({"topic": "T", "clusterName": "elsewhere"}).code == forget({}).code == 0
    assert permissions(client, "T") == {"broker-a": 6}
    for again in (partial(make, admin, "T"), partial(send_message, admin, "made-by-a-send")):
        assert forget({"topic": "T"}).code == 0
        assert permissions(client, "T") == hidden
        send_message(admin, "T")
        assert permissions(client, "T") == hidden
        again()
        assert permissions(client, "T") == {"broker-a": 6}


def test_topics_are_listed_by_cluster(start_broker: StartBroker, connect: Connect) -> None:
    """An unknown cluster has none; the names of clusters and brokers are topics of the system."""
    client = connect(start_broker().name_server_address)
    assert register(client, "T", "U") == 0
    assert listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"})) == ["T", "U"]
    assert "TBW102" in listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}))
    assert listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "none"})) == []
    system = client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert listed(system) == ["C", "DefaultCluster", "broker-a", "other"]
    assert json.loads(bytes(system.body))["brokerAddr"].startswith("127.0.0.1:")


def test_the_name_servers_settings_are_properties(start_broker: StartBroker, connect: Connect) -> None:
    """A key and a value a line, as `mqadmin getNamesrvConfig` reads them."""
    body = bytes(connect(start_broker().name_server_address).call(RequestCode.GET_NAMESRV_CONFIG).body).decode()
    assert dict(line.split("=") for line in body.splitlines())["brokerChannelExpiredTime"] == "120000"


def test_the_page_of_the_protocol_tells_name_servers_from_brokers() -> None:
    """No service of the name server is taken for one of the broker."""
    told = {section.code: section.server for section in sections()}
    assert told[RequestCode.PUT_KV_CONFIG] == ["served by the name server"]
    assert told[RequestCode.GET_MAX_OFFSET] == ["served by the broker"]

"""Requests of administrators: progress of queues and groups, connections, whole tables and settings."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_message
from model_tests.support.present import present

from longpoll_broker.broker import Broker
from longpoll_broker.io import processors
from longpoll_broker.rocketmq.admin import progress_processor, table_processor
from longpoll_broker.shared.statistics import Rates
from longpoll_protocol.bodies import MessageQueue, decode_by_queue, encode_by_queue
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

HEARTBEAT = {
    "clientID": "here@1",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {
            "groupName": "G",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{"topic": "T", "subString": "a || b", "subVersion": 5}],
        }
    ],
}


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)


def joined(client: RawClient) -> RawClient:
    assert client.call(RequestCode.HEART_BEAT, body=json.dumps(HEARTBEAT).encode()).code == 0
    return client


def test_a_topics_queues_are_told(broker: Broker, client: RawClient) -> None:
    """Request 202; an unknown topic gets 17."""
    send_message(client, "T")
    send_message(client, "T")
    wait_visible(broker, "T", 2)
    body = client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
    found = decode_by_queue(body, "offsetTable")
    topic = present(broker.topics.get("T"))
    assert set(found) == {queue(number) for number in range(topic.write_queue_nums)}
    stored_ms = broker.store.store_ms_of("T", 0, 1)
    assert found[queue(0)] == {"minOffset": 0, "maxOffset": 2, "lastUpdateTimestamp": stored_ms}
    assert client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"}).code == 17


def test_a_groups_progress_is_told(
    broker: Broker, client: RawClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request 208, for one topic or all topics."""
    for topic in ("T", "U"):
        send_message(client, topic)
        client.commit(topic, "G", 1)
    wait_visible(broker, "U", 1)

    def progress(**fields: str) -> dict[MessageQueue, Any]:
        answer = client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"} | fields)
        return decode_by_queue(answer.body, "offsetTable")

    both = progress()
    stored_ms = broker.store.store_ms_of("T", 0, 0)
    assert both[queue(0)] == {"brokerOffset": 1, "consumerOffset": 1, "lastTimestamp": stored_ms}
    assert {each.topic for each in both} == {"T", "U"}
    assert {each.topic for each in progress(topic="U")} == {"U"}
    joined(brokers.connect(broker))
    assert {each.topic for each in progress()} == {"T"}
    monkeypatch.setattr(progress_processor, "TOLD_QUEUE_COUNT_MAX", 1)
    refused = client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    assert (refused.code, "ask for one topic" in str(refused.remark)) == (1, True)


def test_the_groups_of_a_topic_are_told(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request 300 lists groups that subscribe to the topic or have offsets of it."""
    client = joined(brokers.client())
    for topic, group in (("T", "H"), ("TT", "I")):
        send_message(client, topic, b"m")
        client.commit(topic, group, 1)
    assert client.told(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T") == {"groupList": ["G", "H"]}
    monkeypatch.setattr(progress_processor, "TOLD_GROUP_COUNT_MAX", 1)
    assert client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).code == 1


def test_a_queues_entries_are_told(broker: Broker, brokers: Brokers) -> None:
    """Request 321 returns at most the requested count."""
    client = joined(brokers.connect(broker))
    for _ in range(3):
        send_message(client, "T")
    wait_visible(broker, "T", 3)

    def entries(**fields: str) -> Command:
        return client.call(
            RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": "0", "index": "1", "count": "10"} | fields
        )

    found = json.loads(bytes(entries(consumerGroup="G").body))
    assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, 3, 2)
    unit = present(broker.store.unit("T", 0, 1))
    assert (found["queueData"][0]["physicOffset"], found["queueData"][0]["physicSize"]) == unit[:2]
    assert sorted(found["subscriptionData"]["tagsSet"]) == ["a", "b"]
    assert "not online" in json.loads(bytes(entries(consumerGroup="H").body))["filterData"]
    assert len(json.loads(bytes(entries(count="1").body))["queueData"]) == 1
    beyond = entries(index="3")
    assert (beyond.code, bytes(beyond.body), beyond.remark) == (0, b"", "Index 3 of 0@T is not exist!")
    assert (entries(queueId="99").code, entries(topic="none").code) == (1, 1)
    assert len(json.loads(bytes(entries(index="0", count=str(2**31 - 1)).body))["queueData"]) == 3


def test_who_is_connected_is_told(broker: Broker, client: RawClient, brokers: Brokers) -> None:
    """Requests 203 and 204; a language that Java lacks is OTHER."""
    assert client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"}).code == 206
    assert client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"}).code == 1
    member = joined(brokers.connect(broker))
    consumers = client.told(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
    assert consumers["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert consumers["subscriptionTable"]["T"]["subString"] == "a || b"
    producers = client.told(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P")
    assert producers["connectionSet"] == consumers["connectionSet"]
    (connection,) = consumers["connectionSet"]
    assert connection["clientId"] == "here@1"
    assert connection["clientAddr"].startswith("127.0.0.1:")
    with broker.handler.administering.clients.lock:
        (channel,) = broker.handler.administering.clients.programs
        program = broker.handler.administering.clients.programs[channel]
        broker.handler.administering.clients.programs[channel] = type(program)(program.client_id, "COBOL", 7, 0)
    (connection,) = client.told(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")["connectionSet"]
    assert (connection["language"], connection["version"]) == ("OTHER", 7)
    member.close()
    wait_until(lambda: not broker.handler.administering.clients.programs)


def test_tables_are_told_whole(broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests 21, 43 and 45; a table too large for an answer is refused."""
    send_message(client, "T")
    client.commit("T", "G", 1)
    broker.shared.delays.put(3, 7)
    topics = client.told(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
    assert (topics["T"]["topicName"], topics["T"]["perm"]) == ("T", 6)
    assert client.told(RequestCode.GET_ALL_CONSUMER_OFFSET) == {"offsetTable": {"T@G": {"0": 1}}}
    assert client.told(RequestCode.GET_ALL_DELAY_OFFSET)["offsetTable"]["3"] == 7
    monkeypatch.setattr(processors, "ANSWER_SIZE_MAX", 10)
    monkeypatch.setattr(table_processor, "OFFSET_COUNT_MAX", 0)
    for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET):
        refused = client.call(code)
        assert (refused.code, "over the limit" in str(refused.remark)) == (1, True)


def settings(client: RawClient) -> dict[str, str]:
    lines = bytes(client.call(RequestCode.GET_BROKER_CONFIG).body).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_settings_are_told_and_two_can_be_changed(client: RawClient) -> None:
    found = settings(client)
    assert (found["brokerName"], found["flushDiskType"], found["longPollingEnable"]) == (
        "broker-a",
        "ASYNC_FLUSH",
        "true",
    )
    wanted = b"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\nbrokerName=broker-a\n# a note\n"
    assert client.call(RequestCode.UPDATE_BROKER_CONFIG, body=wanted).code == 0
    assert settings(client)["autoCreateTopicEnable"] == "false"
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0) | {"consumerGroup": "new"}).code == 26


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"autoCreateTopicEnable=false\nbrokerName=other", "brokerName cannot be changed while the broker runs"),
        (b"autoCreateTopicEnable=false\nno_such=1", "'no_such' is no setting"),
        (b"autoCreateTopicEnable=perhaps", "true or false"),
        (b"what", "not key=value"),
        (b"\xff=1", "cannot be read"),
        (b"a" * 70_000, "over the limit"),
    ],
)
def test_a_setting_that_cannot_be_changed_is_named(client: RawClient, body: bytes, words: str) -> None:
    before = settings(client)
    answer = client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == 1
    assert words in str(answer.remark)
    assert settings(client) == before


def test_rates_are_of_the_last_seconds() -> None:
    """Rates over 10 s, a minute and 10 minutes of the samples."""
    rates = Rates()
    assert rates.as_text() == "0.0 0.0 0.0"
    for second in range(101):
        rates.sample(second * 1000, 0 if second < 95 else (second - 94) * 100)
        rates.sample(second * 1000 + 999, 10**9)
    assert rates.as_text() == "60.0 10.0 6.0"


def test_a_table_by_queue_is_written_and_read() -> None:
    table = {queue(0): 5, MessageQueue(topic='a"}:{b\\', broker_name="{x}:", queue_id=1): -7}
    written = b'{"a":"{x}:","offsetTable":' + bytes(encode_by_queue(table)) + b',"b":{"c":1}}'
    assert decode_by_queue(written, "offsetTable") == table
    assert decode_by_queue(b'{"b":1}', "offsetTable") == {}
    listed = b'{"offsetTable":[{"brokerName":"broker-a","queueId":0,"topic":"T","offset":5}]}'
    assert decode_by_queue(listed, "offsetTable") == {queue(0): 5}
    quoted = json.dumps({"offsetTable": {'{"brokerName":"broker-a","queueId":0,"topic":"T"}': 5}}).encode()
    assert decode_by_queue(quoted, "offsetTable") == {queue(0): 5}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"offsetTable":5}', b'{"offsetTable":{"x":5}}', b'{"offsetTable":{{"topic":"T"}:5}}', b"{" * 9999,
     b'{"offsetTable":[5]}', b'{"offsetTable":[{}]}', b'{"offsetTable":{{"topic":"\xff"}:5}}', b" " * (4 * 2**20 + 1)],
)  # fmt: skip
def test_what_is_no_table_by_queue_is_refused(body: bytes) -> None:
    with pytest.raises(HeaderError, match="offsetTable"):
        decode_by_queue(body, "offsetTable")


@pytest.mark.parametrize(
    ("policy", "start", "expected"),
    [(STRICT, "0", (19, "10")), (ROCKETMQ_4_9, "0", (19, "10")), (ROCKETMQ_5, "15", (21, "15"))],
    ids=lambda value: getattr(value, "name", None),
)
def test_where_a_queue_begins_whose_records_are_gone(
    brokers: Brokers, policy: Policy, start: str, expected: tuple[int, str]
) -> None:
    """4.9 keeps the minimum; 5.x moves it to the end."""
    sizes = attrs.evolve(SMALL_STORE, commit_log_file_size=4096, consume_queue_file_size=200, message_size_max=2048)
    broker = brokers.start(policy=policy, store_config=attrs.evolve(sizes, file_reserved_hours=0))
    client, store = brokers.connect(broker), broker.store
    for topic, count, size in (("T", 15, 1), ("U", 20, 1000)):
        for _ in range(count):
            send_message(client, topic, bytes(size))
    wait_until(lambda: store.visible_end("U", 0) == 20)
    store.flush()
    while not store.index(100):
        pass
    wait_until(lambda: store.remove_expired(at_any_hour=True) > 0)
    told = client.call(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"}).ext_fields
    assert told == {"offset": start}
    pulled = client.pull("T")
    fields = pulled.ext_fields or {}
    assert (pulled.code, fields["nextBeginOffset"]) == expected
    assert fields["minOffset"] == start

"""Requests of administrators and tools: group progress, connections, tables, settings, lists and maintenance."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from model_tests.support.broker.stores import result_of
from model_tests.support.present import present
from model_tests.support.service import ShiftedRuntime
from model_tests.support.store import Clock

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.hold.pull_pool import PoolExecutor
from longpoll_broker.io import processors
from longpoll_broker.io.channel import Outbox
from longpoll_broker.rocketmq.admin import client_processor, progress_processor, table_processor
from longpoll_broker.rocketmq.admin.topic_processor import LIST_COUNT_MAX
from longpoll_broker.shared.statistics import Rates
from longpoll_protocol.bodies import MessageQueue, decode_by_queue, encode_by_queue
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime.real import RealRuntime
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


def test_a_groups_progress_is_returned(
    broker: Broker, client: RawClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_groups_of_a_topic_are_listed(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    client = joined(brokers.client())
    for topic, group in (("T", "H"), ("TT", "I")):
        send_message(client, topic, b"m")
        client.commit(topic, group, 1)
    assert client.told(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T") == {"groupList": ["G", "H"]}
    monkeypatch.setattr(progress_processor, "TOLD_GROUP_COUNT_MAX", 1)
    assert client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).code == 1


def test_a_queues_entries_are_returned(broker: Broker, brokers: Brokers) -> None:
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


def test_connections_are_listed(broker: Broker, client: RawClient, brokers: Brokers) -> None:
    """The lists of consumers (203) and producers (204) report a client's language as OTHER if Java does not know it."""
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


def test_whole_tables_are_returned(broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for whole tables (21, 43 and 45) return them, or an error if a table is too large for an answer."""
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


def test_settings_are_returned_and_two_can_be_changed(client: RawClient) -> None:
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
def test_an_invalid_table_by_queue_is_refused(body: bytes) -> None:
    with pytest.raises(HeaderError, match="offsetTable"):
        decode_by_queue(body, "offsetTable")


@pytest.mark.parametrize(
    ("policy", "start", "expected"),
    [(STRICT, "0", (19, "10")), (ROCKETMQ_4_9, "0", (19, "10")), (ROCKETMQ_5, "15", (21, "15"))],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_minimum_offset_of_a_queue_with_removed_records(
    brokers: Brokers, policy: Policy, start: str, expected: tuple[int, str]
) -> None:
    """If a queue's first records are gone, 4.9 keeps the queue's min offset and 5.x moves it to the queue's end."""
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


DAYS = ("YesterdayMorning", "TodayMorning", "TodayNow")

POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)


def sent(client: RawClient, count: int = 2, topic: str = "T") -> None:
    for _ in range(count):
        send_message(client, topic)
    asked = {"topic": topic, "queueId": "0"}
    wait_until(lambda: int((client.call(RequestCode.GET_MAX_OFFSET, asked).ext_fields or {})["offset"]) >= count)


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_attributes_of_a_topic_are_kept_or_refused(brokers: Brokers, tmp_path: Path, policy: Policy) -> None:
    client = brokers.client(policy=policy, directory=str(tmp_path / "store"))
    queues = {"topic": "A", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    for change, code, attributes in (
        ("+message.type=FIFO", 0, {"message.type": "FIFO"}),
        ("+queue.type=BatchCQ", 1, {"message.type": "FIFO"}),
        ("+queue.type=SimpleCQ,+message.type=DELAY", 0, {"message.type": "DELAY", "queue.type": "SimpleCQ"}),
        ("-queue.type", 0, {"message.type": "DELAY"}),
        *(
            (odd, 1, {"message.type": "DELAY"})
            for odd in ("message.type=FIFO", "+odd=1", "+message.type=x", "+queue.type")
        ),
        ("", 0, {"message.type": "DELAY"}),
    ):
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, queues | {"attributes": change}).code == code, change
        assert client.told(RequestCode.GET_TOPIC_CONFIG, topic="A")["attributes"] == attributes, change
    row = {"topicName": "B", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    for listed, code in (({"+message.type": "FIFO"}, 0), ({"+queue.type": "BatchCQ"}, 1), ({"queue.type": "x"}, 1)):
        body = json.dumps({"topicConfigList": [row | {"attributes": listed}]}).encode()
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == code
    assert client.told(RequestCode.GET_TOPIC_CONFIG, topic="B")["attributes"] == {"message.type": "FIFO"}
    kept = json.loads((tmp_path / "store" / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert [kept[name].get("attributes") for name in ("A", "B", "TBW102")] == [
        {"message.type": "DELAY"}, {"message.type": "FIFO"}, None
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_lists_of_topics_and_groups_are_created(brokers: Brokers, policy: Policy) -> None:
    client = brokers.client(policy=policy)
    body = {"topicConfigList": [{"topicName": "A", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6}]}
    made = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps(body).encode())
    assert (made.code, made.remark) == (0, "not set any response code")
    topic = client.told(RequestCode.GET_TOPIC_CONFIG, topic="A")
    assert topic == body["topicConfigList"][0] | {
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {},
    }  # fmt: skip
    groups = {"groupConfigList": [{"groupName": "G", "retryMaxTimes": 3}, {"groupName": "H"}]}
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, json.dumps(groups).encode()).code == 0
    group = client.told(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
    assert (group["groupName"], group["retryMaxTimes"], group["groupRetryPolicy"]) == ("G", 3, {"type": "CUSTOMIZED"})
    assert client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "none"}).code == 17
    assert client.told(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="new")["groupName"] == "new"
    assert client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g" * 300}).code == 26


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        (18, {"topicConfigList": [{"topicName": "A"}, {"topicName": "a.b"}]}, "bad"),
        (18, {"topicConfigList": [{"topicName": "A"}, {"topicName": "TBW102"}]}, "bad"),
        (18, {"topicConfigList": [{"topicName": "A"}, {"topicName": "B", "readQueueNums": 2000}]}, "bad"),
        (225, {"groupConfigList": [{"groupName": "A"}, {"groupName": "g" * 300}]}, "bad"),
        (
            18,
            {"topicConfigList": [{"topicName": "A"}, {"topicName": "B", "topicFilterType": "x" * 100_000}]},
            "bad",
        ),
        (18, {"topicConfigList": [{"topicName": f"t{each}"} for each in range(LIST_COUNT_MAX + 1)]}, "unreadable"),
        (18, {"topicConfigList": [{"readQueueNums": 2}]}, "unreadable"),
        (18, {"topicConfigList": {"topicName": "A"}}, "unreadable"),
        (18, "{", "unreadable"),
        (225, {"groupConfigList": [7]}, "unreadable"),
        (18, {"topicConfigList": None}, "nothing"),
        (225, {}, "nothing"),
    ],
)
def test_lists_are_atomic(code: int, body: object, kind: str, *, brokers: Brokers) -> None:
    broker = brokers.start(policy=ROCKETMQ_5)
    before = set(broker.topics.by_name), set(broker.groups.by_name)
    text = body if isinstance(body, str) else json.dumps(body)
    made = brokers.connect(broker).call(code, {}, text.encode())
    assert made.code == {"bad": 29, "unreadable": 1, "nothing": 0}[kind], made.remark
    assert len(made.remark or "") < 400
    assert (set(broker.topics.by_name), set(broker.groups.by_name)) == before


def test_a_groups_consume_time_span_is_returned(brokers: Brokers) -> None:
    broker, client = brokers.served()
    sent(client)
    client.commit("T", "G", 2)
    spans = client.told(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")["consumeTimeSpanSet"]
    first, last = (broker.store.store_ms_of("T", 0, offset) for offset in (0, 1))
    assert [span["messageQueue"]["queueId"] for span in spans] == list(range(len(spans)))
    names = ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")
    assert [spans[0][name] for name in names] == [first, last, last, 0]
    assert [spans[1][name] for name in names[:3]] == [-1, -1, -1]
    assert first is not None
    when = dt.datetime.fromtimestamp(first / 1000).astimezone()
    assert spans[0]["minTimeStampStr"].startswith(f"{when:%Y-%m-%d#%H:%M:%S}:")
    behind = client.told(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="nobody")["consumeTimeSpanSet"][0]
    assert behind["consumeTimeStamp"] == first
    assert behind["delayTime"] >= 0
    assert client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "none", "group": "G"}).code == 17


def test_a_groups_offsets_can_be_cloned(broker: Broker, brokers: Brokers) -> None:
    client = joined(brokers.connect(broker))
    for topic in ("T", "U"):
        send_message(client, topic)
        client.commit(topic, "G", 7)
    clone = partial(client.call, RequestCode.CLONE_GROUP_OFFSET)
    pair = {"srcGroup": "G", "destGroup": "H"}
    for more in ({}, {"topic": "none", "offline": "true"}, {"topic": "U"}):
        assert clone(pair | more).code == 0
    assert result_of(broker.offsets.topics_of("H"))[0] == []
    assert clone(pair | {"topic": "U", "offline": "true"}).code == 0
    assert clone(pair | {"topic": "T"}).code == 0
    assert [broker.offsets.query(topic, "H", 0) for topic in ("T", "U")] == [7, 7]
    client.commit("T", "G", 9)
    assert broker.offsets.query("T", "H", 0) == 7
    fields = {"srcGroup": "G", "destGroup": "H" * 100_000, "topic": "T", "offline": "true"}
    answer = client.call(RequestCode.CLONE_GROUP_OFFSET, fields)
    assert (answer.code, "longer than" in str(answer.remark)) == (1, True)
    assert max(map(len, broker.offsets.by_pair)) < 100


@POLICIES
def test_every_groups_offsets_are_returned(brokers: Brokers, policy: Policy) -> None:
    client = brokers.client(policy=policy)
    sent(client)
    client.create_group("G")
    client.commit("T", "G", 1)
    body = bytes(client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body).decode()
    assert '"totalDiff":1' in body
    assert ('"totalInflightDiff":0' in body) == (policy is ROCKETMQ_5)
    row = '"brokerOffset":2,"consumerOffset":1,"lastTimestamp":'
    assert row in body
    assert row in bytes(client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}).body).decode()
    assert ('"pullOffset":1' in body) == (policy is ROCKETMQ_5)
    ordered = client.told(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
    assert (ordered["totalDiff"], ordered["consumeStatsList"]) == (0, [{"G": []}])


def test_too_long_lists_are_refused(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    client = joined(brokers.client())
    send_message(client, "T")
    client.create_group("G")
    client.commit("T", "G", 1)
    monkeypatch.setattr(progress_processor, "TOLD_QUEUE_COUNT_MAX", 1)
    monkeypatch.setattr(progress_processor, "TOLD_GROUP_COUNT_MAX", 0)
    monkeypatch.setattr(client_processor, "TOLD_PRODUCER_COUNT_MAX", 0)
    for code, fields in ((317, {}), (328, {}), (343, {"group": "G"})):
        answer = client.call(code, fields)
        assert answer.code == 1
        assert "over the limit" in str(answer.remark)


def test_producers_topics_and_subscriptions_are_returned(brokers: Brokers) -> None:
    broker = brokers.start(policy=ROCKETMQ_5)
    before_ms = RealRuntime().unix_ms()
    client = joined(brokers.connect(broker))
    (producer,) = client.told(RequestCode.GET_ALL_PRODUCER_INFO)["data"]["P"]
    assert producer.pop("remoteIP").startswith("/127.0.0.1:")
    assert producer.pop("lastUpdateTimestamp") >= before_ms
    assert producer == {"clientId": "here@1", "language": "JAVA", "version": 407}
    send_message(client, "T")
    client.commit("T", "G", 1)
    listed = client.told(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G")
    assert (listed["topicList"], listed["brokerAddr"]) == (["T"], "{}:{}".format(*broker.address))
    wanted = client.told(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="G", topic="T")
    assert wanted["subscriptionData"]["subString"] == "a || b"
    nothing = client.told(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="G", topic="U")
    assert nothing == {"group": "G", "topic": "U"}


def test_expired_files_are_removed_on_request(brokers: Brokers, tmp_path: Path) -> None:
    hour = (dt.datetime.now().astimezone() + dt.timedelta(hours=6)).hour
    config = StoreConfig(commit_log_file_size=4096, consume_queue_file_size=2000, delete_when=f"{hour:02}")
    broker, client = brokers.served(store_config=config, directory=str(tmp_path / "store"))
    sent(client, 60)
    files = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert client.call(RequestCode.CLEAN_EXPIRED_COMMITLOG).code == 0
    os.utime(files[0], (1, 1))
    wait_until(lambda: client.call(RequestCode.CLEAN_EXPIRED_COMMITLOG).code == 0 and broker.store.log_start > 0)
    assert [file.exists() for file in files[:2]] == [False, True]


def test_the_name_servers_settings_cannot_be_changed(brokers: Brokers) -> None:
    client = brokers.names(brokers.start())
    for text, words in (
        ("clusterTest=false\n", None),
        ("clusterTest=true\n", "'clusterTest'"),
        ("kvConfigPath=/tmp/x", "'kvConfigPath'"),
        ("nonsense", "not key=value"),
    ):
        answer = client.call(RequestCode.UPDATE_NAMESRV_CONFIG, {}, text.encode())
        assert answer.code == (0 if words is None else 1)
        assert (words or "") in str(answer.remark)


PARSED = {
    "putMessageDistributeTime": r"(\[[^ :]+\]:\d+ ?){13}",
    "commitLogDirCapacity": r"Total : [\d.]+ .iB, Free : [\d.]+ .iB\.",
    "remainHowManyDataToFlush": r"\d+(\.\d+)? .*", "putTps": r"\S+ \S+ \S+", "getFoundTps": r"\S+ \S+ \S+",
    "getMissTps": r"\S+ \S+ \S+", "getTotalTps": r"\S+ \S+ \S+", "putMessageAverageSize": r"[\d.]+",
    "putLatency99": r"[\d.]+", "putLatency999": r"[\d.]+",
}  # fmt: skip
"""Maps each field of response 28 that is not a whole number to the pattern with which rocketmq-exporter reads it."""


WHOLE = [
    "putMessageSizeTotal",
    "putMessageFailedTimes",
    "putMessageEntireTimeMax",
    "getMessageEntireTimeMax",
    "dispatchMaxBuffer",
    "startAcceptSendRequestTimeStamp",
    "remainTransientStoreBufferNumbs",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "dispatchBehindBytes",
    "putMessageTimesTotal",
    "bootTimestamp",
    "commitLogMinOffset",
    "commitLogMaxOffset",
]


def test_the_runtime_info_has_the_exporters_fields(brokers: Brokers) -> None:
    broker, client = brokers.served()
    assert client.told(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]["earliestMessageTimeStamp"] == "-1"
    for number in range(3):
        send_message(client, "T", b"x" * number)
    table = client.told(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert (table["longpollPolicy"], int(table["commitLogMaxOffset"])) == ("strict", broker.store.log_end)
    assert int(table["earliestMessageTimeStamp"]) == broker.store.store_ms_of("T", 0, 0)
    for name, form in [*PARSED.items(), *((name, r"-?\d+") for name in WHOLE)]:
        assert re.fullmatch(form, table[name]), (name, table.get(name))
    assert (int(table["putMessageSizeTotal"]), table["putMessageTimesTotal"]) == (broker.store.log_end, "3")
    assert 0 <= float(table[f"commitLogDiskRatio_{broker.store.directory}/commitlog"]) <= 1


def test_stored_messages_are_counted(brokers: Brokers) -> None:
    clock = ShiftedRuntime()
    broker, client = brokers.served(runtime=clock)
    properties = "UNIQ_KEY\x01K\x02"
    for topic in ("T", "T", "U"):
        send_message(client, topic, properties=properties)
    client.send_burst(RequestCode.SEND_MESSAGE_V2, [(send_fields("T", properties=properties), b"x")] * 9)
    batch = encode_batch([BatchMessage(b"x", "")] * 4)
    assert client.call(RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, batch).code == 0
    back = {"offset": "0", "group": "G", "delayLevel": "0"}
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0

    def total(name: str, key: str) -> int:
        found = broker.shared.statistics._items.get((name, key))
        return 0 if found is None else found.value

    assert [total("TOPIC_PUT_NUMS", topic) for topic in "TU"] == [15, 1]
    assert (total("BROKER_PUT_NUMS", ""), total("SNDBCK_PUT_NUMS", "T@G")) == (17, 1)
    assert sum(total("TOPIC_PUT_SIZE", topic) for topic in ("T", "U", "SCHEDULE_TOPIC_XXXX")) == broker.store.log_end
    for name, key in (("TOPIC_PUT_NUMS", "T"), ("TOPIC_PUT_SIZE", "U"), ("SNDBCK_PUT_NUMS", "T@G")):
        fields = {"statsName": name, "statsKey": key}
        assert set(client.told(RequestCode.VIEW_BROKER_STATS_DATA, **fields)) == {
            "statsMinute",
            "statsHour",
            "statsDay",
        }
    asked = {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}
    assert client.call(RequestCode.VIEW_BROKER_STATS_DATA, asked).code == 0
    assert client.call(RequestCode.VIEW_BROKER_STATS_DATA, asked | {"statsKey": "other"}).code == 1


def test_daily_counts_restart_at_midnight(brokers: Brokers) -> None:
    clock = Clock()
    # The flush interval is an hour, so no other thread samples statistics during the test.
    rare = attrs.evolve(SMALL_STORE, flush_interval_ms=3_600_000)
    broker, client = brokers.served(runtime=clock, store_config=rare)
    tables = broker.administering.tables
    names = [f"msgPutTotal{when}" for when in DAYS]

    def counts() -> list[str]:
        table = client.told(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
        return [table[name] for name in names]

    found: list[Any] = []
    for _ in range(3):
        send_message(client, "T")
        tables.sample()
        found.append(counts())
        clock.now_ms += 86_400_000
    assert found == [["0", "0", "1"], ["0", "2", "2"], ["2", "3", "3"]]


def test_the_pull_queue_is_reported() -> None:
    now_ns = [10**9]
    runtime = RealRuntime()
    runtime.monotonic_ns = lambda: now_ns[0]
    pool = PoolExecutor(runtime, lambda *_run: None, lambda *_refused: None, 1, 2, None)
    assert pool.waiting() == (0, 0)
    for _ in range(2):
        assert pool.offer(Outbox.flush, Outbox.flush)
        now_ns[0] += 7_000_000
    assert pool.waiting() == (2, 14) == pool.waiting()


def test_a_groups_received_messages_are_counted(brokers: Brokers) -> None:
    broker, client = brokers.served()
    send_message(client, "T")
    client.pull("T")
    reply = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@G"})
    assert reply.code == 0
    assert json.loads(bytes(reply.body))["statsMinute"] == {"sum": 0, "tps": 0.0, "avgpt": 0.0}
    broker.shared.statistics.sample(0)
    client.pull("T")
    broker.shared.statistics.sample(10**9)
    found = present(broker.shared.statistics.snapshots("GROUP_GET_NUMS", "T@G"))
    assert found["statsMinute"].sum == 1
    for name, key, code in (
        ("GROUP_GET_NUMS", "T@H", 1),
        ("BROKER_GET_NUMS", "DefaultCluster", 0),
        ("BROKER_GET_NUMS", "T@G", 1),
        ("GROUP_GET_SIZE", "T@G", 0),
        ("GROUP_GET_LATENCY", "0@T@G", 0),
        ("GROUP_GET_LATENCY", "T@G", 1),
        ("NO_SUCH_NUMS", "T@G", 1),
    ):
        answer = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert (answer.code, key in (answer.remark or "")) == (code, code == 1)


@POLICIES
def test_4_9_stores_an_event_of_a_moved_offset(brokers: Brokers, policy: Policy) -> None:
    broker, client = brokers.served(policy=policy)
    send_message(client, "T")
    wait_visible(broker, "T", 1)
    assert client.pull("T", 77).code == 21
    if policy is not ROCKETMQ_4_9:
        assert broker.store.visible_end("OFFSET_MOVED_EVENT", 0) == 0
        return
    wait_visible(broker, "OFFSET_MOVED_EVENT", 1)
    (record,) = records_of(client.pull("OFFSET_MOVED_EVENT", subscription="G"))
    assert json.loads(bytes(record.body)) == {
        "consumerGroup": "G",
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
        "offsetNew": 1,
        "offsetRequest": 77,
    }

"""A Java broker and ours at one Java name server; the test compares the answers of the two brokers.

One client sends to the two brokers and consumes from them. Then the same happens at each broker: retention empties a
queue, messages are delayed, members register. Finally the reports of the two brokers are compared.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import pytest
from attrs import frozen
from model_tests.conformance.java_broker import running
from model_tests.support.broker.client_scenarios import RUNTIME, wait_for
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields
from model_tests.support.java import class_path_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_client import Admin, Producer, PushConsumer, ReceivedMessage, Retry
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_protocol.properties import encode_properties
from longpoll_runtime import Address
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5

pytestmark = [pytest.mark.peers, pytest.mark.long, pytest.mark.timeout(600)]

POLICIES: Final = {"4.9.7": ROCKETMQ_4_9, "5.5.0": ROCKETMQ_5}
LOG_SIZE: Final = 64 * 1024
UNITS_SIZE: Final = 100 * 20
SETTINGS: Final = (
    f"mappedFileSizeCommitLog={LOG_SIZE}\nmappedFileSizeConsumeQueue={UNITS_SIZE}\nmaxMessageSize=32768\n"
    "fileReservedTime=0\ncleanResourceInterval=200\ndeleteCommitLogFilesInterval=1\n"
)
STORE: Final = StoreConfig(
    commit_log_file_size=LOG_SIZE,
    consume_queue_file_size=UNITS_SIZE,
    message_size_max=32_768,
    file_reserved_hours=0,
    clean_period_ms=200,
    index_slot_count=400,
    index_entry_count=1000,
)
TRIMMED: Final = 150
OURS: Final = "ours"
JAVAS: Final = "java-broker"
QUEUES: Final = 2
SENT: Final = 60


@frozen
class Cluster:
    version: str
    java: Address
    ours: Address
    name_server: str

    @property
    def both(self) -> tuple[Address, Address]:
        return self.java, self.ours


@pytest.fixture(scope="module", params=POLICIES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    version = str(request.param)
    home = tmp_path_factory.mktemp("java")
    class_path = class_path_of(home, version)
    with ExitStack() as stack:
        java = stack.enter_context(running(class_path, home, settings=SETTINGS))
        name_server = "{}:{}".format(*java.name_server)
        ours = Broker.start(
            RUNTIME,
            str(tmp_path_factory.mktemp("ours")),
            policy=POLICIES[version],
            config=BrokerConfig(broker_name=OURS, name_servers=name_server),
            store_config=STORE,
        )
        stack.callback(ours.stop)
        with Admin(name_server) as admin:
            wait_for(lambda: set(admin.masters()) == {OURS, JAVAS}, "both brokers are registered")
        yield Cluster(version, java.address, ours.address, name_server)


def test_one_client_sends_to_both_and_consumes_from_both(cluster: Cluster) -> None:
    topic = "Shared"
    names = {"{}:{}".format(*cluster.java): JAVAS, "{}:{}".format(*cluster.ours): OURS}
    stored: dict[bytes, str] = {}
    given: list[tuple[bytes, str]] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        given.extend((message.body, names[message.store_host]) for message in messages)
        return None

    with Admin(cluster.name_server) as admin:
        admin.create_topic(topic, QUEUES)
        wait_for(lambda: len(admin.topic(topic).writable) == 2 * QUEUES, "the topic's queues on both brokers")
    consumer = PushConsumer(cluster.name_server, group="G", topics=topic, listener=listen)
    with Producer(cluster.name_server) as producer, consumer:
        for number in range(SENT):
            body = b"%d" % number
            stored[body] = producer.send(topic, body).queue.broker_name
        wait_for(lambda: len(given) >= SENT, "every message is consumed")
        told = {address: _where_members_are(address, topic) for address in cluster.both}
    assert sorted(given) == sorted(stored.items())
    assert Counter(stored.values()) == {OURS: SENT // 2, JAVAS: SENT // 2}
    # The client gives the same answer to each broker that forwards the query for its offsets (code 223, forwarded as
    # 221).
    assert told[cluster.java] == told[cluster.ours]
    assert sum(told[cluster.ours].values()) == SENT


def _where_members_are(address: Address, topic: str) -> dict[tuple[str, int], int]:
    """Ask the broker for the offsets of the group's only member (code 223). Returns (broker, queue) -> offset."""
    with RawClient(address) as client:
        answer = client.call(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": topic, "group": "G", "clientAddr": ""}
        )
        absent = client.call(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": topic, "group": "G", "clientAddr": "nobody"}
        )
    assert (answer.code, absent.code) == (0, 0)
    assert bytes(absent.body) == b'{"consumerTable":{},"messageQueueTable":{}}'
    text = bytes(answer.body).decode()
    assert text.startswith('{"consumerTable":{"'), text
    rows = re.findall(r'\{"brokerName":"([^"]+)","queueId":(\d+),"topic":"Shared"\}:(\d+)', text)
    rows += [
        (name, queue_id, offset)
        for name, queue_id, offset in re.findall(
            r'\{"topic":"Shared","brokerName":"([^"]+)","queueId":(\d+)\}:(\d+)', text
        )
    ]
    return {(name, int(queue_id)): int(offset) for name, queue_id, offset in rows}


# -- the answers of each broker ----------------------------------------------------------------------------------------


def trimmed(address: Address) -> list[object]:
    """Let retention remove all records of a queue, query the queue, add one message, and query the queue again."""
    with RawClient(address) as client:
        for topic in ("Trim", "Fill"):
            made = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            made |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == 0
        assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}').code == 0
        for topic, count, size in (("Trim", TRIMMED, 10), ("Fill", 100, 8_000)):
            for _ in range(count):
                answer = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic), bytes(size))
                assert answer.code == 0, answer.remark
        wait_for(lambda: _number(client, RequestCode.GET_MAX_OFFSET, "Fill") == 100, "the last message is visible")
        end_s = time.monotonic() + 60
        # Retention keeps the newest log file and perhaps the file before it, so neither file may have a message of the
        # queue.
        while _log_start(client) < 2 * LOG_SIZE or _number(client, RequestCode.GET_MIN_OFFSET, "Fill") == 0:
            assert time.monotonic() < end_s, "retention removed nothing"
            assert client.call(RequestCode.CLEAN_EXPIRED_COMMITLOG).code == 0
        wait_for(lambda: client.call(RequestCode.PULL_MESSAGE, pull_fields("Trim", 0)).code in {19, 21}, "it is gone")
        before = asked(client)
        assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields("Trim"), b"new").code == 0
        wait_for(lambda: _number(client, RequestCode.GET_MAX_OFFSET, "Trim") == TRIMMED + 1, "it is visible")
        return [before, asked(client)]


def asked(client: RawClient) -> list[object]:
    place = {"topic": "Trim", "queueId": "0"}
    ends = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    found: list[object] = [(code.name, client.call(code, place).ext_fields) for code in ends]
    stored = client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, place).ext_fields or {}
    found.append(("first stored", "none" if stored["timestamp"] == "-1" else "there is one"))
    for group in ("G", "NEW"):
        answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, place | {"consumerGroup": group})
        found.append(("offset of", group, answer.code, answer.ext_fields or {}))
    for offset in (-1, 0, 99, 100, TRIMMED - 1, TRIMMED, TRIMMED + 1, TRIMMED + 2):
        answer = client.call(RequestCode.PULL_MESSAGE, pull_fields("Trim", offset))
        bodies = [bytes(record.body) for record in records_of(answer)] if answer.code == 0 else []
        found.append(("pull", offset, answer.code, answer.remark, answer.ext_fields, bodies))
    return found


def _number(client: RawClient, code: RequestCode, topic: str) -> int:
    return int((client.call(code, {"topic": topic, "queueId": "0"}).ext_fields or {})["offset"])


def _log_start(client: RawClient) -> int:
    table = json.loads(bytes(client.call(RequestCode.GET_BROKER_RUNTIME_INFO).body))["table"]
    return int(table["commitLogMinOffset"])


def test_a_queue_without_records_is_reported_as_by_java(cluster: Cluster) -> None:
    java, ours = (trimmed(address) for address in cluster.both)
    assert java == ours
    minimum = {"offset": "0" if cluster.version == "4.9.7" else str(TRIMMED)}
    assert java[0][0] == ("GET_MIN_OFFSET", minimum)  # type: ignore[index]


def waits(address: Address, version: str) -> dict[str, Any]:
    with RawClient(address) as client:
        answers = {
            code: client.call(code)
            for code in (
                RequestCode.GET_TIMER_CHECK_POINT,
                RequestCode.GET_TIMER_METRICS,
                RequestCode.GET_BROKER_HA_STATUS,
            )
        }
        if version == "4.9.7":
            return {code.name: answer.code for code, answer in answers.items()}
        assert [answer.code for answer in answers.values()] == [0, 0, 0]
        made = {"topic": "Late", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        made |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == 0
        for seconds in (3, 3_600, 3_600):
            wish = encode_properties({"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": f"K{seconds}"})
            answer = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("Late", properties=wish), b"x")
            assert answer.code == 0, answer.remark
        wait_for(lambda: _waiting(client) == {"Late": 3}, "three are counted")
        at_first = _shape(answers[RequestCode.GET_BROKER_HA_STATUS])
        wait_for(lambda: _waiting(client) == {"Late": 2}, "one has been delivered")
        counts = client.call(RequestCode.GET_TIMER_METRICS)
        checkpoint = client.call(RequestCode.GET_TIMER_CHECK_POINT)
        return {
            "counts": _shape(counts),
            "status": at_first,
            "checkpoint": len(checkpoint.body),
            "read": int.from_bytes(bytes(checkpoint.body)[24:32]),
        }


def _waiting(client: RawClient) -> dict[str, int]:
    told = json.loads(bytes(client.call(RequestCode.GET_TIMER_METRICS).body))
    return {topic: each["count"] for topic, each in told["timingCount"].items() if topic == "Late"}


def _shape(answer: Command) -> object:
    def of(value: object) -> object:
        if isinstance(value, dict):
            return {name: of(each) for name, each in value.items() if each is not None}
        return [of(each) for each in value] if isinstance(value, list) else type(value).__name__

    return of(json.loads(bytes(answer.body)))


def test_delayed_messages_and_slaves_are_reported_as_by_java(cluster: Cluster) -> None:
    java, ours = (waits(address, cluster.version) for address in cluster.both)
    assert java == ours
    if cluster.version == "4.9.7":
        assert set(ours.values()) == {3}

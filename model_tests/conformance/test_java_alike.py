"""Java's broker and ours give the same answers to requests, SQL92 expressions and heartbeats."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Final

import pytest
from attrs import define, field
from model_tests.conformance.java_broker import VERSIONS, running
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields
from model_tests.support.broker.sql92_cases import Case, Cases, outcome
from model_tests.support.broker.subscription_script import play
from model_tests.support.java import class_path_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, Policy

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

COUNT: Final = 2000
SEED: Final = 5
SETTINGS: Final = "enablePropertyFilter=true\nautoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false"
CONFIG: Final = BrokerConfig(property_filter=True, auto_create_topic=False, auto_create_subscription_group=False)
STORE: Final = StoreConfig(commit_log_file_size=64 * 1024 * 1024)
TOPICS: Final = ("T0", "T1", "T2")
GROUPS: Final = ("G0", "G1", "no-such-group")
QUEUES: Final = ("0", "1", "3", "4", "-1")
EXPRESSIONS: Final = (
    ("*", "TAG"), ("a", "TAG"), ("a || b", "TAG"), ("||", "TAG"), ("*||a", "TAG"), ("", "TAG"), ("a", ""), ("a", "tag"),
    ("idx > 3", "SQL92"), ("idx >", "SQL92"), ("TAGS = 'a' OR idx IS NULL", "SQL92"), ("", "SQL92"), ("idx", "FOO"),
)  # fmt: skip
COMPARED: Final = frozenset(
    {"nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId", "forbiddenType", "topicSysFlag",
     "groupSysFlag", "queueId", "queueOffset", "offset"}
)  # fmt: skip
"""The fields of answers that must be equal for two brokers."""
PART_SIZE: Final = 23
"""The size of each message in a batch, in bytes."""
SEND: Final = RequestCode.SEND_MESSAGE_V2
PULL: Final = RequestCode.PULL_MESSAGE

Request = tuple[int, dict[str, str], bytes]


@define
class Requests:
    """An endless sequence of requests that a seed determines."""

    seed: int
    _draw: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def next(self) -> Request:
        kinds = (self._send, self._batch, self._pull, self._commit, self._ask, self._beat, self._topic, self._group)
        (kind,) = self._draw.choices(kinds, weights=(20, 5, 45, 6, 10, 7, 3, 4))
        return kind()

    def _send(self) -> Request:
        draw = self._draw
        properties = draw.choice(("", f"idx\x01{draw.randrange(8)}\x02", "TAGS\x01a\x02", "TAGS\x01b\x02idx\x019"))
        fields = send_fields(draw.choice((*TOPICS, "unknown")), 0, properties)
        return (
            SEND,
            fields | {"e": draw.choice(QUEUES[:4]), "f": draw.choice("0018")},
            draw.randbytes(draw.randrange(1, 9)),
        )

    def _batch(self) -> Request:
        draw = self._draw
        parts = b"".join(
            struct.pack(">iiiii", PART_SIZE, 0, 0, 0, 1) + draw.randbytes(1) + struct.pack(">h", 0)
            for _ in range(draw.randrange(3))
        )
        fields = send_fields(draw.choice(TOPICS), 0, draw.choice(("", "", "TAGS\x01a\x02", "DELAY\x012\x02")))
        return RequestCode.SEND_BATCH_MESSAGE, fields | {"m": "true", "f": draw.choice("00004")}, parts

    def _pull(self) -> Request:
        draw = self._draw
        expression, kind = draw.choice(EXPRESSIONS)
        fields = pull_fields(draw.choice((*TOPICS, "unknown")), draw.choice((0, 0, 1, 2, 5, 10, 30, 1000, -1)))
        return (
            PULL,
            fields
            | {
                "consumerGroup": draw.choice(GROUPS),
                "queueId": draw.choice(QUEUES),
                "maxMsgNums": draw.choice(("1", "3", "32", "0", "-1", "1000")),
                "sysFlag": draw.choice(("4", "4", "4", "0", "0", "1", "5", "12", "20")),
                "commitOffset": draw.choice(("0", "3", "77", "-1")),
                "subVersion": draw.choice(("0", "1", "3", "7")),
                "subscription": expression,
                "expressionType": kind,
            },
            b"",
        )

    def _commit(self) -> Request:
        draw = self._draw
        place = {"topic": draw.choice(TOPICS), "queueId": draw.choice(QUEUES[:3]), "consumerGroup": draw.choice(GROUPS)}
        if draw.random() < 0.5:
            return RequestCode.QUERY_CONSUMER_OFFSET, place, b""
        return RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": draw.choice(("0", "4", "99"))}, b""

    def _ask(self) -> Request:
        draw = self._draw
        place = {"topic": draw.choice(TOPICS), "queueId": draw.choice(QUEUES[:3])}
        code = draw.choice((RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET))
        if draw.random() < 0.3:
            return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place | {"timestamp": draw.choice(("0", "9" * 13))}, b""
        return code, place, b""

    def _beat(self) -> Request:
        draw = self._draw
        expression, kind = draw.choice(EXPRESSIONS)
        subscription = {
            "topic": draw.choice(TOPICS), "subString": expression, "subVersion": draw.choice((1, 3, 7)),
            "expressionType": kind, "classFilterMode": draw.random() < 0.1, "tagsSet": [],
            "codeSet": draw.choice(([], [97], [97, 98])),
        }  # fmt: skip
        group = {
            "groupName": draw.choice(GROUPS), "consumeType": "CONSUME_PASSIVELY",
            "messageModel": draw.choice(("CLUSTERING", "CLUSTERING", "BROADCASTING")),
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
        }  # fmt: skip
        if draw.random() < 0.2:
            fields = {"clientID": "c", "consumerGroup": draw.choice(GROUPS)}
            return RequestCode.UNREGISTER_CLIENT, fields, b""
        data = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [group]}
        return RequestCode.HEART_BEAT, {}, json.dumps(data).encode()

    def _topic(self) -> Request:
        draw = self._draw
        counts = {"readQueueNums": draw.choice("24"), "writeQueueNums": draw.choice("24")}
        fields = {"topic": draw.choice(("T2", "T2", "TBW102", "a.b")), "perm": draw.choice("6624"), "order": "false"}
        return RequestCode.UPDATE_AND_CREATE_TOPIC, fields | counts | {"topicFilterType": "SINGLE_TAG"}, b""

    def _group(self) -> Request:
        draw = self._draw
        group = {"groupName": "G1", "consumeEnable": draw.random() < 0.8, "consumeBroadcastEnable": draw.random() < 0.7}
        return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()


def prepare(client: RawClient) -> None:
    for topic in TOPICS:
        fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        more = {"topicFilterType": "SINGLE_TAG", "order": "false", "defaultTopic": "TBW102"}
        wait_until(lambda made=fields | more: client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == 0)  # type: ignore[misc] # bound at once
    for group in GROUPS[:2]:
        body = json.dumps({"groupName": group}).encode()
        assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0


def said(reply: Command) -> tuple[int, dict[str, str], list[bytes]]:
    fields = {name: text for name, text in (reply.ext_fields or {}).items() if name in COMPARED}
    return reply.code, fields, [bytes(record.body) for record in records_of(reply)] if reply.body else []


def differing(java: RawClient, ours: RawClient, count: int) -> list[str]:
    for client in (java, ours):
        prepare(client)
    requests = Requests(SEED)
    found = []
    for number in range(count):
        code, fields, body = requests.next()
        replies = [client.call(code, fields, body) for client in (java, ours)]
        answers = [said(reply) for reply in replies]
        if answers[0] != answers[1]:
            found.append(f"{number}: {code} {fields} {body!r}: Java {answers[0]}, ours {answers[1]}")
        stored = answers[0][1].get("queueOffset") if answers[0][0] == 0 else None
        if stored is not None:
            end = int(stored) + (len(body) // PART_SIZE if code == RequestCode.SEND_BATCH_MESSAGE else 1)
            for client in (java, ours):
                wait_until_visible(client, fields["b"], answers[0][1]["queueId"], end)
    return found


def wait_until_visible(client: RawClient, topic: str, queue_id: str, end: int) -> None:
    """Wait until the dispatcher has reached a queue's end, because it makes a batch visible message by message."""

    def is_visible() -> bool:
        asked = client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
        return int((asked.ext_fields or {})["offset"]) >= end

    wait_until(is_visible)


@pytest.mark.parametrize(
    ("version", "policy"),
    [(VERSIONS[0], ROCKETMQ_4_9), pytest.param(VERSIONS[1], ROCKETMQ_5, marks=pytest.mark.long)],
    ids=VERSIONS,
)
def test_the_same_requests_have_the_same_answers(version: str, policy: Policy, tmp_path: Path) -> None:
    class_path = class_path_of(tmp_path, version)
    with (
        running(class_path, tmp_path / "home", settings=SETTINGS) as java,
        Broker.start(RealRuntime(), str(tmp_path / "ours"), policy=policy, config=CONFIG, store_config=STORE) as ours,
        RawClient(java.address) as java_client,
        RawClient(ours.address) as our_client,
    ):
        found = differing(java_client, our_client, COUNT)
    assert not found, f"seed {SEED}, {len(found)} of {COUNT}:\n" + "\n".join(found[:10])


ORACLE: Final = Path(__file__).parent / "Sql92Oracle.java"
CASE_COUNT: Final = 50_000


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def class_path(version: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return class_path_of(tmp_path_factory.mktemp("jars"), version)


def ask_java(class_path: str, cases: list[Case]) -> list[str]:
    lines = (
        expression.encode().hex()
        + "\t"
        + ",".join(f"{name.encode().hex()}={text.encode().hex()}" for name, text in properties.items())
        for expression, properties in cases
    )
    asked = subprocess.run(
        ["java", "-cp", class_path, str(ORACLE)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return asked.stdout.split()


def differing_cases(
    class_path: str, cases: list[Case], *, with_parts: bool
) -> tuple[list[tuple[str, ...]], Counter[str]]:
    """Return the cases whose result differs from Java's, each with Java's result, and the count of each result."""
    said = ask_java(class_path, cases)
    pairs = zip(cases, said, strict=True)
    found = [(*map(str, case), java) for case, java in pairs if outcome(*case, with_parts=with_parts) != java]
    return found, Counter(said)


@pytest.mark.parametrize("with_parts", [False, True], ids=["both", "5.x"])
def test_no_case_differs_from_java(class_path: str, version: str, *, with_parts: bool) -> None:
    """Each run draws new cases, including syntax of 5.x that 4.9 refuses. Each possible result occurs often."""
    seed = random.SystemRandom().randrange(1 << 32)
    source = Cases(seed, with_parts=with_parts)
    cases = [source.next() for _ in range(CASE_COUNT)]
    is_5 = version.startswith("5.")
    found, said = differing_cases(class_path, cases, with_parts=is_5)
    assert not found, f"seed {seed}, {len(found)} cases: {list(islice(found, 5))}"
    assert min(said[word] for word in ("bad", "error", "true", "false", "null")) > CASE_COUNT / 50
    if with_parts:
        assert len(differing_cases(class_path, cases[:1000], with_parts=not is_5)[0]) > 20


@pytest.mark.parametrize("version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.long)])
def test_java_handles_heartbeats_as_the_script_expects(version: str, tmp_path: Path) -> None:
    class_path = class_path_of(tmp_path, version)
    with (
        running(class_path, tmp_path / "home", settings="enablePropertyFilter=true") as broker,
        RawClient(broker.address) as client,
    ):
        assert play(client) == []

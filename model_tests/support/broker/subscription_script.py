"""A script of heartbeats and pulls, with the answers on which the Java brokers 4.9.7 and 5.5.0 agree.

Each topic has four messages. Their bodies are 0 to 3, which is also their property `idx`, and their tags are a, b, a
and b. The consumer group of a topic has the topic's name. `model_tests/conformance/test_java_alike.py` plays the script
against Java.
"""

from __future__ import annotations

import json
from typing import Any, Final

from attrs import frozen
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_message

from longpoll_protocol.codes import RequestCode

A: Final = 97
B: Final = 98
OMITTED: Final = "omitted"
CLASS_FILTER: Final = 8
LITE: Final = 16


@frozen
class Beat:
    """A heartbeat of a topic's group, with the fields of its single subscription."""

    topic: str
    version: int
    expression: str = ""
    type: str | None = "SQL92"
    codes: Any = ()
    class_filter: bool = False

    def body(self) -> bytes:
        subscription = {
            "topic": self.topic,
            "subString": self.expression,
            "subVersion": self.version,
            "expressionType": self.type,
            "classFilterMode": self.class_filter,
            "tagsSet": [],
            "codeSet": self.codes,
        }
        consumer = {
            "groupName": self.topic,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{key: value for key, value in subscription.items() if value != OMITTED}],
        }
        return json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


@frozen
class Ask:
    """A pull from offset 0 that uses the heartbeat's subscription, and the expected code or bodies."""

    topic: str
    version: int
    expected: int | str
    strict: int | str | None = None
    """The expected answer of the policy strict, if it differs from Java's."""
    flag: int = 0


@frozen
class Leave:
    """The group's only member leaves."""

    topic: str


SCRIPT: Final[tuple[Beat | Ask | Leave, ...]] = (
    # An empty expression updates the subscription and keeps the filter.
    Beat("empty", 1, "idx > 1"), Ask("empty", 1, "23"),
    Beat("empty", 2), Ask("empty", 1, "23"), Ask("empty", 2, 28), Ask("empty", 3, 25),
    Beat("empty", 3, "idx > 2"), Ask("empty", 3, "3"),
    Beat("empty", 4, OMITTED), Ask("empty", 4, 28),
    # The subscription changes from tags to SQL92.
    Beat("turns", 5, "a", "TAG", [A]), Ask("turns", 5, "02"),
    Beat("turns", 6, "idx > 2"), Ask("turns", 6, "3"),
    # In class filter mode a separate filter server would filter, so the broker returns all messages.
    Beat("class", 1, "a", "TAG", [A], class_filter=True), Ask("class", 1, "0123"),
    Ask("class", 1, "0123", flag=CLASS_FILTER),
    Beat("class-sql", 1, "idx > 2", class_filter=True), Ask("class-sql", 1, "0123"),
    Beat("flags", 1, "a", "TAG", [A]), Ask("flags", 1, "02", flag=CLASS_FILTER), Ask("flags", 1, "02", flag=LITE),
    # RocketMQ uses the tag hashes in a heartbeat, and strict computes them from the tags.
    Beat("codes", 1, "a", "TAG", OMITTED), Ask("codes", 1, 20, strict="02"),
    Beat("codes", 2, "*", "TAG", OMITTED), Ask("codes", 2, "0123"),
    Beat("codes", 3, "a", "TAG", [B]), Ask("codes", 3, "13", strict="02"),
    Beat("codes", 4, "a", "", [A]), Ask("codes", 4, "02"),
    Beat("codes", 5, "a", None, [A]), Ask("codes", 5, "02"),
    Beat("codes", 6, "||", "TAG"), Ask("codes", 6, 20),
    # RocketMQ keeps the filter of a group without members until a heartbeat with a later version replaces it.
    Beat("leaves", 9, "idx > 2"), Ask("leaves", 9, "3"),
    Leave("leaves"), Beat("leaves", 5, "idx > 0"), Ask("leaves", 5, "3", strict="123"),
    # A heartbeat with an expression that does not compile removes the filter, and one with an unknown type sets no
    # filter.
    Beat("breaks", 1, "idx >"), Ask("breaks", 1, 27),
    Beat("breaks", 2, "idx > 1"), Ask("breaks", 2, "23"),
    Beat("breaks", 3, "idx >"), Ask("breaks", 3, 27), Ask("breaks", 2, 27),
    Beat("breaks", 4, "idx > 1", "FOO"), Ask("breaks", 4, 27),
)  # fmt: skip


def play(client: RawClient) -> list[str]:
    """Play the script; returns one line for each answer that differs from the Java brokers'."""
    return _play(client, strict=False)


def play_strict(client: RawClient) -> list[str]:
    """Play the script; returns one line for each answer that differs from the expected answer of strict."""
    return _play(client, strict=True)


def _play(client: RawClient, *, strict: bool) -> list[str]:
    for topic in dict.fromkeys(step.topic for step in SCRIPT):
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more).code == 0
        for number in range(4):
            properties = f"idx\x01{number}\x02TAGS\x01{'ab'[number % 2]}\x02"
            send_message(client, topic, b"%d" % number, properties=properties)
        wait_until(lambda topic=topic: _visible_end(client, topic) == 4)  # type: ignore[misc] # bound at once
    differing = []
    for number, step in enumerate(SCRIPT):
        if isinstance(step, Beat):
            assert client.call(RequestCode.HEART_BEAT, {}, step.body()).code == 0
        elif isinstance(step, Leave):
            fields = {"clientID": "c", "consumerGroup": step.topic}
            assert client.call(RequestCode.UNREGISTER_CLIENT, fields).code == 0
        else:
            said = _ask(client, step)
            expected = step.strict if strict and step.strict is not None else step.expected
            if said != expected:
                differing.append(f"step {number}, {step}: {said!r}")
    return differing


def _visible_end(client: RawClient, topic: str) -> int:
    reply = client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int((reply.ext_fields or {})["offset"])


def _ask(client: RawClient, step: Ask) -> int | str:
    fields = pull_fields(step.topic, 0, group=step.topic)
    del fields["subscription"], fields["expressionType"]
    fields |= {"sysFlag": str(step.flag), "subVersion": str(step.version)}
    reply = client.call(RequestCode.PULL_MESSAGE, fields)
    return reply.code or "".join(bytes(record.body).decode() for record in records_of(reply))

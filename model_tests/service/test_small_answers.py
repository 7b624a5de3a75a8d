"""Answers that are small and easily another's: each as Apache RocketMQ 4.9.7 and 5.5.0 were seen to give it."""

from __future__ import annotations

import pytest

from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_spec.policy import preset

POLICIES = ("strict", "rocketmq-4.9", "rocketmq-5")


def told(answer: Command) -> tuple[int, str, bool]:
    """Code and the remark's first line, and whether there are fields."""
    return answer.code, (answer.remark or "").partition("\n")[0], bool(answer.ext_fields)


def answers(broker: RawClient, name_server: RawClient) -> list[tuple[int, str, bool]]:
    """A route of no topic; a pull from a queue without messages, at 0 and beyond; a delay that is no number."""
    topic = {"topic": "Empty", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
    found = [told(name_server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {}))]
    found += [told(broker.call(RequestCode.PULL_MESSAGE, pull_fields("Empty", offset))) for offset in (0, 5)]
    code, _remark, has_fields = told(
        broker.call(RequestCode.SEND_MESSAGE_V2, send_fields("Empty", properties="DELAY\x01x\x02"), b"x")
    )
    # Java's remark is its exception's text.
    return [*found, (code, "", has_fields)]


EXPECTED = [
    (17, "No topic route info in name server for the topic: null", False),
    (19, "NO_MESSAGE_IN_QUEUE", True),
    (21, "NO_MESSAGE_IN_QUEUE", True),
    (1, "", False),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_small_answers_are_javas(start_broker: StartBroker, connect: Connect, policy: str) -> None:
    broker = start_broker(policy=preset(policy))
    assert answers(connect(broker.address), connect(broker.name_server_address)) == EXPECTED

"""What becomes of a held pull when its topic, its broker's standing or the broker itself ends, under every preset."""

from __future__ import annotations

from itertools import chain
from typing import Final

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.tables.topics import TopicConfig
from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields
from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import PRESETS, Policy

LONG_MS: Final = 30_000
NEVER_MS: Final = 600_000
"""The scanner sleeps: one that is at work just then makes 5.x give its round up when the role changes."""
SLAVE: Final = BrokerConfig(
    role="SLAVE", broker_id=1, slave_read=True, slave_acting_master=True, scan_period_ms=NEVER_MS
)
OURS: Final = {"strict", "strict-clone"}
WITHOUT_905: Final = {"rocketmq-4.9"}
QUICK: Final = {"strict", "rocketmq-4.9", "rocketmq-5"}
"""The others differ from these in no end."""
POLICIES: Final = pytest.mark.parametrize(
    "policy",
    [pytest.param(each, marks=[pytest.mark.long] * (name not in QUICK)) for name, each in PRESETS.items()],
    ids=PRESETS,
)


def make_topics(broker: Broker) -> None:
    """Two of one queue each; a slave cannot be asked to."""
    for topic in "TU":
        assert broker.topics.put(TopicConfig(topic, 1, 1))


def hold(broker: Broker, client: RawClient, topic: str) -> int:
    """Have one pull at the end of an empty queue held; its opaque."""
    opaque = client.send(RequestCode.PULL_MESSAGE, pull_fields(topic, 0, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    return opaque


def scan_late(broker: Broker) -> None:
    """Bring every held pull's deadline forward to now, and scan."""
    for shard in broker.hold_service._shards:
        with shard.lock:
            buckets = [shard.table.held(key) for key in list(shard.table.keys())]
            for pull in chain.from_iterable(buckets):
                pull.deadline_ms = 0
    outbox = Outbox()
    broker.hold_service.scan(outbox)
    outbox.flush()


def said(client: RawClient, opaque: int) -> tuple[int, str | None]:
    """The code of an answer that must come, and where it says to go on."""
    reply = client.reply(opaque)
    assert reply is not None
    return reply.code, (reply.ext_fields or {}).get("nextBeginOffset")


@POLICIES
def test_a_deleted_topic_and_a_stop_are_told_as_the_policy_says(
    policy: Policy, start_broker: StartBroker, connect: Connect
) -> None:
    """Ours tell both at once. RocketMQ tells of a topic at a scan, and of a stop never."""
    broker = start_broker(policy=policy, config=BrokerConfig(scan_period_ms=NEVER_MS))
    puller, other = connect(broker.address), connect(broker.address)
    make_topics(broker)

    opaque = hold(broker, puller, "T")
    assert other.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    if policy.name not in OURS:
        assert len(broker.hold_service) == 1
        scan_late(broker)
    assert said(puller, opaque) == (17, None)

    opaque = hold(broker, puller, "U")
    broker.stop()
    if policy.name in OURS:
        assert said(puller, opaque) == (19, "0")
    else:
        assert puller.reply(opaque) is None
    assert puller.wait_closed()


@POLICIES
def test_a_change_of_role_is_told_as_the_policy_says(
    policy: Policy, start_broker: StartBroker, connect: Connect
) -> None:
    """Ours answer with the offset asked for, 5.x runs the pulls again, and 4.9 does not know the request."""
    broker = start_broker(policy=policy, config=SLAVE)
    puller, other = connect(broker.address), connect(broker.address)
    make_topics(broker)

    opaque = hold(broker, puller, "U")
    told = other.call(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "0"})
    if policy.name in WITHOUT_905:
        assert told.code == 3
        assert len(broker.hold_service) == 1
        scan_late(broker)
        assert said(puller, opaque) == (19, "0")
    else:
        assert told.code == 0
        assert said(puller, opaque) == (19 if policy.name in OURS else 20, "0")
    assert len(broker.hold_service) == 0

"""Held pulls whose topic is deleted, or whose broker changes its role or stops."""

from __future__ import annotations

import logging
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.broker.brokers import Brokers, wait_held, wait_visible
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    send_message,
)

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import Cause, Pull
from longpoll_broker.hold.pull import Decision
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_broker.io.channel import Outbox
from longpoll_broker.shared.topics import TopicConfig
from longpoll_broker.store.retention import Deletions
from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import PRESETS, ROCKETMQ_4_9, ROCKETMQ_5, STRICT, STRICT_CLONE, Policy

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
PULL = RequestCode.PULL_MESSAGE
LONG_MS = 30_000
"""A deadline in ms that no passing test waits for."""


def test_pulls_held_after_the_deletions_search_are_answered(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulls that are inserted after the deletion has searched the table are answered too."""
    honest = HoldService.hold
    send_message(client, "T")

    def delete_then_hold(self: HoldService, pull: Pull, outbox: Outbox) -> None:
        broker.topics.remove("T")
        honest(self, pull, outbox)

    monkeypatch.setattr(HoldService, "hold", delete_then_hold)
    asked = client.send_burst(PULL, [(pull_fields("T", 1, timeout_ms=LONG_MS), b"")] * 4)
    assert [client.answer(opaque).code for opaque in asked] == [17] * 4
    assert len(broker.hold_service) == 0


@pytest.mark.parametrize(("policy", "code"), [(STRICT, 17), (STRICT_CLONE, 17), (ROCKETMQ_4_9, 21), (ROCKETMQ_5, 21)])
def test_a_topic_deleted_between_check_and_read_is_reported(
    policy: Policy, code: int, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, client = brokers.served(policy=policy)
    send_message(client, "T")
    wait_visible(broker, "T", 1)

    def step(action: str) -> None:
        if action == "pull_read":
            broker.topics.remove("T")
            broker.store.begin_deletion("T")

    monkeypatch.setattr(broker.runtime, "step", step)
    assert client.pull("T", 1, timeout_ms=LONG_MS).code == code


def test_held_pulls_are_answered_if_the_deletion_fails(
    broker: Broker, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held pulls are answered because the topic is gone, though the disk refuses to delete its queues."""
    puller, admin = brokers.connect(broker), brokers.connect(broker)
    send_message(admin, "T")
    opaque = puller.hold("T", 1)
    wait_held(broker)

    def fail(_topic: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(broker.store, "finish_deletion", fail)
    assert (admin.delete_topic("T"), puller.answer(opaque).code) == (1, 17)


def woken_by(body: bytes, broker: Broker, brokers: Brokers) -> list[bytes]:
    puller, sender = brokers.connect(broker), brokers.connect(broker)
    opaque = puller.hold("T")
    wait_held(broker)
    send_message(sender, "T", body)
    reply = puller.answer(opaque)
    return bodies_of(reply)


def make_topic(broker: Broker, brokers: Brokers) -> None:
    fields = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    assert brokers.connect(broker).call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0


def test_no_old_message_is_delivered_from_a_recreated_topic(broker: Broker, brokers: Brokers) -> None:
    """A cached answer of the deleted topic must not serve pulls of a new topic with the same name."""
    make_topic(broker, brokers)
    assert woken_by(b"old", broker, brokers) == [b"old"]
    assert brokers.connect(broker).call(DELETE, {"topic": "T"}).code == 0
    make_topic(broker, brokers)
    assert woken_by(b"new", broker, brokers) == [b"new"]


def test_a_pull_during_a_deletion_caches_no_old_message(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that runs during the deletion may cache its answer after the deletion has cleared the cache."""
    run_now = PullRunner.run_now

    def run_and_delete(runner: PullRunner, pull: Pull, cause: Cause, after_ns: int, outbox: Outbox) -> Decision:
        decision = run_now(runner, pull, cause, after_ns, outbox)
        if not deletions:
            deletions.append("T")
            broker.topics.remove("T")
            broker.store.delete_topic("T")
            broker.pulling.topic_deleted("T", outbox)
        return decision

    deletions: list[str] = []
    monkeypatch.setattr(PullRunner, "run_now", run_and_delete)
    broker = brokers.start()
    make_topic(broker, brokers)
    assert (woken_by(b"old", broker, brokers), deletions) == ([b"old"], ["T"])
    make_topic(broker, brokers)
    assert woken_by(b"new", broker, brokers) == [b"new"]


def test_a_topic_stays_deleted_after_a_restart(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that is created again after the restart begins at offset 0."""
    directory = str(tmp_path / "again")
    broker, client = brokers.served(directory=directory)
    assert [send_message(client, "T") for _ in range(3)] == [0, 1, 2]
    assert client.delete_topic("T") == 0
    broker.stop()
    with caplog.at_level(logging.WARNING):
        broker = brokers.start(directory=directory)
    assert caplog.messages == []
    assert broker.topics.get("T") is None
    assert send_message(brokers.connect(broker), "T") == 0


@pytest.mark.parametrize(
    ("policy", "codes"), [(STRICT, (1, 1, 1, 1)), (ROCKETMQ_4_9, (1, 1, 1, 1)), (ROCKETMQ_5, (29, 29, 0, 1))],
    ids=["strict", "4.9", "5"],
)  # fmt: skip
def test_system_topics_cannot_be_deleted(policy: Policy, codes: tuple[int, int, int, int], brokers: Brokers) -> None:
    """Deleting the schedule topic would lose delayed messages, so system topics cannot be deleted."""
    broker, client = brokers.served(policy=policy)
    conflict, blank, odd, kind = codes
    own = ("SCHEDULE_TOPIC_XXXX", "TBW102", "BenchmarkTest", "broker-a", "DefaultCluster", "rmq_sys_x")
    counts = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    before = dict(broker.topics.by_name)
    for name in own:
        assert client.delete_topic(name) == conflict
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, counts | {"topic": name}).code == conflict
    assert client.delete_topic(" ") == blank
    assert client.delete_topic("../x") == odd
    assert (
        client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, counts | {"topic": "U", "topicFilterType": "3"}).code == kind
    )
    assert broker.topics.by_name == before


def test_a_slow_deletion_delays_only_its_topic(
    broker: Broker, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends to the topic are refused until the slow deletion is answered; other requests do not wait."""
    admin, bystander = brokers.connect(broker), brokers.connect(broker)
    send_message(admin, "T", b"old")
    stands, goes_on = broker.runtime.event(), broker.runtime.event()
    write = Deletions._write

    def stand_still(deletions: Deletions, ends: dict[str, int]) -> None:
        stands.set()
        goes_on.wait(60.0)
        write(deletions, ends)

    monkeypatch.setattr(Deletions, "_write", stand_still)
    deletion = admin.send(DELETE, {"topic": "T"})
    try:
        assert stands.wait(60.0)
        assert [send_message(bystander, "Other", b"meanwhile") for _ in range(3)] == [0, 1, 2]
        refused = bystander.put("T", b"too early")
        assert (refused.code, "is deleting the topic" in str(refused.remark)) == (14, True)
        assert bystander.pull("T").code == 19
    finally:
        goes_on.set()
    answer = admin.answer(deletion)
    assert (answer.code, send_message(bystander, "T", b"new")) == (0, 0)
    assert bystander.bodies("T") == [b"new"]


NEVER_MS: Final = 600_000
"""With this scan period no scan runs during a test; on 5.x a scan would end its round when the broker's role changes.
"""
SLAVE: Final = BrokerConfig(
    role="SLAVE", broker_id=1, slave_read=True, slave_acting_master=True, scan_period_ms=NEVER_MS
)
OURS: Final = {"strict", "strict-clone"}
WITHOUT_905: Final = {"rocketmq-4.9"}
QUICK: Final = {"strict", "rocketmq-4.9", "rocketmq-5"}
"""Policies tested in the short run; every other policy behaves like one of these in the tests below."""
POLICIES: Final = pytest.mark.parametrize(
    "policy",
    [pytest.param(each, marks=[pytest.mark.long] * (name not in QUICK)) for name, each in PRESETS.items()],
    ids=PRESETS,
)


def make_topics(broker: Broker) -> None:
    """Create two topics with one queue each before the role changes, because a slave refuses to create topics."""
    for topic in "TU":
        assert broker.topics.put(TopicConfig(topic, 1, 1))


def hold(broker: Broker, client: RawClient, topic: str) -> int:
    opaque = client.hold(topic)
    wait_held(broker)
    return opaque


def scan_late(broker: Broker) -> None:
    for shard in broker.hold_service._shards:
        with shard.lock:
            buckets = [shard.table.held(key) for key in list(shard.table.keys())]
            for pull in chain.from_iterable(buckets):
                pull.deadline_ms = 0
    outbox = Outbox()
    broker.hold_service.scan(outbox)
    outbox.flush()


def said(client: RawClient, opaque: int) -> tuple[int, str | None]:
    reply = client.answer(opaque)
    return reply.code, (reply.ext_fields or {}).get("nextBeginOffset")


@POLICIES
def test_the_policy_decides_about_pulls_at_a_deletion_and_a_stop(policy: Policy, brokers: Brokers) -> None:
    """RocketMQ answers the pulls of a deleted topic at a scan, and never at a stop."""
    broker = brokers.start(policy=policy, config=BrokerConfig(scan_period_ms=NEVER_MS))
    puller, other = brokers.connect(broker), brokers.connect(broker)
    make_topics(broker)
    opaque = hold(broker, puller, "T")
    assert other.delete_topic("T") == 0
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
def test_the_policy_decides_about_pulls_at_a_role_change(policy: Policy, brokers: Brokers) -> None:
    """After a change of the broker's role 5.x runs held pulls again; 4.9 does not support the request."""
    broker = brokers.start(policy=policy, config=SLAVE)
    puller, other = brokers.connect(broker), brokers.connect(broker)
    make_topics(broker)
    opaque = hold(broker, puller, "U")
    told = other.call(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "0"})
    if policy.name in WITHOUT_905:
        assert (told.code, len(broker.hold_service)) == (3, 1)
        scan_late(broker)
        assert said(puller, opaque) == (19, "0")
    else:
        assert told.code == 0
        assert said(puller, opaque) == (19 if policy.name in OURS else 20, "0")
    assert len(broker.hold_service) == 0

"""A broker that serves a copied store as a slave does, through real sockets, version by version."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_held, wait_visible
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    send_message,
)
from model_tests.support.broker.stores import message
from model_tests.support.service import fields_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
LONG_MS = 30_000

StartSlave = Callable[..., Broker]


@pytest.fixture
def start_slave(brokers: Brokers, tmp_path: Path) -> StartSlave:
    """Fill a master's store with three messages, copy it when the master has stopped, and serve the copy."""

    def start(policy: Policy, **settings: Any) -> Broker:
        master = brokers.start(directory=str(tmp_path / "master"))
        client = brokers.connect(master)
        for number in range(3):
            send_message(client, "T", f"m{number}".encode())
        master.stop()
        shutil.copytree(tmp_path / "master", tmp_path / "slave")
        config = BrokerConfig(**{"role": "SLAVE", "broker_id": 1, "scan_period_ms": 20, **settings})
        return brokers.start(directory=str(tmp_path / "slave"), policy=policy, config=config)

    return start


def ask(client: RawClient, offset: int, timeout_ms: int = 0) -> Command:
    return client.pull("T", offset, timeout_ms=timeout_ms)


@POLICIES
def test_what_a_slave_serves(policy: Policy, start_slave: StartSlave, brokers: Brokers) -> None:
    """It serves what was copied, corrects no offset, and takes no message; since 5.x its messages wake pulls."""
    broker = start_slave(policy, slave_read=True)
    client = brokers.connect(broker)
    reply = ask(client, 0)
    assert bodies_of(reply) == [b"m0", b"m1", b"m2"]
    assert fields_of(reply)["suggestWhichBrokerId"] == "0"
    reply = ask(client, 99)
    assert (reply.code, fields_of(reply)["nextBeginOffset"]) == (20, "99")
    assert broker.pulling.dispatch_service.notifies == (policy is not ROCKETMQ_4_9)
    sent = client.put("T")
    assert sent.code == (2 if policy is ROCKETMQ_5 else 14)
    assert client.call(RequestCode.END_TRANSACTION, {}).code == 11
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, {}).code == (2 if policy is ROCKETMQ_5 else 1)
    assert broker.store.visible_end("T", 0) == 3


@POLICIES
def test_whether_a_slave_changes_topics_and_groups(policy: Policy, start_slave: StartSlave, brokers: Brokers) -> None:
    broker = start_slave(policy, slave_read=True)
    client = brokers.connect(broker)
    topic = {"topic": "U", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    codes = [
        client.call(code, fields, body).code
        for code, fields, body in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC, topic, b""),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"H"}'),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "H"}, b""),
            *(
                (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, b'{"topicConfigList":[{"topicName":"V"}]}'),
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, b'{"groupConfigList":[{"groupName":"I"}]}'),
            )[: 0 if policy is ROCKETMQ_4_9 else 2],
        )
    ]
    changes = policy is ROCKETMQ_5
    assert codes == [0 if changes else 1] * len(codes)
    assert (broker.topics.get("U") is not None, broker.topics.get("T") is None) == (changes, changes)
    assert (broker.topics.get("V") is not None) == changes


@pytest.mark.parametrize(("policy", "woken"), [(ROCKETMQ_4_9, False), (ROCKETMQ_5, True)], ids=["4.9", "5"])
def test_copied_messages_wake_held_pulls(
    policy: Policy, woken: bool, start_slave: StartSlave, brokers: Brokers
) -> None:
    broker = start_slave(policy, slave_read=True, scan_period_ms=100 * LONG_MS)
    client = brokers.connect(broker)
    opaque = client.hold("T", 3)
    wait_held(broker)
    # As the master's copier appends; when the second is visible, the first has been announced, or never is.
    for end in (4, 5):
        broker.store.put(message("T", 0, b"copied"))
        wait_visible(broker, "T", end)
    assert len(broker.hold_service) == (0 if woken else 1)
    if woken:
        reply = client.answer(opaque)
        assert reply.code == 0


def test_a_slave_delivers_nothing_that_is_delayed(start_slave: StartSlave, brokers: Brokers) -> None:
    slave = start_slave(STRICT, slave_read=True)
    assert "schedule" not in {thread.name for thread in threading.enumerate()}
    slave.stop()
    brokers.start()
    assert "schedule" in {thread.name for thread in threading.enumerate()}


def test_a_slave_needs_an_id_of_its_own(brokers: Brokers) -> None:
    with pytest.raises(ConfigError, match="brokerId must be above 0"):
        brokers.start(config=BrokerConfig(role="SLAVE"))


def test_who_is_far_behind_is_sent_to_the_slave(brokers: Brokers) -> None:
    store_config = attrs.evolve(SMALL_STORE, memory_size=1, memory_ratio_max=40)
    _broker, client = brokers.served(config=BrokerConfig(slave_read=True), store_config=store_config)
    for _ in range(2):
        send_message(client, "T")
    assert fields_of(ask(client, 0))["suggestWhichBrokerId"] == "1"
    assert fields_of(ask(client, 2))["suggestWhichBrokerId"] == "0"

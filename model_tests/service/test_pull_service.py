"""Pulls over real sockets: answered at once, held, woken, expired or dropped, and pulls from a slave."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_held, wait_visible
from model_tests.support.broker.harness.topics import make_topic
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    send_fields,
    send_message,
)
from model_tests.support.broker.stores import message
from model_tests.support.service import ShiftedRuntime, fields_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold import notifier
from longpoll_broker.hold.herd import COPIED_SIZE_MAX
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_broker.shared.statistics import GROUP_GET_NUMS
from longpoll_broker.shared.topics import GroupConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, STRICT_CLONE, Policy

PULL = RequestCode.PULL_MESSAGE

LONG_MS = 30_000
"""A deadline in ms that no passing test waits for."""


def hold(client: RawClient, broker: Broker, topic: str, offset: int, **options: object) -> int:
    before = len(broker.hold_service)
    opaque = client.send(PULL, pull_fields(topic, offset, timeout_ms=LONG_MS) | {k: str(v) for k, v in options.items()})
    # The answer to a second request shows that the broker has processed the connection's first request.
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    if broker.policy.notify == "at_append":
        assert len(broker.hold_service) == before + 1
    return opaque


def answers_of_herd(broker: Broker, brokers: Brokers) -> list[tuple[int, list[bytes]]]:
    """Codes and bodies of held pulls that one batch wakes, and of a pull in another queue that the next batch wakes.

    Two of three pulls are identical. Each pull between two identical ones differs in one property: the count, a filter,
    a group that may no longer consume, or the queue.
    """
    sender, puller = brokers.connect(broker), brokers.connect(broker)
    for queue_id in range(2):
        send_message(sender, "T", queue_id=queue_id)
    opaques = []
    for other in ({"maxMsgNums": "1"}, {"subscription": "a"}, {"consumerGroup": "H"}, {"queueId": "1"}):
        opaques += [hold(puller, broker, "T", 1), hold(puller, broker, "T", 1), hold(puller, broker, "T", 1, **other)]
    broker.groups.put(GroupConfig("H", consume_enable=False))
    for queue_id, bodies in enumerate(((b"1", b"2"), (b"3", b"4"))):
        batch = encode_batch(
            BatchMessage(body, f"TAGS\x01{tag}\x02") for body, tag in zip(bodies, ("a", "b"), strict=True)
        )
        reply = sender.call(RequestCode.SEND_BATCH_MESSAGE, send_fields("T", queue_id) | {"m": "true"}, batch)
        assert reply.code == 0, reply.remark
    found = []
    for opaque in opaques:
        answer = puller.answer(opaque)
        found.append((answer.code, bodies_of(answer)))
    return found


BOTH = (0, [b"1", b"2"])

HERDS = [BOTH, BOTH, (0, [b"1"]), BOTH, BOTH, (0, [b"1"]), BOTH, BOTH, (16, []), BOTH, BOTH, (0, [b"3", b"4"])]


@pytest.mark.parametrize("large_herd", [1, 1000])
def test_each_pull_of_a_herd_gets_its_own_answer(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, large_herd: int
) -> None:
    monkeypatch.setattr(notifier, "LARGE_HERD", large_herd)
    broker = brokers.start()
    assert answers_of_herd(broker, brokers) == HERDS
    assert broker.shared.statistics._items[GROUP_GET_NUMS, "T@G"].value == 20


Told = tuple[int, dict[str, str] | None, str | None, list[bytes]]
"""The code, the fields, the remark and the messages' bodies of an answer."""


def told_in_herd(broker: Broker, brokers: Brokers, body: bytes) -> list[dict[int, Told]]:
    """Maps (connection, opaque) to the answer, for 360 pulls on three connections that one message wakes."""
    sender = brokers.connect(broker)
    send_message(sender, "T")
    pullers = [brokers.connect(broker) for _ in range(3)]
    asked = [[puller.hold("T", 1) for _ in range(120)] for puller in pullers]
    wait_held(broker, 360)
    send_message(sender, "T", body)
    told: list[dict[int, Told]] = []
    for puller, opaques in zip(pullers, asked, strict=True):
        told.append({})
        for opaque in opaques:
            reply = puller.answer(opaque)
            bodies = bodies_of(reply)
            told[-1][opaque] = (reply.code, reply.ext_fields, reply.remark, bodies)
    # A pull that arrives while the I/O loop serves other connections is answered afterwards.
    sender.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    broker.hold_service.assert_tidy()
    return told


class Counting(RealRuntime):
    """Counts the steps of each action, and calls a function just before run number `run_number`."""

    def __init__(self, run_number: int = 0, act: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.passed: Counter[str] = Counter()
        self.run_number, self.act = run_number, act

    def step(self, action: str) -> None:
        self.passed[action] += 1
        if action == "run" and self.passed["run"] == self.run_number:
            self.act()


@pytest.mark.parametrize("size", [10, COPIED_SIZE_MAX])
def test_a_herds_answers_equal_single_answers(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    runtime = Counting()
    together = told_in_herd(brokers.start(runtime=runtime), brokers, bytes(size))
    assert (runtime.passed["notify_each"], runtime.passed["run"]) == (360, 360)
    monkeypatch.setattr(PullRunner, "_herd_key", lambda *_arguments: None)
    alone = told_in_herd(brokers.start(directory=str(tmp_path / "alone")), brokers, bytes(size))
    assert together == alone
    assert all(bodies == [bytes(size)] for told in alone for _code, _fields, _remark, bodies in told.values())


def test_a_herd_notices_a_change_before_its_run(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is disabled before the third of four pulls runs, so the second pull's answer is not reused."""
    monkeypatch.setattr(notifier, "LARGE_HERD", 1)
    runtime = Counting(3, lambda: broker.groups.put(GroupConfig("G", consume_enable=False)))
    broker, sender, puller = brokers.served_two(runtime=runtime)
    send_message(sender, "T")
    opaques = [hold(puller, broker, "T", 1) for _ in range(4)]
    send_message(sender, "T")
    assert [puller.answer(opaque).code for opaque in opaques].count(16) == 3


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_deadlines_are_monotonic(policy: object, step_ms: int, brokers: Brokers) -> None:
    runtime = ShiftedRuntime()
    broker, client = brokers.served(policy=policy, runtime=runtime, config=BrokerConfig(scan_period_ms=50))
    send_message(client, "T")
    wait_visible(broker, "T", 1)
    began_ns = time.monotonic_ns()
    opaque = client.send_pull("T", 1, timeout_ms=200)
    wait_held(broker)
    runtime.ahead_ms = step_ms
    reply = client.reply(opaque)
    assert time.monotonic_ns() - began_ns >= 200_000_000
    assert reply is not None
    assert reply.code == 19


def test_a_message_wakes_only_pulls_of_its_queue(brokers: Brokers) -> None:
    broker, client, sender = brokers.served_two()
    make_topic(broker.address, "T", 20)
    asked = {queue: client.send(PULL, pull_fields("T", 0, queue_id=queue, timeout_ms=LONG_MS)) for queue in range(20)}
    wait_held(broker, 20)
    for queue in reversed(range(20)):
        assert sender.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", queue), b"x").code == 0
        assert client.answer(asked[queue]).code == 0
        assert len(broker.hold_service) == queue


def test_a_stop_answers_each_held_pull(brokers: Brokers) -> None:
    broker, client = brokers.served()
    send_message(client, "T")
    opaques = [hold(client, broker, "T", 1), hold(client, broker, "T", 1)]
    broker.stop()
    assert [client.answer(opaque).code for opaque in opaques] == [19, 19]


POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)

StartSlave = Callable[..., Broker]


@pytest.fixture
def start_slave(brokers: Brokers, tmp_path: Path) -> StartSlave:
    """Fill a master's store with three messages, stop the master, and serve a copy of the store."""

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
def test_a_slave_serves_only_pulls(policy: Policy, start_slave: StartSlave, brokers: Brokers) -> None:
    """A slave serves copied messages, but corrects no offset and accepts no send. Since 5.x, copies wake held pulls."""
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
    # The test appends like the thread that copies from the master. When the second message is visible, the pulls have
    # already been notified of the first one.
    for end in (4, 5):
        broker.store.put(message("T", 0, b"copied"))
        wait_visible(broker, "T", end)
    assert len(broker.hold_service) == (0 if woken else 1)
    if woken:
        reply = client.answer(opaque)
        assert reply.code == 0


def test_a_slave_delivers_no_delayed_message(start_slave: StartSlave, brokers: Brokers) -> None:
    slave = start_slave(STRICT, slave_read=True)
    assert "schedule" not in {thread.name for thread in threading.enumerate()}
    slave.stop()
    brokers.start()
    assert "schedule" in {thread.name for thread in threading.enumerate()}


def test_a_slave_needs_a_positive_id(brokers: Brokers) -> None:
    with pytest.raises(ConfigError, match="brokerId must be above 0"):
        brokers.start(config=BrokerConfig(role="SLAVE"))


def test_a_consumer_far_behind_is_redirected_to_the_slave(brokers: Brokers) -> None:
    store_config = attrs.evolve(SMALL_STORE, memory_size=1, memory_ratio_max=40)
    _broker, client = brokers.served(config=BrokerConfig(slave_read=True), store_config=store_config)
    for _ in range(2):
        send_message(client, "T")
    assert fields_of(ask(client, 0))["suggestWhichBrokerId"] == "1"
    assert fields_of(ask(client, 2))["suggestWhichBrokerId"] == "0"

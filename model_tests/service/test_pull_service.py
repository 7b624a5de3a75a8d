"""Pulls over real sockets: answered, held, woken, late, dropped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.harness.topics import make_topic
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from model_tests.support.service import ShiftedRuntime, answer_of, fields_of, served, served_two

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold import notifier
from longpoll_broker.hold.herd import COPIED_SIZE_MAX
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_broker.shared.statistics import GROUP_GET_NUMS, Statistics
from longpoll_broker.shared.topics import GroupConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE

PULL = RequestCode.PULL_MESSAGE

LONG_MS = 30_000
"""A deadline that no passing test waits for."""


def hold(client: RawClient, broker: Broker, topic: str, offset: int, **options: object) -> int:
    """Send a pull and wait until it is held; its opaque."""
    before = len(broker.hold_service)
    opaque = client.send(PULL, pull_fields(topic, offset, timeout_ms=LONG_MS) | {k: str(v) for k, v in options.items()})
    # A second request on the same connection is answered after the first was dealt with.
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    if broker.policy.notify == "at_append":
        assert len(broker.hold_service) == before + 1
    return opaque


def test_a_pull_is_answered_at_its_own_deadline(start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect)
    send_message(client, "T")
    started_s = time.monotonic()
    opaques = {ms: client.send(PULL, pull_fields("T", 1, timeout_ms=ms)) for ms in (150, 50, 100)}
    for ms in (50, 100, 150):
        reply = client.reply(opaques[ms])
        assert time.monotonic() - started_s >= ms / 1000
        assert reply is not None
        assert (reply.code, fields_of(reply)["nextBeginOffset"]) == (19, "1")
    broker.hold_service.assert_tidy()
    assert len(broker.hold_service) == 0


def test_over_the_limit_of_held_pulls_the_answer_is_busy(start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect, config=BrokerConfig(held_count_max=1))
    send_message(client, "T")
    hold(client, broker, "T", 1)
    assert client.call(PULL, pull_fields("T", 1, timeout_ms=LONG_MS)).code == 2
    assert len(broker.hold_service) == 1


def test_a_closed_connection_leaves_nothing_in_the_table(start_broker: StartBroker, connect: Connect) -> None:
    broker, leaver, stayer = served_two(start_broker, connect)
    send_message(stayer, "T")
    hold(leaver, broker, "T", 1)
    make_topic(broker.address, "U", 4)
    hold(leaver, broker, "U", 0)
    hold(stayer, broker, "T", 1)
    leaver.close()
    wait_until(lambda: len(broker.hold_service) == 1)
    broker.hold_service.assert_tidy()


def answers_of_herd(broker: Broker, connect: Connect) -> list[tuple[int, list[bytes]]]:
    """Code and bodies of held pulls that one batch wakes, and of one that the next batch wakes, in another queue.

    Two of three ask the same, and those between differ in one thing: a count, a filter, a group that may not
    consume any more, and the queue.
    """
    sender, puller = connect(broker.address), connect(broker.address)
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
        answer = answer_of(puller, opaque)
        found.append((answer.code, [bytes(record.body) for record in records_of(answer)]))
    return found


BOTH = (0, [b"1", b"2"])

HERDS = [BOTH, BOTH, (0, [b"1"]), BOTH, BOTH, (0, [b"1"]), BOTH, BOTH, (16, []), BOTH, BOTH, (0, [b"3", b"4"])]


@pytest.mark.parametrize("large_herd", [1, 1000])
def test_woken_pulls_in_a_herd_get_what_each_asked_for(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, large_herd: int
) -> None:
    monkeypatch.setattr(notifier, "LARGE_HERD", large_herd)
    broker = start_broker()
    assert answers_of_herd(broker, connect) == HERDS
    assert broker.shared.statistics._items[GROUP_GET_NUMS, "T@G"].value == 20


Told = tuple[int, dict[str, str] | None, str | None, list[bytes]]
"""Code, fields, remark and bodies of an answer."""


def told_in_herd(broker: Broker, connect: Connect, body: bytes) -> list[dict[int, Told]]:
    """Answers to 360 pulls of three connections that one message wakes, by connection and opaque."""
    sender = connect(broker.address)
    send_message(sender, "T")
    pullers = [connect(broker.address) for _ in range(3)]
    asked = [[puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS)) for _ in range(120)] for puller in pullers]
    wait_until(lambda: len(broker.hold_service) == 360)
    send_message(sender, "T", body)
    told: list[dict[int, Told]] = []
    for puller, opaques in zip(pullers, asked, strict=True):
        told.append({})
        for opaque in opaques:
            reply = answer_of(puller, opaque)
            bodies = [bytes(record.body) for record in records_of(reply)]
            told[-1][opaque] = (reply.code, reply.ext_fields, reply.remark, bodies)
    # What comes after a pass is answered when the pass is over.
    sender.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    broker.hold_service.assert_tidy()
    return told


class Counting(RealRuntime):
    """Counts step points, and does something else as well when a run of that number is about to begin."""

    def __init__(self, run_number: int = 0, act: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.passed: Counter[str] = Counter()
        self.run_number, self.act = run_number, act

    def step(self, action: str) -> None:
        self.passed[action] += 1
        if action == "run" and self.passed["run"] == self.run_number:
            self.act()


@pytest.mark.parametrize("size", [10, COPIED_SIZE_MAX])
def test_a_herd_is_told_what_each_would_be_told_alone(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    runtime = Counting()
    together = told_in_herd(start_broker(runtime=runtime), connect, bytes(size))
    assert (runtime.passed["notify_each"], runtime.passed["run"]) == (360, 360)
    monkeypatch.setattr(PullRunner, "_herd_key", lambda *_arguments: None)
    alone = told_in_herd(start_broker(directory=str(tmp_path / "alone")), connect, bytes(size))
    assert together == alone
    assert all(bodies == [bytes(size)] for told in alone for _code, _fields, _remark, bodies in told.values())


def refused_in_herd(start_broker: StartBroker, connect: Connect, directory: Path) -> int:
    """Four pulls come to their run; at the third one's their group may consume no more: how many of them hear so."""
    runtime = Counting(3, lambda: broker.groups.put(GroupConfig("G", consume_enable=False)))
    broker, sender, puller = served_two(start_broker, connect, runtime=runtime, directory=str(directory))
    send_message(sender, "T")
    opaques = [hold(puller, broker, "T", 1) for _ in range(4)]
    send_message(sender, "T")
    codes = [reply.code for opaque in opaques if (reply := puller.reply(opaque)) is not None]
    assert len(codes) == 4
    return codes.count(16)


def test_a_herd_sees_what_changed_before_it_ran(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(notifier, "LARGE_HERD", 1)
    assert refused_in_herd(start_broker, connect, tmp_path / "seen") == 3


def test_several_io_threads_serve_as_one(start_broker: StartBroker, connect: Connect) -> None:
    """Senders and pullers on three threads miss no message."""
    broker = start_broker(config=BrokerConfig(io_thread_count=3))
    pullers = [connect(broker.address) for _ in range(3)]
    senders = [connect(broker.address) for _ in range(3)]
    send_message(senders[0], "T")
    for offset in range(1, 100):
        opaques = [puller.send(PULL, pull_fields("T", offset, timeout_ms=LONG_MS)) for puller in pullers]
        send_message(senders[offset % 3], "T")
        for puller, opaque in zip(pullers, opaques, strict=True):
            assert fields_of(answer_of(puller, opaque))["nextBeginOffset"] == str(offset + 1)
    wait_until(lambda: len(broker.hold_service) == 0)
    broker.hold_service.assert_tidy()


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_deadlines_are_monotonic(policy: object, step_ms: int, start_broker: StartBroker, connect: Connect) -> None:
    runtime = ShiftedRuntime()
    broker, client = served(
        start_broker, connect, policy=policy, runtime=runtime, config=BrokerConfig(scan_period_ms=50)
    )
    send_message(client, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    began_ns = time.monotonic_ns()
    opaque = client.send(PULL, pull_fields("T", 1, timeout_ms=200))
    wait_until(lambda: len(broker.hold_service) == 1)
    runtime.ahead_ms = step_ms
    reply = client.reply(opaque)
    assert time.monotonic_ns() - began_ns >= 200_000_000
    assert reply is not None
    assert reply.code == 19


def test_latencies_are_counted(start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count_get = Statistics.count_get

    def noting(table: Statistics, *place: Any, latency_ms: int, **sums: Any) -> None:
        counted.append(latency_ms)
        count_get(table, *place, latency_ms=latency_ms, **sums)

    monkeypatch.setattr(Statistics, "count_get", noting)
    broker, client, sender = served_two(start_broker, connect)
    send_message(sender, "T")
    assert client.call(PULL, pull_fields("T", 0)).code == 0
    opaque = client.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    send_message(sender, "T")
    assert client.reply(opaque) is not None
    assert len(counted) == 2
    assert all(0 <= latency_ms < LONG_MS for latency_ms in counted)


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_message_wakes_its_queue_alone(policy: object, start_broker: StartBroker, connect: Connect) -> None:
    broker, client, sender = served_two(
        start_broker, connect, policy=policy, config=BrokerConfig(scan_period_ms=100_000)
    )
    make_topic(broker.address, "T", 20)
    asked = {queue: client.send(PULL, pull_fields("T", 0, queue_id=queue, timeout_ms=LONG_MS)) for queue in range(20)}
    wait_until(lambda: len(broker.hold_service) == 20)
    batch = encode_batch([BatchMessage(b"b", "")])
    for number, queue in enumerate(reversed(range(20))):
        fields_sent = send_fields("T", queue)
        if number % 3 == 0:
            assert sender.call(RequestCode.SEND_MESSAGE_V2, fields_sent, b"x").code == 0
        elif number % 3 == 1:
            assert sender.call(RequestCode.SEND_BATCH_MESSAGE, fields_sent | {"m": "true"}, batch).code == 0
        else:
            [opaque] = sender.send_burst(RequestCode.SEND_MESSAGE_V2, [(fields_sent, b"y")])
            assert sender.reply(opaque) is not None
        reply = client.reply(asked[queue])
        assert reply is not None, f"nobody is woken by queue {queue}"
        assert [record.queue_id for record in records_of(reply)] == [queue]
        assert len(broker.hold_service) == 19 - number


THE_BROKERS = {
    "append", "make_visible", "pull_read", "hold", "recheck", "expire", "run", "stop",
    "notify_start", "notify_each", "notify_end", "scan_start", "scan_each", "scan_end",
}  # fmt: skip
"""The step points that the broker's own threads pass in the scenario below."""


def test_the_step_points_are_the_laws_actions(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    passed: set[str] = set()
    for policy in (STRICT, STRICT_CLONE, ROCKETMQ_4_9):
        runtime, config = Counting(), BrokerConfig(scan_period_ms=20)
        broker, puller, sender = served_two(
            start_broker, connect, runtime=runtime, directory=str(tmp_path / policy.name), policy=policy, config=config
        )
        send_message(sender, "T")
        wait_until(lambda broker=broker: broker.store.visible_end("T", 0) == 1)  # type: ignore[misc] # bound at once
        opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
        wait_until(lambda broker=broker: len(broker.hold_service) == 1)  # type: ignore[misc] # bound at once
        send_message(sender, "T")
        assert puller.reply(opaque) is not None
        assert puller.call(PULL, pull_fields("T", 2, timeout_ms=50)).code == 19
        puller.send(PULL, pull_fields("T", 2, timeout_ms=LONG_MS))
        wait_until(lambda broker=broker: len(broker.hold_service) == 1)  # type: ignore[misc] # bound at once
        broker.stop()
        passed |= set(runtime.passed)
    assert passed == THE_BROKERS <= set(ACTION_NAMES)

"""The pull pool: a full queue rejects, and what waited too long is told so instead of being run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import attrs
import pytest

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.hold import ANSWERED, QUEUED, Pull
from longpoll_broker.fast.woken_herd import HerdExecutor
from longpoll_broker.service.io.channel import Channel, Outbox, Parts
from longpoll_broker.service.io.executors import InlineExecutor, PoolExecutor
from longpoll_broker.service.pull.pull_processor import PullProcessor
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import PATIENCE_S, pull_fields, send_message
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy


def pull() -> Pull:
    return Pull("c", 1, "G", "T", 0, 0, 32, 2)


def herd_of(count: int) -> tuple[list[Pull], list[Pull], HerdExecutor]:
    """Pulls to run, those run by themselves, and an executor that runs two at a time together, or fails halfway."""
    singly: list[Pull] = []

    def run(each: Pull, _cause: str, _outbox: Outbox) -> None:
        assert each.phase is QUEUED
        each.phase = ANSWERED
        singly.append(each)

    def run_alike(pulls: Sequence[Pull], _outbox: Outbox) -> None:
        if not singly:
            return
        for each in pulls[:2]:
            if each.offset:
                raise ValueError("these cannot be run together")
            each.phase = ANSWERED

    pulls = [pull() for _ in range(count)]
    for each in pulls:
        each.phase = QUEUED
    return pulls, singly, HerdExecutor(run, run_alike=run_alike)


def test_each_of_a_herd_is_run_once_whether_together_or_not() -> None:
    """The first by itself, those after it together, and where that fails halfway the rest one by one."""
    pulls, singly, executor = herd_of(7)
    pulls[4].offset = pulls[5].offset = 1
    assert not executor.submit_herd(pulls, Outbox())
    assert all(each.phase is ANSWERED for each in pulls)
    assert [pulls.index(each) for each in singly] == [0, 4, 5]


def test_the_plain_executor_takes_each_of_a_herd_once() -> None:
    """None is given back, for what is given back is answered once more."""
    ran: list[Pull] = []
    pulls = [pull() for _ in range(3)]
    assert not InlineExecutor(lambda each, *_words: ran.append(each)).submit_herd(pulls, Outbox())
    assert ran == pulls


def test_a_pool_without_room_gives_back_the_rest_of_a_herd() -> None:
    pool = PoolExecutor(RealRuntime(), lambda *_run: None, lambda *_refused: None, 1, 2, None)
    pulls = [pull() for _ in range(5)]
    assert pool.submit_herd(pulls, Outbox()) == pulls[2:]


def test_a_full_queue_rejects_and_what_waited_too_long_is_refused() -> None:
    """One worker is busy: the second waits, the third finds no room; then time passes, and the second is too late."""
    runtime = RealRuntime()
    now_ns = [0]
    runtime.monotonic_ns = lambda: now_ns[0]
    begun, may_end = threading.Event(), threading.Event()
    ran: list[Pull] = []
    refused: list[tuple[Pull, str]] = []

    def run(each: Pull, _cause: str, _outbox: Outbox) -> None:
        ran.append(each)
        begun.set()
        assert may_end.wait(10)

    pool = PoolExecutor(runtime, run, lambda each, cause, _outbox: refused.append((each, cause)), 1, 1, 5000)
    pool.start()
    first, second, third = pull(), pull(), pull()
    assert pool.submit(first, "woken", Outbox())
    assert begun.wait(10)
    assert pool.submit(second, "woken", Outbox())
    assert not pool.submit(third, "woken", Outbox())
    now_ns[0] = 5_000_000_000
    may_end.set()
    pool.stop()
    assert (ran, refused) == ([first], [(second, "busy")])


@pytest.mark.parametrize(("wait_ms_max", "code"), [(5000, 0), (0, 2)])
def test_a_pull_that_waits_too_long_is_told_that_the_system_is_busy(
    wait_ms_max: int, code: int, start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(policy=ROCKETMQ_4_9, config=BrokerConfig(pull_wait_ms_max=wait_ms_max))
    client = connect(broker.address)
    send_message(client, "T")
    reply = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=5000))
    assert reply.code == code


def codes_behind_a_pull_that_stands_still(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, *, fast_failure: bool, early_s: float
) -> tuple[int | None, int]:
    """The only worker stands still for as long as a pull may wait: what the next pull is told meanwhile, and at all."""
    runtime = RealRuntime()
    passed_ns = [0]
    runtime.monotonic_ns = lambda: time.monotonic_ns() + passed_ns[0]
    begun, may_end = threading.Event(), threading.Event()
    receive = PullProcessor.receive

    def slowly(service: PullProcessor, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return receive(service, channel, command, outbox)

    monkeypatch.setattr(PullProcessor, "receive", slowly)
    config = BrokerConfig(pull_thread_count=1, fast_failure=fast_failure)
    broker = start_broker(policy=ROCKETMQ_4_9, config=config, runtime=runtime)
    client = connect(broker.address)
    send_message(client, "T")
    client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    assert begun.wait(PATIENCE_S)
    behind = client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    pool = broker.pulling.pool
    assert pool is not None
    wait_until(lambda: len(pool._tasks) == 1)
    passed_ns[0] = config.pull_wait_ms_max * 1_000_000
    early = client.reply(behind, early_s)
    may_end.set()
    late = early or client.reply(behind)
    assert late is not None
    return early.code if early is not None else None, late.code


def test_a_late_pull_is_refused_while_every_worker_stands_still(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes_behind_a_pull_that_stands_still(
        start_broker, connect, monkeypatch, fast_failure=True, early_s=PATIENCE_S
    ) == (2, 2)


def test_without_fast_failure_a_late_pull_waits_and_is_served(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes_behind_a_pull_that_stands_still(
        start_broker, connect, monkeypatch, fast_failure=False, early_s=0.2
    ) == (None, 0)


def test_a_task_that_fails_costs_only_itself_and_what_is_queued_is_run_at_the_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    ran: list[str] = []

    def run(each: Pull, cause: str, _outbox: Outbox) -> None:
        begun.set()
        assert may_end.wait(10)
        ran.append(cause)
        if cause == "thrown":
            raise LookupError("planted")
        assert each is not None

    pool = PoolExecutor(RealRuntime(), run, lambda *_refused: None, 1, 10, 60_000)
    pool.start()
    assert pool.submit(pull(), "thrown", Outbox())
    assert begun.wait(10)
    assert pool.submit(pull(), "woken", Outbox())
    may_end.set()
    pool.stop()
    assert ran == ["thrown", "woken"]
    assert "planted" in caplog.text
    assert not pool.submit(pull(), "expired", Outbox())


def test_a_pull_that_finds_the_pool_full_is_told_at_once(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 [OVERLOAD], without waiting for the two before it, which are served; a one-way pull is told nothing."""
    begun, may_end = threading.Event(), threading.Event()
    receive = PullProcessor.receive

    def slowly(service: PullProcessor, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        begun.set()
        assert may_end.wait(10)
        return receive(service, channel, command, outbox)

    monkeypatch.setattr(PullProcessor, "receive", slowly)
    config = BrokerConfig(pull_thread_count=1, pull_queue_capacity=1)
    broker = start_broker(policy=ROCKETMQ_4_9, config=config)
    client = connect(broker.address)
    send_message(client, "T")
    fields = pull_fields("T", 0)
    first = client.send(RequestCode.PULL_MESSAGE, fields)
    assert begun.wait(10)
    second = client.send(RequestCode.PULL_MESSAGE, fields)
    silent = client.send(RequestCode.PULL_MESSAGE, fields, flag=CommandFlag.ONE_WAY.value)
    refused = client.call(RequestCode.PULL_MESSAGE, fields)
    assert (refused.code, (refused.remark or "")[:10]) == (2, "[OVERLOAD]")
    may_end.set()
    for opaque in (first, second):
        reply = client.answer(opaque)
        assert reply.code in {0, 19}
    assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
    assert client.reply(silent, 0) is None


@pytest.mark.parametrize(
    ("policy", "code"), [(ROCKETMQ_4_9, None), (attrs.evolve(STRICT, notify="dispatcher_poll"), 2)], ids=["4.9", "ours"]
)
def test_a_woken_pull_that_finds_the_pool_full(
    policy: Policy, code: int | None, start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ drops it, ours tells it to come again; neither leaves it in the table."""
    broker = start_broker(policy=policy)
    puller, sender = connect(broker.address), connect(broker.address)
    send_message(sender, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    opaque = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=30_000))
    wait_until(lambda: len(broker.hold_service) == 1)
    monkeypatch.setattr(PoolExecutor, "offer", lambda *_task: False)
    send_message(sender, "T")
    wait_until(lambda: len(broker.hold_service) == 0)
    reply = puller.reply(opaque, 0.1 if code is None else PATIENCE_S)
    assert (None if reply is None else reply.code) == code

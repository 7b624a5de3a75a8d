"""The pull pool and thundering herds: the many pulls that one message wakes run in several passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

import attrs
import pytest
from model_tests.support.broker.brokers import Brokers, wait_held, wait_until, wait_visible
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient, pull_fields, send_message
from model_tests.support.present import present
from model_tests.support.service import HeldLock

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold import pull_runner
from longpoll_broker.hold.hold_table import ANSWERED, QUEUED, Cause, Pull
from longpoll_broker.hold.pull_pool import PoolExecutor
from longpoll_broker.hold.pull_processor import PullProcessor
from longpoll_broker.hold.pull_runner import RUN_COST, InlineExecutor, LaterRuns, Leaving
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime import Lock
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy


def any_pull() -> Pull:
    return Pull("c", 1, "G", "T", 0, 0, 32, 2)


def herd_of(count: int) -> tuple[list[Pull], list[Pull], InlineExecutor]:
    """Returns `count` pulls of a herd, the list of pulls that ran alone, and an executor.

    The executor runs two pulls together, and raises ValueError if one of them has an offset.
    """
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

    pulls = [any_pull() for _ in range(count)]
    for each in pulls:
        each.phase = QUEUED
    return pulls, singly, InlineExecutor(run, run_alike, later_of())


def test_pulls_of_a_herd_share_an_answer() -> None:
    """The first pull of a herd runs alone, and the herd's other pulls share its answer."""
    pulls, singly, executor = herd_of(7)
    pulls[4].offset = pulls[5].offset = 1
    assert not executor.submit_herd(pulls, Outbox())
    assert all(each.phase is ANSWERED for each in pulls)
    assert [pulls.index(each) for each in singly] == [0, 4, 5]
    ran: list[Pull] = []
    pulls = [any_pull() for _ in range(3)]
    for each in pulls:
        each.phase = QUEUED
    assert not InlineExecutor(lambda each, *_words: ran.append(each), none_alike, later_of()).submit_herd(
        pulls, Outbox()
    )
    assert ran == pulls
    pool = PoolExecutor(RealRuntime(), lambda *_run: None, lambda *_refused: None, 1, 2, None)
    pulls = [any_pull() for _ in range(5)]
    assert pool.submit_herd(pulls, Outbox()) == pulls[2:]


def test_a_full_pool_rejects_and_late_pulls_are_refused() -> None:
    runtime, stuck, now_ns = RealRuntime(), Stuck(), [0]
    runtime.monotonic_ns = lambda: now_ns[0]
    ran: list[Pull] = []
    refused: list[tuple[Pull, str]] = []

    def run(each: Pull, _cause: str, _outbox: Outbox) -> None:
        ran.append(each)
        stuck.stand()

    pool = PoolExecutor(runtime, run, lambda each, cause, _outbox: refused.append((each, cause)), 1, 1, 5000)
    pool.start()
    first, second, third = any_pull(), any_pull(), any_pull()
    assert pool.submit(first, "woken", Outbox())
    assert stuck.begun.wait(PATIENCE_S)
    assert pool.submit(second, "woken", Outbox())
    assert not pool.submit(third, "woken", Outbox())
    now_ns[0] = 5_000_000_000
    stuck.may_end.set()
    pool.stop()
    assert (ran, refused) == ([first], [(second, "busy")])


class Stuck:
    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def stand(self) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Stuck:
    stuck, receive = Stuck(), PullProcessor.receive

    def slowly(service: PullProcessor, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        stuck.stand()
        return receive(service, channel, command, outbox)

    monkeypatch.setattr(PullProcessor, "receive", slowly)
    return stuck


@pytest.mark.parametrize(("fast_failure", "early_s", "codes"), [(True, PATIENCE_S, (2, 2)), (False, 0.2, (None, 0))])
def test_a_late_pull_is_refused_while_all_workers_block(
    brokers: Brokers,
    stuck: Stuck,
    *,
    fast_failure: bool,
    early_s: float,
    codes: tuple[int | None, int],
) -> None:
    runtime = RealRuntime()
    passed_ns = [0]
    runtime.monotonic_ns = lambda: time.monotonic_ns() + passed_ns[0]
    config = BrokerConfig(pull_thread_count=1, fast_failure=fast_failure)
    broker, client = brokers.served(policy=ROCKETMQ_4_9, config=config, runtime=runtime)
    send_message(client, "T")
    client.send_pull("T")
    assert stuck.begun.wait(PATIENCE_S)
    behind = client.send_pull("T")
    pool = present(broker.pulling.pool)
    wait_until(lambda: len(pool._tasks) == 1)
    passed_ns[0] = config.pull_wait_ms_max * 1_000_000
    early = client.reply(behind, early_s)
    stuck.may_end.set()
    late = early or client.answer(behind)
    assert (early and early.code, late.code) == codes


def test_queued_tasks_run_at_the_stop_despite_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, ran = Stuck(), list[str]()

    def run(_each: Pull, cause: str, _outbox: Outbox) -> None:
        stuck.stand()
        ran.append(cause)
        if cause == "thrown":
            raise LookupError("planted")

    pool = PoolExecutor(RealRuntime(), run, lambda *_refused: None, 1, 10, 60_000)
    pool.start()
    assert pool.submit(any_pull(), "thrown", Outbox())
    assert stuck.begun.wait(PATIENCE_S)
    assert pool.submit(any_pull(), "woken", Outbox())
    stuck.may_end.set()
    pool.stop()
    assert ran == ["thrown", "woken"]
    assert "planted" in caplog.text
    assert not pool.submit(any_pull(), "expired", Outbox())


def test_a_pull_is_answered_at_once_if_the_pool_is_full(brokers: Brokers, stuck: Stuck) -> None:
    """The pull gets code 2 [OVERLOAD] at once, and a one-way pull gets no answer."""
    config = BrokerConfig(pull_thread_count=1, pull_queue_capacity=1)
    client = brokers.client(policy=ROCKETMQ_4_9, config=config)
    send_message(client, "T")
    fields = pull_fields("T", 0)
    first = client.send(RequestCode.PULL_MESSAGE, fields)
    assert stuck.begun.wait(PATIENCE_S)
    second = client.send(RequestCode.PULL_MESSAGE, fields)
    silent = client.send(RequestCode.PULL_MESSAGE, fields, flag=CommandFlag.ONE_WAY.value)
    refused = client.call(RequestCode.PULL_MESSAGE, fields)
    assert (refused.code, (refused.remark or "")[:10]) == (2, "[OVERLOAD]")
    stuck.may_end.set()
    assert {client.answer(opaque).code for opaque in (first, second)} <= {0, 19}
    assert client.is_served()
    assert client.reply(silent, 0) is None


@pytest.mark.parametrize(
    ("policy", "code"), [(ROCKETMQ_4_9, None), (attrs.evolve(STRICT, notify="dispatcher_poll"), 2)], ids=["4.9", "ours"]
)
def test_a_woken_pull_that_finds_the_pool_full(
    policy: Policy, code: int | None, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the pool is full, RocketMQ drops a woken pull, and our broker answers that the client should retry."""
    broker = brokers.start(policy=policy)
    puller, sender = brokers.connect(broker), brokers.connect(broker)
    send_message(sender, "T")
    wait_visible(broker, "T", 1)
    opaque = puller.hold("T", 1)
    wait_held(broker)
    monkeypatch.setattr(PoolExecutor, "offer", lambda *_task: False)
    send_message(sender, "T")
    wait_held(broker, 0)
    reply = puller.reply(opaque, 0.1 if code is None else PATIENCE_S)
    assert (None if reply is None else reply.code) == code


AT_ONCE = 5
"""The number of single pulls that the I/O loop may run in these tests before it serves other work."""
CLIENTS, EACH = 4, 10


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_runner, "PASS_COST_MAX", AT_ONCE * RUN_COST)


# -- the order in which connections are served -------------------------------------------------------------------------


def none_alike(_pulls: Sequence[Pull], _outbox: Outbox) -> None:
    """An answer cache that shares no answer, as if all pulls of a thundering herd differed."""


def later_of() -> LaterRuns:
    return LaterRuns(RealRuntime().lock())


def leaving(channel: str, *opaques: int, cause: Cause = "woken") -> list[Leaving]:
    return [(Pull(channel, opaque, "G", "T", 0, 0, 32, 2, phase=QUEUED), cause) for opaque in opaques]


def turned(later: LaterRuns) -> list[tuple[object, int]]:
    """Returns (channel, opaque) of each pull that one call of `LaterRuns.turn` runs without a shared answer."""
    ran: list[tuple[object, int]] = []

    def run(part: Sequence[Leaving]) -> int:
        ran.extend((pull.channel, pull.opaque) for pull, _cause in part)
        return RUN_COST * len(part)

    later.turn(run)
    return ran


def test_herds_of_several_connections() -> None:
    later = later_of()
    later.add(leaving("herd", *range(20)))
    later.add(leaving("one", 100))
    assert turned(later) == [("herd", 0), ("herd", 1), ("one", 100), *(("herd", number) for number in range(2, 7))]
    assert turned(later) == [("herd", number) for number in range(7, 12)]
    assert [len(turned(later)) for _ in range(3)] == [5, 3, 0]
    assert not later.waiting
    later = later_of()
    for number in range(12):
        later.add(leaving(f"c{number}", 1, 2))
    ran = [each for _ in range(3) for each in turned(later)]
    assert ran[:12] == [(f"c{number}", 1) for number in range(12)]


def test_the_budget_of_a_pass() -> None:
    later = later_of()
    assert [later.spend(RUN_COST) for _ in range(AT_ONCE + 1)] == [True] * AT_ONCE + [False]
    assert turned(later) == []
    assert later.spend(1)
    later.add(leaving("c", 1, 2, 3, 4, 5, 6, 7))
    ran: list[int] = []

    def run(part: Sequence[Leaving]) -> int:
        ran.extend(pull.opaque for pull, _cause in part)
        return 0

    later.finish(run)
    assert ran == [1, 2, 3, 4, 5, 6, 7]
    assert all(later.spend(RUN_COST) for _ in range(3 * AT_ONCE))
    later = later_of()
    assert later.spend(AT_ONCE * RUN_COST - 1)
    assert [later.spend(RUN_COST), later.spend(RUN_COST)] == [True, False]
    later.add([*leaving("a", 1), *leaving("b", 1), *leaving("c", 1)])
    sizes: list[int] = []

    def spend(part: Sequence[Leaving]) -> int:
        sizes.append(len(part))
        return AT_ONCE * RUN_COST - 1 if len(sizes) == 1 else RUN_COST

    later.turn(spend)
    assert sizes == [1, 1]


class Channels:
    """A table of connections that requires the lock for each look-up."""

    def __init__(self, lock: HeldLock) -> None:
        self.lock = lock

    def __hash__(self) -> int:
        assert self.lock.is_held, "the table is used without its lock"
        return 1


def test_waiting_runs_are_taken_under_the_lock_and_wake_the_loop_once() -> None:
    lock = HeldLock()
    later = LaterRuns(cast("Lock", lock))
    channel = Channels(lock)
    later.add((Pull(channel, number, "G", "T", 0, 0, 32, 2), "woken") for number in range(AT_ONCE + 2))
    assert [len(turned(later)) for _ in range(2)] == [AT_ONCE, 2]
    woken: list[bool] = []
    later = LaterRuns(RealRuntime().lock(), lambda: woken.append(bool(later.waiting)))
    later.add(leaving("c", 1))
    later.add(leaving("c", 2))
    assert woken == [True]


def test_an_error_of_one_pull_does_not_stop_the_others() -> None:
    ran: list[tuple[int, Cause]] = []

    def run(pull: Pull, cause: Cause, _outbox: Outbox) -> None:
        ran.append((pull.opaque, cause))
        if pull.opaque == 6:
            raise ValueError("planted")

    executor = InlineExecutor(run, none_alike, later_of())
    for (pull, _cause), number in zip(leaving("c", *range(9)), range(9), strict=True):
        executor.submit(pull, "expired" if number % 2 else "error", Outbox())
    assert len(ran) == AT_ONCE
    assert executor.later.waiting
    executor.turn(Outbox())
    assert not executor.later.waiting
    assert ran == [(number, "expired" if number % 2 else "error") for number in range(9)]


def test_a_waiting_herd_shares_one_answer() -> None:
    singly: list[Pull] = []

    def run(pull: Pull, _cause: Cause, _outbox: Outbox) -> None:
        singly.append(pull)
        pull.phase = ANSWERED

    def run_alike(pulls: Sequence[Pull], _outbox: Outbox) -> None:
        for pull in pulls if singly else ():
            pull.phase = ANSWERED

    later = later_of()
    executor = InlineExecutor(run, run_alike, later)
    first, second = ([pull for pull, _cause in leaving("c", *range(count))] for count in (10, 20))
    executor.submit_herd(first, Outbox())
    # The herd uses ten of the budget of 40 units, and its first pull, which runs alone, uses seven more.
    assert [later.spend(RUN_COST) for _ in range(4)] == [True, True, True, False]
    executor.submit_herd(second, Outbox())
    assert {pull.phase for pull in second} == {QUEUED}
    executor.turn(Outbox())
    assert ({pull.phase for pull in (*first, *second)}, singly) == ({ANSWERED}, first[:1])


# -- a broker ----------------------------------------------------------------------------------------------------------


def held(broker: Broker, brokers: Brokers) -> list[tuple[RawClient, list[int]]]:
    """Hold pulls that all differ, so that they share no answer; returns each connection with its pulls' opaques."""
    clients = [brokers.connect(broker) for _ in range(CLIENTS)]
    send_message(clients[0], "T")
    asked = [
        (client, [client.send(RequestCode.PULL_MESSAGE, fields_of(number, each)) for each in range(EACH)])
        for number, client in enumerate(clients)
    ]
    wait_held(broker, CLIENTS * EACH)
    return asked


def fields_of(client: int, number: int) -> dict[str, str]:
    return pull_fields("T", 1, timeout_ms=60_000) | {"maxMsgNums": str(1 + client * EACH + number)}


def test_released_pulls_are_answered_at_the_stop(
    broker: Broker, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = held(broker, brokers)
    monkeypatch.setattr(LaterRuns, "turn", lambda _later, _run: None)
    send_message(brokers.connect(broker), "T")
    wait_until(lambda: broker.handler.has_more)
    broker.stop()
    assert all(client.reply(opaque) is not None for client, opaques in asked for opaque in opaques)

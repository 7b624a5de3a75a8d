"""Critical sections under switches between any two bytecodes: each removed lock is detected."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Final

import pytest
from model_tests.simulate.hold_stress import (
    Stage,
    lock_sites,
    with_stale_sleep,
    without_lock_at,
    without_shard_locks,
)
from model_tests.simulate.stress import Preemption, first_fault
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.spec.cases import quick_if

from longpoll_broker.broker import Broker
from longpoll_broker.hold import hold_service
from longpoll_broker.rocketmq.admin.lock_processor import LockProcessor
from longpoll_broker.rocketmq.tables import queue_locks
from longpoll_broker.rocketmq.tables.queue_locks import QueueLocks
from longpoll_broker.shared import offsets, statistics
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import GROUP_GET_NUMS, Statistics
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.queues import consume_queue
from longpoll_broker.store.queues.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.segment import SegmentList
from longpoll_protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_simulation.world import StuckError

QUEUE: Final = MessageQueue(topic="T", broker_name="b", queue_id=0)
SEEDS: Final = 150
"""Runs of a quick test, a second; a table without locks fails in one of the first twenty."""
SEEDS_LONG: Final = 30_000
"""Runs within which each removed lock must be detected: most in the first fifty, the slowest in some thousands."""
SEEDS_CLOCK: Final = 6_000
"""Runs within which a clock that counts as asleep while it computes must be detected: one in some five hundred."""
QUICK: Final = {
    "hold-0",
    "_walk_once-0",
    "drop_channel-0",
    "_wake_all-1",
}
"""Locks whose removal is detected in the first few runs."""
ONE_READ: Final = {
    "assert_tidy-0": "tests alone look there, when nobody else is at work",
    "_keep-1": "one bytecode makes the list, and whoever walks because of it looks again",
    "scan-0": "the list of buckets is made by one bytecode",
    "_sweep-0": "a look at one bucket, which the policy means to be out of date when it is used",
    "_sweep-1": "one entry is removed by one bytecode",
    "_wake_all-0": "the list of buckets is made by one bytecode",
}
"""Locks around a single bytecode, without which nothing changes while bytecodes are atomic."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Suppress thousands of log lines about dropped pulls."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_the_hold_table_stands_every_interleaving() -> None:
    """No interleaving loses a pull, runs it twice, miscounts it, or keeps it beyond its deadline."""
    assert first_fault(range(SEEDS), Stage) is None


@pytest.mark.long
def test_the_hold_table_stands_many_interleavings() -> None:
    """Fifty times as many runs."""
    assert first_fault(range(SEEDS, SEEDS + SEEDS_LONG), Stage) is None


def test_a_table_without_its_locks_does_not() -> None:
    """A run fails without shard locks."""
    assert first_fault(range(SEEDS), without_shard_locks) is not None


@pytest.mark.long
def test_a_clock_that_looks_anew_is_told_of_every_deadline() -> None:
    """Injected fault: it counts as asleep while it computes; a pull in a shard it has left goes unnoticed."""
    module = with_stale_sleep()
    found = first_fault(range(SEEDS_CLOCK), lambda seed: Stage(seed, module))

    assert found is not None
    assert "the clock sleeps beyond" in str(found[1])


def test_every_lock_of_the_hold_service_is_known() -> None:
    """A new critical section is tested below, or its lock protects one read."""
    assert set(ONE_READ) < set(lock_sites())
    assert len(lock_sites()) == 21


@pytest.mark.parametrize(
    "site", quick_if((site for site in lock_sites() if site not in ONE_READ), lambda site: site in QUICK)
)
def test_each_lock_is_missed(site: str) -> None:
    """Injected fault: this `with shard.lock` does nothing."""
    module = without_lock_at(site)

    assert module.HoldService is not hold_service.HoldService
    assert first_fault(range(SEEDS_LONG), lambda seed: Stage(seed, module)) is not None


def test_a_seed_gives_the_same_run_again() -> None:
    """The same switches at the same places, so the pulls end alike."""

    def played(seed: int) -> tuple[int, list[tuple[str, int]]]:
        stage = Stage(seed)
        stage.play()
        return stage.preemption.switches, [(pull.phase.name, stage.gone[pull]) for pull in stage.pulls]

    runs = [played(seed) for seed in range(30)]
    assert runs == [played(seed) for seed in range(30)]
    assert len({switches for switches, _ends in runs}) > 5


def test_actors_that_wait_for_each_other_are_stuck() -> None:
    """Two locks in two orders: a run that deadlocks ends with the reason."""

    def crossed(seed: int) -> None:
        preemption = Preemption(seed, [__file__])
        one, other = preemption.lock(), preemption.lock()

        def take(first: object, second: object) -> None:
            with first, second:  # type: ignore[attr-defined]
                pass

        preemption.run({"a": lambda: take(one, other), "b": lambda: take(other, one)})

    def crossed_by(seed: int) -> bool:
        try:
            crossed(seed)
        except StuckError:
            return True
        return False

    ends = {crossed_by(seed) for seed in range(400)}
    assert ends == {False, True}


def commits_forward(*, guarded: bool, seed: int) -> bool:
    """Whether the greater of two offsets wins when two threads commit them forward only."""
    preemption = Preemption(seed, [str(offsets.__file__)])
    table = Offsets(guard=preemption.lock() if guarded else nullcontext())
    table.commit("T", "G", 0, 1)
    preemption.run(
        {str(offset): lambda offset=offset: table.commit("T", "G", 0, offset, forward_only=True) for offset in (5, 7)}  # type: ignore[misc]
    )
    return table.query("T", "G", 0) == 7


def forgets_one_topic(*, seed: int) -> bool:
    """Whether a topic's offsets are deleted while another thread's commits for another topic stay."""
    preemption = Preemption(seed, [str(offsets.__file__)])
    table = Offsets(guard=preemption.lock())
    for number in range(3):
        table.commit("T", f"G{number}", 0, 1)

    def commit() -> None:
        table.commit("U", "G", 0, 5)

    try:
        preemption.run({"forget": lambda: table.forget_topic("T"), "commit": commit})
    except RuntimeError:
        return False
    return table.by_pair == {"U@G": {0: 5}}


def counts_all(*, guarded: bool, seed: int) -> bool:
    """Whether the counts of two threads are complete."""
    preemption = Preemption(seed, [str(statistics.__file__)])
    table = Statistics(preemption.lock() if guarded else nullcontext())

    def count(queue_id: int) -> None:
        table.count_get("T", "G", queue_id, messages=3, size=10, latency_ms=1)

    table.sample(0)
    count(0)
    table.sample(1)
    preemption.run({str(number): lambda number=number: count(number % 2) for number in range(3)})  # type: ignore[misc]
    table.sample(100_000)
    found = table.snapshots(GROUP_GET_NUMS, "T@G")
    assert found is not None
    return found["statsMinute"].sum == 9


def locks_for_one(*, guarded: bool, seed: int) -> bool:
    """Whether one of two clients gets a queue that both request at once."""
    preemption = Preemption(seed, [str(queue_locks.__file__)])
    guard: Any = preemption.lock() if guarded else nullcontext()
    no_channel: Any = None
    processor = LockProcessor(RealRuntime(), QueueLocks(), guard)
    got: list[str] = []

    def ask(client: str) -> None:
        asked = LockBatchRequest(consumer_group="G", client_id=client, mq_set=[QUEUE])
        command = Command(RequestCode.LOCK_BATCH_MQ, 1, body=asked.encode())
        _head, body = processor.lock(no_channel, command, no_channel)
        if LockBatchResponse.decode(bytes(body)).lock_ok_mq_set:
            got.append(client)

    preemption.run({client: lambda client=client: ask(client) for client in ("a", "b")})  # type: ignore[misc]
    return len(got) == 1


@pytest.mark.parametrize("keeps", [commits_forward, counts_all, locks_for_one])
def test_what_threads_share_needs_its_guard(keeps: Callable[..., bool]) -> None:
    """Correct under any interleaving with the guard, incorrect without."""
    assert all(keeps(guarded=True, seed=seed) for seed in range(80))
    assert not all(keeps(guarded=False, seed=seed) for seed in range(150))


def test_one_topic_is_forgotten_while_another_is_committed() -> None:
    assert all(forgets_one_topic(seed=seed) for seed in range(80))


def test_a_broker_guards_what_its_threads_share(tmp_path: pathlib.Path) -> None:
    """A broker passes locks as guards to its tables."""
    with Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        for guard in (broker.offsets.guard, broker.shared.statistics.guard, broker.hold_service._room.guard):
            with guard:
                assert not guard.acquire(blocking=False)  # type: ignore[attr-defined]


class ShownTooSoon(ConsumeQueue):
    """An injected fault: the end moves before the unit is written."""

    def put(self, arrival: Arrival) -> bool:
        self.offset_end = arrival.offset_end
        segment = self._segment_for(arrival.offset_end - 1)
        position = (arrival.offset_end - 1 - self._segment_offset) * UNIT_SIZE
        UNIT.pack_into(segment.view, position, arrival.physical_offset, arrival.size, arrival.tags_code)
        return True


def reads_what_is_shown(kind: type[ConsumeQueue], directory: pathlib.Path, seed: int) -> bool:
    """Whether a reader always finds every unit below the end written while a dispatcher writes."""
    preemption = Preemption(seed, [str(consume_queue.__file__), __file__])
    queue = kind(SegmentList(RealFiles(), str(directory / str(seed)), 4 * UNIT_SIZE), "T", 0)
    seen: list[tuple[int, int, int] | None] = []

    def write() -> None:
        for number in range(6):
            queue.put(Arrival("T", 0, number + 1, 7, 1, 100 * number, 100))

    def read() -> None:
        for _ in range(30):
            end = queue.offset_end
            if end:
                seen.append(queue.unit(end - 1))

    preemption.run({"write": write, "read": read})
    queue.segments.close()
    return all(unit is not None and unit[1] == 100 and unit[2] == 7 for unit in seen)


def test_a_unit_is_written_before_it_is_shown(tmp_path: pathlib.Path) -> None:
    """A reader on another thread finds every unit before the end; with the injected fault it does not."""
    assert all(reads_what_is_shown(ConsumeQueue, tmp_path / "good", seed) for seed in range(60))
    assert not all(reads_what_is_shown(ShownTooSoon, tmp_path / "planted", seed) for seed in range(60))

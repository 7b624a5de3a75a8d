"""The hold table and the data that its threads share, with switches between any two bytecodes.

A seed chooses a policy, queues in one shard and one queue in another, held pulls, and three to five of a broker's
actors. At the end no pull may be lost, run twice, miscounted or kept beyond its deadline. The zoo removes each lock
(`mutants/zoo/lock-*.patch`) to test these runs.
"""

from __future__ import annotations

import logging
import pathlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import attrs
import pytest
from attrs import define, field
from model_tests.simulate.stress import Preemption, first_fault
from model_tests.support.broker.brokers import SMALL_STORE

from longpoll_broker.broker import Broker
from longpoll_broker.hold import hold_service, notifier
from longpoll_broker.hold import hold_table as hold
from longpoll_broker.hold.hold_service import PullEvents
from longpoll_broker.hold.hold_table import ANSWERED, HELD, Pull
from longpoll_broker.io.channel import Outbox
from longpoll_broker.rocketmq.admin import lock_processor
from longpoll_broker.rocketmq.admin.lock_processor import LockProcessor, QueueLocks
from longpoll_broker.shared import offsets, statistics
from longpoll_broker.shared.filters import SQL92, sql_filter, tag_filter
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import GROUP_GET_NUMS, Statistics
from longpoll_broker.store import consume_queue
from longpoll_broker.store.consume_queue import UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.segment import SegmentList
from longpoll_protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_protocol.properties import word_hash
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_simulation.lockstep import MemoryQueues, Message
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_LMQ, ROCKETMQ_PR7359, STRICT, STRICT_CLONE, Policy

FILES: Final = tuple(str(module.__file__) for module in (hold, notifier, hold_service))
"""Source files in which the scheduler may interrupt an actor."""
STRICT_LOOK: Final = attrs.evolve(STRICT, name="strict-look", on_master_return="look_then_take")
POLICIES: Final = (
    STRICT,
    STRICT_CLONE,
    STRICT_LOOK,
    attrs.evolve(STRICT, name="strict-walk", recheck="walk"),
    ROCKETMQ_4_9,
    ROCKETMQ_PR7359,
    ROCKETMQ_LMQ,
)
TOPIC: Final = "T"
RETRIED: Final = "%RETRY%G"
EVERYTHING: Final = tag_filter("*", None)
TAG: Final = "red"
TAGS_CODE: Final = word_hash(TAG)
MESSAGE: Final = Message(TAGS_CODE, {"color": TAG})
WANTED: Final = (EVERYTHING, tag_filter(TAG, None), sql_filter(f"color = '{TAG}'", SQL92))
UNWANTED: Final = (tag_filter("blue", None), sql_filter("color = 'blue'", SQL92))
"""Filters that match every message (`WANTED`), and filters that match none (`UNWANTED`)."""
FILTER_SHARE: Final = 0.25
UPTIMES_MS: Final = (0, 0, 0, (1 << 31) - 50)
"""The machine's possible uptimes in ms. With the longest uptime, deadlines need more than 31 bits."""
HELD_MAX: Final = 4
"""The limit on held pulls if the policy checks it under the lock: one more than are held before the run."""
QUEUE_LIMITS: Final = (None, None, None, 2)
"""The possible limits on held pulls of one queue: None, or the number of pulls that a queue has before the run."""
FIRST_QUEUES: Final = (0, 5)
"""Ids of the topic's first queue, chosen so that its shard is before or after the other topic's shard.

A thread that traverses all shards must be tested with a pull that arrives in a shard before or after its position."""
BURST_SHARE: Final = 0.5
STALE_MS: Final = 90
SOON_MS: Final = 80
DUE_MS: Final = 100
LATER_MS: Final = 500
LATE_MS: Final = 1_000_000
FIRST: Final = ("arrive c", "hold c")
MEETINGS: Final[tuple[tuple[Policy, tuple[str, ...]], ...]] = (
    (ROCKETMQ_LMQ, ("hold c", "hold e")),  # The first two pulls of a queue create its bucket.
    (ROCKETMQ_4_9, ("scan", "close e")),  # The pull that the scan puts back belongs to a channel that closes.
    (STRICT_CLONE, ("scan", "close e")),
    # A pull with a new earliest deadline arrives while the deadline thread searches for the earliest deadline.
    (STRICT, ("hold a", "clock")),
    (STRICT, FIRST),
    (STRICT_CLONE, ("arrive a", "close c")),  # The first woken pull belongs to a channel that closes.
    (STRICT, ("arrive b", "hold b", "hold a")),  # Two pulls and a message need the lock of one shard.
    # A pull with a deadline arrives while the deadline thread looks for the earliest of the remaining deadlines.
    (STRICT, ("clock", "hold e")),
    (STRICT, ("arrive a", "hold b")),  # The last pull of a channel is released while the channel's next pull arrives.
    # The pull that a change of the broker's role releases belongs to a channel that closes.
    (STRICT_LOOK, ("role", "close e")),
)
"""Pairs of actors, with a policy, that rarely run the same short critical section at the same time by chance."""
MEETING_SHARE: Final = 0.4
STOP_SHARE: Final = 0.1
Key = tuple[str, int]


@define(eq=False)
class Log:
    """The store as the dispatcher sees it. Invariant: `waiting` has the queues of appended, invisible messages."""

    queues: MemoryQueues
    lock: Any
    waiting: deque[Key] = field(factory=deque)
    dispatched_end: int = 0
    is_behind: bool = False
    dispatchable_end: int = 0

    def append(self, key: Key) -> None:
        with self.lock:
            self.queues.append(key, MESSAGE)
            self.waiting.append(key)
            self.dispatchable_end += 1

    def dispatch(self, limit: int) -> list[Arrival]:
        with self.lock:
            keys = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
            arrivals = [Arrival(*key, self.queues.make_visible(key), TAGS_CODE, 0, 0, 0) for key in keys]
            self.dispatched_end += len(arrivals)
        return arrivals


@define(eq=False)
class Stage:
    """One run. Invariant: `pulls` has all pulls, and `gone` counts how often each pull was run or refused."""

    seed: int
    preemption: Preemption = field(init=False)
    policy: Policy = field(init=False)
    wanted: tuple[str, ...] = field(init=False)
    queues: MemoryQueues = field(factory=MemoryQueues, init=False)
    now_ms: int = field(default=0, init=False)
    service: Any = field(init=False)
    log: Log = field(init=False)
    dispatcher: Any = field(init=False)
    pulls: list[Pull] = field(factory=list, init=False)
    gone: Counter[Pull] = field(factory=Counter, init=False)
    keys: list[Key] = field(init=False)
    stopped: bool = field(default=False, init=False)
    woken: bool = field(default=False, init=False)
    """Whether the deadline thread was woken since it last computed how long to sleep."""
    sleeps_until_ms: float = field(default=float("inf"), init=False)
    """The time at which the deadline thread's current sleep ends."""
    filters: random.Random | None = field(default=None, init=False)
    """A random generator for the pulls' filters; None if all filters match every message."""
    uptime_ms: int = field(default=0, init=False)
    bursts: bool = field(default=False, init=False)
    """Whether three pulls are held together instead of one."""
    before: dict[Pull, int] = field(factory=dict, init=False)
    """Maps each pull that was held before the actors began to its position in the order in which pulls were held."""
    told: dict[tuple[str, Key], int] = field(factory=dict, init=False)
    """Maps (actor, queue) to the position, as in `before`, of the last pull that the actor notified of a message."""
    dropped: set[Pull] = field(factory=set, init=False)
    wrong: list[str] = field(factory=list, init=False)
    """Faults that were seen while pulls ran.

    The run raises them at its end, because the dispatcher survives exceptions in a traversal."""
    swept: bool = field(default=False, init=False)
    """Whether a scanner may have removed a bucket in use (upstream issue #10754)."""

    def __attrs_post_init__(self) -> None:
        self.preemption = Preemption(self.seed, FILES)
        choose = self.preemption.random
        self.policy, self.wanted = choose.choice(POLICIES), ()
        if choose.random() < MEETING_SHARE:
            self.policy, self.wanted = choose.choice(MEETINGS)
        # A separate random generator makes these choices, so that a seed's other choices stayed the same when they were
        # added.
        apart = random.Random(self.seed ^ 0xF117E4)
        self.filters = apart if apart.random() < FILTER_SHARE else None
        self.uptime_ms = self.now_ms = apart.choice(UPTIMES_MS)
        self.bursts = random.Random(self.seed ^ 0xB0257).random() < BURST_SHARE
        stage: Any = self
        self.service = hold_service.HoldService(
            stage,
            self.policy,
            self.queues,
            self,
            refuse=self.refuse,
            held_count_max=HELD_MAX,
            queue_held_count_max=choose.choice(QUEUE_LIMITS),
        )
        queue_id = random.Random(self.seed ^ 0xF1257).choice(FIRST_QUEUES)
        self.keys = [(TOPIC, queue_id), (TOPIC, queue_id + hold_service.SHARD_COUNT), (RETRIED, 0)]
        self.service.run_clock_on(Outbox(), self.wake_clock)
        self.log = Log(self.queues, self.lock())
        log: Any = self.log
        self.dispatcher = hold_service.DispatchService(
            stage, log, self.service, PullEvents(), notifies=True, passes_idle=self.policy.empty_shortcut
        )

    # -- what a table asks of a runtime and of an executor -----------------------------------------------------------

    def lock(self) -> Any:
        return self.preemption.lock()

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def step(self, action: str) -> None:
        """Do nothing, because the scheduler may interrupt an actor at every bytecode anyway."""

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:
        if pull in self.dropped:
            self.wrong.append("a pull runs that its channel let go when it closed")
        actor = str(self.preemption.world.current)
        if self.policy.take == "in_place" and actor.startswith("arrive"):
            if cause == "woken" and pull.filter in UNWANTED:
                self.wrong.append("a message wakes a pull that does not want it")
            self.look_at_order(pull, actor)
        self.gone[pull] += 1
        return True

    def look_at_order(self, pull: Pull, actor: str) -> None:
        number = self.before.get(pull)
        if number is not None:
            key = (actor, (pull.topic, pull.queue_id))
            if self.told.get(key, -1) > number:
                self.wrong.append("a pull is told of a message before one that waits longer")
            self.told[key] = number

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        for pull in pulls:
            self.submit(pull, "woken", outbox)
        return ()

    def refuse(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        self.gone[pull] += 1

    def wake_clock(self) -> None:
        self.woken = True

    # -- what each actor does ----------------------------------------------------------------------------------------

    def pull(self, key: Key, channel: str, deadline_ms: int) -> Pull:
        deadline_ms += self.uptime_ms
        made = Pull(channel, 1, "G", *key, self.queues.visible_end(*key), 32, 2, deadline_ms=deadline_ms)
        made.filter = EVERYTHING if self.filters is None else self.filters.choice((*WANTED, *UNWANTED))
        self.pulls.append(made)
        return made

    def hold(self, *pulls: Pull) -> None:
        for pull in pulls:
            self.service.hold(pull, Outbox())

    def arrive(self, key: Key) -> None:
        self.log.append(key)
        self.dispatcher.run(Outbox())

    def look_at_clock(self) -> None:
        """Run the deadline thread's loop once: compute its sleep, release due pulls, compute its sleep again."""
        self.sleep()
        self.service.run(Outbox())
        self.sleep()

    def sleep(self) -> None:
        self.woken = False
        wait_s = self.service.wait_s()
        self.sleeps_until_ms = float("inf") if wait_s is None else self.now_ms + 1000 * wait_s

    def close(self, channel: str) -> None:
        self.service.drop_channel(channel)
        self.dropped.update(pull for pull in self.pulls if pull.channel == channel and pull.phase is ANSWERED)

    def stop(self) -> None:
        self.stopped = True
        self.service.stop(Outbox())

    def actors(self) -> dict[str, Callable[[], None]]:
        choose = self.preemption.random
        first, second, other = self.keys
        service = self.service
        pulls = {
            "hold a": [(first, "c", SOON_MS)],
            "hold b": [(second, "c", LATE_MS)],
            "hold c": [(other, "d", LATE_MS)],
            "hold d": [(first, "e", LATE_MS)],
            "hold e": [(other, "e", LATER_MS)],
        }
        if self.bursts:
            pulls["hold b"] += [((TOPIC, 1), "c", SOON_MS), (first, "c", LATER_MS)]
            pulls["hold e"] += [(other, "e", SOON_MS)]
        others: dict[str, Callable[[], None]] = {
            "arrive a": partial(self.arrive, first),
            "arrive b": partial(self.arrive, second),
            "arrive c": partial(self.arrive, other),
            "close c": partial(self.close, "c"),
            "close e": partial(self.close, "e"),
            "clock": self.look_at_clock,
            "scan": partial(service.scan, Outbox()),
            "delete": partial(service.topic_deleted, TOPIC, Outbox()),
            "role": partial(service.master_returned, Outbox()),
        }
        unasked = [name for name in (*pulls, *others) if name not in self.wanted]
        names = [*self.wanted, *choose.sample(unasked, choose.randint(0 if self.wanted else 2, 3))]
        if self.policy.on_stop == "answer" and choose.random() < STOP_SHARE:
            # `stop` is called only when no notifier runs any more.
            names = [name for name in names if name.startswith(("hold", "close"))]
            others["stop"] = self.stop
            names.append("stop")
        return {
            name: partial(self.hold, *(self.pull(*each) for each in pulls[name])) if name in pulls else others[name]
            for name in names
        }

    # -- running the actors and checking the result ------------------------------------------------------------------

    def play(self) -> None:
        if self.wanted is not FIRST:
            self.hold_some()
        self.now_ms = self.uptime_ms + DUE_MS
        actors = self.actors()
        self.swept = "scan" in actors and self.policy.bucket_removal == "if_empty_unsafe"
        large_herd, notifier.LARGE_HERD = notifier.LARGE_HERD, self.preemption.random.choice((1, notifier.LARGE_HERD))  # type: ignore[misc]
        try:
            self.preemption.run(actors)
        finally:
            notifier.LARGE_HERD = large_herd  # type: ignore[misc]
        self.look()
        self.look_at_sleep()
        # With one deadline per pull, also check that no deadline was lost.
        if self.policy.expiry == "own_deadline":
            self.now_ms = self.uptime_ms + LATE_MS
            self.service.wait_s()
            self.service.run(Outbox())
            assert not len(self.service), f"{len(self.service)} pulls are held beyond their deadlines"
            self.look()

    def hold_some(self) -> None:
        """Hold three pulls in two queues, and let a closed channel leave a stale earliest deadline."""
        for key, channel, deadline_ms in (
            (self.keys[0], "c", DUE_MS),
            (self.keys[0], "e", LATE_MS),
            (self.keys[1], "d", DUE_MS),
        ):
            pull = self.pull(key, channel, deadline_ms)
            self.hold(pull)
            self.before[pull] = len(self.before)
        gone = self.pull(self.keys[1], "x", STALE_MS)
        self.hold(gone)
        self.sleep()
        self.service.drop_channel("x")

    def look(self) -> None:
        assert not self.wrong, self.wrong[0]
        self.service.assert_tidy()
        held = [pull for pull in self.pulls if pull.phase is HELD]
        assert len(self.service) == len(held), f"{len(self.service)} pulls are counted, {len(held)} are held"
        tables = [shard.table for shard in self.service._shards]
        listed = {pull for table in tables for bucket in table._buckets.values() for pull in bucket.pulls}
        if not self.swept:
            assert listed == set(held), "a held pull is in no bucket"
        for pull in self.pulls:
            ends = self.gone[pull] + (pull.phase is HELD) + (pull.phase is ANSWERED)
            assert ends == 1, f"a pull that is {pull.phase.name} was released {self.gone[pull]} times"
        if self.policy in POLICIES[:4] and not self.stopped:
            waiting = [
                pull
                for pull in held
                if pull.filter not in UNWANTED and self.queues.visible_end(pull.topic, pull.queue_id) > pull.offset
            ]
            assert not waiting, "a held pull waits although there is a message for it"
        assert not (self.stopped and held), "a pull is held after the stop"

    def look_at_sleep(self) -> None:
        """Check that the deadline thread was woken, or that it sleeps at most until the earliest deadline."""
        due = []
        for shard in self.service._shards:
            with shard.lock:
                deadline_ms = shard.table.deadline_next_ms()
            due += [] if deadline_ms is None else [deadline_ms]
        asleep = self.policy.expiry == "own_deadline" and not self.woken
        late = asleep and due and max(min(due), self.now_ms) + 1 < self.sleeps_until_ms
        assert not late, "the clock sleeps beyond the earliest deadline"


QUEUE: Final = MessageQueue(topic="T", broker_name="b", queue_id=0)
SEEDS: Final = 150
"""The number of runs of a quick test, which takes a second.

The bugs in `mutants/zoo` fail within hundreds or thousands of runs."""
SEEDS_LONG: Final = 30_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_the_hold_table_is_correct_under_random_interleavings() -> None:
    assert first_fault(range(SEEDS), Stage) is None


@pytest.mark.long
def test_the_hold_table_is_correct_under_many_interleavings() -> None:
    assert first_fault(range(SEEDS, SEEDS + SEEDS_LONG), Stage) is None


def commits_forward(*, seed: int) -> bool:
    """Whether the greater offset remains after two threads each commit an offset that may only move forward."""
    preemption = Preemption(seed, [str(offsets.__file__)])
    table = Offsets(guard=preemption.lock())
    table.commit("T", "G", 0, 1)
    preemption.run(
        {str(offset): lambda offset=offset: table.commit("T", "G", 0, offset, forward_only=True) for offset in (5, 7)}  # type: ignore[misc]
    )
    return table.query("T", "G", 0) == 7


def forgets_one_topic(*, seed: int) -> bool:
    """Whether the deletion of a topic's offsets keeps the offsets of another topic that another thread commits."""
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


def counts_all(*, seed: int) -> bool:
    preemption = Preemption(seed, [str(statistics.__file__)])
    table = Statistics(preemption.lock())

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


def locks_for_one(*, seed: int) -> bool:
    """Whether exactly one of two clients gets a queue that both clients request at once."""
    preemption = Preemption(seed, [str(lock_processor.__file__)])
    guard: Any = preemption.lock()
    no_channel: Any = None
    processor = LockProcessor(RealRuntime(), QueueLocks(), guard)
    got: list[str] = []

    def ask(client: str) -> None:
        asked = LockBatchRequest(consumer_group="G", client_id=client, mq_set=[QUEUE])
        command = Command(RequestCode.LOCK_BATCH_MQ, 1, body=asked.encode())
        locking: Any = processor.lock
        _head, body = locking(no_channel, command, no_channel)
        if LockBatchResponse.decode(bytes(body)).lock_ok_mq_set:
            got.append(client)

    preemption.run({client: lambda client=client: ask(client) for client in ("a", "b")})  # type: ignore[misc]
    return len(got) == 1


@pytest.mark.parametrize("keeps", [commits_forward, forgets_one_topic, counts_all, locks_for_one])
def test_shared_tables_are_correct_with_their_guards(keeps: Callable[..., bool]) -> None:
    assert all(keeps(seed=seed) for seed in range(80))


def test_a_broker_guards_its_shared_tables(tmp_path: pathlib.Path) -> None:
    with Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        for guard in (broker.offsets.guard, broker.shared.statistics.guard, broker.hold_service._hold_limit.guard):
            with guard:
                assert not guard.acquire(blocking=False)  # type: ignore[attr-defined]


def reads_what_is_shown(directory: pathlib.Path, seed: int) -> bool:
    preemption = Preemption(seed, [str(consume_queue.__file__), __file__])
    queue = ConsumeQueue(SegmentList(RealFiles(), str(directory / str(seed)), 4 * UNIT_SIZE), "T", 0)
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


def test_a_unit_is_written_before_it_is_visible(tmp_path: pathlib.Path) -> None:
    assert all(reads_what_is_shown(tmp_path, seed) for seed in range(60))

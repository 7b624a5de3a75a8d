"""Visibility, notification and the hold service's critical sections, step by step, without threads or sockets."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import pytest
from attrs import define, field
from model_tests.service.test_hold_service import KEY, Bench
from model_tests.support.service import Noting

from longpoll_broker.hold import hold_service
from longpoll_broker.hold.hold_service import (
    ANNOUNCED_MAX,
    BATCH,
    NOTIFY,
    DispatchService,
    PullEvents,
    ScanService,
    Shard,
)
from longpoll_broker.hold.hold_table import HELD, HoldTable, Pull
from longpoll_broker.hold.notifier import LARGE_HERD
from longpoll_broker.io.channel import Outbox
from longpoll_broker.store.message_store import LOG, QUEUES
from longpoll_broker.store.messages import Arrival
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5, ROCKETMQ_LMQ, STRICT, STRICT_CLONE, Policy

FULL: Final = OSError(errno.ENOSPC, "No space left on device")


class Events(PullEvents):
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        self._world.notes.append("now")
        return 7

    def made_visible(self, arrivals: Iterable[Arrival], after_ns: int) -> None:
        self._world.notes.append(("visible", [each.physical_offset for each in arrivals], after_ns))

    def visible_from_start(self, ends: Iterable[tuple[str, int, int]]) -> None:
        self._world.notes.append(("from start", list(ends)))


class World(Noting):
    def __init__(self, count: int = 0, **changes: Any) -> None:
        super().__init__()
        self.appended: list[Arrival] = []
        self.shown = 0
        self.durable: int | None = None
        self.held = 1
        self.troubles: dict[str, str] = {}
        self.failing: list[Exception] = []
        self.throwing = 0
        self.on_sleep: Callable[[], None] = lambda: None
        self.on_dispatch: Callable[[], None] = lambda: None
        self.append(*["T"] * count)
        world: Any = self
        given: dict[str, Any] = {"notifies": True, **changes}
        self.service = DispatchService(world, world, world, Events(self), **given)

    def append(self, *topics: str) -> None:
        for topic in topics:
            offset_end = 1 + sum(each.topic == topic for each in self.appended)
            start = 10 * len(self.appended)
            self.appended.append(Arrival(topic, 3, offset_end, 100 + start, 0, start, 10))

    # -- the store ---------------------------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        return 10 * len(self.appended)

    is_behind = False

    @property
    def dispatchable_end(self) -> int:
        return 10 * (len(self.appended) if self.durable is None else self.durable)

    @property
    def dispatched_end(self) -> int:
        return 10 * self.shown

    def waiting(self) -> list[Arrival]:
        return self.appended[self.shown :]

    def visible_end(self, topic: str, queue_id: int) -> int:
        assert queue_id == 3
        return sum(each.topic == topic for each in self.appended[: self.shown])

    def queues(self) -> list[tuple[str, int]]:
        return sorted({(each.topic, 3) for each in self.appended[: self.shown]})

    def dispatch(self, limit: int) -> list[Arrival]:
        if self.failing:
            raise self.failing.pop(0)
        stop = min(self.shown + limit, self.dispatchable_end // 10)
        arrivals, self.shown = self.appended[self.shown : stop], stop
        self.notes.append(("dispatch", limit))
        self.on_dispatch()
        return arrivals

    def flush(self) -> None:
        self.notes.append("flush")
        if self.failing:
            raise self.failing.pop(0)
        self.durable = len(self.appended)

    # -- runtime and holders -----------------------------------------------------------------------------------------

    def step(self, action: str) -> None:
        self.notes.append(action)

    def spawn(self, name: str, target: Callable[[], None]) -> World:
        self.notes.append(("spawn", name))
        self.target = target
        return self

    def sleep(self, seconds: float) -> None:
        self.notes.append(("sleep", seconds))
        self.on_sleep()

    def __len__(self) -> int:
        return self.held

    def notify(self, key: tuple[str, int], end: int, tags_code: int, outbox: Outbox) -> None:
        self.notes.append(("notify", *key, end, tags_code))
        if self.throwing:
            self.throwing -= 1
            raise ZeroDivisionError("a filter throws")
        outbox.after_flush(lambda: self.notes.append(("answered", *key, end)))

    # -- the test ----------------------------------------------------------------------------------------------------

    def run(self) -> list[Any]:
        outbox = Outbox()
        self.service.run(outbox)
        outbox.flush()
        return self.told()

    def notified(self) -> list[Any]:
        return [note[1:] for note in self.run() if note[0] == "notify"]


SHOWN: Final = ["now", "make_visible", ("dispatch", BATCH)]


def test_messages_become_visible_and_are_notified() -> None:
    """Messages become visible one by one in log order, up to a limit per call, and each causes a notification."""
    world = World()
    assert world.run() == []
    world.append("T", "U", "T")
    told = [("T", 3, 1, 100), ("U", 3, 1, 110), ("T", 3, 2, 120)]
    assert world.run() == [
        *SHOWN,
        ("visible", [0, 10, 20], 7),
        *(("notify", *each) for each in told),
        *(("answered", *each[:3]) for each in told),
    ]
    assert world.run() == []
    world = World(2 * BATCH + 1)
    notes = world.run()
    assert [len(note[1]) for note in notes if note[0] == "visible"] == [BATCH, BATCH, 1]
    assert [note[3] for note in notes if note[0] == "notify"] == list(range(1, 2 * BATCH + 2))
    world.append("T")
    world.durable = len(world.appended) - 1
    assert world.run() == []
    world = World(in_batches=True)
    world.append("T", "U", "T", "T")
    assert world.notified() == [("T", 3, 3, 130), ("U", 3, 1, 110)]


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("passes_idle", [False, True])
@pytest.mark.parametrize("notifies", [False, True])
def test_arrivals_are_notified_only_if_needed(notifies: bool, passes_idle: bool, is_idle: bool) -> None:
    """No notification is sent if long polling is off, or if no pull is held and the policy checks for pulls first."""
    world = World(2, notifies=notifies, passes_idle=passes_idle)
    world.held = 0 if is_idle else 1
    count = 2 if notifies and not (passes_idle and is_idle) else 0
    assert (len(world.notified()), world.shown) == (count, 2)


def test_a_pull_held_during_the_dispatch_is_notified() -> None:
    world = World(1, passes_idle=True)
    world.held = 0
    world.on_dispatch = lambda: setattr(world, "held", 1)
    assert world.notified() == [("T", 3, 1, 100)]
    world = World(3)
    world.append("U", "V")
    world.shown = 4
    world.service.record_visible()
    assert world.told() == [("from start", [("T", 3, 3), ("U", 3, 1)])]


@pytest.mark.parametrize("notifies", [False, True])
def test_before_visible_notifies_with_the_old_end(notifies: bool) -> None:
    world = World(2, notifies=notifies, before_visible=True)
    told = [("notify", "T", 3, 0, 100), ("notify", "T", 3, 0, 110)] if notifies else []
    answers = [("answered", "T", 3, 0)] * len(told)
    assert world.run() == [*told, *SHOWN, ("visible", [0, 10], 7), *answers]


def test_a_failed_dispatch_is_retried_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    world.failing = [FULL, FULL, OSError(errno.EIO, "Input/output error")]
    for count in (1, 1, 2):
        assert world.run() == ["now", "make_visible"]
        assert caplog.text.count("messages could not be made visible; trying again") == count
    assert len(world.run()) > 3
    world.append("T")
    world.failing = [OSError(errno.EIO, "Input/output error")]
    world.run()
    assert caplog.text.count("messages could not be made visible; trying again") == 3


@pytest.mark.parametrize("throwing", [0, 1, ANNOUNCED_MAX - 1, ANNOUNCED_MAX])
def test_a_message_is_notified_again_after_a_failed_traversal(caplog: pytest.LogCaptureFixture, throwing: int) -> None:
    world = World()
    world.append("T", "U")
    world.throwing = throwing
    told = world.notified()
    assert told == [("T", 3, 1, 100)] * min(throwing + 1, ANNOUNCED_MAX) + [("U", 3, 1, 110)]
    assert caplog.text.count("notifying of T@3 failed") == throwing


def test_the_end_of_a_pass_makes_messages_visible() -> None:
    world = World(2)
    world.durable = 1
    outbox = Outbox()
    world.service.appended(outbox)
    assert (world.shown, world.told()[-1]) == (1, ("notify", "T", 3, 1, 100))
    outbox.flush()
    assert world.told() == [("answered", "T", 3, 1)]
    world.service.appended(outbox)
    assert world.told() == []
    for world, durable in ((World(2, polls=True), None), (World(2, before_visible=True), 0)):
        world.durable = durable
        world.service.appended(outbox)
        assert (world.shown, world.told()) == (0, [])


@pytest.mark.parametrize("makes_durable", [False, True])
def test_waiting_messages_become_visible_periodically(makes_durable: bool) -> None:
    """`show_waiting` makes messages visible and answers woken pulls at once; a second call does nothing."""
    world = World(1, makes_durable=makes_durable)
    world.durable = 0 if makes_durable else None
    world.service.show_waiting()
    told = world.told()
    assert (told[0] == "flush", told[-1]) == (makes_durable, ("answered", "T", 3, 1))
    world.service.show_waiting()
    assert world.told() == []
    world = World(1, polls=True)
    world.service.show_waiting()
    assert world.told() == []


def test_messages_stay_invisible_after_a_failed_sync(caplog: pytest.LogCaptureFixture) -> None:
    """A failed sync is logged, the messages stay invisible, and another thread retries the sync."""
    world = World(1, makes_durable=True)
    world.durable, world.failing = 0, [FULL]
    world.service.show_waiting()
    assert (world.told(), world.shown) == (["flush"], 0)
    assert "messages could not be made durable, and stay unseen" in caplog.text
    world.troubles = {LOG: "No space left on device"}
    world.service.show_waiting()
    assert world.told() == []
    world.troubles = {QUEUES: "No space left on device"}
    world.service.show_waiting()
    assert (world.told()[0], world.shown) == ("flush", 1)


def test_a_polling_thread_dispatches_until_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1, polls=True)
    service = world.service
    service.stop()
    assert world.told() == [], "without a thread there is nothing to join"
    service._stopping = False
    service.start(250)
    assert world.told() == [("spawn", "dispatcher")]
    rounds: list[list[Any]] = []

    def on_sleep() -> None:
        rounds.append(world.told())
        if len(rounds) == 1:
            world.append("U")
            # The thread survives any exception, not only those of the store.
            service.events.now_ns = lambda: 1 // 0  # type: ignore[method-assign]
        elif len(rounds) == 2:
            del service.events.now_ns
        else:
            service.stop()

    world.on_sleep = on_sleep
    world.target()
    asleep = ("sleep", 0.25)
    assert (rounds[0][-2:], rounds[1]) == ([("answered", "T", 3, 1), asleep], [asleep])
    assert (rounds[2][-2:], world.told()) == ([("answered", "U", 3, 1), asleep], ["join"])
    assert "the dispatcher met an error and goes on" in caplog.text


ANSWERS_ON_RETURN: Final = attrs.evolve(STRICT, on_master_return="answer")


class GuardedTable:
    """A hold table that requires the shard's lock in all its methods, except two quick checks."""

    def __init__(self, table: HoldTable, lock: Any) -> None:
        self._table = table
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        assert self._lock.locked() or name in {"has", "has_deadlines"}, name
        return getattr(self._table, name)


class NotedEvents(PullEvents):
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.clock_ns = 0

    def now_ns(self) -> int:
        """A clock that advances by one nanosecond at each read."""
        self.clock_ns += 1
        return self.clock_ns

    def record(self, event: str, pulls: Iterable[Pull], after_ns: int, visible_end: int | None = None) -> None:
        assert after_ns == self.clock_ns, "the timestamp just before the event"
        end = "" if visible_end is None or event == "hold" else f":{visible_end}"
        self.notes.append(f"[{event} {len(list(pulls))}{end}]")


class NotedBench(Bench):
    """A hold service with one shard; `notes` records every step and every event in order."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, shard_count=1)
        self.notes: list[str] = []
        (shard,) = self.service._shards
        table: Any = GuardedTable(shard.table, shard.lock)
        self.service._shards = (Shard(shard.lock, table),)
        self.service._events = NotedEvents(self.notes)
        self.service._runtime.step = self.notes.append  # type: ignore[method-assign,assignment]


def due(bench: NotedBench) -> None:
    bench.hold(deadline_ms=5)
    bench.service.wait_s()
    bench.service.run(bench.outbox)
    bench.now_ns, bench.service._clock_sleeps_until_ms = 5_000_000, min(bench.service._clock_sleeps_until_ms, 5)


def taken_meanwhile(bench: NotedBench) -> None:
    """Let another notifier empty the bucket after the first notifier has checked it."""
    bench.hold(offset=7)
    (shard,) = bench.service._shards
    with shard.lock:
        shard.table.drain()
    bench.notes.clear()
    bench.service._traverse_once(NOTIFY, shard, bench.service._new_traversal(shard, KEY, 1, None), bench.outbox)


ACTS: Final[dict[str, Callable[[NotedBench], object]]] = {
    "hold": lambda bench: bench.hold(),
    "hold later": lambda bench: bench.hold(offset=7),
    "hold many": lambda bench: [bench.hold() for _ in range(LARGE_HERD)],
    "due": due,
    "show": lambda bench: bench.make_visible(),
    "arrive": lambda bench: bench.arrive(),
    "arrive late": taken_meanwhile,
    "scan": lambda bench: bench.service.scan(bench.outbox),
    "run": lambda bench: bench.service.run(bench.outbox),
    "stop": lambda bench: bench.service.stop(bench.outbox),
    "return": lambda bench: bench.service.master_returned(bench.outbox),
}
WALKED: Final = "notify_start [take 2:1] notify_each notify_each notify_end [keep 1:1]"
SCANNED: Final = "scan_start [take 0:1] scan_end [keep 0:1]"


@pytest.mark.parametrize(
    ("policy", "acts", "notes"),
    [
        (STRICT, "hold", "hold [hold 1] recheck [recheck 1:0]"),
        (STRICT, "show, hold", "hold [hold 1] recheck [recheck 1:1]"),
        (STRICT, "stop, hold", "hold"),
        (ROCKETMQ_LMQ, "hold", "find_bucket hold [hold 1]"),
        (STRICT, "arrive", ""),
        (STRICT, "hold, hold later, arrive", "notify_start [take 1:1] notify_each"),
        (STRICT_CLONE, "hold, hold later, arrive", f"{WALKED} recheck"),
        (ROCKETMQ_5, "hold, hold later, arrive", WALKED),
        (STRICT, "arrive late", "notify_start [take 0:1]"),
        (STRICT_CLONE, "arrive late", "notify_start [take 0:1]"),
        (STRICT, "hold many, arrive", f"notify_start [take {LARGE_HERD}:1]{' notify_each' * LARGE_HERD}"),
        (ROCKETMQ_5, "hold, arrive, scan", SCANNED),
        (ROCKETMQ_LMQ, "hold, arrive, scan", f"{SCANNED} sweep remove_bucket"),
        (ROCKETMQ_LMQ, "hold, scan", "scan_start [take 1:0] scan_each scan_end [keep 1:0] sweep"),
        (STRICT, "due, run", "expire [expire 1]"),
        (ROCKETMQ_5, "due, run", ""),
        (STRICT, "hold, stop", "stop [stop 1]"),
        (ROCKETMQ_5, "hold, stop", ""),
        (ANSWERS_ON_RETURN, "hold, return", ""),
        (ROCKETMQ_5, "hold, return", "return_look return_take"),
    ],
)
def test_the_steps_and_events_of_an_operation(policy: Policy, acts: str, notes: str) -> None:
    """An operation in place takes one critical section; an operation with clone and clear takes one per step."""
    bench = NotedBench(policy)
    for act in acts.split(", "):
        bench.notes.clear()
        ACTS[act](bench)
    assert " ".join(bench.notes) == notes


def test_released_pulls_and_their_causes() -> None:
    bench: Any = NotedBench(STRICT)
    bench.hold()
    assert [bench.service.drop_channel(name) for name in ("other", "c", "c")] == [0, 1, 0]
    pull = bench.hold()
    for topic, ran in (("other", []), ("T", [(pull, "error")])):
        bench.service.topic_deleted(topic, bench.outbox)
        assert bench.ran == ran
    bench = NotedBench(ROCKETMQ_5)
    bench.hold()
    bench.arrive()
    pull = bench.hold(queue_id=1)
    bench.service.stop(bench.outbox)
    assert (pull.phase, bench.refused) == (HELD, [])
    bench.service.master_returned(bench.outbox)
    assert bench.ran[1:] == [(pull, "woken")]


FAULTS = (OSError("no room on the disk"), ValueError("a number that does not fit"), RuntimeError("a bug"))


@define
class Rounds:
    """A runtime with a hold table and a store. The test itself runs its thread, which ends after two rounds."""

    error: Exception | None = None
    notes: list[str] = field(factory=list)
    waits: list[float] = field(factory=list)
    body: Callable[[], None] = lambda: None
    dispatched_end: int = 0
    dispatchable_end: int = 1
    is_behind: bool = False

    def spawn(self, _name: str, target: Callable[[], None]) -> None:
        self.body = target

    def event(self) -> Rounds:
        return self

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > 2

    def scan(self, _outbox: Outbox) -> None:
        self._do("scan")

    def dispatch(self, _limit: int) -> tuple[()]:
        self._do("dispatch")
        return ()

    def _do(self, name: str) -> None:
        self.notes.append(name)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, *FAULTS], ids=lambda error: type(error).__name__)
def test_the_scanner_scans_once_a_period(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: Any = Rounds(error)

    class Noting(Outbox):
        def flush(self) -> None:
            rounds.notes.append("flush")

    monkeypatch.setattr(hold_service, "Outbox", Noting)
    ScanService(rounds, rounds, 5_000).start()
    rounds.body()
    assert (rounds.notes, rounds.waits) == (["scan", "flush"] * 2, [5.0] * 3)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_failed_dispatch_is_left_for_the_next_run(error: Exception) -> None:
    store: Any = Rounds(error)
    dispatcher = DispatchService(RealRuntime(), store, store, PullEvents(), notifies=True)
    for _append in range(2):
        dispatcher.run(Outbox())
    assert store.notes == ["dispatch"] * 2
    dispatcher.stop()

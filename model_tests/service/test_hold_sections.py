"""The hold service step by step: its critical sections and the scanner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import pytest
from attrs import define, field
from model_tests.service.test_hold_service import BY_NAME, KEY, Bench

from longpoll_broker.hold import hold_service
from longpoll_broker.hold.hold_service import NOTIFY, DispatchService, PullEvents, ScanService, Shard
from longpoll_broker.hold.hold_table import HELD, HoldTable, Pull
from longpoll_broker.hold.notifier import LARGE_HERD
from longpoll_broker.io.channel import Outbox
from longpoll_runtime import Lock
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5, ROCKETMQ_LMQ, ROCKETMQ_PR7359, STRICT, STRICT_CLONE, Policy

ANSWERS_ON_RETURN: Final = attrs.evolve(STRICT, on_master_return="answer")


class NotedTable:
    """A table that notes which of its methods is called: `[take]` with the shard's lock held, `take` without."""

    def __init__(self, table: HoldTable, lock: Lock, notes: list[str]) -> None:
        self._table = table
        self._lock = lock
        self._notes = notes

    def __len__(self) -> int:
        return len(self._table)

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._table, name)

        def noted(*words: Any, **more: Any) -> Any:
            self._notes.append(f"[{name}]" if self._lock.locked() else name)  # type: ignore[attr-defined] # a real one
            return called(*words, **more)

        return noted


class NotedEvents(PullEvents):
    """Records each event with its number of pulls, its start and its visible end."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.clock_ns = 0

    def now_ns(self) -> int:
        """A clock that goes on by one with every look."""
        self.clock_ns += 1
        return self.clock_ns

    def record(self, event: str, pulls: Iterable[Pull], after_ns: int, visible_end: int | None = None) -> None:
        assert after_ns == self.clock_ns, "the moment before what is told of"
        end = "" if visible_end is None or event == "hold" else f" to {visible_end}"
        self.notes.append(f"told {event} {len(list(pulls))}{end}")


class NotedBench(Bench):
    """One shard; `notes` has every step point, every call of the table and everything told, in order."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, shard_count=1)
        self.notes: list[str] = []
        (shard,) = self.service._shards
        table: Any = NotedTable(shard.table, shard.lock, self.notes)
        self.service._shards = (Shard(shard.lock, table),)
        self.service._events = NotedEvents(self.notes)
        self.service._runtime.step = self.notes.append  # type: ignore[method-assign,assignment]

    def since(self, act: Callable[[], object]) -> list[str]:
        self.notes.clear()
        act()
        return [note for note in self.notes if note != "[assert_tidy]"]


def test_sections_of_a_hold() -> None:
    """The insert is one critical section, and the recheck another."""
    bench = NotedBench(STRICT)
    held = ["hold", "[hold]", "told hold 1"]
    assert bench.since(bench.hold) == [*held, "recheck", "told recheck 1 to 0"]
    bench.make_visible()
    assert bench.since(bench.hold) == [*held, "recheck", "[recheck]", "told recheck 1 to 1"]
    assert bench.since(lambda: bench.hold(offset=1)) == [*held, "recheck", "told recheck 1 to 1"]
    bench = NotedBench(STRICT)
    bench.service.stop(bench.outbox)
    assert bench.since(bench.hold) == ["hold"]
    bench = NotedBench(ROCKETMQ_LMQ)
    assert bench.since(bench.hold) == ["find_bucket", "[find_bucket]", "hold", "[hold]", "told hold 1"]
    bench = NotedBench(ROCKETMQ_PR7359)
    bench.make_visible()
    held = ["hold", "[hold]", "told hold 1", "recheck", "told recheck 1 to 1"]
    assert bench.since(lambda: bench.hold(offset=1)) == held
    walk = ["walk_start", "[take]", "told take 2 to 1", "walk_each", "walk_each", "[queue_taken]"]
    assert bench.since(bench.hold) == [*held, *walk, "walk_end", "[settle]", "[keep]", "told keep 1 to 1"]


@pytest.mark.parametrize(
    ("policy", "notes"),
    [
        (STRICT, ["has", "notify_start", "[wake_in_place]", "[settle]", "told take 1 to 1", "notify_each"]),
        (
            STRICT_CLONE,
            [
                *("has", "notify_start", "[take]", "told take 2 to 1", "notify_each", "[queue_taken]", "notify_each"),
                *("notify_end", "[settle]", "[keep]", "told keep 1 to 1", "recheck", "[held]"),
            ],
        ),
        (
            ROCKETMQ_5,
            [
                *("notify_start", "[take]", "told take 2 to 1", "notify_each", "[queue_taken]", "notify_each"),
                *("notify_end", "[settle]", "[keep]", "told keep 1 to 1"),
            ],
        ),
    ],
    ids=BY_NAME,
)
def test_an_arrival(policy: Policy, notes: list[str]) -> None:
    """In place it is one section; by clone and clear each step is a section."""
    bench = NotedBench(policy)
    bench.hold()
    bench.hold(offset=7)
    assert bench.since(bench.arrive) == notes


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=BY_NAME)
def test_an_arrival_where_nobody_waits(policy: Policy) -> None:
    """One look without the lock."""
    bench = NotedBench(policy)
    assert bench.since(bench.arrive) == ["has"]
    bench.hold(offset=7)
    bench.service._shards[0].table.drain()
    bench.notes.clear()
    takes = ["[wake_in_place]", "[settle]"] if policy is STRICT else ["[take]"]
    traversal = bench.service._new_traversal(bench.service._shards[0], KEY, 1, None)
    noted = bench.since(lambda: bench.service._traverse_once(NOTIFY, bench.service._shards[0], traversal, bench.outbox))
    assert noted == ["notify_start", *takes, "told take 0 to 1"]


def test_sections_of_herds_and_scans() -> None:
    """A herd is settled in one section; a scan has one section for each bucket."""
    bench = NotedBench(STRICT)
    for _ in range(LARGE_HERD):
        bench.hold()
    start = ["has", "notify_start", "[wake_in_place]", f"told take {LARGE_HERD} to 1"]
    assert bench.since(bench.arrive) == [*start, *["notify_each"] * LARGE_HERD, "[settle]", "[keep]"]
    scan = ["[keys]", "scan_start", "[take]", "told take 0 to 1", "scan_end", "[settle]", "[keep]", "told keep 0 to 1"]
    for policy, swept in ((ROCKETMQ_5, []), (ROCKETMQ_LMQ, ["sweep", "[has]", "remove_bucket", "[remove_bucket]"])):
        bench = NotedBench(policy)
        bench.hold()
        bench.arrive()
        assert bench.since(lambda bench=bench: bench.service.scan(bench.outbox)) == [*scan, *swept]  # type: ignore[misc]
    bench = NotedBench(ROCKETMQ_LMQ)
    bench.hold()
    noted = bench.since(lambda: bench.service.scan(bench.outbox))
    assert noted[-2:] == ["sweep", "[has]"]


def test_sections_of_deadlines_and_ends() -> None:
    """Looking at the next deadline is a section, and removing late pulls another."""
    bench = NotedBench(STRICT)
    bench.hold(deadline_ms=5)
    assert bench.since(bench.service.wait_s) == ["[deadline_next_ms]"]
    assert bench.since(lambda: bench.service.run(bench.outbox)) == []
    bench.now_ns = 5_000_000
    assert bench.since(lambda: bench.service.run(bench.outbox)) == ["expire", "[expire]", "told expire 1"]
    bench = NotedBench(ROCKETMQ_5)
    bench.hold(deadline_ms=5)
    bench.now_ns = 5_000_000
    bench.service._clock_sleeps_until_ms = 0
    assert bench.since(lambda: bench.service.run(bench.outbox)) == []
    bench = NotedBench(STRICT)
    bench.hold()
    assert bench.since(lambda: bench.service.drop_channel("other")) == ["[drop_channel]"]  # type: ignore[arg-type] # any name
    assert bench.service.drop_channel("c") == 1  # type: ignore[arg-type] # as the bench's pulls
    assert bench.service.drop_channel("c") == 0  # type: ignore[arg-type] # as above
    pull = bench.hold()
    assert bench.since(lambda: bench.service.topic_deleted("other", bench.outbox)) == ["[drain]"]
    assert bench.ran == []
    bench.service.topic_deleted("T", bench.outbox)
    assert bench.ran == [(pull, "error")]
    bench = NotedBench(STRICT)
    bench.hold()
    assert bench.since(lambda: bench.service.stop(bench.outbox)) == ["stop", "[drain]", "told stop 1"]
    bench = NotedBench(ROCKETMQ_5)
    pull = bench.hold()
    assert bench.since(lambda: bench.service.stop(bench.outbox)) == []
    assert (pull.phase, bench.refused) == (HELD, [])


def test_sections_of_a_returning_master() -> None:
    """The walk of 5.x looks without the lock."""
    walk = ["[keys]", "return_look", "has", "return_take", "[take]", "[queue_taken]"]
    for policy, notes in ((ANSWERS_ON_RETURN, ["[drain]"]), (ROCKETMQ_5, walk)):
        bench = NotedBench(policy)
        bench.hold()
        assert bench.since(lambda bench=bench: bench.service.master_returned(bench.outbox)) == notes  # type: ignore[misc]
    bench = NotedBench(ROCKETMQ_5)
    bench.hold()
    bench.arrive()
    pull = bench.hold(queue_id=1)
    bench.service.master_returned(bench.outbox)
    assert bench.ran[1:] == [(pull, "woken")]


FAULTS = (OSError("no room on the disk"), ValueError("a number that does not fit"), RuntimeError("a bug"))


@define
class Rounds:
    """A runtime whose thread a test runs, an event that ends it after two rounds, a hold table and a store."""

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
    """It flushes the answers of each round."""
    rounds: Any = Rounds(error)

    class Noting(Outbox):
        def flush(self) -> None:
            rounds.notes.append("flush")

    monkeypatch.setattr(hold_service, "Outbox", Noting)
    ScanService(rounds, rounds, 5_000).start()
    rounds.body()
    assert (rounds.notes, rounds.waits) == (["scan", "flush"] * 2, [5.0] * 3)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_what_cannot_be_made_visible_is_left_for_the_next_run(error: Exception) -> None:
    store: Any = Rounds(error)
    dispatcher = DispatchService(RealRuntime(), store, store, PullEvents(), notifies=True)
    for _append in range(2):
        dispatcher.run(Outbox())
    assert store.notes == ["dispatch"] * 2
    dispatcher.stop()

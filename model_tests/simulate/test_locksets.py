"""Checks that each lock that a method requires is held, so that a call without its lock fails in the first run.

The tests use the lockset method of Eraser (Savage et al., SOSP 1997) with known locks: a method that requires a lock
checks at every call that the caller holds the lock. A removed lock therefore shows in the first run that calls the
method. The calls come from runs of the hold table (`test_preempted`) and from a serving broker.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from itertools import count
from typing import Any, Final, Self

import attrs
import pytest
from model_tests.simulate.test_preempted import Stage
from model_tests.support.broker.raw_client import RawClient
from model_tests.support.broker.stores import SMALL, message
from model_tests.support.suite import EmbeddedBroker, run_suite
from model_tests.support.suite.brokers import SMALL_FILES

from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import HoldLimit, HoldTable
from longpoll_broker.io.channel import Channel
from longpoll_broker.rocketmq.admin.lock_processor import LockProcessor, QueueLocks
from longpoll_broker.send.durability import GroupCommit
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store import queue_builder
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.consume_queue import ConsumeQueue, QueueTable
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queue_builder import QueueBuilder
from longpoll_broker.store.retention import Deletions
from longpoll_broker.store.segment import SegmentList
from longpoll_protocol.bodies import LockBatchRequest
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_simulation.sync import OUTSIDE, SimulatedLock

HINTS: Final = frozenset({"has"})
"""Calls of a hold table that need no lock, because their callers use the results only as hints."""
TABLE_CALLS: Final = tuple(
    name for name, each in vars(HoldTable).items() if callable(each) and name[0] != "_" and name not in HINTS
)


NAMED: Final[tuple[tuple[Any, str], ...]] = (
    # An existing queue is returned without a lock, but the parts of a new queue need the lock.
    *((QueueTable, call) for call in ("_segments", "forget")),
    *((QueueBuilder, call) for call in ("dispatch", "unlist")),
    *((kind, "flush") for kind in (CommitLog, ConsumeQueue)),
    (SegmentList, "remove"),
    (Deletions, "add"),
)


class Owned:
    """A lock that knows its owner. Invariant: `owner` is the acquiring thread, or None while the lock is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner: int | None = None

    def _is_owned(self) -> bool:
        return self.owner == threading.get_ident()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self.owner = threading.get_ident()
        return taken

    def release(self) -> None:
        self.owner = None
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class OwnedRuntime(RealRuntime):
    def lock(self) -> Owned:
        return Owned()

    def condition(self) -> threading.Condition:
        lock: Any = Owned()
        return threading.Condition(lock)


class Guarded(dict[Any, None]):
    def __init__(self, watch: Watch, what: str, lock: object) -> None:
        super().__init__()
        self._say = partial(watch.check, what, lock)

    def __setitem__(self, key: object, value: None) -> None:
        self._say()
        super().__setitem__(key, value)

    def __delitem__(self, key: object) -> None:
        self._say()
        super().__delitem__(key)


def held(lock: object) -> bool:
    """Whether the caller holds this lock; false if the object is not a lock."""
    if isinstance(lock, Owned):
        return lock.owner == threading.get_ident()
    if isinstance(lock, SimulatedLock):
        return lock.owner is (lock._world.current or OUTSIDE)
    return False


class Watch:
    """Patches methods so that they check locks. Invariant: `locks` has the required lock of each known object."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.seen: list[str] = []
        self.locks: dict[int, tuple[object, object]] = {}
        """Maps an object's id to the object, which keeps the id unique, and its lock."""

    def name(self, shared: object, lock: object) -> None:
        self.locks[id(shared)] = (shared, lock)

    def check(self, what: str, lock: object) -> None:
        if not held(lock):
            self.seen.append(f"{what} without its lock")

    def calls(self, kind: Any, name: str, lock_of: Callable[[Any], object]) -> None:
        """Require a lock for each call of a method."""
        honest = getattr(kind, name)

        @wraps(honest)
        def watched(shared: Any, *words: Any, **more: Any) -> Any:
            self.check(f"{kind.__name__}.{name}", lock_of(shared))
            return honest(shared, *words, **more)

        self._patch.setattr(kind, name, watched)

    def named(self, shared: object) -> object:
        """Return the lock of a shared object. For an object of one thread, this is a lock that the caller holds."""
        found = self.locks.get(id(shared))
        return _free() if found is None else found[1]

    def before(self, kind: Any, name: str, tell: Callable[[Any], None]) -> None:
        honest = getattr(kind, name)

        @wraps(honest)
        def told(shared: Any, *words: Any, **more: Any) -> Any:
            tell(shared)
            return honest(shared, *words, **more)

        self._patch.setattr(kind, name, told)

    def after(self, kind: Any, name: str, tell: Callable[[Any], None]) -> None:
        honest = getattr(kind, name)

        @wraps(honest)
        def told(shared: Any, *words: Any, **more: Any) -> Any:
            answer = honest(shared, *words, **more)
            tell(shared)
            return answer

        self._patch.setattr(kind, name, told)

    def writes(self, kind: Any, name: str, inside: frozenset[str], lock_of: Callable[[Any], object]) -> None:
        """Require a lock for each change of an attribute by one of the functions `inside`."""
        slot = vars(kind)[name]

        def change(shared: Any, value: object) -> None:
            if sys._getframe(1).f_code.co_name in inside:
                self.check(f"{kind.__name__}.{name}", lock_of(shared))
            slot.__set__(shared, value)

        self._patch.setattr(kind, name, property(slot.__get__, change))


def _free() -> object:
    lock = Owned()
    lock.acquire()
    return lock


@contextmanager
def watching() -> Iterator[list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(patch)
        _watch_holds(watch)
        _watch_tables(watch)
        _watch_sends(watch)
        _watch_store(watch)
        yield watch.seen


def _watch_holds(watch: Watch) -> None:
    def name_shards(service: Any) -> None:
        for shard in service._shards:
            watch.name(shard.table, shard.lock)

    watch.after(HoldService, "__init__", name_shards)
    for call in TABLE_CALLS:
        watch.calls(HoldTable, call, watch.named)
    watch.writes(HoldLimit, "used", frozenset({"take", "give"}), lambda room: room.guard)


def _watch_tables(watch: Watch) -> None:
    watch.writes(Offsets, "changed", frozenset({"commit", "forget_topic"}), lambda offsets: offsets.guard)
    watch.calls(Statistics, "_item", lambda statistics: statistics.guard)
    watch.before(LockProcessor, "lock", lambda processor: watch.name(processor.locks, processor.guard))
    watch.calls(QueueLocks, "lock", watch.named)
    watch.calls(Channel, "_send", lambda channel: channel._lock)
    watch.writes(Channel, "closed", frozenset({"close"}), lambda channel: channel._lock)


def _watch_sends(watch: Watch) -> None:
    def guard_open(service: Any) -> None:
        service._open = Guarded(watch, "GroupCommit._open", service._changed._lock)

    watch.after(GroupCommit, "__init__", guard_open)


def _name_leaving(watch: Watch, store: Any) -> None:
    """Require only the deletion lock for files of queues that are being removed and so get no messages."""
    for topic in store._table.leaving.values():
        for queue in topic.queues.values():
            watch.name(queue.segments, store._deletion_lock)


def _watch_store(watch: Watch) -> None:
    stores: dict[object, Any] = {}
    """Maps each dispatcher to its store."""

    def name_parts(store: Any) -> None:
        """Assign locks once the store is open, because only one thread uses the store until then."""
        stores[store._dispatcher] = store
        watch.name(store._dispatcher, store._dispatch_lock)
        watch.name(store._table, store._append_lock)
        watch.name(store._log.segments, store._append_lock)
        watch.name(store._log, store._flush_lock)
        watch.name(store._deletions, store._deletion_lock)

    def name_queues(store: Any) -> None:
        for queue in store._table.all():
            watch.name(queue, store._queues_lock)
            watch.name(queue.segments, store._dispatch_lock)

    def by_segments(files: Any) -> object:
        return watch.named(files.segments)

    watch.after(MessageStore, "_recover", name_parts)
    watch.before(MessageStore, "flush_queues", name_queues)
    watch.after(QueueBuilder, "unlist", lambda dispatcher: _name_leaving(watch, stores[dispatcher]))
    for call in ("append", "append_records", "make_room"):
        watch.calls(CommitLog, call, by_segments)
    for call in ("put", "remove_before"):
        watch.calls(ConsumeQueue, call, by_segments)
    for kind, call in NAMED:
        watch.calls(kind, call, watch.named)
    watch.calls(MessageStore, "_append", lambda store: store._append_lock)
    for call in ("hand", "unlist"):
        watch.calls(QueueBuilder, call, lambda dispatcher: dispatcher._append_lock)
    watch.writes(QueueBuilder, "handing", frozenset({"hand", "_read"}), lambda dispatcher: dispatcher._append_lock)


def of_stages(seen: list[str], goes_on: Callable[[], bool]) -> int:
    """Run stages of the hold table until a violation is seen; ignores other faults and returns the number of stages."""
    for seed in count():
        if seen or not goes_on():
            return seed
        with suppress(Exception):
            Stage(seed).play()
    raise AssertionError("unreachable")


class FullFiles(RealFiles):
    """A disk so full that every unneeded file of the log may be removed."""

    def used_ratio(self, path: str) -> float:
        return 0.9


def of_store() -> int:
    runtime = OwnedRuntime()
    runtime._files = FullFiles()
    body = b"b" * (SMALL.message_size_max * 3 // 4)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(queue_builder, "HANDED_COUNT_MAX", 3)
        store = MessageStore.open(runtime, directory, attrs.evolve(SMALL, index=False))
        store.put(message(body=body))
        store.flush_queues()  # `flush_queues` registers the queue's locks with the watch.
        store.put_batch([message(body=body), message("gone", body=body)])
        store.put_burst([message(), message()])
        store.dispatch(10)
        store.delete_topic("gone")
        store.dispatch(10)
        store.flush()
        removed = store.remove_expired()
        store.close()
    return removed


def of_broker(examples: int = 6) -> int:
    """Send the suite's requests, and a queue lock request, to a broker; returns the number of examples.

    The buffer that hands records to the dispatcher is small, so that the dispatcher also reads the log. Sends wait for
    the disk.
    """
    config = attrs.evolve(SMALL_FILES, flush_disk_sync=True)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(queue_builder, "HANDED_COUNT_MAX", 2)
        with EmbeddedBroker(OwnedRuntime(), directory, can_restart=False, store_config=config) as subject:
            report = run_suite(subject.runtime, subject, max_examples=examples, step_count=40, seed=7, shrink=False)
            with RawClient(subject.address) as client:
                asked = LockBatchRequest(consumer_group="G", client_id="c", mq_set=[])
                client.call(RequestCode.LOCK_BATCH_MQ, {}, asked.encode())
    return report.examples


STAGES = 30


def some() -> Callable[[], bool]:
    left = iter(range(STAGES))
    return lambda: next(left, None) is not None


def test_every_call_on_a_shared_object_holds_its_lock() -> None:
    with watching() as seen:
        assert of_stages(seen, some()) == STAGES
        assert of_broker(2) > 0
    assert seen == []


def test_every_call_on_a_shared_part_of_a_store_holds_its_lock() -> None:
    with watching() as seen:
        assert of_store() > 0
    assert seen == []

"""Failed flushes, locks, slow work on queues in short steps, and the store's state after a kill."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, evolve, field
from model_tests.store.test_store_door import BIG, EXPIRING, opened
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all
from model_tests.support.faults import raising
from model_tests.support.store import Clock, killed

from longpoll_broker.store import message_store
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.consume_queue import ConsumeQueue, QueueTable
from longpoll_broker.store.index import Indexer
from longpoll_broker.store.message_store import INDEX, LOG, QUEUES, MessageStore
from longpoll_broker.store.recovery import load_checkpoint
from longpoll_broker.store.retention import Deletions, queue_name
from longpoll_broker.store.segment import Segment, SegmentList
from longpoll_broker.upkeep.flush_service import FlushService
from longpoll_protocol.errors import MessageRefusedError
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime


def put_prepared(store: MessageStore) -> None:
    batch = store.prepare("T", 0)
    batch.add([message()])
    store.put_prepared(batch)


WAYS: dict[str, Callable[[MessageStore], object]] = {
    "alone": lambda store: store.put(message()),
    "batch": lambda store: store.put_batch([message()]),
    "prepared": put_prepared,
}
EACH_WAY = pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, call: Callable[[], object], name: str = "flush") -> None:
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            call()


def log_file(directory: Path) -> Path:
    (path,) = (directory / "commitlog").iterdir()
    return path


@EACH_WAY
def test_appends_are_refused_if_the_log_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[MessageStore], object]
) -> None:
    """After a failed flush the store checks that the log's file still exists."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message()])
    path, elsewhere = log_file(tmp_path), tmp_path / "elsewhere"
    fail_once(monkeypatch, CommitLog, store.flush)
    assert store.troubles == {LOG: "[Errno 5] Input/output error"}
    put(store)
    end = store.log_end
    path.rename(elsewhere)
    with pytest.raises(FileNotFoundError):
        put(store)
    assert (store.log_end, store.put_burst([message()])) == (end, []), "a refused burst lets each message be put alone"
    elsewhere.rename(path)
    put(store)
    assert (store.put_burst([message()]), store.flush(), store.troubles) == ([], store.log_end, {})
    assert len(store.put_burst([message()])) == 1


@EACH_WAY
def test_a_queue_error_does_not_stop_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[MessageStore], object]
) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message()])
    fail_once(monkeypatch, ConsumeQueue, store.flush_queues)
    assert list(store.troubles) == [QUEUES]
    monkeypatch.setattr(CommitLog, "check_names", lambda _log: 1 / 0)
    put(store)
    assert len(store.put_burst([message()])) == 1


def test_index_errors_are_reported_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(properties={"KEYS": "k"})])
    fail_once(monkeypatch, Indexer, lambda: store.index(9), "build")
    assert store.troubles == {INDEX: "[Errno 5] Input/output error"}
    assert store.index(9)
    assert store.troubles == {}


@define
class Watched:
    store: MessageStore
    notes: list[tuple[str, int, set[str]]] = field(factory=list)

    def note(self, call: str, queue_id: int) -> None:
        names = ("dispatch", "queues", "deletion", "append", "flush")
        locks = {name: getattr(self.store, f"_{name}_lock") for name in names}
        held = {name for name, lock in locks.items() if not lock.acquire(blocking=False)}
        for name in locks.keys() - held:
            locks[name].release()
        self.notes.append((call, queue_id, held))


def watched(monkeypatch: pytest.MonkeyPatch, store: MessageStore) -> Watched:
    seen = Watched(store)
    for call in ("flush", "remove_before"):
        monkeypatch.setattr(ConsumeQueue, call, lambda queue, *_, call=call: seen.note(call, queue.queue_id))
    every = QueueTable.all

    def listed(table: QueueTable) -> list[ConsumeQueue]:
        seen.note("all", -1)
        return every(table)

    monkeypatch.setattr(QueueTable, "all", listed)
    monkeypatch.setattr(QueueTable, "remove_files", lambda *_: seen.note("remove_files", -1))
    monkeypatch.setattr(RealFiles, "write_atomic", lambda *_: seen.note("write", -1))
    return seen


def test_queues_are_synced_once_and_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(queue_id=queue_id) for queue_id in range(5)])
    with monkeypatch.context() as patched:
        seen = watched(patched, store)
        turns = store.flush_queues_in_turns(2)
        counts = [len(seen.notes) for _ in turns]
    assert counts == [3, 5, 6]
    assert seen.notes[0] == ("all", -1, {"dispatch"})
    assert seen.notes.pop() == ("write", -1, {"queues"}), "the checkpoint is written last"
    assert sorted(seen.notes[1:]) == [("flush", queue_id, {"queues"}) for queue_id in range(5)]


def test_each_queue_drops_expired_units_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_store, "QUEUES_A_TURN", 2)
    store = open_store(tmp_path, EXPIRING)
    put_and_dispatch(store, [message(queue_id=number % 5) for number in range(60)])
    store.flush_queues()
    store.index(1_000)
    with monkeypatch.context() as patched:
        seen = watched(patched, store)
        assert store.remove_expired() > 0
    removed = [note for note in seen.notes if note[0] == "remove_before"]
    assert sorted(removed) == [("remove_before", each, {"dispatch", "queues", "deletion"}) for each in range(5)]


def test_files_are_removed_without_the_locks_of_a_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store removes files without the locks of a send, so a send never waits for a removal."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(queue_id=queue_id) for queue_id in range(2)])
    with monkeypatch.context() as patched:
        seen = watched(patched, store)
        store.delete_topic("T", {0})
    assert [note for note in seen.notes if note[0] == "remove_files"] == [("remove_files", -1, {"deletion"})]


def test_batches_and_records_that_no_queue_may_list(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    batch = store.prepare("T", 3)
    batch.add([message(queue_id=3), message(queue_id=3)])
    first = store.put_prepared(batch)
    waiting = store.waiting()
    assert [(each.queue_id, each.offset_end) for each in waiting] == [(3, 1), (3, 2)]
    assert [each.physical_offset for each in waiting] == [first.physical_offset, first.physical_offset + first.size]
    assert store.dispatch(10) == waiting
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path / "store")
    for topic, queue_id in (("../../out", 0), ("T", -1)):
        with pytest.raises(MessageRefusedError):
            store._listing(topic, queue_id)
    assert store.all_queues() == []
    store.close()
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic, queue_id) for topic in ("T", "U") for queue_id in (0, 1)])
    store.delete_topic("T")
    store.delete_topic("U", {1})
    assert set(Deletions(RealFiles(), str(tmp_path)).ends) == {"T", queue_name("U", 1)}


def test_an_interrupted_deletion_of_one_queue_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finishes the interrupted deletion of the queue and keeps the other queues."""
    clock = Clock()
    store = opened(clock, tmp_path / "0")
    put_and_dispatch(store, [message("U", queue_id) for queue_id in (0, 1, 2)])
    put_and_dispatch(store, [message(body=BIG)] * 4)
    clock.now_ms += 10_000
    put_and_dispatch(store, [message()])
    store.flush()
    store.flush_queues()
    with monkeypatch.context() as patched:
        patched.setattr(SegmentList, "remove", lambda _segments: None)
        store.delete_topic("U", {1})
    copy = killed(tmp_path / "0", "1")
    store.abandon()
    store = opened(clock, copy)
    assert store.queues() == [("T", 0), ("U", 0), ("U", 2)]
    assert [len(read_all(store, "U", queue_id)) for queue_id in (0, 2)] == [1, 1]
    assert list((copy / "consumequeue" / "U" / "1").glob("*")) == []


QUEUE_COUNT = 5


def test_bytes_cut_off_on_opening_are_logged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second, third = (store.put(message(body=b"b" * 50, properties={"k": "v"})) for _ in range(3))
    store.abandon()
    content = bytearray(log_file(tmp_path).read_bytes())
    at = content.index(b"b" * 50, second.physical_offset)
    content[at] ^= 1
    log_file(tmp_path).write_bytes(content)
    store = open_store(tmp_path)
    assert store.log_end == first.log_end
    assert store.cut_size == third.log_end - second.physical_offset
    store.close()
    store = open_store(tmp_path)
    assert store.cut_size == 0


def queues_of(directory: Path) -> MessageStore:
    """A store with five queues of one message each, and a log of several files, the first of which may expire."""
    store = open_store(directory, evolve(SMALL, file_reserved_hours=0, index=False))
    put_and_dispatch(store, [message(queue_id=queue_id, body=bytes(400)) for queue_id in range(QUEUE_COUNT)])
    store.flush()
    return store


def expire(store: MessageStore) -> None:
    assert store.remove_expired(at_any_hour=True) == 1


def test_a_topic_may_be_deleted_while_its_queues_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = queues_of(tmp_path)
    turns = store.flush_queues_in_turns(2)
    next(turns)
    store.delete_topic("T", {4})
    put_and_dispatch(store, [message(queue_id=4)])
    sync = Segment.sync

    def removed(segment: Segment, start: int, stop: int) -> None:
        if "/T/3/" in segment.path:
            monkeypatch.undo()
            store.delete_topic("T", {3})
            put_and_dispatch(store, [message(queue_id=3)])
        sync(segment, start, stop)

    monkeypatch.setattr(Segment, "sync", removed)
    assert len(list(turns)) == 2
    checkpoint = load_checkpoint(RealFiles(), str(tmp_path / "checkpoint"))
    # The checkpoint counts the files of the three remaining queues. The two recreated queues belong to the next round.
    assert checkpoint.queue_file_count == 3
    ends = [store.visible_end("T", queue_id) for queue_id in range(QUEUE_COUNT)]
    store.abandon()
    store = open_store(tmp_path)
    assert [store.visible_end("T", queue_id) for queue_id in range(QUEUE_COUNT)] == ends == [1] * QUEUE_COUNT


def test_an_abandoned_flush_writes_no_checkpoint(tmp_path: Path) -> None:
    store = queues_of(tmp_path)
    before = load_checkpoint(RealFiles(), str(tmp_path / "checkpoint"))
    turns = store.flush_queues_in_turns(1)
    for _ in range(QUEUE_COUNT):
        next(turns)
    assert load_checkpoint(RealFiles(), str(tmp_path / "checkpoint")) == before
    put_and_dispatch(store, [message("U")])
    store.flush_queues()
    later = load_checkpoint(RealFiles(), str(tmp_path / "checkpoint"))
    assert list(turns) == []
    assert load_checkpoint(RealFiles(), str(tmp_path / "checkpoint")).durable_offset == later.durable_offset > 0


class Turns:
    """A store that flushes its queues in many steps of 250 ms each, and counts all other calls."""

    def __init__(self, turn_count: int) -> None:
        self.turn_count = turn_count
        self.now_ns = 0
        self.log_end = 0
        self.flushed_end = 0
        self.flushes_in_turns: list[int] = []
        self.turn = 0
        self.waits = 0
        self.stops_at = turn_count

    def wait(self, _timeout_s: float) -> bool:
        self.log_end += 1
        self.waits += 1
        return self.waits > 20

    def is_set(self) -> bool:
        return self.turn > self.stops_at

    def monotonic_ns(self) -> int:
        return self.now_ns

    def flush(self) -> None:
        self.flushed_end = self.log_end
        if self.turn:
            self.flushes_in_turns.append(self.turn)

    def flush_queues_in_turns(self) -> Any:
        for _ in range(self.turn_count):
            self.turn += 1
            self.log_end += 1
            self.now_ns += 250_000_000
            yield

    def index(self, _count: int) -> bool:
        return True


def served(turns: Turns) -> FlushService:
    store: Any = turns
    tables: Any = SimpleNamespace(save=lambda: None)
    service = FlushService(RealRuntime(), store, tables, 500, {})
    service.runtime = service._stop = store
    service._run()
    return service


def test_rounds_continue_while_queues_are_synced() -> None:
    """The log's periodic sync runs when due, between two steps of a slow sync of the queues."""
    turns = Turns(9)
    served(turns)
    assert turns.flushes_in_turns == [2, 4, 6, 8]


def test_a_broker_that_stops_does_not_wait_for_all_queues() -> None:
    """A stop interrupts the slow flush of the queues, and closing the store flushes the remaining queues."""
    turns = Turns(1000)
    turns.stops_at = 3
    served(turns)
    assert turns.turn == 4

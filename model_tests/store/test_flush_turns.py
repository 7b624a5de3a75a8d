"""Making queues durable keeps nobody waiting who needs the log alone, and others have their turn between queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from longpoll_broker.service.upkeep.flush_service import FlushService
from longpoll_broker.store.checkpoint import load_checkpoint
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queues.consume_queue import ConsumeQueue
from longpoll_broker.store.queues.queue_table import QueueTable
from longpoll_broker.store.segment import Segment
from longpoll_broker.testing.stores import SMALL, message, open_store, put_and_dispatch
from longpoll_runtime.files import RealFiles, RealMappedFile
from longpoll_runtime.real import RealRuntime

QUEUE_COUNT = 5
PATIENCE_S = 20.0


def queues_of(directory: Path) -> MessageStore:
    """A store with five queues, a message in each, and a log of several files, of which the first may go."""
    store = open_store(directory, evolve(SMALL, file_reserved_hours=0, index=False))
    put_and_dispatch(store, [message(queue_id=queue_id, body=bytes(400)) for queue_id in range(QUEUE_COUNT)])
    store.flush()
    return store


class Sender:
    """Sends at each slow call of the disk, on a thread of its own, and notes whether that was kept before its end."""

    def __init__(self, store: MessageStore, patience_s: float = PATIENCE_S) -> None:
        self.store = store
        self.patience_s = patience_s
        self.kept: list[bool] = []
        self.threads: list[threading.Thread] = []

    def __call__(self) -> None:
        """One send; the call of the disk goes on once it was kept, or patience is over."""
        thread = threading.Thread(target=self._send)
        self.threads.append(thread)
        thread.start()
        thread.join(self.patience_s)
        self.kept.append(not thread.is_alive())

    def _send(self) -> None:
        end = self.store.put(message(body=b"sent")).physical_offset
        assert self.store.flush() > end

    def join(self) -> None:
        """Have every send end."""
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def slow_syncs(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something while a queue's file is synced."""
    sync = RealMappedFile.sync

    def slow(mapped: RealMappedFile, start: int, stop: int) -> None:
        if "/consumequeue/" in mapped._path:
            do()
        sync(mapped, start, stop)

    patch.setattr(RealMappedFile, "sync", slow)


def slow_checkpoint(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something while the checkpoint is written."""
    write = RealFiles.write_atomic

    def slow(files: RealFiles, path: str, content: bytes) -> None:
        if path.endswith("/checkpoint"):
            do()
        write(files, path, content)

    patch.setattr(RealFiles, "write_atomic", slow)


def slow_removal(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something while files of queues are removed."""
    remove = QueueTable.remove_files

    def slow(table: QueueTable, queues: list[Any]) -> None:
        do()
        remove(table, queues)

    patch.setattr(QueueTable, "remove_files", slow)


def slow_trim(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something while a queue forgets what the log has no longer."""
    trim = ConsumeQueue.remove_before

    def slow(queue: ConsumeQueue, log_start: int) -> None:
        do()
        trim(queue, log_start)

    patch.setattr(ConsumeQueue, "remove_before", slow)


def expire(store: MessageStore) -> None:
    """Have the log's oldest file go."""
    assert store.remove_expired(at_any_hour=True) == 1


SLOW = [
    (slow_syncs, lambda store: store.flush_queues(), QUEUE_COUNT),
    (slow_checkpoint, lambda store: store.flush_queues(), 1),
    (slow_removal, lambda store: store.delete_topic("T", {0}), 1),
    (slow_trim, expire, QUEUE_COUNT),
]
IDS = ["queues", "checkpoint", "removal", "trim"]


@pytest.mark.parametrize(("slow", "work", "count"), SLOW, ids=IDS)
def test_a_send_is_kept_while_the_disk_works_for_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: Any, work: Any, count: int
) -> None:
    """At each slow call a message is appended and made durable before the call returns: it waits for the log alone."""
    store = queues_of(tmp_path)
    sender = Sender(store)
    slow(monkeypatch, sender)
    work(store)
    sender.join()
    assert sender.kept == [True] * count
    monkeypatch.undo()


def test_a_topic_may_go_while_its_queues_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is removed, and made anew, before its turn or in the middle of it costs the others nothing."""
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
    # Of those that were there when it began three are left; what came since is for the next time.
    assert checkpoint.queue_file_count == 3
    ends = [store.visible_end("T", queue_id) for queue_id in range(QUEUE_COUNT)]
    store.abandon()
    store = open_store(tmp_path)
    assert [store.visible_end("T", queue_id) for queue_id in range(QUEUE_COUNT)] == ends == [1] * QUEUE_COUNT


def test_what_was_not_gone_on_with_promises_nothing(tmp_path: Path) -> None:
    """The checkpoint comes after the last queue; two that go on beside each other write it once each, and none back."""
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
    """A store whose queues take many turns, each as long as half a round; it counts what else is done."""

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
        """Rounds up to the one in which queues are flushed."""
        self.log_end += 1
        self.waits += 1
        return self.waits > 20

    def is_set(self) -> bool:
        """Whether the broker stops."""
        return self.turn > self.stops_at

    def monotonic_ns(self) -> int:
        """The clock."""
        return self.now_ns

    def flush(self) -> None:
        """Note in which turn."""
        self.flushed_end = self.log_end
        if self.turn:
            self.flushes_in_turns.append(self.turn)

    def flush_queues_in_turns(self) -> Any:
        """Messages come in the meantime."""
        for _ in range(self.turn_count):
            self.turn += 1
            self.log_end += 1
            self.now_ns += 250_000_000
            yield

    def index(self, _count: int) -> bool:
        """Nothing is left to do."""
        return True


def served(turns: Turns) -> FlushService:
    """A flush service over such a store that has run to its end."""
    store: Any = turns
    tables: Any = SimpleNamespace(save=lambda: None)
    service = FlushService(RealRuntime(), store, tables, 500, {})
    service.runtime = service._stop = store
    service._run()
    return service


def test_rounds_go_on_while_queues_are_made_durable() -> None:
    """Between two turns there is a round whenever one is due, so that the log is durable as soon as ever."""
    turns = Turns(9)
    served(turns)
    assert turns.flushes_in_turns == [2, 4, 6, 8]


def test_a_broker_that_stops_does_not_wait_for_all_queues() -> None:
    """The thread ends after the turn that is under way; closing the store makes the rest durable."""
    turns = Turns(1000)
    turns.stops_at = 3
    served(turns)
    assert turns.turn == 4

"""A topic's queues go with their files; its records stay in the log, listed by nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attrs import evolve
from msgspec import structs

from longpoll_broker.errors import StoreUserError, TopicLeavingError
from longpoll_broker.store import dispatch
from longpoll_broker.store.dispatch import Dispatcher
from longpoll_broker.store.log.deletions import Deletions
from longpoll_broker.store.queues.queue_table import QueueTable
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.stores import SMALL, message, open_store, put_and_dispatch, read_all
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime


def queue_files(store: Path, topic: str) -> list[Path]:
    """The files of a topic's queues."""
    return sorted((store / "consumequeue" / topic).glob("*/*"))


def test_files_go_and_a_later_topic_begins_at_zero(tmp_path: Path) -> None:
    """Another topic keeps what it has, and a slice handed out before stays readable."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic=topic) for topic in ("gone", "kept", "gone")])
    before = store.get("gone", 0, 0, 32)
    record = bytes(before.records[0])
    store.delete_topic("gone")
    store.delete_topic("gone")
    store.delete_topic("never")

    assert queue_files(tmp_path, "gone") == []
    assert (store.visible_start("gone", 0), store.visible_end("gone", 0)) == (0, 0)
    assert store.visible_end("kept", 0) == 1
    assert bytes(before.records[0]) == record
    put_and_dispatch(store, [message(topic="gone", body=b"again")])
    assert [b"again" in found for found in read_all(store, "gone", 0)] == [True]
    store.flush_queues()
    del before
    store.close()
    store = open_store(tmp_path)
    assert [b"again" in found for found in read_all(store, "gone", 0)] == [True]


@pytest.mark.parametrize("handed", [True, False])
def test_a_dispatch_in_flight_makes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, handed: bool
) -> None:
    """What was appended before the deletion is passed over, whether it was handed over or is read from the log."""
    if not handed:
        monkeypatch.setattr(dispatch, "HANDED_COUNT_MAX", 0)
    store = open_store(tmp_path)
    for topic in ("gone", "kept"):
        store.put(message(topic=topic))
    store.delete_topic("gone")
    store.put(message(topic="gone", body=b"new"))
    arrivals = [(each.topic, each.offset_end) for each in store.dispatch(100)]

    assert arrivals == [("kept", 1), ("gone", 1)]
    assert [b"new" in found for found in read_all(store, "gone", 0)] == [True]


def killed(store: Path) -> Path:
    """The directory as a kill at this moment leaves it."""
    copy = store.parent / f"{store.name}-killed"
    shutil.copytree(store, copy)
    return copy


def test_after_a_crash_it_stays_gone(tmp_path: Path) -> None:
    """Recovery dispatches the deleted topic's records again, and no queue lists them; a later topic does."""
    store = open_store(tmp_path / "0")
    put_and_dispatch(store, [message(topic=topic) for topic in ("gone", "kept", "again")])
    for topic in ("gone", "again"):
        store.delete_topic(topic)
    put_and_dispatch(store, [message(topic="again", body=b"new")])
    copy = killed(tmp_path / "0")
    store.abandon()
    for _ in range(2):
        store = open_store(copy)
        assert store.queues() == [("again", 0), ("kept", 0)]
        assert [b"new" in found for found in read_all(store, "again", 0)] == [True]
        copy = killed(copy)
        store.abandon()


def test_old_deletions_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once no recovery reaches the records from before, be it after a crash, the note goes; a spoiled one is told.

    That is when a later file begins with a record that the checkpoint knows.
    """
    now_ms = 1_800_000_000_000
    monkeypatch.setattr(RealRuntime, "unix_ms", lambda _: now_ms)
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic="gone")])
    store.delete_topic("gone")
    store.close()
    store = open_store(tmp_path)
    assert (tmp_path / "deletedTopics.json").exists()
    put_and_dispatch(store, [message(body=b"b" * 700)] * 3)
    now_ms += 10_000
    store.put(message())
    store.close()
    open_store(tmp_path).close()
    assert not (tmp_path / "deletedTopics.json").exists()
    (tmp_path / "deletedTopics.json").write_text("{")
    with pytest.raises(StoreUserError, match="move it away"):
        open_store(tmp_path)


@pytest.mark.parametrize("visible", [True, False], ids=["visible", "not visible yet"])
def test_a_further_queue_that_is_gone_stays_gone(tmp_path: Path, visible: bool) -> None:
    """A record of a topic that stays had named it: neither the dispatcher nor a recovery lists it there again."""
    config = evolve(SMALL, multi_dispatch=True)
    store = open_store(tmp_path / "0", config)
    told = message("kept", properties={"INNER_MULTI_DISPATCH": "gone"})
    store.put(structs.replace(told, inner_queues=(("gone", 0),)))
    if visible:
        store.dispatch(10)
    store.delete_topic("gone")
    store.dispatch(10)
    assert store.queues() == [("kept", 0)]
    copy = killed(tmp_path / "0")
    store.abandon()
    store = open_store(copy, config)
    assert store.queues() == [("kept", 0)]
    store.close()
    assert verify(RealFiles(), str(copy)).problems == []


def test_while_a_topic_leaves_nobody_finds_it_or_puts_into_it(tmp_path: Path) -> None:
    """Also not as a further queue, nor in a batch or a burst; what was on its way is listed in vain."""
    store = open_store(tmp_path, evolve(SMALL, multi_dispatch=True))
    put_and_dispatch(store, [message(topic="gone", body=b"old")])
    store.put(message(topic="gone", body=b"not visible yet"))
    store.begin_deletion("gone")
    store.begin_deletion("gone")
    assert store.ends("gone", 0) == (0, 0)
    further = structs.replace(message("kept", properties={"INNER_MULTI_DISPATCH": "gone"}), inner_queues=(("gone", 0),))
    for refused in (message(topic="gone"), further):
        with pytest.raises(TopicLeavingError, match="being deleted"):
            store.put(refused)
        with pytest.raises(TopicLeavingError):
            store.put_batch([refused])
    assert store.put_burst([message(topic="gone")]) == []
    store.flush_queues()
    store.dispatch(10)
    assert store.ends("gone", 0) == (0, 0)
    store.finish_deletion("gone")
    store.finish_deletion("gone")
    assert queue_files(tmp_path, "gone") == []
    put_and_dispatch(store, [message(topic="gone", body=b"new")])
    assert [b"new" in found for found in read_all(store, "gone", 0)] == [True]
    store.finish_deletion("gone")
    assert store.ends("gone", 0) == (0, 1)


@pytest.mark.parametrize("handed", [True, False])
def test_a_topic_whose_deletion_cannot_be_noted_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, handed: bool
) -> None:
    """With everything in it, also what became visible meanwhile, and after a kill."""
    if not handed:
        monkeypatch.setattr(dispatch, "HANDED_COUNT_MAX", 0)
    store = open_store(tmp_path / "0")
    put_and_dispatch(store, [message(topic="T", body=b"first")])
    store.put(message(topic="T", body=b"second"))
    store.begin_deletion("T")
    store.dispatch(10)

    def fail(_deletions: Deletions, _ends: dict[str, int]) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "_write", fail)
        with pytest.raises(OSError, match="Input/output"):
            store.finish_deletion("T")
    put_and_dispatch(store, [message(topic="T", body=b"third")])
    copy = killed(tmp_path / "0")
    for opened in (store, open_store(copy)):
        found = read_all(opened, "T", 0)
        assert [text in record for text, record in zip((b"first", b"second", b"third"), found, strict=True)] == [
            True
        ] * 3
        opened.close()


@pytest.mark.parametrize(
    ("owner", "step", "held"),
    [
        (QueueTable, "leave", ("_dispatch_lock", "_append_lock")),
        (Deletions, "add", ("_deletion_lock",)),
        (Dispatcher, "unlist", ("_deletion_lock", "_dispatch_lock", "_append_lock")),
        (QueueTable, "remove_left", ("_deletion_lock", "_append_lock")),
    ],
)
def test_nobody_else_is_at_work_while_a_topic_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, held: tuple[str, ...]
) -> None:
    """Nobody puts into it or shows it as it leaves; one deletion ends at a time, also of what one before has left."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic="gone")])
    free: list[bool] = []
    honest = getattr(owner, step)

    def watched(self: object, *args: object) -> object:
        for lock in (getattr(store, name) for name in held):
            free.append(lock.acquire(blocking=False))
            if free[-1]:
                lock.release()
        return honest(self, *args)

    monkeypatch.setattr(owner, step, watched)
    store.delete_topic("gone")
    store.delete_topic("gone")
    assert free
    assert not any(free)

"""Which files a deletion or the retention removes, and what recovery and readers find after the removal."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all, result_of
from model_tests.support.faults import raising
from model_tests.support.store import index_all, killed
from msgspec import structs

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError, TopicLeavingError
from longpoll_broker.store import queue_builder
from longpoll_broker.store.consume_queue import QueueTable
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import GetStatus
from longpoll_broker.store.queue_builder import QueueBuilder
from longpoll_broker.store.retention import HOUR_MS, REMOVED_COUNT_MAX, Deletions, count_expired, is_hour
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.store.verify import verify
from longpoll_broker.upkeep.flush_service import DELAY_MS, Retention
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime

NOW_MS = 1_800_000_000_000
HOUR_NOW = f"{dt.datetime.fromtimestamp(NOW_MS / 1000).astimezone().hour:02}"
ANOTHER_HOUR = f"{(int(HOUR_NOW) + 1) % 24:02}"
CONFIG = evolve(SMALL, delete_when=HOUR_NOW, file_reserved_hours=1, disk_ratio_max=75)
FOR_EVER = 2**60


@pytest.fixture
def segments(tmp_path: Path) -> SegmentList:
    made = SegmentList(RealFiles(), str(tmp_path / "log"), 10)
    for start in range(0, 150, 10):
        made.append(start)
    return made


def counted(
    segments: SegmentList, config: StoreConfig = CONFIG, *, needed_from: int = 1000, used: float = 0.5, old: int = 15
) -> int:
    """Returns how many files the retention may remove if `old` of them have expired."""

    def changed_ms(path: str) -> int:
        return NOW_MS - HOUR_MS + (0 if int(Path(path).name) // 10 < old else 1)

    return count_expired(config, segments.segments, needed_from, now_ms=NOW_MS, used_ratio=used, changed_ms=changed_ms)


def test_which_expired_files_are_removed(segments: SegmentList) -> None:
    """Expired files are removed at the set hour or on a filling disk, other files on a full disk; ten per call."""
    waiting = evolve(CONFIG, delete_when=ANOTHER_HOUR)
    assert (counted(segments), counted(segments, old=4)) == (REMOVED_COUNT_MAX, 4)
    assert (counted(segments, waiting), counted(segments, waiting, used=0.75)) == (0, 0)
    assert counted(segments, waiting, used=0.76) == REMOVED_COUNT_MAX
    assert counted(segments, waiting, used=0.76, old=4) == 4
    assert counted(segments, waiting, used=0.85, old=0) == 0
    assert counted(segments, waiting, used=0.86, old=0) == REMOVED_COUNT_MAX
    assert counted(segments, evolve(waiting, clean_forcibly=False), used=0.86, old=0) == 0
    assert (counted(segments, needed_from=35), counted(segments, needed_from=0)) == (3, 0)
    segments.remove(12)
    assert ([each.start for each in segments.segments], counted(segments)) == ([120, 130, 140], 2)


@pytest.mark.parametrize("hours", ["04", "4", "00;04;16"])
def test_the_deletion_hours_are_parsed(hours: str) -> None:
    four = int(dt.datetime(2026, 1, 1, 4, 59).astimezone().timestamp() * 1000)
    assert is_hour(hours, four)
    assert not is_hour(hours, four + HOUR_MS)


def make_old(store: Path, count: int) -> None:
    for path in sorted((store / "commitlog").iterdir())[:count]:
        changed_s = path.stat().st_mtime - 24 * 3600
        os.utime(path, (changed_s, changed_s))


@pytest.fixture
def any_hour() -> StoreConfig:
    return evolve(CONFIG, delete_when=";".join(str(hour) for hour in range(24)), clean_forcibly=False)


def test_queues_and_index_follow_the_log(tmp_path: Path, any_hour: StoreConfig) -> None:
    store = open_store(tmp_path, any_hour)
    put, _arrivals = put_and_dispatch(
        store, [message(queue_id=index % 2, properties={"KEYS": f"k{index}"}) for index in range(200)]
    )
    index_all(store)
    held = store.get("T", 0, 0, 5)
    before = [bytes(view) for view in held.records]
    store.flush()
    make_old(tmp_path, 6)
    assert (store.remove_expired(), store.remove_expired()) == (6, 0)
    assert store.log_start == 6 * SMALL.commit_log_file_size
    assert [bytes(view) for view in held.records] == before
    del held
    left = [result for result in put if result.physical_offset >= store.log_start]
    for queue_id in range(2):
        expected = [index for index in range(100) if put[2 * index + queue_id].physical_offset >= store.log_start]
        assert store.visible_start("T", queue_id) == expected[0] > 10
        assert len(read_all(store, "T", queue_id)) == len(expected)
        assert store.get("T", queue_id, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
    names = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir())
    assert int(names[0]) > 0
    last = len(put) - 1
    assert len(result_of(store.query("T", f"k{last}", 64, 0, FOR_EVER))[0].records) == 1
    assert result_of(store.query("T", "k0", 64, 0, FOR_EVER))[0].records == []
    store.close()
    verdict = verify(RealFiles(), str(tmp_path))
    assert (verdict.problems, verdict.messages) == ([], len(left))
    for crashed in (False, True):
        if crashed:
            (tmp_path / "abort").touch()
        store = open_store(tmp_path, any_hour)
        assert sum(len(read_all(store, "T", queue_id)) for queue_id in range(2)) == len(left)
        store.close()


def test_a_removed_file_stays_removed(tmp_path: Path, any_hour: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not restore the messages of a deleted topic, so the deletion is recorded on disk."""
    store = open_store(tmp_path, any_hour)
    put_and_dispatch(store, [message() for _ in range(100)])
    index_all(store)
    store.flush()
    make_old(tmp_path, 2)
    log, done = str(tmp_path / "commitlog"), list[str]()
    remove, sync = RealFiles.remove, RealFiles.sync_directory

    def removed(files: RealFiles, path: str) -> None:
        if path.startswith(log):
            done.append("removed")
        remove(files, path)

    def synced(files: RealFiles, path: str) -> None:
        if path == log:
            done.append("synced")
        sync(files, path)

    monkeypatch.setattr(RealFiles, "remove", removed)
    monkeypatch.setattr(RealFiles, "sync_directory", synced)
    assert (store.remove_expired(), done[-4:]) == (2, ["removed", "synced"] * 2)


def test_undispatched_and_unindexed_files_are_not_removed(tmp_path: Path, any_hour: StoreConfig) -> None:
    store = open_store(tmp_path, any_hour)
    for index in range(200):
        store.put(message(properties={"KEYS": f"k{index}"}))
    make_old(tmp_path, 5)
    store.flush()
    assert store.remove_expired() == 0
    while store.dispatched_end < store.log_end:
        store.dispatch(50)
    assert store.remove_expired() == 0
    index_all(store)
    assert store.remove_expired() == 5


class Clock(RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.monotonic_ns: Callable[[], int] = lambda: self.now_ns


def test_the_service_waits_and_retries(tmp_path: Path, any_hour: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service runs a minute after the start and then every ten seconds."""
    clock = Clock()
    store = MessageStore.open(clock, str(tmp_path), any_hour)
    asked: list[int] = []

    def remove_expired(_store: MessageStore, *, at_any_hour: bool) -> int:
        assert not at_any_hour
        asked.append(clock.now_ns // 1_000_000)
        if len(asked) == 1:
            raise OSError("the disk failed")
        return 1

    monkeypatch.setattr(MessageStore, "remove_expired", remove_expired)
    service = Retention(clock, store, any_hour.clean_period_ms)
    for moment_ms in range(0, DELAY_MS + 30_000, 500):
        clock.now_ns = moment_ms * 1_000_000
        service.run_if_due()
    assert asked == [60_000, 70_000, 80_000]


def queue_files(store: Path, topic: str) -> list[Path]:
    return sorted((store / "consumequeue" / topic).glob("*/*"))


def test_a_recreated_topic_begins_at_offset_zero(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic=topic) for topic in ("gone", "kept", "gone")])
    before = store.get("gone", 0, 0, 32)
    record = bytes(before.records[0])
    store.delete_topic("gone")
    store.delete_topic("gone")
    store.delete_topic("never")
    assert queue_files(tmp_path, "gone") == []
    assert (store.visible_start("gone", 0), store.visible_end("gone", 0)) == (0, 0)
    assert (store.visible_end("kept", 0), bytes(before.records[0])) == (1, record)
    put_and_dispatch(store, [message(topic="gone", body=b"again")])
    assert [b"again" in found for found in read_all(store, "gone", 0)] == [True]
    store.flush_queues()
    del before
    store.close()
    store = open_store(tmp_path)
    assert [b"again" in found for found in read_all(store, "gone", 0)] == [True]


@pytest.mark.parametrize("handed", [True, False])
def test_a_dispatch_during_a_deletion_creates_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, handed: bool
) -> None:
    if not handed:
        monkeypatch.setattr(queue_builder, "HANDED_COUNT_MAX", 0)
    store = open_store(tmp_path)
    for topic in ("gone", "kept"):
        store.put(message(topic=topic))
    store.delete_topic("gone")
    store.put(message(topic="gone", body=b"new"))
    arrivals = [(each.topic, each.offset_end) for each in store.dispatch(100)]
    assert arrivals == [("kept", 1), ("gone", 1)]
    assert [b"new" in found for found in read_all(store, "gone", 0)] == [True]


def test_a_deleted_topic_stays_deleted_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path / "0")
    put_and_dispatch(store, [message(topic=topic) for topic in ("gone", "kept", "again")])
    for topic in ("gone", "again"):
        store.delete_topic(topic)
    put_and_dispatch(store, [message(topic="again", body=b"new")])
    copy = killed(tmp_path / "0")
    store.abandon()
    for number in (1, 2):
        store = open_store(copy)
        assert store.queues() == [("again", 0), ("kept", 0)]
        assert [b"new" in found for found in read_all(store, "again", 0)] == [True]
        copy = killed(copy, str(number))
        store.abandon()


def test_old_notes_of_deletions_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic="gone")])
    store.delete_topic("gone")
    store.close()
    store = open_store(tmp_path, evolve(SMALL, file_reserved_hours=0))
    assert (tmp_path / "deletedTopics.json").exists()
    put_and_dispatch(store, [message(body=b"b" * 700)] * 3)
    store.flush()
    index_all(store)
    assert store.remove_expired(at_any_hour=True) > 0
    store.close()
    open_store(tmp_path).close()
    assert not (tmp_path / "deletedTopics.json").exists()
    (tmp_path / "deletedTopics.json").write_text("{")
    with pytest.raises(StoreUserError, match="move it away"):
        open_store(tmp_path)


@pytest.mark.parametrize("visible", [True, False], ids=["visible", "not visible yet"])
def test_a_deleted_additional_queue_stays_deleted(tmp_path: Path, visible: bool) -> None:
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


def test_a_topic_being_deleted_is_neither_found_nor_written(tmp_path: Path) -> None:
    store = open_store(tmp_path, evolve(SMALL, multi_dispatch=True))
    put_and_dispatch(store, [message(topic="gone", body=b"old")])
    store.put(message(topic="gone", body=b"not visible yet"))
    store.begin_deletion("gone")
    store.begin_deletion("gone")
    assert store.ends("gone", 0) == (0, 0)
    further = structs.replace(message("kept", properties={"INNER_MULTI_DISPATCH": "gone"}), inner_queues=(("gone", 0),))
    for refused in (message(topic="gone"), further):
        with pytest.raises(TopicLeavingError, match="is deleting the topic"):
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
def test_a_deletion_fails_if_its_note_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, handed: bool
) -> None:
    if not handed:
        monkeypatch.setattr(queue_builder, "HANDED_COUNT_MAX", 0)
    store = open_store(tmp_path / "0")
    put_and_dispatch(store, [message(topic="T", body=b"first")])
    store.put(message(topic="T", body=b"second"))
    store.begin_deletion("T")
    store.dispatch(10)
    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "_write", raising(OSError(5, "Input/output error")))
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
        (QueueBuilder, "unlist", ("_deletion_lock", "_dispatch_lock", "_append_lock")),
        (QueueTable, "remove_left", ("_deletion_lock", "_append_lock")),
    ],
)
def test_a_deletion_holds_the_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, held: tuple[str, ...]
) -> None:
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

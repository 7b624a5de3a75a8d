"""The store's public methods on small files, without injected faults."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all, result_of
from model_tests.support.present import present
from model_tests.support.store import Clock, index_all, killed
from msgspec import structs

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store import queue_builder
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import GetStatus, MessageToStore, QueryResult
from longpoll_broker.store.recovery import Checkpoint, load_checkpoint
from longpoll_broker.store.segment import SegmentList
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import SYS_FLAG_TRANSACTION_MASK, property_of
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.properties import encode_properties, tags_code
from longpoll_runtime.files import RealFiles

PREPARED = 0x4
ROLLED_BACK = SYS_FLAG_TRANSACTION_MASK
LIGHT = "%LMQ%a"
MULTI = evolve(SMALL, multi_dispatch=True, light_queues=True)
EVERY_HOUR = ";".join(str(hour) for hour in range(24))
EXPIRING = evolve(SMALL, delete_when=EVERY_HOUR, file_reserved_hours=0, clean_forcibly=False)
BIG = b"b" * 700
"""Two records with this body fill a file of the log."""


def opened(clock: Clock, directory: Path, config: StoreConfig = SMALL) -> MessageStore:
    return MessageStore.open(clock, str(directory), config)


def checkpoint_of(directory: Path) -> Checkpoint:
    return load_checkpoint(RealFiles(), str(directory / "checkpoint"))


def test_a_new_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (store.directory, store.message_size_max) == (str(tmp_path), SMALL.message_size_max)
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path, evolve(SMALL, index=False))
    found = store.get("T", 0, 7, 32)
    numbers = (found.offset_next, found.offset_min, found.offset_max, found.size_bytes)
    assert (found.status, numbers) == (GetStatus.NO_MESSAGE_IN_QUEUE, (0, 0, 0, 0))
    assert (store.ends("T", 0), store.offset_by_time("T", 0, 5)) == ((0, 0), 0)
    assert (store.unit("T", 0, 0), store.store_ms_of("T", 0, 0), store.properties_at("T", 0, 0)) == (None, None, None)
    assert (store.read_record(0), store.record_at(0)) == (None, None)
    assert result_of(store.query("T", "k", 64, 0, 2**60))[0] == QueryResult([], 0, 0)
    assert (store.waiting(), store.dispatchable_end, store.index(1), store.remove_expired()) == ([], 0, True, 0)
    store.flush_queues()
    assert checkpoint_of(tmp_path) == Checkpoint()


def test_waiting_messages_have_their_later_arrivals(tmp_path: Path) -> None:
    """`waiting` returns the arrival events that `dispatch` returns later; a prepared message has no arrival event."""
    store = open_store(tmp_path)
    store.put(message())
    store.put_burst([message(), message()])
    store.put_batch([message(queue_id=1)])
    store.put(message(sys_flag=PREPARED))
    waiting = store.waiting()
    assert [(each.queue_id, each.offset_end) for each in waiting] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert (store.dispatchable_end, store.dispatched_end) == (store.log_end, 0)
    assert store.dispatch(10) == waiting
    assert (store.waiting(), store.dispatched_end) == ([], store.log_end)


def test_only_durable_messages_become_visible_if_configured(tmp_path: Path) -> None:
    """If the configuration makes only durable messages visible, no message is visible before a flush."""
    config = evolve(SMALL, visible_when_durable=True)
    store = open_store(tmp_path, config)
    first = store.put(message())
    assert (store.dispatchable_end, store.dispatch(10), store.visible_end("T", 0)) == (0, [], 0)
    assert store.flush() == first.log_end
    store.put(message())
    assert store.dispatchable_end == first.log_end
    assert (len(store.dispatch(10)), store.visible_end("T", 0)) == (1, 1)
    store.close()
    store = open_store(tmp_path, config)
    assert store.visible_end("T", 0) == 2


def test_the_memory_size_comes_from_the_system(tmp_path: Path) -> None:
    """Without a configured memory size the store reads the size from the operating system."""
    for memory_size, count in ((0, 6), (1_000, 2)):
        config = evolve(
            SMALL, commit_log_file_size=8192, memory_size=memory_size, transfer_count_max_on_disk=2,
            transfer_count_max_in_memory=9,
        )  # fmt: skip
        store = opened(Clock(), tmp_path / str(memory_size), config)
        put_and_dispatch(store, [message(body=b"b" * 200)] * 6)
        found = store.get("T", 0, 0, 32)
        assert (len(found.offsets), found.suggest_slave) == (count, memory_size > 0)
        del found
        store.close()


def test_records_and_units_by_their_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put, _arrivals = put_and_dispatch(store, [message(tag="red"), message()])
    for physical_offset in (-1, 1, put[1].physical_offset - 1, store.log_end):
        assert (store.read_record(physical_offset), store.record_at(physical_offset)) == (None, None)
    record = present(store.read_record(put[1].physical_offset))
    assert (record.queue_offset, record.size) == (1, put[1].size)
    assert store.unit("T", 0, 0) == (0, put[0].size, tags_code("red"))
    assert (store.unit("T", 0, 2), store.unit("T", 1, 0)) == (None, None)
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path, evolve(SMALL, extended_queues=True, extended_file_size=200))
    (only,), _arrivals = put_and_dispatch(store, [message(tag="red")])
    queue = present(store._table.find("T", 0))
    view = queue.segments.segments[0].view
    view[12:20] = (-(2**63) + 10_000).to_bytes(8, signed=True)
    assert store.unit("T", 0, 0) == (0, only.size, tags_code("red"))
    view[0:8] = store.log_end.to_bytes(8, signed=True)
    assert store.unit("T", 0, 0) == (store.log_end, only.size, 0)


def test_a_search_by_time_uses_the_requested_queue(tmp_path: Path) -> None:
    clock = Clock()
    store = opened(clock, tmp_path)
    for number in range(5):
        clock.now_ms = 1_000 + 100 * number
        store.put(message())
    store.dispatch(10)
    assert [store.offset_by_time("T", 0, time_ms) for time_ms in (0, 1_000, 1_120, 1_390, 1_400, 9_000)] == [
        0, 0, 1, 4, 4, 4,
    ]  # fmt: skip
    assert store.offset_by_time("T", 1, 1_400) == 0


@pytest.mark.parametrize("reads", ["the unit", "the queue"])
def test_an_extended_queue_that_is_switched_off_hides_no_message(tmp_path: Path, reads: str) -> None:
    """The units still contain addresses of extended units instead of tags, so readers check the tag in the record."""
    extended = evolve(SMALL, extended_queues=True, extended_file_size=200)
    store = open_store(tmp_path, extended)
    put_and_dispatch(store, [message(tag="red"), message(tag="blue"), message()])
    store.close()
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(tag="red"), message(tag="blue")])
    if reads == "the unit":
        units = [store.unit("T", 0, offset) for offset in range(5)]
        codes = [unit[2] for unit in units if unit is not None]
        assert codes == [tags_code(tag) for tag in ("red", "blue", None, "red", "blue")]
    else:
        found = store.get("T", 0, 0, 32, (lambda code: code == tags_code("red"), None))
        assert found.offsets == [0, 1, 2, 3]
        del found


@pytest.mark.parametrize("sys_flag", [PREPARED, ROLLED_BACK])
def test_a_message_that_no_queue_lists_has_offset_0(tmp_path: Path, sys_flag: int) -> None:
    store = open_store(tmp_path)
    puts = [store.put(message(sys_flag=flag)) for flag in (sys_flag, 0, 0, sys_flag, 0)]
    assert [put.queue_offset for put in puts] == [0, 0, 1, 0, 2]
    assert [arrival.offset_end for arrival in store.dispatch(1)] == []
    assert store.visible_end("T", 0) == 0
    assert [arrival.offset_end for arrival in store.dispatch(10)] == [1, 2, 3]
    record = present(store.read_record(puts[3].physical_offset))
    assert (record.queue_offset, record.sys_flag & SYS_FLAG_TRANSACTION_MASK) == (0, sys_flag)


def listed(names: str, *places: tuple[str, int], **properties: str) -> MessageToStore:
    made = message("T", 1, properties={"INNER_MULTI_DISPATCH": names, **properties})
    return structs.replace(made, inner_queues=places)


def test_additional_queues_of_a_message(tmp_path: Path) -> None:
    """A message in several queues has an offset in each queue, and its record contains all these offsets."""
    store = open_store(tmp_path, MULTI)
    store.put(message(LIGHT))
    puts = [store.put(listed(f"{LIGHT},B", (LIGHT, 0), ("B", 1))) for _ in range(3)]
    store.put(message("B", 1))
    assert [put.queue_offset for put in puts] == [0, 1, 2]
    records = [store.read_record(put.physical_offset) for put in puts]
    told = [property_of(record.properties, "INNER_MULTI_QUEUE_OFFSET") for record in records if record is not None]
    assert told == ["1,0", "2,1", "3,2"]
    while store.dispatched_end < store.log_end:
        store.dispatch(10)
    assert [store.visible_end(*place) for place in ((LIGHT, 0), ("B", 1), ("T", 1))] == [4, 4, 3]
    for offset, put in enumerate(puts):
        for place in ((LIGHT, 0, offset + 1), ("B", 1, offset), ("T", 1, offset)):
            unit = present(store.unit(*place))
            assert unit[0] == put.physical_offset
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path, MULTI)
    store.put(listed(LIGHT, (LIGHT, 0), color="r\0"))
    record = present(store.read_record(0))
    assert b"\0" in record.properties
    assert not record.properties.endswith(b"\0")


def test_too_many_offsets_of_additional_queues_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, evolve(MULTI, commit_log_file_size=100_000))
    fixed = structs.replace(message("T", 1), inner_queues=((LIGHT, 0),))

    def put(filler: int) -> None:
        properties = {"INNER_MULTI_DISPATCH": LIGHT, "filler": "f" * filler}
        store.put(structs.replace(fixed, properties=encode_properties(properties).encode()))

    put(1)
    record = present(store.read_record(0))
    room = PROPERTIES_SIZE_MAX - len(record.properties)
    end = store.log_end
    with pytest.raises(MessageRefusedError, match="the properties with 1 inner queues do not fit a record"):
        put(room + 2)
    assert store.log_end == end
    put(room + 1)
    store.dispatch(10)
    assert (store.visible_end("T", 1), store.visible_end(LIGHT, 0)) == (2, 2)


@pytest.mark.parametrize("multi_dispatch", [True, False])
def test_unknown_additional_queues_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, multi_dispatch: bool
) -> None:
    monkeypatch.setattr(queue_builder, "HANDED_COUNT_MAX", 0)
    store = open_store(tmp_path, evolve(SMALL, multi_dispatch=multi_dispatch, light_queues=True))
    properties = {"INNER_MULTI_DISPATCH": LIGHT, "INNER_MULTI_QUEUE_OFFSET": "0"}
    put_and_dispatch(store, [message(properties=properties)])
    assert store.queues() == ([(LIGHT, 0)] if multi_dispatch else []) + [("T", 0)]


def test_checkpoints(tmp_path: Path) -> None:
    """The checkpoint stores the times up to which log and queues are durable, and these times never decrease."""
    clock = Clock()
    store = opened(clock, tmp_path)
    starts = []
    for now_ms in (1_000, 2_000, 3_000):
        clock.now_ms = now_ms
        starts.append(store.put(message()).physical_offset)
    store.flush_queues()
    assert (checkpoint_of(tmp_path), len(store.dispatch(2))) == (Checkpoint(3_000), 2)
    store.flush_queues()
    assert checkpoint_of(tmp_path) == Checkpoint(3_000, 2_000, 0, durable_offset=starts[1], queue_file_count=1)
    store.flush()
    assert store.dispatch(0) == []
    store.flush_queues()
    assert checkpoint_of(tmp_path) == Checkpoint(3_000, 2_000, 0, durable_offset=starts[1], queue_file_count=1)
    store.close()
    assert checkpoint_of(tmp_path) == Checkpoint(3_000, 3_000, 0, durable_offset=starts[2], queue_file_count=1)
    store = opened(clock, tmp_path)
    store.flush_queues()
    assert checkpoint_of(tmp_path) == Checkpoint(3_000, 3_000, 0, durable_offset=starts[2], queue_file_count=1)
    # No queue lists the prepared message, so a recovery may skip its record.
    clock.now_ms = 4_000
    unlisted = store.put(message(sys_flag=PREPARED)).physical_offset
    store.close()
    assert checkpoint_of(tmp_path) == Checkpoint(4_000, 4_000, 0, durable_offset=unlisted, queue_file_count=1)
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path, evolve(SMALL, index=False))
    put_and_dispatch(store, [message(properties={"KEYS": "k"})])
    store.flush()
    store.flush_queues()
    found = checkpoint_of(tmp_path)
    assert (found.physic_ms > 0, found.logics_ms, found.index_ms) == (True, found.physic_ms, 0)


def maps_of(directory: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return sorted({line.rpartition(" ")[2] for line in lines if str(directory) in line})


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_closed_store_keeps_nothing_open(tmp_path: Path, end: str) -> None:
    store = open_store(tmp_path, evolve(SMALL, extended_queues=True, extended_file_size=200))
    put_and_dispatch(store, [message(properties={"KEYS": "k"})])
    store.index(10)
    mapped = {name.split("/")[len(tmp_path.parts) - 1 + 1] for name in maps_of(tmp_path)}
    assert mapped == {"commitlog", "consumequeue", "consumequeue_ext", "index"}
    getattr(store, end)()
    assert maps_of(tmp_path) == []
    open_store(tmp_path, evolve(SMALL, extended_queues=True, extended_file_size=200)).close()


@pytest.mark.parametrize("first", ["close", "abandon"])
def test_closing_a_store_twice_has_no_effect(tmp_path: Path, first: str) -> None:
    store = open_store(tmp_path)
    getattr(store, first)()
    other = open_store(tmp_path)
    store.abandon()
    store.close()
    assert (tmp_path / "abort").exists()
    with pytest.raises(StoreUserError, match="is in use"):
        open_store(tmp_path)
    other.close()


def test_notes_of_deletions(tmp_path: Path) -> None:
    """A note of a deletion is removed with the log files that precede the note."""
    store = open_store(tmp_path)
    store.put(message())
    store.delete_topic("never")
    assert not (tmp_path / "deletedTopics.json").exists()
    (tmp_path := tmp_path / "next").mkdir()
    store = open_store(tmp_path, EXPIRING)
    put_and_dispatch(store, [message(topic) for topic in ("first", "second")])
    store.delete_topic("first")
    put_and_dispatch(store, [message(body=BIG)] * 4)
    store.delete_topic("second")
    assert "first" in (tmp_path / "deletedTopics.json").read_text("utf-8")
    store.flush()
    index_all(store)
    assert store.remove_expired() > 0
    store.delete_topic("T")
    text = (tmp_path / "deletedTopics.json").read_text("utf-8")
    assert ("first" in text, "second" in text) == (False, True)


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and created again"])
def test_an_interrupted_deletion_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool) -> None:
    """If a kill interrupts a deletion, the next start removes the topic's files and keeps other topics."""
    clock = Clock()
    store = opened(clock, tmp_path / "0")
    put_and_dispatch(store, [message(topic) for topic in ("gone", "kept", "other")])
    store.delete_topic("other")
    put_and_dispatch(store, [message(body=BIG)] * 4)
    clock.now_ms += 10_000
    put_and_dispatch(store, [message()])
    store.flush()
    store.flush_queues()
    with monkeypatch.context() as patch:
        patch.setattr(SegmentList, "remove", lambda _segments: None)
        store.delete_topic("gone")
    if again:
        put_and_dispatch(store, [message("other")])
    copy = killed(tmp_path / "0", "1")
    store.abandon()
    store = opened(clock, copy)
    assert store.queues() == [("T", 0), ("kept", 0)] + [("other", 0)] * again
    assert (len(read_all(store, "T", 0)), len(read_all(store, "kept", 0))) == (5, 1)
    assert list((copy / "consumequeue" / "gone").glob("*/*")) == []


def test_a_reopened_store_has_the_queues_minimum_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path, EXPIRING)
    put_and_dispatch(store, [message()] * 60)
    store.flush()
    store.index(1_000)
    assert store.remove_expired() > 0
    start = store.visible_start("T", 0)
    assert start > 0
    store.close()
    store = open_store(tmp_path, EXPIRING)
    assert store.ends("T", 0) == (start, 60)


def test_appending_a_prepared_batch_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    batch = store.prepare("T", 0)
    batch.add([message()])
    free: list[bool] = []
    honest = CommitLog.make_room

    def watched(log: CommitLog, size: int) -> None:
        free.append(store._append_lock.acquire(blocking=False))
        honest(log, size)

    monkeypatch.setattr(CommitLog, "make_room", watched)
    store.put_prepared(batch)
    assert free == [False]


def test_removing_log_files_holds_the_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, EXPIRING)
    locks = store._append_lock, store._dispatch_lock, store._flush_lock
    free: list[bool] = []
    honest = SegmentList.remove

    def watched(segments: SegmentList, count: int | None = None) -> None:
        free.extend(lock.acquire(blocking=False) for lock in locks)
        honest(segments, count)

    monkeypatch.setattr(SegmentList, "remove", watched)
    put_and_dispatch(store, [message(body=BIG)] * 6)
    store.flush()
    store.index(1_000)
    assert store.remove_expired() > 0
    assert free[:3] == [False] * 3


def test_index_files_are_removed_with_their_log_files(tmp_path: Path) -> None:
    for is_indexed in (True, False):
        directory = tmp_path / str(is_indexed)
        store = open_store(directory, evolve(EXPIRING, index=is_indexed))
        put_and_dispatch(store, [message(properties={"KEYS": f"k{index}"}) for index in range(60)])
        index_all(store)
        before = sorted((directory / "index").iterdir()) if is_indexed else []
        store.flush()
        count = store.remove_expired()
        after = sorted((directory / "index").iterdir()) if is_indexed else []
        assert count > 0
        assert (len(after) < len(before)) == is_indexed
        assert set(after) <= set(before)
        store.close()


def test_a_queue_is_listed_before_its_message_is_visible(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        for queue_id in (1, 0):
            store.put(message("T", queue_id, b""))
        store.put(message("A", 0, b""))
        assert store.queues() == []
        assert store.all_queues() == [("A", 0), ("T", 0), ("T", 1)]
        store.dispatch(3)
        assert store.queues() == store.all_queues()


BROKER_LOCK: Final = """
import sys
from longpoll_runtime.files import RealFiles
try:
    RealFiles().lock(sys.argv[1])
except BlockingIOError:
    sys.exit(7)
"""
JAVA_LOCK: Final = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(7)
"""
"""A program that locks a file in the same way as Java's `FileChannel.tryLock`, and does not lock the directory."""


@pytest.mark.parametrize("program", [BROKER_LOCK, JAVA_LOCK], ids=["lock of this broker", "lock of Java"])
def test_copying_the_lock_file_keeps_the_lock(program: str, tmp_path: Path) -> None:
    """The lock is not a POSIX lock, which ends when its process closes any copy of the file."""
    store = open_store(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    locking = [sys.executable, "-c", program, str(tmp_path / "store" / "lock")]
    assert subprocess.run(locking, check=False).returncode == 7
    store.close()
    assert subprocess.run(locking, check=False).returncode == 0


def test_messages_are_private(tmp_path: Path) -> None:
    """Other users cannot read the store's files, whatever the umask permits."""
    before = os.umask(0)
    try:
        store = open_store(tmp_path / "made" / "store")
        put_and_dispatch(store, [message(properties={"KEYS": "k"})])
        store.close()
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "made").rglob("*") if each.is_file()}
    assert modes == {0o600}
    folders = [tmp_path / "made", *(each for each in (tmp_path / "made").rglob("*") if each.is_dir())]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}

"""After a crash a start finds exactly the complete records, and the queues match the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.plain.plain_store import read_log, read_queues
from model_tests.support.broker.stores import SMALL, message, mixed_messages, open_store, put_and_dispatch, read_all
from model_tests.support.examples import fewer
from model_tests.support.store import killed
from msgspec.structs import replace

from longpoll_broker.store import recovery
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.consume_queue import PRE_BLANK, UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.recovery import (
    SLACK_MS,
    Checkpoint,
    Recovered,
    decode_checkpoint,
    encode_checkpoint,
    load_checkpoint,
    of_the_past,
    recover,
    recover_clean,
    recover_crashed,
    safe_start,
    without_queues,
)
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import Damage, Record
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime


def assert_sound(directory: Path, messages: int) -> None:
    """Assert the number of messages, that log and queues match, and that a clean restart finds the same messages."""
    verdict = verify(RealFiles(), str(directory))
    assert (verdict.problems, verdict.messages) == ([], messages)
    store = open_store(directory)
    readable = sum(len(read_all(store, topic, queue_id)) for topic, queue_id in store.queues())
    store.close()
    assert readable == messages


@fewer(2)
@given(appended=st.integers(0, 60), dispatched=st.integers(0, 60), flushed=st.booleans(), queues_flushed=st.booleans())
def test_a_kill_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, appended: int, dispatched: int, flushed: bool, queues_flushed: bool
) -> None:
    root = tmp_path_factory.mktemp("kill")
    store = open_store(root / "store")
    for each in mixed_messages(appended):
        store.put(each)
    if dispatched:
        store.dispatch(dispatched)
    if flushed:
        store.flush()
    if queues_flushed:
        store.flush_queues()
    copy = killed(root / "store")
    store.abandon()
    opened = open_store(copy)
    assert sum(len(read_all(opened, topic, queue_id)) for topic, queue_id in opened.queues()) == appended
    opened.close()
    assert not (copy / "abort").exists()
    assert_sound(copy, appended)


def cut_places(directory: Path) -> tuple[list[int], int, int]:
    """Returns (ends of the records in the last log file, start of the third-last record, start of the file)."""
    records = read_log(directory)["records"]
    last = max(path.name for path in (directory / "commitlog").iterdir())
    ends = [each["physicalOffset"] + each["totalSize"] for each in records if each["physicalOffset"] >= int(last)]
    assert len(ends) >= 4
    return ends, ends[-4], int(last)


@pytest.mark.parametrize(
    ("is_cut", "step"),
    [(True, 11), (False, 17), *(pytest.param(is_cut, 1, marks=pytest.mark.long) for is_cut in (True, False))],
)
def test_recovery_of_a_log_truncated_at_any_byte(tmp_path: Path, is_cut: bool, step: int) -> None:
    """The last log file is truncated, or overwritten with zeros, from each byte of its last three records on."""
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, [message(queue_id=index % 2, body=b"\x01\xff\x02" * 5, tag="t") for index in range(15)])
    store.close()
    ends, first, base = cut_places(tmp_path / "store")
    before = len(read_log(tmp_path / "store")["records"]) - 3
    for position in sorted({*range(first, ends[-1] + 1, step), *ends[-4:]}):
        copy = killed(tmp_path / "store", "cut")
        (copy / "abort").touch()
        path = copy / "commitlog" / f"{base:020d}"
        content = path.read_bytes()[: position - base]
        path.write_bytes(content if is_cut else content.ljust(SMALL.commit_log_file_size, b"\0"))
        lost = verify(RealFiles(), str(copy))
        assert {problem.kind for problem in lost.problems} <= {"tail"}, (position, lost.problems)
        assert lost.problems or position == ends[-1], position
        opened = open_store(copy)
        kept = max(end for end in ends if end <= position)
        assert opened.log_end == kept, position
        readable = sum(len(read_all(opened, topic, queue_id)) for topic, queue_id in opened.queues())
        assert readable == before + sum(first < end <= kept for end in ends), position
        opened.close()
        assert verify(RealFiles(), str(copy)).problems == [], position


def test_queues_are_rebuilt_from_the_safe_point(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, mixed_messages(50))
    store.close()
    before = read_queues(tmp_path / "store")
    (tmp_path / "store" / "abort").touch()
    (tmp_path / "store" / "checkpoint").unlink()
    for path in (tmp_path / "store" / "consumequeue").glob("*/*/*"):
        content = bytearray(path.read_bytes())
        content[UNIT_SIZE : 2 * UNIT_SIZE] = bytes(UNIT_SIZE)
        content[0] ^= 0x7F
        path.write_bytes(content)
    open_store(tmp_path / "store").close()
    assert read_queues(tmp_path / "store") == before
    assert_sound(tmp_path / "store", 50)


def test_a_queue_that_begins_later(tmp_path: Path) -> None:
    """When the log's oldest files are gone, rebuilt queues begin with pre-blank units, as Java's do."""
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, [message(queue_id=index % 2, body=b"x" * 50) for index in range(60)])
    store.close()
    logs = sorted((tmp_path / "store" / "commitlog").iterdir())
    for path in logs[:2]:
        path.unlink()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    first = min(record["queueOffset"] for record in read_log(tmp_path / "store")["records"] if not record["queueId"])
    store = open_store(tmp_path / "store")
    assert (store.visible_start("T", 0), store.visible_end("T", 0)) == (first, 30)
    assert len(read_all(store, "T", 0)) == 30 - first
    assert store.get("T", 0, first - 1, 32).offset_next == first
    store.close()
    verdict = verify(RealFiles(), str(tmp_path / "store"))
    assert verdict.problems == []
    assert {(each.offset_min, each.offset_max) for each in verdict.queues} == {(first, 30)}


def test_the_checkpoint_determines_where_recovery_begins(tmp_path: Path) -> None:
    """Recovery begins at the newest file whose first record is at least 3 s older than the checkpoint."""
    log = CommitLog(RealFiles(), str(tmp_path), SMALL.commit_log_file_size)
    for index in range(60):
        log.append(message(body=b"x" * 100), b"\x01T", index, 10_000 + 1000 * index)
    starts = [segment.start for segment in log.segments.segments]
    stored = {start: int.from_bytes(log.segments.segments[index].view[56:64]) for index, start in enumerate(starts)}
    assert recovery.safe_start(log, Checkpoint()) == 0
    for start in starts:
        exact = Checkpoint(stored[start] + 3000, stored[start] + 9000)
        assert recovery.safe_start(log, exact) == start
        assert recovery.safe_start(log, Checkpoint(exact.physic_ms - 1, exact.logics_ms)) == max(0, start - 2048)
    log.segments.close()


def test_a_checkpoint_names_a_durable_record(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", evolve(SMALL, commit_log_file_size=65_536))
    put, _arrivals = put_and_dispatch(store, mixed_messages(20))
    store.put(message())
    store.flush_queues()
    path = tmp_path / "store" / "checkpoint"
    told = load_checkpoint(RealFiles(), str(path))
    assert told.durable_offset == put[-1].physical_offset
    store.put(message())
    copy = killed(tmp_path / "store")
    store.abandon()
    log = CommitLog(RealFiles(), str(copy / "commitlog"), 65_536)
    told = evolve(told, queue_file_count=0)
    assert recovery.believed(log, [], told, had_queues=True, crashed=True) == told
    assert recovery.recover_crashed(log, [], told).cursor == put[-1].physical_offset
    for wrong in ({"durable_offset": offset} for offset in (put[-1].physical_offset + 1, log.end, 10**9)):
        less = recovery.believed(log, [], evolve(told, **wrong), had_queues=True, crashed=True)
        assert less == evolve(told, durable_offset=-1)
        assert recovery.recover_crashed(log, [], less).cursor == 0
    less = recovery.believed(log, [], evolve(told, queue_file_count=1), had_queues=True, crashed=True)
    assert less.durable_offset == -1
    assert recovery.believed(log, [], told, had_queues=False, crashed=True) == without_queues(told)
    log.segments.close()
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    assert decode_checkpoint(bytes(content)).durable_offset == -1


def test_a_checkpoint_of_another_log_is_ignored(tmp_path: Path) -> None:
    config = evolve(SMALL, commit_log_file_size=65_536)
    store = open_store(tmp_path / "store", config)
    put_and_dispatch(store, mixed_messages(20))
    store.close()
    assert load_checkpoint(RealFiles(), str(tmp_path / "store" / "checkpoint")).durable_offset > 0
    for part in ("commitlog", "consumequeue"):
        shutil.rmtree(tmp_path / "store" / part)
    store = open_store(tmp_path / "store", config)
    store.flush_queues()
    assert load_checkpoint(RealFiles(), str(tmp_path / "store" / "checkpoint")).durable_offset == -1


def test_recovery_skips_durable_records_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_800_000_000_000]
    monkeypatch.setattr(RealRuntime, "unix_ms", lambda _: clock[0])
    config = evolve(SMALL, commit_log_file_size=65_536)
    store = open_store(tmp_path / "store", config)
    for _ in range(2):
        put_and_dispatch(store, mixed_messages(100))
        clock[0] += 10_000
    put_and_dispatch(store, mixed_messages(5))
    store.flush()
    store.flush_queues()
    put_and_dispatch(store, mixed_messages(5))
    copy, bare = killed(tmp_path / "store"), killed(tmp_path / "store", "bare")
    expected = {queue: read_all(store, *queue) for queue in store.queues()}
    expected = {queue: [bytes(each) for each in found] for queue, found in expected.items()}
    store.abandon()
    shutil.rmtree(bare / "consumequeue")
    read, count = CommitLog.read, [0]

    def counted(log: CommitLog, physical_offset: int) -> Record | int | Damage | None:
        count[0] += 1
        return read(log, physical_offset)

    monkeypatch.setattr(CommitLog, "read", counted)
    for directory, limit in ((copy, 100), (bare, 1_000)):
        count[0] = 0
        opened = open_store(directory, config)
        assert count[0] < limit
        assert {queue: [bytes(each) for each in read_all(opened, *queue)] for queue in opened.queues()} == expected
        opened.close()
        assert verify(RealFiles(), str(directory)).problems == []


@given(st.lists(st.integers(0, 2**62), min_size=5, max_size=5))
def test_a_checkpoint_equals_its_decoded_encoding(fields: list[int]) -> None:
    checkpoint = Checkpoint(*fields)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    assert encode_checkpoint(checkpoint)[40:] == bytes(4056), "the checkpoint ends as in RocketMQ"
    ours = evolve(checkpoint, durable_offset=fields[0], queue_file_count=fields[1])
    assert decode_checkpoint(encode_checkpoint(ours)) == ours
    assert encode_checkpoint(ours)[:4056] == encode_checkpoint(checkpoint)[:4056]
    assert decode_checkpoint(encode_checkpoint(checkpoint)[:40]) == checkpoint
    assert decode_checkpoint(encode_checkpoint(checkpoint)[:39]) == Checkpoint()


LOG_SIZE = 2048
QUEUE_SIZE = 10 * UNIT_SIZE
BODY = b"x" * 600
"""Two records with this body fill a file of the log."""
QUEUE_OFFSET_AT = 20
"""The position of the queue offset in a record, in bytes."""
LACKING = b"a\x01" + bytes(4)
"""Properties whose last bytes were never written to the disk and so are zeros."""


def test_an_empty_newest_queue_file_is_dropped(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, [message() for _ in range(10)])
    store.close()
    for crashed in (False, True):
        (tmp_path / "store" / "consumequeue" / "T" / "0" / f"{200:020d}").write_bytes(bytes(0 if crashed else 200))
        if crashed:
            (tmp_path / "store" / "abort").touch()
        open_store(tmp_path / "store").close()
        assert_sound(tmp_path / "store", 10)


def test_units_of_records_that_the_log_has_lost_are_removed(tmp_path: Path) -> None:
    """If the log ends early and no checkpoint contradicts this end, any start removes the units without a record."""
    store = open_store(tmp_path)
    kept, _ = put_and_dispatch(store, [message("T", 0), *(message("T", 1) for _ in range(10)), message("T", 0)])
    lost, _ = put_and_dispatch(store, [message("T", queue_id) for queue_id in (0, 1, 1, 2, 2, 0)])
    assert len(kept) + len(lost) == 18
    store.close()
    # The first lost record is damaged, and all records before it are intact.
    file = max(path for path in (tmp_path / "commitlog").iterdir() if int(path.name) <= lost[0].physical_offset)
    content = bytearray(file.read_bytes())
    position = lost[0].physical_offset - int(file.name)
    content[position : position + 8] = bytes(8)
    file.write_bytes(content)
    (tmp_path / "checkpoint").unlink()
    opened = open_store(tmp_path)
    assert opened.log_end == lost[0].physical_offset
    assert [opened.visible_end("T", queue_id) for queue_id in range(3)] == [2, 10, 0]
    again, _ = put_and_dispatch(opened, [message("T", queue_id, b"again") for queue_id in range(3)])
    assert [result.queue_offset for result in again] == [2, 10, 0]
    assert all(b"again" in read_all(opened, "T", queue_id)[-1] for queue_id in range(3))
    opened.close()
    assert_sound(tmp_path, 15)


def log_of(directory: Path, *store_times_ms: int, body: bytes = BODY, lacking: int | None = None) -> CommitLog:
    """A log of records with these store times; the record at `lacking` has a sector of zeros."""
    log = CommitLog(RealFiles(), f"{directory}/commitlog", LOG_SIZE)
    for index, store_ms in enumerate(store_times_ms):
        each = message(body=body)
        each = replace(each, properties=LACKING) if index == lacking else each
        log.append(each, b"\x01T", index, store_ms)
    return log


def records_of(log: CommitLog) -> list[Record]:
    found: list[Record] = []
    position = log.start
    while (each := log.read(position)) is not None:
        assert not isinstance(each, Damage)
        if isinstance(each, Record):
            found.append(each)
        position = each if isinstance(each, int) else position + each.size
    return found


def queue_of(directory: Path, *records: tuple[int, int]) -> ConsumeQueue:
    queue = ConsumeQueue(SegmentList(RealFiles(), f"{directory}/consumequeue/T/0", QUEUE_SIZE), "T", 0)
    for offset, (physical_offset, size) in enumerate(records):
        queue.put(Arrival("T", 0, offset + 1, 0, 0, physical_offset, size))
    return queue


def listing(directory: Path, log: CommitLog) -> ConsumeQueue:
    return queue_of(directory, *((each.physical_offset, each.size) for each in records_of(log)))


def standing(queue: ConsumeQueue) -> tuple[int, int]:
    return queue.offset_end, queue.physical_end


def recovered(log: CommitLog, checkpoint: Checkpoint, *queues: ConsumeQueue, crashed: bool = False) -> Recovered | None:
    return recover(log, queues, checkpoint, crashed=crashed, covers=lambda *_place: False)


def test_a_start_dispatches_only_missing_records(tmp_path: Path) -> None:
    """After a clean stop a start dispatches only missing records; after a crash, all records from the safe point on."""
    log = log_of(tmp_path, 10, 20, 30)
    second = records_of(log)[1].physical_offset
    log.stand_at(log.end)
    early, exact = Checkpoint(30, 29), Checkpoint(30, 30)
    assert recovered(log, exact) == Recovered(log.end, 30)
    assert recovered(log, early) == Recovered(0, 30)
    queue = queue_of(tmp_path, (0, second))
    assert recovered(log, early, queue) == Recovered(second, 30)
    (tmp_path := tmp_path / "next").mkdir()
    for number, store_ms in enumerate((0, 30)):
        log = log_of(tmp_path / str(number), store_ms, store_ms, store_ms)
        assert recovered(log, without_queues(Checkpoint(store_ms, store_ms))) == Recovered(0, store_ms)
    (tmp_path := tmp_path / "next").mkdir()
    log = log_of(tmp_path, 10, 20, 30)
    assert recovered(log, Checkpoint(30, 30), listing(tmp_path, log), crashed=True) == Recovered(0, 30)
    (tmp_path := tmp_path / "next").mkdir()
    log, queue = log_of(tmp_path), queue_of(tmp_path)
    assert recover_clean(log, [queue], Checkpoint()) == Recovered(0, 0)
    assert recover_crashed(log, [queue], Checkpoint()) == Recovered(0, 0)
    assert standing(queue) == (0, -1)


def test_where_a_recovered_log_ends(tmp_path: Path) -> None:
    """A blank record is valid if another file follows, and damage in older files does not change the log's end."""
    log = log_of(tmp_path, *range(1, 41))
    end = log.end
    queue = listing(tmp_path, log)
    log.segments.segments[0].view[4] ^= 1
    queue.segments.segments[0].view[:UNIT_SIZE] = bytes(UNIT_SIZE)
    recover_clean(log, [queue], Checkpoint())
    assert log.end == end
    assert standing(queue) == (40, end)
    (tmp_path := tmp_path / "next").mkdir()
    log = log_of(tmp_path, 1, 2, 3, 4)
    *_, before, third, _ = records_of(log)
    assert third.physical_offset == LOG_SIZE
    log.segments.segments[1].view[:] = bytes(LOG_SIZE)
    assert (recover_clean(log, [], Checkpoint()).store_ms, log.end) == (2, LOG_SIZE)
    log.segments.truncate(LOG_SIZE)
    recover_clean(log, [], Checkpoint())
    assert log.end == before.physical_offset + before.size
    (tmp_path := tmp_path / "next").mkdir()
    times_ms = [0, 0, 0, 0], [1, 1, 1, 1]
    logs = [log_of(tmp_path / str(number), *each) for number, each in enumerate(times_ms)]
    checkpoint = Checkpoint(1 + SLACK_MS, 1 + SLACK_MS)
    assert [safe_start(log, checkpoint) for log in logs] == [0, LOG_SIZE]
    assert [safe_start(log, Checkpoint()) for log in logs] == [0, 0]


@pytest.mark.parametrize(
    ("lacking", "physic_ms", "kept"),
    [(1, 21, 3), (1, 20, 1), (1, 19, 1), (2, 31, 2), (2, 30, 2), (0, 11, 3), (0, 10, 0), (None, 0, 3)],
)
def test_a_record_without_a_sector_needs_a_flush(
    tmp_path: Path, lacking: int | None, physic_ms: int, kept: int
) -> None:
    log = log_of(tmp_path, 10, 20, 30, body=b"small", lacking=lacking)
    ends = [0, *(each.physical_offset + each.size for each in records_of(log))]
    recover_crashed(log, [], Checkpoint(physic_ms, physic_ms))
    assert ends.index(log.end) == kept


def test_zeros_in_an_older_queue_file_are_not_units(tmp_path: Path) -> None:
    log = log_of(tmp_path, *range(1, 12), body=b"small")
    records = records_of(log)
    queue = listing(tmp_path, log)
    for segment, kept in zip(queue.segments.segments, (5, 0), strict=True):
        segment.view[kept * UNIT_SIZE :] = bytes((10 - kept) * UNIT_SIZE)
    recover_crashed(log, [queue], Checkpoint(durable_offset=records[-1].physical_offset))
    assert standing(queue) == (5, records[5].physical_offset)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("place", ["another's", "its own, at another offset", "of another size", "inside"])
def test_a_unit_restored_by_a_power_cut_is_dropped(tmp_path: Path, place: str, *, crashed: bool) -> None:
    log = log_of(tmp_path, *range(1, 9), body=b"small")
    first, second, third, *_, last = records_of(log)
    stale = {
        "another's": (third.physical_offset, third.size),
        "its own, at another offset": (first.physical_offset, first.size),
        "of another size": (second.physical_offset, second.size + 1),
        "inside": (second.physical_offset + 7, second.size),
    }[place]
    if place == "another's":
        # The record has the same size and queue offset, but belongs to another queue.
        position = third.physical_offset + QUEUE_OFFSET_AT - log.segments.segments[0].start
        log.segments.segments[0].view[position - 8 : position + 8] = (5).to_bytes(4) + bytes(4) + (1).to_bytes(8)
    queue = queue_of(tmp_path, (first.physical_offset, first.size), stale, stale)
    if crashed:
        recover_crashed(log, [queue], Checkpoint(durable_offset=last.physical_offset))
    else:
        recover_clean(log, [queue], Checkpoint(0, 8))
    assert standing(queue) == (1, first.size)
    assert bytes(queue.segments.segments[0].view[UNIT_SIZE:]) == bytes(QUEUE_SIZE - UNIT_SIZE)


@pytest.mark.parametrize(
    ("damaged", "end"), [(0, 1), (4, 1), (8, 2), (88, 2)], ids=["size", "magic", "checksum", "body"]
)
def test_a_unit_of_a_damaged_record_is_kept(tmp_path: Path, damaged: int, end: int) -> None:
    log = log_of(tmp_path, 1, 2, 3, body=b"small")
    *_, second, last = records_of(log)
    queue = listing(tmp_path, log)
    queue.stand_at(2, last.physical_offset)
    log.segments.segments[0].view[second.physical_offset + damaged] ^= 1
    recover_crashed(log, [queue], Checkpoint(durable_offset=last.physical_offset))
    assert isinstance(log.read(second.physical_offset), Damage)
    assert queue.offset_end == end


def test_a_unit_in_each_queue_of_a_record_is_valid(tmp_path: Path) -> None:
    listed = message(properties={"INNER_MULTI_DISPATCH": "T,%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0,1"})
    log = CommitLog(RealFiles(), f"{tmp_path}/commitlog", LOG_SIZE)
    for index in range(3):
        log.append(listed, b"\x05Other", index, 1)
    first, second, last = records_of(log)
    for units, end in (([(first.physical_offset, first.size)], 1), ([(second.physical_offset, second.size)] * 2, 1)):
        shutil.rmtree(tmp_path / "consumequeue", ignore_errors=True)
        queue = queue_of(tmp_path, *units)
        recover_crashed(log, [queue], Checkpoint(durable_offset=last.physical_offset))
        assert queue.offset_end == end


def test_a_queue_never_assigns_an_offset_twice(tmp_path: Path) -> None:
    """A queue assigns no offset twice, even if the log or the queue has lost files."""
    log = log_of(tmp_path, *range(1, 12), body=b"small")
    last = records_of(log)[-1].physical_offset
    queue = listing(tmp_path, log)
    assert len(queue.segments.segments) == 2
    log.segments.segments[last // LOG_SIZE].view[last % LOG_SIZE :][:8] = bytes(8)
    assert recover_clean(log, [queue], Checkpoint()) == Recovered(last, 10)
    assert standing(queue) == (10, last)
    (tmp_path := tmp_path / "next").mkdir()
    queue = queue_of(tmp_path, *((start, 100) for start in range(5000, 5015)))
    queue.segments.remove(1)
    recover_crashed(log_of(tmp_path, 1, 2), [queue], Checkpoint())
    assert standing(queue) == (0, -1)
    (tmp_path := tmp_path / "next").mkdir()
    queue = queue_of(tmp_path, *((0, 1) for _ in range(11)))
    queue.segments.remove(1)
    queue.segments.segments[0].view[:UNIT_SIZE] = bytes(UNIT_SIZE)
    recover_clean(log_of(tmp_path, 1, 2), [queue], Checkpoint())
    assert standing(queue) == (10, -1)
    (tmp_path := tmp_path / "next").mkdir()
    log = log_of(tmp_path, 1, 2, 3, body=b"small")
    one, other, newest = records_of(log)
    queue = queue_of(tmp_path, (other.physical_offset, other.size), (one.physical_offset, one.size))
    recover_crashed(log, [queue], Checkpoint(durable_offset=newest.physical_offset))
    assert standing(queue) == (0, -1)
    (tmp_path := tmp_path / "next").mkdir()
    log = log_of(tmp_path, 1, 2, 3, 4)
    queue = queue_of(tmp_path, *((each.physical_offset, each.size) for each in records_of(log)[:2]))
    last = records_of(log)[-1].physical_offset
    log.segments.remove(1)
    recover_crashed(log, [queue], Checkpoint(durable_offset=last))
    assert queue.offset_end == 2


def test_a_unit_before_the_log_began_lists_no_record(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1, 2)
    first = records_of(log)[0]
    queue = queue_of(tmp_path, (0, 1), (0, 1), (0, first.size))
    view = log.segments.segments[0].view
    # The real record of this queue is the queue's third record, so its queue offset is 2.
    view[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = (2).to_bytes(8)
    for offset in (0, 1):
        queue.segments.segments[0].view[offset * UNIT_SIZE :][:UNIT_SIZE] = PRE_BLANK
    recover_clean(log, [queue], Checkpoint())
    assert standing(queue) == (3, first.size)
    queue.segments.segments[0].view[2 * UNIT_SIZE :][:UNIT_SIZE] = PRE_BLANK
    assert recover_clean(log, [queue], Checkpoint()) == Recovered(0, 2)
    assert standing(queue) == (3, -1)


def test_queues_with_removed_files_are_rebuilt(tmp_path: Path) -> None:
    config = evolve(SMALL, commit_log_file_size=65_536)
    store = open_store(tmp_path, config)
    put_and_dispatch(store, mixed_messages(20))
    expected = {queue: [bytes(each) for each in read_all(store, *queue)] for queue in store.queues()}
    store.close()
    (tmp_path / "abort").touch()
    shutil.rmtree(next(path for path in (tmp_path / "consumequeue").iterdir() if path.is_dir()))
    assert load_checkpoint(RealFiles(), str(tmp_path / "checkpoint")).durable_offset > 0
    store = open_store(tmp_path, config)
    # Rebuilt units are not synced yet, so the checkpoint must not mark them as durable.
    assert load_checkpoint(RealFiles(), str(tmp_path / "checkpoint")).durable_offset == -1
    assert {queue: [bytes(each) for each in read_all(store, *queue)] for queue in store.queues()} == expected


@pytest.mark.parametrize("number", ["physic_ms", "logics_ms"])
def test_a_checkpoint_with_future_times_is_ignored(number: str) -> None:
    known = evolve(Checkpoint(physic_ms=5, logics_ms=5, durable_offset=7), **{number: 2**60})
    assert of_the_past(known, lambda: 9) == Checkpoint()
    assert of_the_past(evolve(known, **{number: 9}), lambda: 9).durable_offset == 7

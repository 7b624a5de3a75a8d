"""Opening again after a crash: exactly the whole records are there, and the queues say the same as the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.store import recovery
from longpoll_broker.store.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint, load_checkpoint
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.queues.consume_queue import UNIT_SIZE
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.plain.plain_store import read_log, read_queues
from longpoll_broker.testing.stores import SMALL, message, mixed_messages, open_store, put_and_dispatch, read_all
from longpoll_protocol.log_record import Damage, Record
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime


def copy_of(store: Path, name: str) -> Path:
    """The directory as a kill at this moment would leave it: what is mapped is in the page cache."""
    target = store.parent / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(store, target)
    return target


def assert_sound(directory: Path, messages: int) -> None:
    """So many messages, log and queues agree, and a clean reopening finds the same."""
    verdict = verify(RealFiles(), str(directory))
    assert (verdict.problems, verdict.messages) == ([], messages)
    store = open_store(directory)
    readable = sum(len(read_all(store, topic, queue_id)) for topic, queue_id in store.queues())
    store.close()
    assert readable == messages


@given(appended=st.integers(0, 60), dispatched=st.integers(0, 60), flushed=st.booleans(), queues_flushed=st.booleans())
def test_a_kill_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, appended: int, dispatched: int, flushed: bool, queues_flushed: bool
) -> None:
    """Killed after any number of appends, dispatches and flushes: every message is there and visible after opening."""
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
    copy = copy_of(root / "store", "killed")
    store.abandon()
    opened = open_store(copy)
    assert sum(len(read_all(opened, topic, queue_id)) for topic, queue_id in opened.queues()) == appended
    opened.close()
    assert not (copy / "abort").exists()
    assert_sound(copy, appended)


def cut_places(directory: Path) -> tuple[list[int], int, int]:
    """(ends of the records in the last commit-log file, start of its third last record, start of the file)."""
    records = read_log(directory)["records"]
    last = max(path.name for path in (directory / "commitlog").iterdir())
    ends = [each["physicalOffset"] + each["totalSize"] for each in records if each["physicalOffset"] >= int(last)]
    assert len(ends) >= 4
    return ends, ends[-4], int(last)


@pytest.mark.parametrize(
    ("is_cut", "step"),
    [(True, 3), (False, 7), *(pytest.param(is_cut, 1, marks=pytest.mark.long) for is_cut in (True, False))],
)
def test_lost_from_every_byte(tmp_path: Path, is_cut: bool, step: int) -> None:
    """The last log file cut at, or zeroed from, each byte of its last three records: exactly the whole are kept.

    The quick forms take every `step`th byte, and those at which a record ends.
    """
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, [message(queue_id=index % 2, body=b"\x01\xff\x02" * 5, tag="t") for index in range(15)])
    store.close()
    ends, first, base = cut_places(tmp_path / "store")
    before = len(read_log(tmp_path / "store")["records"]) - 3
    for position in sorted({*range(first, ends[-1] + 1, step), *ends[-4:]}):
        copy = copy_of(tmp_path / "store", "cut")
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


def test_garbage_after_the_tail_is_forgotten(tmp_path: Path) -> None:
    """A torn record and the whole ones behind it are gone for good: what is appended does not bring them back."""
    store = open_store(tmp_path / "store")
    put, _arrivals = put_and_dispatch(store, [message() for _ in range(10)])
    store.abandon()
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[put[6].physical_offset + 4] ^= 1
    path.write_bytes(content)
    store = open_store(tmp_path / "store")
    assert store.log_end == put[5].log_end
    assert store.put(message()).physical_offset == put[6].physical_offset
    copy = copy_of(tmp_path / "store", "killed")
    store.abandon()
    store = open_store(copy)
    assert (store.log_end, store.visible_end("T", 0)) == (put[6].log_end, 7)
    store.close()
    assert_sound(copy, 7)


def test_queues_are_rebuilt_from_the_safe_point(tmp_path: Path) -> None:
    """After a crash units of records past the safe point are not believed: wrong ones are written anew."""
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
    """When the log's oldest files are gone, rebuilt queues begin with pre-blank units and their minimum is right."""
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


def test_safe_point_goes_by_the_checkpoint(tmp_path: Path) -> None:
    """The safe point is the newest file that begins with a record stored up to the checkpoint, 3 s taken off."""
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
    """The last that was visible when queues were flushed; none of a log that lacks it, or after RocketMQ wrote it."""
    store = open_store(tmp_path / "store", evolve(SMALL, commit_log_file_size=65_536))
    put, _arrivals = put_and_dispatch(store, mixed_messages(20))
    store.put(message())
    store.flush_queues()
    path = tmp_path / "store" / "checkpoint"
    told = load_checkpoint(RealFiles(), str(path))
    assert told.durable_offset == put[-1].physical_offset
    store.put(message())
    copy = copy_of(tmp_path / "store", "killed")
    store.abandon()
    log = CommitLog(RealFiles(), str(copy / "commitlog"), 65_536)
    told = evolve(told, queue_file_count=0)
    assert recovery.believed(log, [], told, had_queues=True) == told
    assert recovery.recover_crashed(log, [], told).cursor == put[-1].physical_offset
    for wrong in ({"durable_offset": offset} for offset in (put[-1].physical_offset + 1, log.end, 10**9)):
        less = recovery.believed(log, [], evolve(told, **wrong), had_queues=True)
        assert less == evolve(told, durable_offset=-1)
        assert recovery.recover_crashed(log, [], less).cursor == 0
    assert recovery.believed(log, [], evolve(told, queue_file_count=1), had_queues=True).durable_offset == -1
    assert recovery.believed(log, [], told, had_queues=False) == evolve(told, logics_ms=0, durable_offset=-1)
    log.segments.close()
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    assert decode_checkpoint(bytes(content)).durable_offset == -1


def test_what_another_log_had_durable_is_forgotten(tmp_path: Path) -> None:
    """Else a record that begins at the same place one day, and that nobody has synced, would be taken for durable."""
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


def test_queues_whose_files_were_removed_are_made_anew(tmp_path: Path) -> None:
    """Those of one among several, after a crash: the checkpoint says that there were more."""
    config = evolve(SMALL, commit_log_file_size=65_536)
    store = open_store(tmp_path, config)
    put_and_dispatch(store, mixed_messages(20))
    expected = {queue: [bytes(each) for each in read_all(store, *queue)] for queue in store.queues()}
    store.close()
    (tmp_path / "abort").touch()
    shutil.rmtree(next(path for path in (tmp_path / "consumequeue").iterdir() if path.is_dir()))
    assert load_checkpoint(RealFiles(), str(tmp_path / "checkpoint")).durable_offset > 0
    store = open_store(tmp_path, config)
    # Those that were made anew are not synced: a power cut now must not meet a checkpoint that says so.
    assert load_checkpoint(RealFiles(), str(tmp_path / "checkpoint")).durable_offset == -1
    assert {queue: [bytes(each) for each in read_all(store, *queue)] for queue in store.queues()} == expected


def test_what_was_durable_before_a_kill_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what stands behind the checkpoint, be the file as long as it may; without its queues all of it is."""
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
    copy, bare = copy_of(tmp_path / "store", "killed"), copy_of(tmp_path / "store", "bare")
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
def test_checkpoint_survives(fields: list[int]) -> None:
    """The checkpoint file comes back as it was written; a short one counts as never written."""
    checkpoint = Checkpoint(*fields)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    assert encode_checkpoint(checkpoint)[40:] == bytes(4056), "as RocketMQ writes it"
    ours = evolve(checkpoint, durable_offset=fields[0], queue_file_count=fields[1])
    assert decode_checkpoint(encode_checkpoint(ours)) == ours
    assert encode_checkpoint(ours)[:4056] == encode_checkpoint(checkpoint)[:4056]
    assert decode_checkpoint(encode_checkpoint(checkpoint)[:40]) == checkpoint
    assert decode_checkpoint(encode_checkpoint(checkpoint)[:39]) == Checkpoint()


def test_checkpoint_follows_the_flushes(tmp_path: Path) -> None:
    """A clean stop leaves the store time of the last message in the checkpoint, and takes `abort` away."""
    store = open_store(tmp_path)
    assert (tmp_path / "abort").exists()
    put, _arrivals = put_and_dispatch(store, [message()])
    store.close()
    store.close()
    checkpoint = load_checkpoint(RealFiles(), f"{tmp_path}/checkpoint")
    assert (checkpoint.physic_ms, checkpoint.logics_ms) == (put[0].store_ms, put[0].store_ms)
    assert not (tmp_path / "abort").exists()


def test_an_empty_newest_queue_file_is_dropped(tmp_path: Path) -> None:
    """A crash between making a queue's next file and writing its first unit leaves zeros: they are no units."""
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, [message() for _ in range(10)])
    store.close()
    for crashed in (False, True):
        (tmp_path / "store" / "consumequeue" / "T" / "0" / f"{200:020d}").write_bytes(bytes(0 if crashed else 200))
        if crashed:
            (tmp_path / "store" / "abort").touch()
        open_store(tmp_path / "store").close()
        assert_sound(tmp_path / "store", 10)


def test_units_of_records_that_the_log_has_lost_are_forgotten(tmp_path: Path) -> None:
    """After a clean stop too: where no checkpoint says more a log that ends early is believed, and queues follow it.

    Of the three queues one loses its last units, one the whole of its newest file, one everything.
    """
    store = open_store(tmp_path)
    kept, _ = put_and_dispatch(store, [message("T", 0), *(message("T", 1) for _ in range(10)), message("T", 0)])
    lost, _ = put_and_dispatch(store, [message("T", queue_id) for queue_id in (0, 1, 1, 2, 2, 0)])
    assert len(kept) + len(lost) == 18
    store.close()
    # The first record that is lost is no record any more; the log is whole up to it.
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

"""The walks of a recovery, each by itself: which records and units it believes, and where it goes on.

Logs and queues are made by hand here, also such as no broker leaves behind unless a disk lost a part of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from longpoll_broker.store.checkpoint import SLACK_MS, Checkpoint
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.queues.consume_queue import PRE_BLANK, UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.recovery import Recovered, recover, recover_clean, recover_crashed, safe_start
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.testing.stores import message
from longpoll_protocol.log_record import Damage, Record
from longpoll_runtime.files import RealFiles

LOG_SIZE = 2048
QUEUE_SIZE = 10 * UNIT_SIZE
BODY = b"x" * 600
"""Two records of it fill a file of the log."""
LACKING = b"a\x01" + bytes(4)
"""Properties whose end a disk never got."""


def log_of(directory: Path, *store_times_ms: int, body: bytes = BODY, lacking: int | None = None) -> CommitLog:
    """A log of records that were stored at these times; `lacking` is the place of one with a sector of zeros."""
    log = CommitLog(RealFiles(), f"{directory}/commitlog", LOG_SIZE)
    for index, store_ms in enumerate(store_times_ms):
        each = message(body=body)
        each = replace(each, properties=LACKING) if index == lacking else each
        log.append(each, b"\x01T", index, store_ms)
    return log


def records_of(log: CommitLog) -> list[Record]:
    """The records of a log."""
    found: list[Record] = []
    position = log.start
    while (each := log.read(position)) is not None:
        assert not isinstance(each, Damage)
        if isinstance(each, Record):
            found.append(each)
        position = each if isinstance(each, int) else position + each.size
    return found


def queue_of(directory: Path, *records: tuple[int, int]) -> ConsumeQueue:
    """A queue that lists records, each by its physical offset and size."""
    queue = ConsumeQueue(SegmentList(RealFiles(), f"{directory}/consumequeue/T/0", QUEUE_SIZE), "T", 0)
    for offset, (physical_offset, size) in enumerate(records):
        queue.put(Arrival("T", 0, offset + 1, 0, 0, physical_offset, size))
    return queue


def listing(directory: Path, log: CommitLog) -> ConsumeQueue:
    """A queue that lists every record of a log."""
    return queue_of(directory, *((each.physical_offset, each.size) for each in records_of(log)))


def standing(queue: ConsumeQueue) -> tuple[int, int]:
    """Where a queue goes on, and the end of the last record that it lists."""
    return queue.offset_end, queue.physical_end


# -- after a clean stop ----------------------------------------------------------------------------------------------


def test_what_was_dispatched_is_not_dispatched_again_after_a_clean_stop(tmp_path: Path) -> None:
    """Else a topic that was deleted with its queues would come back; what the queues miss is dispatched."""
    log = log_of(tmp_path, 10, 20, 30)
    second = records_of(log)[1].physical_offset
    log.stand_at(log.end)
    early, exact = Checkpoint(30, 29), Checkpoint(30, 30)
    assert recover(log, [], exact, crashed=False, had_queues=True) == Recovered(log.end, 30)
    assert recover(log, [], early, crashed=False, had_queues=True) == Recovered(0, 30)
    queue = queue_of(tmp_path, (0, second))
    assert recover(log, [queue], early, crashed=False, had_queues=True) == Recovered(second, 30)


def test_without_queues_all_of_the_log_is_dispatched_again(tmp_path: Path) -> None:
    """Whatever the checkpoint says, also records of the first millisecond of 1970."""
    for number, store_ms in enumerate((0, 30)):
        log = log_of(tmp_path / str(number), store_ms, store_ms, store_ms)
        found = recover(log, [], Checkpoint(store_ms, store_ms), crashed=False, had_queues=False)
        assert found == Recovered(0, store_ms)


def test_a_crash_is_recovered_from_the_safe_point(tmp_path: Path) -> None:
    """And not from where the queues end."""
    log = log_of(tmp_path, 10, 20, 30)
    found = recover(log, [listing(tmp_path, log)], Checkpoint(30, 30), crashed=True, had_queues=True)
    assert found == Recovered(0, 30)


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    """No record was walked: the time of the last one is 0."""
    log, queue = log_of(tmp_path), queue_of(tmp_path)
    assert recover_clean(log, [queue], -1) == Recovered(0, 0)
    assert recover_crashed(log, [queue], Checkpoint()) == Recovered(0, 0)
    assert standing(queue) == (0, -1)


def test_damage_before_the_newest_files_forgets_nothing(tmp_path: Path) -> None:
    """A clean stop left the older ones whole: `verify` names what is not, and neither log nor queue is cut there."""
    log = log_of(tmp_path, *range(1, 11))
    end = log.end
    queue = queue_of(tmp_path, *((start, 1) for start in range(40)))
    log.segments.segments[0].view[4] ^= 1
    queue.segments.segments[0].view[:UNIT_SIZE] = bytes(UNIT_SIZE)
    recover_clean(log, [queue], -1)
    assert log.end == end
    assert standing(queue) == (40, 40)


def test_a_blank_counts_if_a_file_follows_it(tmp_path: Path) -> None:
    """Also an empty one, where writing goes on; without one it goes on before the blank."""
    log = log_of(tmp_path, 1, 2, 3, 4)
    *_, before, third, _ = records_of(log)
    assert third.physical_offset == LOG_SIZE
    log.segments.segments[1].view[:] = bytes(LOG_SIZE)
    assert recover_clean(log, [], -1).store_ms == 2
    assert log.end == LOG_SIZE
    log.segments.truncate(LOG_SIZE)
    recover_clean(log, [], -1)
    assert log.end == before.physical_offset + before.size


# -- after a crash ---------------------------------------------------------------------------------------------------


def test_a_time_of_0_is_no_safe_point(tmp_path: Path) -> None:
    """A checkpoint that was never written says nothing of records from 1970; of those a millisecond later one may."""
    times_ms = [0, 0, 0, 0], [1, 1, 1, 1]
    logs = [log_of(tmp_path / str(number), *each) for number, each in enumerate(times_ms)]
    checkpoint = Checkpoint(1 + SLACK_MS, 1 + SLACK_MS)
    assert [safe_start(log, checkpoint) for log in logs] == [0, LOG_SIZE]
    assert [safe_start(log, Checkpoint()) for log in logs] == [0, 0]


@pytest.mark.parametrize(
    ("lacking", "physic_ms", "kept"),
    [(1, 21, 3), (1, 20, 1), (1, 19, 1), (2, 31, 2), (2, 30, 2), (0, 11, 3), (0, 10, 0), (None, 0, 3)],
)
def test_a_record_that_lacks_a_sector_counts_if_it_was_flushed_and_is_not_the_last(
    tmp_path: Path, lacking: int | None, physic_ms: int, kept: int
) -> None:
    """What the log's flushes had not reached, by the checkpoint, may have been torn, and so may the last record."""
    log = log_of(tmp_path, 10, 20, 30, body=b"small", lacking=lacking)
    ends = [0, *(each.physical_offset + each.size for each in records_of(log))]
    recover_crashed(log, [], Checkpoint(physic_ms, physic_ms))
    assert ends.index(log.end) == kept


# -- queues ----------------------------------------------------------------------------------------------------------


def test_zeros_are_no_units_also_where_an_older_file_has_lost_some(tmp_path: Path) -> None:
    """A queue goes on after the last unit of the newest file that begins with one."""
    queue = queue_of(tmp_path, *((start, 100) for start in range(11)))
    for segment, kept in zip(queue.segments.segments, (5, 0), strict=True):
        segment.view[kept * UNIT_SIZE :] = bytes((10 - kept) * UNIT_SIZE)
    recover_crashed(log_of(tmp_path, 1, 2, 3, 4), [queue], Checkpoint(9 + SLACK_MS, 9 + SLACK_MS))
    assert standing(queue) == (5, 104)


def test_a_queue_whose_records_the_log_has_lost_goes_on_before_them(tmp_path: Path) -> None:
    """A file that begins with such a record is not one to go on in, so the end of the record before it is known."""
    log = log_of(tmp_path, *range(1, 12), body=b"small")
    last = records_of(log)[-1].physical_offset
    queue = listing(tmp_path, log)
    assert len(queue.segments.segments) == 2
    log.segments.segments[last // LOG_SIZE].view[last % LOG_SIZE :][:8] = bytes(8)
    assert recover_clean(log, [queue], -1) == Recovered(last, 10)
    assert standing(queue) == (10, last)


def test_a_queue_of_which_nothing_is_believed_begins_anew(tmp_path: Path) -> None:
    """Its units are written again from the log, by their offsets; also when its oldest file is gone."""
    queue = queue_of(tmp_path, *((start, 100) for start in range(5000, 5015)))
    queue.segments.remove(1)
    recover_crashed(log_of(tmp_path, 1, 2), [queue], Checkpoint())
    assert standing(queue) == (0, -1)


def test_a_queue_whose_newest_file_is_empty_keeps_its_offset(tmp_path: Path) -> None:
    """The files before it are gone with the log's: an offset is not given twice."""
    queue = queue_of(tmp_path, *((0, 1) for _ in range(11)))
    queue.segments.remove(1)
    queue.segments.segments[0].view[:UNIT_SIZE] = bytes(UNIT_SIZE)
    recover_clean(log_of(tmp_path, 1, 2), [queue], -1)
    assert standing(queue) == (10, -1)


def test_a_unit_before_the_log_began_lists_no_record(tmp_path: Path) -> None:
    """Those that fill a gap have a size that no record has; what they say of a record's end is not taken for one."""
    log = log_of(tmp_path, 1, 2)
    queue = queue_of(tmp_path, (0, 1), (0, 1), (0, 1))
    for offset in (0, 1):
        queue.segments.segments[0].view[offset * UNIT_SIZE :][:UNIT_SIZE] = PRE_BLANK
    recover_clean(log, [queue], -1)
    assert standing(queue) == (3, 1)
    queue.segments.segments[0].view[2 * UNIT_SIZE :][:UNIT_SIZE] = PRE_BLANK
    assert recover_clean(log, [queue], -1) == Recovered(0, 2)
    assert standing(queue) == (3, -1)

"""The walks of a recovery, each by itself: which records and units it believes, and where it goes on.

Logs and queues are made by hand here, also such as no broker leaves behind unless a disk lost a part of them.
"""

from __future__ import annotations

import shutil
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
QUEUE_OFFSET_AT = 20
"""Where a record says it."""
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
    log = log_of(tmp_path, *range(1, 41))
    end = log.end
    queue = listing(tmp_path, log)
    log.segments.segments[0].view[4] ^= 1
    queue.segments.segments[0].view[:UNIT_SIZE] = bytes(UNIT_SIZE)
    recover_clean(log, [queue], -1)
    assert log.end == end
    assert standing(queue) == (40, end)


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
    log = log_of(tmp_path, *range(1, 12), body=b"small")
    records = records_of(log)
    queue = listing(tmp_path, log)
    for segment, kept in zip(queue.segments.segments, (5, 0), strict=True):
        segment.view[kept * UNIT_SIZE :] = bytes((10 - kept) * UNIT_SIZE)
    recover_crashed(log, [queue], Checkpoint(durable_offset=records[-1].physical_offset))
    assert standing(queue) == (5, records[5].physical_offset)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("place", ["another's", "its own, at another offset", "of another size", "inside"])
def test_a_unit_that_a_power_cut_brought_back_is_not_believed(tmp_path: Path, place: str, *, crashed: bool) -> None:
    """It was cleared once, as its record was lost; where that stood, others stand now, durable and before any doubt."""
    log = log_of(tmp_path, *range(1, 9), body=b"small")
    first, second, third, *_, last = records_of(log)
    stale = {
        "another's": (third.physical_offset, third.size),
        "its own, at another offset": (first.physical_offset, first.size),
        "of another size": (second.physical_offset, second.size + 1),
        "inside": (second.physical_offset + 7, second.size),
    }[place]
    if place == "another's":
        # Of the same size and queue offset, and in another queue.
        position = third.physical_offset + QUEUE_OFFSET_AT - log.segments.segments[0].start
        log.segments.segments[0].view[position - 8 : position + 8] = (5).to_bytes(4) + bytes(4) + (1).to_bytes(8)
    queue = queue_of(tmp_path, (first.physical_offset, first.size), stale, stale)
    if crashed:
        recover_crashed(log, [queue], Checkpoint(durable_offset=last.physical_offset))
    else:
        recover_clean(log, [queue], 8)
    assert standing(queue) == (1, first.size)
    assert bytes(queue.segments.segments[0].view[UNIT_SIZE:]) == bytes(QUEUE_SIZE - UNIT_SIZE)


def test_a_queue_of_stale_units_alone_begins_anew(tmp_path: Path) -> None:
    """There is no unit before them whose record would tell where the queue ends in the log."""
    log = log_of(tmp_path, 1, 2, 3, body=b"small")
    first, second, last = records_of(log)
    queue = queue_of(tmp_path, (second.physical_offset, second.size), (first.physical_offset, first.size))
    recover_crashed(log, [queue], Checkpoint(durable_offset=last.physical_offset))
    assert standing(queue) == (0, -1)


@pytest.mark.parametrize(("damaged", "end"), [(0, 1), (4, 1), (8, 2), (88, 2)], ids=["size", "magic", "sum", "body"])
def test_a_unit_of_a_damaged_record_is_believed(tmp_path: Path, damaged: int, end: int) -> None:
    """Its offset is not given twice, as long as what stands there begins as a record does."""
    log = log_of(tmp_path, 1, 2, 3, body=b"small")
    *_, second, last = records_of(log)
    queue = listing(tmp_path, log)
    queue.stand_at(2, last.physical_offset)
    log.segments.segments[0].view[second.physical_offset + damaged] ^= 1
    recover_crashed(log, [queue], Checkpoint(durable_offset=last.physical_offset))
    assert isinstance(log.read(second.physical_offset), Damage)
    assert queue.offset_end == end


def test_a_unit_of_a_record_that_expired_is_believed(tmp_path: Path) -> None:
    """The log has nothing to say of it any more, and its offset is not given twice."""
    log = log_of(tmp_path, 1, 2, 3, 4)
    queue = queue_of(tmp_path, *((each.physical_offset, each.size) for each in records_of(log)[:2]))
    last = records_of(log)[-1].physical_offset
    log.segments.remove(1)
    recover_crashed(log, [queue], Checkpoint(durable_offset=last))
    assert queue.offset_end == 2


def test_a_record_is_borne_out_by_each_of_its_queues(tmp_path: Path) -> None:
    """A light queue lists a message of another topic; what it says of an offset there is what counts."""
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
    first = records_of(log)[0]
    queue = queue_of(tmp_path, (0, 1), (0, 1), (0, first.size))
    view = log.segments.segments[0].view
    # Its own record is the third of the queue.
    view[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = (2).to_bytes(8)
    for offset in (0, 1):
        queue.segments.segments[0].view[offset * UNIT_SIZE :][:UNIT_SIZE] = PRE_BLANK
    recover_clean(log, [queue], -1)
    assert standing(queue) == (3, first.size)
    queue.segments.segments[0].view[2 * UNIT_SIZE :][:UNIT_SIZE] = PRE_BLANK
    assert recover_clean(log, [queue], -1) == Recovered(0, 2)
    assert standing(queue) == (3, -1)

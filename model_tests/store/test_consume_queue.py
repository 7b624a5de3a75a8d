"""One queue of units: its bytes, gaps, minimum, retention and durability; and its extended queue."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all
from model_tests.support.present import present
from model_tests.support.store import index_all

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.consume_queue import (
    ADDRESS_MAX,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    ConsumeQueueExt,
    is_address,
)
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.segment import RESERVE_SIZE, Segment, SegmentList
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.properties import tags_code
from longpoll_runtime.files import RealFiles

COUNT: Final = 4
"""Units of a file."""
SIZE: Final = COUNT * UNIT_SIZE
RECORD_SIZE: Final = 100
"""Bytes of every record, so the message at offset n stands at byte 100 n of the log."""
EXTENDED_SIZE: Final = 64
"""Bytes of an extended file: three units of 20, and four that stay free."""
BLANK: Final = (0, PRE_BLANK_SIZE, 0)


def opened(directory: Path, *, extended: bool = False, size: int = SIZE) -> ConsumeQueue:
    further = ConsumeQueueExt(SegmentList(RealFiles(), str(directory / "more"), EXTENDED_SIZE)) if extended else None
    return ConsumeQueue(SegmentList(RealFiles(), str(directory / "units"), size), "T", 7, further)


def close(queue: ConsumeQueue) -> None:
    for each in queue.segment_lists():
        each.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    made = opened(tmp_path)
    yield made
    close(made)


@pytest.fixture
def extended(tmp_path: Path) -> Iterator[ConsumeQueue]:
    made = opened(tmp_path, extended=True)
    yield made
    close(made)


def arrival(offset: int, *, at: int | None = None) -> Arrival:
    """The message at a queue offset; its record is at 100 times that, or where the test says."""
    physical_offset = offset * RECORD_SIZE if at is None else at
    return Arrival("T", 7, offset + 1, 50 + offset, 1_000 + offset, physical_offset, RECORD_SIZE)


def unit(offset: int) -> tuple[int, int, int]:
    return offset * RECORD_SIZE, RECORD_SIZE, 50 + offset


def filled(queue: ConsumeQueue, count: int) -> ConsumeQueue:
    assert all(queue.put(arrival(offset)) for offset in range(count))
    return queue


def starts(queue: ConsumeQueue) -> list[int]:
    return [segment.start // UNIT_SIZE for segment in queue.segments.segments]


def units_of(queue: ConsumeQueue) -> list[tuple[int, int, int] | None]:
    return [queue.unit(offset) for offset in range(queue.offset_end)]


def test_a_new_queue_has_nothing(queue: ConsumeQueue) -> None:
    assert (queue.topic, queue.queue_id, queue.extended) == ("T", 7, None)
    assert (queue.offset_end, queue.offset_min, queue.offset_next, queue.flushed_offset) == (0, 0, 0, 0)
    assert (queue.physical_end, queue.segment_lists()) == (-1, [queue.segments])
    assert (queue.unit(0), queue.units_from(0), queue.first_unit()) == (None, None, None)


def test_a_queue_that_is_opened_again_stands_at_the_end_of_its_files(tmp_path: Path) -> None:
    close(filled(opened(tmp_path), COUNT + 2))
    queue = opened(tmp_path)
    assert (queue.offset_end, queue.offset_next, queue.flushed_offset) == (2 * COUNT, 2 * COUNT, 2 * COUNT)
    assert (queue.offset_min, queue.physical_end) == (0, -1)


def test_units_stand_one_after_the_other_over_files(queue: ConsumeQueue, tmp_path: Path) -> None:
    """A unit has twenty bytes, big-endian."""
    filled(queue, 2 * COUNT + 1)
    assert (queue.offset_end, queue.physical_end) == (9, 9 * RECORD_SIZE)
    assert units_of(queue) == [unit(offset) for offset in range(9)]
    assert starts(queue) == [0, COUNT, 2 * COUNT]
    written = b"".join(path.read_bytes() for path in sorted((tmp_path / "units").iterdir()))
    assert written == b"".join(UNIT.pack(*unit(offset)) for offset in range(9)) + bytes(3 * UNIT_SIZE)


def test_a_message_that_is_there_is_not_written_again(queue: ConsumeQueue) -> None:
    """A repeated dispatch changes nothing."""
    filled(queue, 3)
    assert not queue.put(arrival(2, at=9_999))
    assert not queue.put(arrival(0, at=9_999))
    assert (queue.offset_end, queue.physical_end, queue.unit(2), queue.unit(0)) == (3, 300, unit(2), unit(0))


def test_blocks_are_taken_once_for_many_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk blocks are reserved a mebibyte ahead."""
    asked: list[tuple[int, int]] = []
    reserve = Segment.reserve

    def reserving(segment: Segment, position: int, stop: int) -> None:
        asked.append((position, stop))
        reserve(segment, position, stop)

    monkeypatch.setattr(Segment, "reserve", reserving)
    queue = opened(tmp_path, size=2 * RESERVE_SIZE // UNIT_SIZE * UNIT_SIZE)
    filled(queue, 3)
    assert asked == [(0, UNIT_SIZE)]
    segment = queue.segments.segments[0]
    segment.reserved_end = 4 * UNIT_SIZE
    queue.put(arrival(3))
    assert asked == [(0, UNIT_SIZE)]
    segment.reserved_end = 5 * UNIT_SIZE - 1
    queue.put(arrival(4))
    assert asked[1:] == [(4 * UNIT_SIZE, 5 * UNIT_SIZE)]


@pytest.mark.parametrize("offset", [1, COUNT - 1, COUNT, COUNT + 2])
def test_a_queue_may_begin_late(queue: ConsumeQueue, offset: int) -> None:
    """Its file begins with pre-blank units, and earlier files are not made."""
    assert queue.put(arrival(offset))
    start = offset // COUNT * COUNT
    assert (starts(queue), queue.offset_min, queue.offset_end) == ([start], offset, offset + 1)
    blanks = offset - start
    assert bytes(queue.segments.segments[0].view[: blanks * UNIT_SIZE]) == PRE_BLANK * blanks
    assert (units_of(queue), queue.first_unit()) == ([None] * offset + [unit(offset)], unit(offset))


def test_a_gap_in_a_queue_is_filled(queue: ConsumeQueue) -> None:
    """Pre-blank units fill the gap; the minimum stays."""
    filled(queue, 2)
    assert queue.put(arrival(2 * COUNT + 3))
    assert (starts(queue), queue.offset_min) == ([0, COUNT, 2 * COUNT], 0)
    assert units_of(queue) == [unit(0), unit(1), *[BLANK] * 9, unit(11)]
    assert queue.put(arrival(12))
    assert (starts(queue)[-1], queue.unit(12)) == (12, unit(12))


def test_a_gap_takes_blocks_for_itself_alone(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(queue, 1)
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(Segment, "reserve", lambda self, *part: asked.append((self.start // UNIT_SIZE, *part)))
    queue.put(arrival(COUNT + 2))
    assert asked[:2] == [(0, UNIT_SIZE, SIZE), (COUNT, 0, 2 * UNIT_SIZE)]


def test_a_gap_on_a_full_disk_is_not_shown(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end stays, and the next try fills the whole gap."""
    filled(queue, 2)
    reserve = Segment.reserve

    def reserving(segment: Segment, position: int, stop: int) -> None:
        if segment.start:
            raise OSError("no room")
        reserve(segment, position, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "reserve", reserving)
        with pytest.raises(OSError, match="no room"):
            queue.put(arrival(COUNT + 1))
    assert (queue.offset_end, units_of(queue)) == (2, [unit(0), unit(1)])
    assert queue.put(arrival(COUNT + 1))
    assert units_of(queue) == [unit(0), unit(1), *[BLANK] * 3, unit(COUNT + 1)]


def test_units_are_given_to_the_end_of_a_file(queue: ConsumeQueue) -> None:
    filled(queue, COUNT + 2)

    def read(offset: int) -> list[tuple[int, int, int]] | None:
        found = queue.units_from(offset)
        return None if found is None else list(UNIT.iter_unpack(found))

    assert read(0) == [unit(offset) for offset in range(COUNT)]
    assert (read(COUNT - 1), read(COUNT)) == ([unit(COUNT - 1)], [unit(COUNT), unit(COUNT + 1)])
    assert read(COUNT + 1) == [unit(COUNT + 1)]
    assert [read(offset) for offset in (-1, COUNT + 2, 2 * COUNT)] == [None] * 3
    queue.offset_min = 2
    assert (read(1), queue.unit(1), queue.unit(2)) == (None, None, unit(2))


def test_the_first_unit_is_the_first_that_leads_to_a_record(queue: ConsumeQueue, tmp_path: Path) -> None:
    queue.put(arrival(1))
    assert queue.first_unit() == unit(1)
    close(queue)
    other = opened(tmp_path / "other")
    segments = [other.segments.append(start) for start in (0, SIZE)]
    assert other.first_unit() is None
    segments[0].view[:] = PRE_BLANK * COUNT
    segments[1].view[:UNIT_SIZE] = UNIT.pack(0, 1, 5)
    assert other.first_unit() == (0, 1, 5)
    segments[1].view[:UNIT_SIZE] = UNIT.pack(0, 0, 5)
    segments[1].view[UNIT_SIZE : 2 * UNIT_SIZE] = UNIT.pack(*unit(9))
    assert other.first_unit() is None
    close(other)


def test_the_next_file_begins_at_a_whole_number_of_files(queue: ConsumeQueue) -> None:
    assert [queue.next_file_offset(offset) for offset in (0, 1, 3, 4, 7, 401)] == [4, 4, 4, 8, 8, 404]


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, 0), (1, 1), (100, 1), (101, 2), (300, 3), (301, 0), (10_000, 0)]
)
def test_the_minimum_is_the_first_message_of_the_log(queue: ConsumeQueue, log_start: int, expected: int) -> None:
    """The search looks at the oldest file only."""
    filled(queue, COUNT + 2)
    queue.correct_min(log_start)
    assert queue.offset_min == expected


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, 0), (100, 1), (300, 3), (301, 0), (500, 0), (501, 6), (10_000, 6)]
)
def test_a_queue_that_follows_an_empty_log_begins_at_its_end(
    queue: ConsumeQueue, log_start: int, expected: int
) -> None:
    """As in 5.x."""
    filled(queue, COUNT + 2)
    queue.follows_log = True
    queue.correct_min(log_start)
    assert (queue.offset_min, queue.offset_end) == (expected, COUNT + 2)
    if expected == COUNT + 2:
        assert queue.unit(COUNT + 1) is None
        assert queue.put(arrival(COUNT + 2))
        assert queue.unit(COUNT + 2) == unit(COUNT + 2)
        queue.correct_min(501)
        assert queue.offset_min == COUNT + 2


def test_a_file_that_has_no_unit_yet_moves_no_minimum(queue: ConsumeQueue) -> None:
    queue.segments.append(COUNT * UNIT_SIZE)
    queue.correct_min(0)
    assert queue.offset_min == 0


def test_the_minimum_is_looked_for_among_the_written(queue: ConsumeQueue) -> None:
    queue.correct_min(0)
    assert queue.offset_min == 0
    filled(queue, 2)
    queue.segments.segments[0].view[2 * UNIT_SIZE : 3 * UNIT_SIZE] = UNIT.pack(*unit(2))
    queue.correct_min(200)
    assert queue.offset_min == 0
    queue.correct_min(100)
    assert queue.offset_min == 1


def test_the_minimum_of_a_later_file_counts_from_that_file(queue: ConsumeQueue) -> None:
    queue.put(arrival(COUNT))
    queue.put(arrival(COUNT + 1))
    queue.correct_min(COUNT * RECORD_SIZE + 1)
    assert queue.offset_min == COUNT + 1
    queue.segments.segments[0].view[2 * UNIT_SIZE : 3 * UNIT_SIZE] = UNIT.pack(*unit(COUNT + 2))
    queue.correct_min((COUNT + 2) * RECORD_SIZE)
    assert queue.offset_min == COUNT + 1
    assert queue.put(arrival(COUNT + 2))
    queue.correct_min((COUNT + 2) * RECORD_SIZE)
    assert queue.offset_min == COUNT + 2


@pytest.mark.parametrize(
    ("log_start", "left", "minimum"),
    [(300, [0, 4, 8], 3), (301, [4, 8], 4), (401, [4, 8], 5), (700, [4, 8], 7), (701, [8], 8), (10_000, [8], 0)],
)
def test_files_go_whose_last_record_is_gone(queue: ConsumeQueue, log_start: int, left: list[int], minimum: int) -> None:
    filled(queue, 2 * COUNT + 2)
    queue.remove_before(log_start)
    assert (starts(queue), queue.offset_min) == (left, minimum)
    assert queue.offset_end == 10


def test_nothing_is_removed_where_nothing_has_to(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(queue, COUNT + 1)
    asked: list[int] = []
    monkeypatch.setattr(SegmentList, "remove", lambda _self, count: asked.append(count))
    queue.remove_before(100)
    assert asked == []
    queue.remove_before(400)
    assert asked == [1]


def test_writing_goes_on_where_recovery_says(tmp_path: Path) -> None:
    close(filled(opened(tmp_path), 2 * COUNT))
    queue = opened(tmp_path)
    queue.stand_at(COUNT + 1, 500)
    assert (queue.offset_end, queue.offset_next, queue.flushed_offset, queue.physical_end) == (5, 5, 5, 500)
    assert bytes(queue.segments.segments[1].view[UNIT_SIZE:]) == bytes(3 * UNIT_SIZE)
    assert queue.put(arrival(5))
    assert units_of(queue) == [unit(offset) for offset in range(6)]


def test_a_queue_that_stood_elsewhere_looks_its_file_up_again(queue: ConsumeQueue) -> None:
    filled(queue, 2 * COUNT)
    queue.flush()
    queue.stand_at(1, 100)
    assert (starts(queue), queue.flushed_offset) == ([0], 1)
    assert queue.put(arrival(1))
    assert units_of(queue) == [unit(0), unit(1)]
    queue.stand_at(2, 200)
    assert queue.flushed_offset == 1


def test_a_unit_leads_to_its_tags_code(extended: ConsumeQueue) -> None:
    filled(extended, 3)
    units = units_of(extended)
    assert [found and found[2] for found in units] == [-(2**63), -(2**63) + 20, -(2**63) + 40]
    assert [extended.tags_code(found) for found in units if found] == [50, 51, 52]
    assert extended.tags_code(unit(4)) == 54
    assert extended.tags_code((0, 1, -(2**63) + 1_000)) is None
    assert extended.extended is not None
    assert extended.segment_lists() == [extended.segments, extended.extended.segments]


def test_without_an_extended_queue_an_address_leads_nowhere(queue: ConsumeQueue) -> None:
    assert queue.tags_code((0, 1, -(2**63))) is None
    assert queue.tags_code((0, 1, 77)) == 77


def extended_starts(queue: ConsumeQueue) -> list[int]:
    assert queue.extended is not None
    return [segment.start for segment in queue.extended.segments.segments]


def test_extended_files_go_with_the_units(extended: ConsumeQueue) -> None:
    filled(extended, 2 * COUNT + 2)
    assert extended_starts(extended) == [0, 64, 128, 192]
    extended.remove_before(650)
    assert (starts(extended), extended.offset_min, extended_starts(extended)) == ([4, 8], 7, [128, 192])
    assert [extended.tags_code(found) for found in units_of(extended) if found] == [57, 58, 59]


def test_extended_files_stay_while_a_unit_says_its_code_itself(extended: ConsumeQueue) -> None:
    filled(extended, COUNT + 1)
    UNIT.pack_into(extended.segments.segments[1].view, 0, *unit(4))
    extended.remove_before(400)
    assert (starts(extended), extended_starts(extended)) == ([4], [0, 64])
    extended.offset_min = 9
    extended.remove_before(10_000)
    assert extended_starts(extended) == [0, 64]


def test_the_extended_queue_goes_on_after_the_newest_unit(extended: ConsumeQueue) -> None:
    """Units without an address are skipped."""
    further = present(extended.extended)
    filled(extended, 2 * COUNT + 1)
    extended.stand_at(7, 700)
    assert further.end == 128 + 20
    UNIT.pack_into(extended.segments.segments[1].view, 0, *unit(4))
    UNIT.pack_into(extended.segments.segments[1].view, UNIT_SIZE, *unit(5))
    extended.stand_at(6, 600)
    assert further.end == 64 + 20
    extended.stand_at(1, 100)
    assert further.end == 20
    extended.stand_at(0, 0)
    assert further.end == 0


def test_an_address_is_looked_for_file_by_file(extended: ConsumeQueue) -> None:
    further = present(extended.extended)
    filled(extended, 2 * COUNT + 2)
    for offset in range(3, 2 * COUNT + 2):
        segment = extended.segments.segments[offset // COUNT]
        UNIT.pack_into(segment.view, offset % COUNT * UNIT_SIZE, *unit(offset))
    extended.stand_at(2 * COUNT + 2, 1_000)
    assert further.end == 40 + 20


def test_what_is_new_becomes_durable(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(SegmentList, "flush", lambda _self, start, stop: asked.append((start, stop)))
    queue.flush()
    filled(queue, 3)
    queue.flush()
    assert (asked, queue.flushed_offset) == ([(0, 60)], 3)
    queue.flush()
    queue.put(arrival(3))
    queue.flush()
    assert (asked, queue.flushed_offset) == ([(0, 60), (60, 80)], 4)


def test_the_extended_queue_becomes_durable_first(extended: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave a unit that leads nowhere."""
    asked: list[str] = []
    monkeypatch.setattr(SegmentList, "flush", lambda self, _start, _stop: asked.append(self.directory[-5:]))
    filled(extended, 1)
    extended.flush()
    assert asked == ["/more", "units"]
    extended.flush()
    assert asked == ["/more", "units"]


def test_a_flush_that_failed_is_made_up_for(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(queue, 2)
    asked: list[tuple[int, int]] = []

    def failing(_segments: SegmentList, start: int, stop: int) -> None:
        asked.append((start, stop))
        raise OSError("the disk failed")

    monkeypatch.setattr(SegmentList, "flush", failing)
    for _ in range(2):
        with pytest.raises(OSError, match="the disk failed"):
            queue.flush()
    assert (asked, queue.flushed_offset) == ([(0, 40)] * 2, 0)


CONFIG = evolve(SMALL, extended_queues=True, extended_file_size=110)
"""Files with room for five units."""
TAGS = ["red", "blue", None]


def extended_queue(directory: Path) -> ConsumeQueueExt:
    return ConsumeQueueExt(SegmentList(RealFiles(), str(directory), 110))


def test_the_layout_is_java_s(tmp_path: Path) -> None:
    """A unit that does not fit with four bytes to spare goes to the next file, behind -1."""
    queue = extended_queue(tmp_path)
    addresses = [queue.put(number, 1000 + number) for number in range(7)]
    assert [address + 2**63 for address in addresses] == [0, 20, 40, 60, 80, 110, 130]
    first, second = (tmp_path / f"{start:020}" for start in (0, 110))
    expected = b"".join(struct.pack(">hqqh", 20, number, 1000 + number, 0) for number in range(5))
    assert first.read_bytes() == expected + struct.pack(">h", -1) + bytes(8)
    assert second.read_bytes()[20:40] == struct.pack(">hqqh", 20, 6, 1006, 0)
    assert [queue.tags_code(address) for address in addresses] == list(range(7))
    for nowhere in (addresses[-1] + 20, addresses[-1] + 10_000, -(2**63) + 5):
        assert queue.tags_code(nowhere) is None


def test_addresses_are_no_tags() -> None:
    """Addresses are below every 32-bit hash of a tag."""
    assert is_address(-(2**63))
    assert is_address(ADDRESS_MAX)
    assert not any(is_address(tags_code(tag)) for tag in (*TAGS, "polygenelubricants"))
    assert not is_address(-(2**31))


def tags_read(store: MessageStore, tag: str) -> list[int]:
    """Offsets of the messages that a reader with a tag gets."""
    return [
        offset
        for start in range(0, store.visible_end("T", 0), CONFIG.consume_queue_file_size // 20)
        for offset in store.get("T", 0, start, 32, (lambda code: code == tags_code(tag), None)).offsets
    ]


@given(
    tags=st.lists(st.sampled_from(TAGS), max_size=40),
    plain_count=st.integers(0, 15),
    dispatched=st.integers(0, 40),
    ending=st.sampled_from(["close", "kill", "power"]),
)
def test_readers_see_through_it(
    tmp_path_factory: pytest.TempPathFactory, tags: list[str | None], plain_count: int, dispatched: int, ending: str
) -> None:
    """Extended queues are switched on late, and the store is stopped or killed: every tag finds its messages."""
    root = tmp_path_factory.mktemp("extended")
    store = open_store(root / "0")
    put_and_dispatch(store, [message(tag=tag) for tag in tags[:plain_count]])
    store.close()
    store = open_store(root / "0", CONFIG)
    for tag in tags[plain_count:]:
        store.put(message(tag=tag))
    if dispatched:
        store.dispatch(dispatched)
    if ending == "close":
        store.close()
    else:
        shutil.copytree(root / "0", root / "1")
        store.abandon()
    directory = root / ("0" if ending == "close" else "1")
    if ending == "power":
        for path in (directory / "consumequeue_ext").rglob("0*"):
            if path.is_file():
                path.write_bytes(bytes(110))
    store = open_store(directory, CONFIG)
    for tag in ("red", "blue"):
        assert tags_read(store, tag) == [offset for offset, each in enumerate(tags) if each == tag]
    units = [store.unit("T", 0, offset) for offset in range(len(tags))]
    assert [unit[2] for unit in units if unit is not None] == [tags_code(tag) for tag in tags]
    assert len(read_all(store, "T", 0)) == len(tags)
    store.close()
    assert verify(RealFiles(), str(directory)).problems == []


def test_a_delayed_message_says_when_it_is_due(tmp_path: Path) -> None:
    """The due time comes from the extended queue, or from the record if the unit leads nowhere."""
    store = open_store(tmp_path, CONFIG)
    put, _arrivals = put_and_dispatch(store, [message(SCHEDULE_TOPIC, 2, properties={"DELAY": "3"})])
    due = (put[0].physical_offset, put[0].size, put[0].store_ms + 10_000)
    assert store.unit(SCHEDULE_TOPIC, 2, 0) == due
    store.close()
    for path in (tmp_path / "consumequeue_ext" / SCHEDULE_TOPIC / "2").iterdir():
        path.write_bytes(bytes(110))
    store = open_store(tmp_path, CONFIG)
    assert store.unit(SCHEDULE_TOPIC, 2, 0) == due


def test_it_goes_with_its_queue(tmp_path: Path) -> None:
    """Deleting a topic, and removing expired files, removes its extended files too."""
    config = evolve(
        CONFIG, delete_when=";".join(str(hour) for hour in range(24)), file_reserved_hours=0, clean_forcibly=False
    )
    store = open_store(tmp_path, config)
    put_and_dispatch(store, [message(tag="red") for _ in range(100)])
    index_all(store)
    store.flush()
    files = tmp_path / "consumequeue_ext" / "T" / "0"
    before = len(list(files.iterdir()))
    assert store.remove_expired() > 2
    assert len(list(files.iterdir())) < before
    start = store.visible_start("T", 0)
    rest = [*range(start, 100, 10)]
    assert [store.get("T", 0, offset, 1, (lambda code: code == tags_code("red"), None)).offsets for offset in rest] == [
        [offset] for offset in rest
    ]
    store.delete_topic("T")
    assert list(files.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (evolve(CONFIG, extended_file_size=24), "mappedFileSizeConsumeQueueExt"),
        (evolve(CONFIG, consume_queue_file_size=30), "mappedFileSizeConsumeQueue is 30"),
        (evolve(CONFIG, index_entry_count=1), "maxIndexNum 1"),
    ],
)
def test_a_size_without_room_is_refused(tmp_path: Path, config: StoreConfig, said: str) -> None:
    with pytest.raises(StoreUserError, match=said):
        open_store(tmp_path, config)

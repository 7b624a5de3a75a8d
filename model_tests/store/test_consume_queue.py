"""One consume queue: its units, gaps, minimum offset, retention and durability, and its extended queue."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from attrs import Factory, define, evolve
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all
from model_tests.support.present import present
from model_tests.support.store import index_all

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.consume_queue import (
    ADDRESS_MAX,
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
SIZE: Final = COUNT * UNIT_SIZE
RECORD_SIZE: Final = 100
"""The size of every record in bytes, so the record of the message at queue offset n begins at byte 100 n of the log."""
EXTENDED_SIZE: Final = 64
"""The size of an extended file in bytes: three units of 20 bytes and four unused bytes."""
BLANK: Final = (0, PRE_BLANK_SIZE, 0)
Unit = tuple[int, int, int]


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
    """The message at a queue offset; its record begins at byte `at` of the log, by default at 100 times `offset`."""
    physical_offset = offset * RECORD_SIZE if at is None else at
    return Arrival("T", 7, offset + 1, 50 + offset, 1_000 + offset, physical_offset, RECORD_SIZE)


def unit(offset: int) -> Unit:
    return offset * RECORD_SIZE, RECORD_SIZE, 50 + offset


def filled(queue: ConsumeQueue, count: int) -> ConsumeQueue:
    assert all(queue.put(arrival(offset)) for offset in range(count))
    return queue


def starts(queue: ConsumeQueue) -> list[int]:
    return [segment.start // UNIT_SIZE for segment in queue.segments.segments]


def units_of(queue: ConsumeQueue) -> list[Unit | None]:
    return [queue.unit(offset) for offset in range(queue.offset_end)]


@define
class PlainQueue:
    """A simple model of the queue: a table of its written units, in files of four."""

    follows_log: bool
    files: list[int] = Factory(list)
    written: dict[int, Unit] = Factory(dict)
    """The written units by queue offset, including any unit written beyond the queue's end."""
    end: int = 0
    minimum: int = 0
    flushed: int = 0
    physical_end: int = -1

    def put(self, offset: int) -> bool:
        if offset < self.end:
            return False
        if not self.files:
            self.end, self.minimum = offset // COUNT * COUNT, offset
        for blank in range(self.end, offset):
            self._write(blank, BLANK)
        self._write(offset, unit(offset))
        self.end, self.physical_end = offset + 1, (offset + 1) * RECORD_SIZE
        return True

    def _write(self, offset: int, content: Unit) -> None:
        self.written[offset] = content
        self.files = sorted({*self.files, offset // COUNT * COUNT})

    def correct_min(self, log_start: int) -> None:
        if not self.files:
            return
        there = [offset for offset in range(self.files[0], self.end) if self.written[offset][0] >= log_start]
        if self.follows_log and log_start and self.end > self.files[0] and self.written[self.end - 1][0] < log_start:
            self.minimum = self.end
        elif there and there[0] < self.files[0] + COUNT:
            self.minimum = there[0]

    def remove_before(self, log_start: int) -> None:
        while len(self.files) > 1 and self.files[1] <= self.end and self.written[self.files[1] - 1][0] < log_start:
            gone = self.files.pop(0)
            self.written = {offset: each for offset, each in self.written.items() if offset >= gone + COUNT}
        self.correct_min(log_start)

    def stand_at(self, offset: int) -> None:
        self.written = {each: content for each, content in self.written.items() if each < offset}
        self.files = [start for start in self.files if start < offset]
        self.end, self.physical_end, self.flushed = offset, offset * RECORD_SIZE, min(self.flushed, offset)

    def from_offset(self, offset: int) -> list[Unit] | None:
        if not (self.files and max(self.minimum, self.files[0]) <= offset < self.end):
            return None
        return [self.written[each] for each in range(offset, min(self.end, offset // COUNT * COUNT + COUNT))]

    def first_unit(self) -> Unit | None:
        there = [self.written.get(offset) for start in self.files for offset in range(start, start + COUNT)]
        return next((each for each in there if each != BLANK), None)


def compare(queue: ConsumeQueue, plain: PlainQueue, directory: Path) -> None:
    def plainly(found: Unit) -> Unit:
        return found[0], found[1], present(queue.tags_code(found))

    assert (queue.offset_end, queue.offset_min, queue.physical_end) == (plain.end, plain.minimum, plain.physical_end)
    assert (starts(queue), queue.flushed_offset) == (plain.files, plain.flushed)
    for offset in range(-1, plain.end + COUNT):
        units = queue.units_from(offset)
        found = None if units is None else [plainly(each) for each in UNIT.iter_unpack(units)]
        assert found == plain.from_offset(offset), offset
        assert queue.unit(offset) == (None if units is None else UNIT.unpack_from(units))
    first = queue.first_unit()
    assert (first and plainly(first)) == plain.first_unit()
    if queue.extended is None and plain.files:
        content = b"".join(path.read_bytes() for path in sorted((directory / "units").iterdir()))
        offsets = range(plain.files[0], plain.files[-1] + COUNT)
        assert content == b"".join(UNIT.pack(*plain.written.get(offset, (0, 0, 0))) for offset in offsets)


class WatchedList(SegmentList):
    """A file list that records each flush, or makes it fail, and never syncs to the disk."""

    __slots__ = ("asked", "fails")
    asked: list[tuple[int, int]]
    fails: bool

    def flush(self, start: int, stop: int) -> None:
        self.asked.append((start, stop))
        if self.fails:
            raise OSError("the disk failed")


class QueueMachine(RuleBasedStateMachine):
    """Tries random repeated and late messages, gaps, retention, recovery, failed flushes and units beyond the end."""

    @initialize(has_extended=st.booleans(), follows_log=st.booleans())
    def begin(self, *, has_extended: bool, follows_log: bool) -> None:
        self.directory, self.has_extended = Path(tempfile.mkdtemp()), has_extended
        self.plain = PlainQueue(follows_log)
        self._open()

    def _open(self) -> None:
        further = opened(self.directory, extended=self.has_extended).extended
        self.units = WatchedList(RealFiles(), str(self.directory / "units"), SIZE)
        self.queue = ConsumeQueue(self.units, "T", 7, further, follows_log=self.plain.follows_log)
        self.queue.offset_min = self.plain.minimum

    @rule(ahead=st.sampled_from([0, 0, 0, -1, -2, 1, COUNT - 1, COUNT, 2 * COUNT + 1]))
    def put(self, ahead: int) -> None:
        offset = max(self.plain.end + ahead, 0)
        sent = arrival(offset, at=9_999) if offset < self.plain.end else arrival(offset)
        assert self.queue.put(sent) == self.plain.put(offset)

    @rule(back=st.integers(-2, 2 * COUNT), beside=st.sampled_from([0, 1]), removes=st.booleans())
    def retain(self, *, back: int, beside: int, removes: bool) -> None:
        log_start = max((self.plain.end - back) * RECORD_SIZE + beside, 0)
        for each in (self.queue, self.plain):
            (each.remove_before if removes else each.correct_min)(log_start)

    @precondition(lambda self: self.plain.files)
    @rule(back=st.integers(0, COUNT + 1), opens=st.booleans())
    def recover(self, *, back: int, opens: bool) -> None:
        offset = max(self.plain.end - back, self.plain.files[0], self.plain.minimum)
        if opens:
            close(self.queue)
            self._open()
            at = (self.queue.offset_end, self.queue.offset_next, self.queue.flushed_offset)
            assert at == (self.plain.files[-1] + COUNT,) * 3
            self.plain.flushed = self.plain.end
        self.queue.stand_at(offset, offset * RECORD_SIZE)
        self.plain.stand_at(offset)
        assert self.queue.offset_next == offset

    @precondition(lambda self: self.plain.end % COUNT)
    @rule()
    def write_behind(self) -> None:
        self.plain.written[self.plain.end] = unit(self.plain.end)
        UNIT.pack_into(self.queue.segments.segments[-1].view, self.plain.end % COUNT * UNIT_SIZE, *unit(self.plain.end))

    @rule(fails=st.booleans())
    def flush(self, *, fails: bool) -> None:
        self.units.asked, self.units.fails = [], fails
        with suppress(OSError):
            self.queue.flush()
        due = [(self.plain.flushed * UNIT_SIZE, self.plain.end * UNIT_SIZE)]
        assert self.units.asked == due * (self.plain.flushed < self.plain.end)
        if not fails:
            self.plain.flushed = max(self.plain.flushed, self.plain.end)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "queue"):
            compare(self.queue, self.plain, self.directory)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            close(self.queue)
            shutil.rmtree(self.directory)


TestQueue = QueueMachine.TestCase


def test_disk_blocks_are_reserved_for_many_units_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue reserves disk blocks a mebibyte ahead, so few system calls serve many units."""
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


def test_a_gap_reserves_only_its_own_disk_blocks(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(queue, 1)
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(Segment, "reserve", lambda self, *part: asked.append((self.start // UNIT_SIZE, *part)))
    queue.put(arrival(COUNT + 2))
    assert asked[:2] == [(0, UNIT_SIZE, SIZE), (COUNT, 0, 2 * UNIT_SIZE)]


def test_a_gap_on_a_full_disk_is_not_shown(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is too full to fill a gap, the queue's end stays, and the next attempt fills the whole gap."""
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


def test_the_next_file_begins_at_a_whole_number_of_files(queue: ConsumeQueue) -> None:
    assert [queue.next_file_offset(offset) for offset in (0, 1, 3, 4, 7, 401)] == [4, 4, 4, 8, 8, 404]


def test_an_address_without_extended_queue_has_no_tags_code(queue: ConsumeQueue) -> None:
    assert queue.tags_code((0, 1, -(2**63))) is None
    assert queue.tags_code((0, 1, 77)) == 77


def extended_starts(queue: ConsumeQueue) -> list[int]:
    assert queue.extended is not None
    return [segment.start for segment in queue.extended.segments.segments]


def test_extended_files_are_removed_with_their_units(extended: ConsumeQueue) -> None:
    filled(extended, 2 * COUNT + 2)
    assert extended_starts(extended) == [0, 64, 128, 192]
    extended.remove_before(650)
    assert (starts(extended), extended.offset_min, extended_starts(extended)) == ([4, 8], 7, [128, 192])
    assert [extended.tags_code(found) for found in units_of(extended) if found] == [57, 58, 59]


def test_extended_files_stay_before_a_unit_without_address(extended: ConsumeQueue) -> None:
    filled(extended, COUNT + 1)
    UNIT.pack_into(extended.segments.segments[1].view, 0, *unit(4))
    extended.remove_before(400)
    assert (starts(extended), extended_starts(extended)) == ([4], [0, 64])
    extended.offset_min = 9
    extended.remove_before(10_000)
    assert extended_starts(extended) == [0, 64]


def test_the_extended_queue_continues_after_its_newest_unit(extended: ConsumeQueue) -> None:
    """Recovery continues the extended queue after its newest unit, and skips units without an extended address."""
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


def test_an_extended_address_is_searched_file_by_file(extended: ConsumeQueue) -> None:
    further = present(extended.extended)
    filled(extended, 2 * COUNT + 2)
    for offset in range(3, 2 * COUNT + 2):
        segment = extended.segments.segments[offset // COUNT]
        UNIT.pack_into(segment.view, offset % COUNT * UNIT_SIZE, *unit(offset))
    extended.stand_at(2 * COUNT + 2, 1_000)
    assert further.end == 40 + 20


def test_the_extended_queue_becomes_durable_first(extended: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extended units are synced before the queue units that refer to them, so a power cut leaves no broken address."""
    asked: list[str] = []
    monkeypatch.setattr(SegmentList, "flush", lambda self, _start, _stop: asked.append(self.directory[-5:]))
    filled(extended, 1)
    extended.flush()
    assert asked == ["/more", "units"]
    extended.flush()
    assert asked == ["/more", "units"]


CONFIG = evolve(SMALL, extended_queues=True, extended_file_size=110)
"""Each file has room for five units."""
TAGS = ["red", "blue", None]


def extended_queue(directory: Path) -> ConsumeQueueExt:
    return ConsumeQueueExt(SegmentList(RealFiles(), str(directory), 110))


def test_the_extended_queue_has_javas_layout(tmp_path: Path) -> None:
    """As in Java, a unit that would leave fewer than four bytes goes to the next file, after an end mark of -1."""
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


def test_addresses_are_below_every_tag_hash() -> None:
    """Every address of an extended unit is below every 32-bit hash of a tag."""
    assert is_address(-(2**63))
    assert is_address(ADDRESS_MAX)
    assert not any(is_address(tags_code(tag)) for tag in (*TAGS, "polygenelubricants"))
    assert not is_address(-(2**31))


def tags_read(store: MessageStore, tag: str) -> list[int]:
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
def test_tags_find_their_messages_with_extended_queues(
    tmp_path_factory: pytest.TempPathFactory, tags: list[str | None], plain_count: int, dispatched: int, ending: str
) -> None:
    """Searches by tag find all messages of a store that enables extended queues later and then stops or is killed."""
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


def test_the_due_time_comes_from_the_unit_or_the_record(tmp_path: Path) -> None:
    """The due time comes from the extended unit, or from the record if the unit has no valid address."""
    store = open_store(tmp_path, CONFIG)
    put, _arrivals = put_and_dispatch(store, [message(SCHEDULE_TOPIC, 2, properties={"DELAY": "3"})])
    due = (put[0].physical_offset, put[0].size, put[0].store_ms + 10_000)
    assert store.unit(SCHEDULE_TOPIC, 2, 0) == due
    store.close()
    for path in (tmp_path / "consumequeue_ext" / SCHEDULE_TOPIC / "2").iterdir():
        path.write_bytes(bytes(110))
    store = open_store(tmp_path, CONFIG)
    assert store.unit(SCHEDULE_TOPIC, 2, 0) == due


def test_extended_files_are_removed_with_their_queue(tmp_path: Path) -> None:
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

"""A read of a queue returns the same bytes and messages as a simple loop over the queue's units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_broker.config import StoreConfig
from longpoll_broker.store import selection
from longpoll_broker.store.consume_queue import PRE_BLANK_SIZE, UNIT
from longpoll_broker.store.messages import ALL, GetResult, GetStatus, Matches

FILE_SIZE: Final = 1_000
LOG_START: Final = 1_000
LOG_END: Final = 2_900
FIRST: Final = 10
CONFIG: Final = StoreConfig(
    memory_size=100_000,
    memory_ratio_max=40,
    transfer_bytes_max_in_memory=400,
    transfer_count_max_in_memory=6,
    transfer_bytes_max_on_disk=200,
    transfer_count_max_on_disk=3,
)
WHOLE: Final = b"".join(number.to_bytes(2) for number in range((LOG_END + FILE_SIZE) // 2))
"""The bytes of the log, as if no file had expired."""
Unit = tuple[int, int, int]


@define(eq=False)
class Segment:
    start: int

    @property
    def stop(self) -> int:
        return self.start + FILE_SIZE

    @property
    def view(self) -> memoryview:
        return memoryview(WHOLE)[self.start : self.stop]


@define(eq=False)
class Log:
    end: int = LOG_END
    files: list[Segment] = field(factory=lambda: [Segment(1_000), Segment(2_000)])

    @property
    def segments(self) -> Log:
        return self

    @property
    def start(self) -> int:
        return self.files[0].start

    def find(self, offset: int) -> Segment | None:
        return next((each for each in self.files if each.start <= offset < each.stop), None)

    def next_file(self, offset: int) -> int:
        return offset + FILE_SIZE - offset % FILE_SIZE


@define(eq=False)
class Queue:
    units: Sequence[Unit]
    offset_min: int = FIRST
    is_there: bool = True
    directory: str = "consumequeue/T/0"

    @property
    def segments(self) -> Queue:
        return self

    @property
    def offset_end(self) -> int:
        return FIRST + len(self.units) if self.units else 0

    def units_from(self, offset: int) -> memoryview | None:
        content = b"".join(UNIT.pack(*each) for each in self.units[offset - FIRST :])
        return memoryview(content) if self.is_there else None

    def next_file_offset(self, offset: int) -> int:
        return offset + 100


def read(queue: Queue, offset: int = FIRST, count_max: int = 32, matches: Matches = ALL, **changes: Any) -> GetResult:
    a_log: Any = Log()
    a_queue: Any = queue
    return selection.read_queue(a_log, a_queue, evolve(CONFIG, **changes), offset, count_max, matches=matches)


def places(*units: tuple[int, int]) -> list[Unit]:
    return [(*unit, 0) for unit in units]


PLACES: Final = places(*((1_000 + 50 * number, 50) for number in range(38)))
"""Adjacent records that cover both files."""


def plain_slices(taken: Sequence[Unit]) -> list[bytes]:
    """Returns the records as slices; adjacent records of one file are in the same slice."""
    runs: list[list[int]] = []
    for start, size, _code in taken:
        if runs and runs[-1][1] == start and runs[-1][0] // FILE_SIZE == start // FILE_SIZE:
            runs[-1][1] += size
        else:
            runs.append([start, start + size])
    return [WHOLE[start:stop] for start, stop in runs]


def plain_read(
    queue: Queue, offset: int, count_max: int, config: StoreConfig, codes: set[int]
) -> tuple[GetStatus, int, list[int], list[bytes], bool]:
    """Read unit by unit, as `getMessage` of 4.9 does.

    Returns status, next offset, offsets, slices, and whether the client should read from a slave.
    """
    end, log = queue.offset_end, Log()
    memory_start = log.end - config.memory_size
    for status, is_so, offset_next in (
        (GetStatus.NO_MESSAGE_IN_QUEUE, not end, 0),
        (GetStatus.OFFSET_TOO_SMALL, offset < queue.offset_min, queue.offset_min),
        (GetStatus.OFFSET_OVERFLOW_ONE, offset == end, end),
        (GetStatus.OFFSET_OVERFLOW_BADLY, offset > end, end),
        (GetStatus.OFFSET_FOUND_NULL, not queue.is_there, offset + 100),
    ):
        if is_so:
            return status, offset_next, [], [], False
    status, offsets, taken, gone_to, last = GetStatus.NO_MATCHED_MESSAGE, list[int](), list[Unit](), -1, 0
    for at, unit in enumerate(queue.units[offset - FIRST :], offset):
        last, size, code = unit
        if last < gone_to:  # The rest of an expired file is skipped, whatever its units contain.
            continue
        where = "in_memory" if last >= memory_start else "on_disk"
        bytes_max, messages_max = (getattr(config, f"transfer_{each}_max_{where}") for each in ("bytes", "count"))
        size_bytes = sum(each[1] for each in taken) + size
        if taken and (len(taken) >= min(count_max, messages_max) or size_bytes > bytes_max):
            break
        file = log.find(last)
        is_whole = file is not None and size > 0 and last + size <= min(file.stop, log.end)
        if code not in codes:
            status = GetStatus.NO_MATCHED_MESSAGE
        elif is_whole:
            offsets.append(at)
            taken.append(unit)
            gone_to = -1
        else:
            status, gone_to = GetStatus.MESSAGE_WAS_REMOVING, log.next_file(last) if last < log.start else -1
    else:
        at = end
    status = GetStatus.FOUND if taken else status
    return status, at, offsets, plain_slices(taken), log.end - last > config.memory_size


INSIDE: Final = st.integers(1_000, 1_012) | st.integers(1_985, 2_010)
ANYWHERE: Final = INSIDE | st.integers(2_885, 2_902) | st.integers(-4, 999)
WRONG_SIZES: Final = st.sampled_from([-1, 0, PRE_BLANK_SIZE, 2_000])


@st.composite
def units_of(draw: st.DrawFn) -> list[Unit]:
    """Units whose records are mostly adjacent, as in a real log; some are expired, damaged or out of order."""
    is_sound, at = draw(st.integers(0, 2)) > 0, draw(INSIDE)
    units: list[Unit] = []
    for _ in range(draw(st.integers(0, 7))):
        size = draw(st.integers(1, 4))
        if not is_sound:
            at = draw(ANYWHERE) if draw(st.booleans()) else at
            size = draw(WRONG_SIZES) if draw(st.integers(0, 3)) == 0 else size
        units.append((at, size, draw(st.integers(0, 1))))
        at += max(size % 5, 0) + draw(st.sampled_from([0, 0, 1]))
    return units


@settings(max_examples=500)
@given(
    units=units_of(),
    starts_late=st.integers(0, 1),
    is_there=st.integers(0, 15).map(bool),
    step=st.integers(-2, 9) | st.integers(0, 2),
    count_max=st.integers(-1, 8),
    memory=st.integers(880, 920) | st.sampled_from([0, 1_895, 1_900]) | st.just(5_000),
    limits=st.tuples(*[st.integers(0, 20), st.integers(0, 8)] * 2),
    codes=st.sampled_from([{0, 1}, {0, 1}, {0, 1}, {0}, set[int]()]),
)
def test_a_read_equals_a_plain_loop(
    *, units: list[Unit], starts_late: int, is_there: bool, step: int, count_max: int, memory: int,
    limits: tuple[int, int, int, int], codes: set[int],
) -> None:  # fmt: skip
    """A reader without a filter gets adjacent records as one slice, and a reader with a filter gets single records."""
    names = [f"transfer_{what}_max_{where}" for where in ("in_memory", "on_disk") for what in ("bytes", "count")]
    changes: dict[str, Any] = dict(zip(names, limits, strict=True))
    config = evolve(CONFIG, memory_size=memory, memory_ratio_max=100, **changes)
    queue, offset = Queue(units, FIRST + starts_late, is_there), FIRST + step
    expected = plain_read(queue, offset, count_max, config, codes)
    ways: list[Matches] = [(lambda code: code in codes, None)]
    if codes == {0, 1}:
        ways.append((lambda _code: True, None))
        if units == sorted(units):
            ways.append(ALL)
    a_log, a_queue = Log(), queue
    for matches in ways:
        found = selection.read_queue(a_log, a_queue, config, offset, count_max, matches=matches)  # type: ignore[arg-type]
        slices = [bytes(each) for each in found.records]
        assert (found.status, found.offset_next, found.offsets, slices, found.suggest_slave) == expected
        assert (found.offset_min, found.offset_max) == (FIRST + starts_late, queue.offset_end)
        assert found.size_bytes == sum(map(len, slices))


@pytest.mark.parametrize(
    ("count_max", "count"), [(1, 800), (800, 800), (801, 801), (900, 900), (901, 900), (5_000, 900)]
)
def test_a_read_examines_a_limited_number_of_units(monkeypatch: pytest.MonkeyPatch, count_max: int, count: int) -> None:
    """The number of units that a read examines is limited; the limit grows with the number of requested messages."""
    monkeypatch.setattr(selection, "SCAN_COUNT_MAX", 900)
    result = read(Queue(PLACES[:1] * 950), FIRST, count_max, (lambda _code: False, None))
    assert (result.status, result.offset_next) == (GetStatus.NO_MATCHED_MESSAGE, FIRST + count)


@pytest.mark.parametrize(
    ("units", "changes"),
    [
        (PLACES[:4], {"transfer_bytes_max_in_memory": 200}),
        (PLACES[:4], {"memory_size": LOG_END - 1_000, "memory_ratio_max": 100}),
        (PLACES[16:20], {}),
        (PLACES[34:38], {}),
        (places((1_000, 50), (1_100, 50), (1_150, 850)), {"transfer_bytes_max_in_memory": 1_000}),
        (places((1_000, 1)), {}),
    ],
)
def test_adjacent_records_are_read_by_the_fast_path(
    monkeypatch: pytest.MonkeyPatch, units: list[Unit], changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(selection, "_Scan", lambda _log: 1 / 0)
    assert read(Queue(units), **changes).offsets == list(range(FIRST, FIRST + len(units)))


@pytest.mark.parametrize(
    ("units", "damaged"),
    [
        (places((900, 50), (-50, 50), (1_000, 50)), []),
        (places((2_851, 50), (2_000, 50)), [10]),
        (places((1_000, 50), (1_951, 50), (1_050, 0), (2_000, 50)), [12]),
        (places((1_000, 50), (1_050, PRE_BLANK_SIZE)), []),
    ],
)
def test_the_last_damaged_unit_is_logged(
    caplog: pytest.LogCaptureFixture, units: list[Unit], damaged: list[int]
) -> None:
    """A unit with a wrong log offset or size is logged. A unit whose log file has expired is not logged."""
    read(Queue(units))
    assert [f"consumequeue/T/0: unit {each} is damaged" in caplog.text for each in damaged] == [True] * len(damaged)
    assert len(caplog.messages) == len(damaged)


class ByProperties:
    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.expression = "x" * 10
        self.wanted = wanted
        self.asked: list[str] = []

    def matches_properties(self, lookup: Callable[[str], Any], /) -> bool:
        self.asked.append(lookup("name"))
        return self.wanted(self.asked[-1])


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each record a hundred bytes of properties that contain the record's offset in the log."""

    def properties_in(record: memoryview) -> bytes:
        at = WHOLE.index(bytes(record), LOG_START)
        return f"{at}".encode().ljust(100)

    monkeypatch.setattr(selection, "properties_in", properties_in)
    monkeypatch.setattr(selection, "property_of", lambda found, _name: found.decode().strip())


@pytest.mark.usefixtures("properties")
def test_properties_are_compared_only_after_the_tags() -> None:
    wanted = ByProperties(lambda name: name != "1100")
    units = [(1_000, 50, 1), (1_050, 50, 2), (1_100, 50, 1), (1_150, 50, 1), (2_851, 50, 1)]
    result = read(Queue(units), FIRST, 32, (lambda code: code == 1, wanted))
    assert (wanted.asked, result.offsets) == (["1000", "1100", "1150"], [10, 13])
    assert [bytes(each) for each in result.records] == [WHOLE[1_000:1_050], WHOLE[1_150:1_200]]
    wanted = ByProperties(lambda _name: False)
    result = read(Queue(places((900, 50), (1_000, 50))), FIRST, 32, (None, wanted))
    assert (result.status, wanted.asked) == (GetStatus.NO_MATCHED_MESSAGE, ["1000"])


@pytest.mark.usefixtures("properties")
@pytest.mark.parametrize(("work_max", "count"), [(15_999, 1), (16_000, 2), (31_999, 2), (32_000, 3), (48_000, 4)])
def test_the_work_of_filtering_ends_a_read(monkeypatch: pytest.MonkeyPatch, work_max: int, count: int) -> None:
    monkeypatch.setattr(selection, "WORK_MAX", work_max)
    wanted = ByProperties(lambda _name: False)
    result = read(Queue(PLACES[:9]), FIRST, 32, (None, wanted))
    assert (len(wanted.asked), result.offset_next) == (count, FIRST + count)

"""Each bound of a read, to the byte and to the message; a plain read gives the same by its short and its long loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.stores import message, open_store
from model_tests.support.present import present

from longpoll_broker.config import StoreConfig
from longpoll_broker.store import selection
from longpoll_broker.store.consume_queue import UNIT, UNIT_SIZE
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import ALL, GetResult, GetStatus, Matches

FILE_SIZE: Final = 1_000
LOG_START: Final = 1_000
LOG_END: Final = 2_900
CONFIG: Final = StoreConfig(
    memory_size=100_000,
    memory_ratio_max=40,
    transfer_bytes_max_in_memory=400,
    transfer_count_max_in_memory=6,
    transfer_bytes_max_on_disk=200,
    transfer_count_max_on_disk=3,
)
WHOLE: Final = b"".join(number.to_bytes(2) for number in range((LOG_END + FILE_SIZE) // 2))
"""What stands in the log, and would before it."""
ANY: Final[Matches] = (lambda _code: True, None)
"""Means the same as no filter, and is asked of each message."""
EACH_WAY: Final = pytest.mark.parametrize("matches", [ALL, ANY], ids=["together", "one by one"])


@define(eq=False)
class Segment:
    """One file of the log."""

    start: int

    @property
    def stop(self) -> int:
        return self.start + FILE_SIZE

    @property
    def view(self) -> memoryview:
        return memoryview(WHOLE)[self.start : self.stop]


@define(eq=False)
class Log:
    """The log, and the list of its files."""

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
    """A queue of one file whose first offset is 10."""

    units: bytes
    offset_min: int = 10
    is_there: bool = True
    directory: str = "consumequeue/T/0"

    @property
    def segments(self) -> Queue:
        return self

    @property
    def offset_end(self) -> int:
        return 10 + len(self.units) // UNIT_SIZE

    def units_from(self, offset: int) -> memoryview | None:
        return memoryview(self.units)[(offset - 10) * UNIT_SIZE :] if self.is_there else None

    def next_file_offset(self, offset: int) -> int:
        return offset + 100


Units = Sequence[tuple[int, int] | tuple[int, int, int]]


def queue_of(*units: tuple[int, int] | tuple[int, int, int], **changes: Any) -> Queue:
    return Queue(b"".join(UNIT.pack(*(*unit, 0)[:3]) for unit in units), **changes)


def read(
    queue: Queue,
    offset: int = 10,
    count_max: int = 32,
    matches: Matches = ALL,
    *,
    log: Log | None = None,
    **changes: Any,
) -> GetResult:
    a_log: Any = log or Log()
    a_queue: Any = queue
    return selection.read_queue(a_log, a_queue, evolve(CONFIG, **changes), offset, count_max, matches=matches)


PLACES: Final = [(1_000 + 50 * number, 50) for number in range(38)]
"""Records side by side, over both files."""


def runs(result: GetResult) -> list[bytes]:
    return [bytes(record) for record in result.records]


def log_bytes(*parts: tuple[int, int]) -> list[bytes]:
    return [WHOLE[start:stop] for start, stop in parts]


@pytest.fixture
def only_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_Scan", lambda _log: 1 / 0)


@pytest.mark.parametrize(
    ("offset", "status", "offset_next"),
    [
        (10, GetStatus.OFFSET_TOO_SMALL, 11),
        (11, GetStatus.FOUND, 13),
        (12, GetStatus.FOUND, 13),
        (13, GetStatus.OFFSET_OVERFLOW_ONE, 13),
        (14, GetStatus.OFFSET_OVERFLOW_BADLY, 13),
    ],
)
def test_an_offset_outside_of_the_queue_is_put_right(offset: int, status: GetStatus, offset_next: int) -> None:
    result = read(queue_of(*PLACES[:3], offset_min=11), offset)
    assert (result.status, result.offset_next) == (status, offset_next)
    assert (result.offset_min, result.offset_max, result.suggest_slave) == (11, 13, False)
    if status is not GetStatus.FOUND:
        assert (result.records, result.offsets, result.size_bytes) == ([], [], 0)


def test_a_queue_without_messages() -> None:
    queue = queue_of(offset_min=0)
    queue_type: Any = type("Empty", (Queue,), {"offset_end": 0})
    result = read(queue_type(queue.units, 3), 7)
    assert (result.status, result.offset_next) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert (result.offset_min, result.offset_max, result.suggest_slave) == (3, 0, False)


def test_a_file_of_the_queue_that_is_gone_is_passed() -> None:
    result = read(queue_of(*PLACES[:3], is_there=False), 11)
    assert (result.status, result.offset_next) == (GetStatus.OFFSET_FOUND_NULL, 111)
    assert (result.offset_min, result.offset_max) == (10, 13)


@pytest.mark.parametrize(
    ("count_max", "count"), [(1, 800), (800, 800), (801, 801), (900, 900), (901, 900), (5_000, 900)]
)
def test_so_many_units_are_looked_at(monkeypatch: pytest.MonkeyPatch, count_max: int, count: int) -> None:
    """At most 800 units, or as many as the request asks for."""
    monkeypatch.setattr(selection, "SCAN_COUNT_MAX", 900)
    queue = queue_of(*PLACES[:1] * 950)
    result = read(queue, 10, count_max, (lambda _code: False, None))
    assert (result.status, result.offset_next) == (GetStatus.NO_MATCHED_MESSAGE, 10 + count)


@EACH_WAY
@pytest.mark.parametrize(("count_max", "count"), [(-1, 1), (0, 1), (1, 1), (2, 2), (5, 5), (6, 6), (7, 6)])
def test_as_many_messages_as_were_asked_for(matches: Matches, count_max: int, count: int) -> None:
    result = read(queue_of(*PLACES[:9]), 10, count_max, matches)
    assert (result.status, result.offsets) == (GetStatus.FOUND, list(range(10, 10 + count)))
    assert (result.offset_next, result.size_bytes) == (10 + count, 50 * count)
    assert runs(result) == log_bytes((1_000, 1_000 + 50 * count))


@EACH_WAY
@pytest.mark.parametrize(("bytes_max", "count"), [(1, 1), (99, 1), (100, 2), (149, 2), (150, 3), (151, 3)])
def test_as_many_bytes_as_may_be_in_memory(matches: Matches, bytes_max: int, count: int) -> None:
    result = read(queue_of(*PLACES[:4]), matches=matches, transfer_bytes_max_in_memory=bytes_max)
    assert (len(result.offsets), result.offset_next) == (count, 10 + count)


@EACH_WAY
@pytest.mark.parametrize(
    ("bytes_max", "count_max", "count"), [(99, 9, 1), (100, 9, 2), (149, 9, 2), (150, 9, 3), (400, 1, 1), (400, 2, 2)]
)
def test_less_is_read_from_the_disk(matches: Matches, bytes_max: int, count_max: int, count: int) -> None:
    result = read(
        queue_of(*PLACES[:4]),
        matches=matches,
        memory_size=0,
        transfer_bytes_max_on_disk=bytes_max,
        transfer_count_max_on_disk=count_max,
    )
    assert (len(result.offsets), result.offset_next, result.suggest_slave) == (count, 10 + count, True)


@EACH_WAY
@pytest.mark.parametrize(("memory", "count"), [(1_851, 4), (1_850, 4), (1_849, 1)])
def test_where_memory_ends_is_asked_of_each_message(matches: Matches, memory: int, count: int) -> None:
    """The second message is at 1,050, so 1,850 bytes before the log's end."""
    result = read(
        queue_of(*PLACES[:9]),
        matches=matches,
        memory_size=memory,
        memory_ratio_max=100,
        transfer_count_max_in_memory=4,
        transfer_count_max_on_disk=1,
    )
    assert (len(result.offsets), result.suggest_slave) == (count, count == 1)


@EACH_WAY
@pytest.mark.parametrize("behind", [-1, 0, 1])
@pytest.mark.parametrize("is_last", [False, True])
def test_who_is_further_behind_than_memory_is_sent_to_a_slave(matches: Matches, behind: int, is_last: bool) -> None:
    """The last message looked at decides, even if it is not returned."""
    count = 2 if is_last else 3
    result = read(
        queue_of(*PLACES[20 : 20 + count]),
        10,
        2,
        matches,
        memory_size=LOG_END - (2_050 if is_last else 2_100) - behind,
        memory_ratio_max=100,
        transfer_count_max_on_disk=9,
    )
    assert (len(result.offsets), result.suggest_slave) == (2, behind > 0)


@EACH_WAY
def test_neighbours_are_one_slice(matches: Matches) -> None:
    queue = queue_of((1_000, 50), (1_050, 30), (1_100, 20), (1_200, 10), (1_210, 40))
    assert runs(read(queue, matches=matches)) == log_bytes((1_000, 1_080), (1_100, 1_120), (1_200, 1_250))
    across = queue_of((1_900, 50), (1_950, 50), (2_000, 50), (2_050, 50))
    assert runs(read(across, matches=matches)) == log_bytes((1_900, 2_000), (2_000, 2_100))


@EACH_WAY
@pytest.mark.parametrize("units", [[(1_000, 50), (1_020, 50)], [(1_100, 50), (1_000, 50)], [(1_000, 50), (1_000, 50)]])
def test_a_damaged_queue_whose_records_overlap_gives_each_of_them(matches: Matches, units: Units) -> None:
    result = read(queue_of(*units), matches=matches)
    assert runs(result) == log_bytes(*((start, start + size) for start, size, *_ in units))
    assert (result.offsets, result.size_bytes) == ([10, 11], 100)


@pytest.mark.usefixtures("only_together")
@pytest.mark.parametrize(
    ("units", "changes"),
    [
        (PLACES[:4], {"transfer_bytes_max_in_memory": 200}),
        (PLACES[:4], {"memory_size": LOG_END - 1_000, "memory_ratio_max": 100}),
        (PLACES[16:20], {}),
        (PLACES[34:38], {}),
        ([(1_000, 50), (1_100, 50), (1_150, 850)], {"transfer_bytes_max_in_memory": 1_000}),
        ([(1_000, 1)], {}),
    ],
)
def test_what_may_be_read_together_is(units: Units, changes: dict[str, Any]) -> None:
    assert read(queue_of(*units), **changes).offsets == list(range(10, 10 + len(units)))


@EACH_WAY
@pytest.mark.parametrize(
    ("units", "offsets", "status"),
    [
        # A file that is gone is passed as a whole, whatever its units say, and what follows it is found.
        ([(900, 50), (950, 50), (1_000, 50), (1_050, 50)], [12, 13], GetStatus.FOUND),
        ([(900, 50), (950, 50)], [], GetStatus.MESSAGE_WAS_REMOVING),
        # One that ends behind the log, or behind its file.
        ([(2_851, 50), (2_000, 50)], [11], GetStatus.FOUND),
        ([(2_850, 50), (2_000, 50)], [10, 11], GetStatus.FOUND),
        ([(1_000, 50), (1_951, 50), (1_050, 50), (2_000, 50)], [10, 12, 13], GetStatus.FOUND),
        ([(2_900, 50)], [], GetStatus.MESSAGE_WAS_REMOVING),
        # One of no size, or of less.
        ([(1_000, 0), (1_050, 50), (2_000, 50)], [11, 12], GetStatus.FOUND),
        ([(1_000, 50), (1_050, -1), (2_000, 1)], [10, 12], GetStatus.FOUND),
        ([(1_000, 50), (1_050, 0)], [10], GetStatus.FOUND),
    ],
)
def test_gone_or_wrong_units_are_passed(
    caplog: pytest.LogCaptureFixture, matches: Matches, units: Units, offsets: list[int], status: GetStatus
) -> None:
    """The log names a damaged one."""
    result = read(queue_of(*units), matches=matches)
    damaged = [10 + at for at, unit in enumerate(units) if 10 + at not in offsets and unit[0] >= 1_000]
    assert [f"consumequeue/T/0: unit {each} is damaged" in caplog.text for each in damaged] == [True] * len(damaged)
    assert len(caplog.messages) == len(damaged)
    assert (result.status, result.offsets, result.offset_next) == (status, offsets, 10 + len(units))
    given = [units[offset - 10] for offset in offsets]
    assert b"".join(runs(result)) == b"".join(log_bytes(*((start, start + size) for start, size, *_ in given)))
    assert result.size_bytes == sum(size for _, size, *_ in given)


@EACH_WAY
def test_a_unit_before_any_log_is_passed_without_a_word(matches: Matches) -> None:
    for units, status, offsets in (
        ([(-50, 50)], GetStatus.NO_MATCHED_MESSAGE, []),
        ([(-50, 50), (1_000, 50)], GetStatus.FOUND, [11]),
    ):
        result = read(queue_of(*units), matches=matches)
        assert (result.status, result.offsets, result.offset_next) == (status, offsets, 10 + len(units))


def test_what_was_passed_names_the_status() -> None:
    """As in Java, the last skipped message decides."""
    gone, unwanted = (900, 50, 1), (1_000, 50, 2)
    wanted: Matches = (lambda code: code == 1, None)
    for units, status in (
        ((gone, unwanted), GetStatus.NO_MATCHED_MESSAGE),
        ((unwanted, gone), GetStatus.MESSAGE_WAS_REMOVING),
        ((unwanted, (1_100, 50, 1)), GetStatus.FOUND),
        ((), GetStatus.NO_MATCHED_MESSAGE),
    ):
        queue = queue_of(*units) if units else queue_of(*PLACES[:1])
        assert read(queue, matches=wanted).status is status
    queue = queue_of((2_500, 50), (100, 50))
    found = read(queue, memory_size=LOG_END - 101, memory_ratio_max=100)
    assert (found.offsets, found.offset_next, found.suggest_slave) == ([10], 12, True)
    assert not read(queue, memory_size=LOG_END - 100, memory_ratio_max=100).suggest_slave
    # Also behind a damaged one.
    queue = queue_of((2_851, 50), (2_500, 50))
    found = read(queue, memory_size=LOG_END - 2_501, memory_ratio_max=100)
    assert (found.offsets, found.suggest_slave) == ([11], True)
    queue = queue_of(*((1_000 + 50 * number, 50, number % 3) for number in range(12)))
    result = read(queue, 10, 3, (lambda code: code == 1, None))
    assert (result.offsets, result.offset_next, result.size_bytes) == ([11, 14, 17], 18, 150)
    assert runs(result) == log_bytes((1_050, 1_100), (1_200, 1_250), (1_350, 1_400))


class ByProperties:
    """A filter by properties that notes what it was asked about."""

    def __init__(self, wanted: Callable[[str], bool], size: int = 10) -> None:
        self.expression = "x" * size
        self.wanted = wanted
        self.asked: list[str] = []

    def matches_properties(self, lookup: Callable[[str], Any], /) -> bool:
        self.asked.append(lookup("name"))
        return self.wanted(self.asked[-1])


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each record have a hundred bytes of properties, which say where it begins."""

    def properties_in(record: memoryview) -> bytes:
        at = WHOLE.index(bytes(record), LOG_START)
        return f"{at}".encode().ljust(100)

    monkeypatch.setattr(selection, "properties_in", properties_in)
    monkeypatch.setattr(selection, "property_of", lambda found, _name: found.decode().strip())


@pytest.mark.usefixtures("properties")
def test_properties_are_asked_of_what_the_tags_let_through() -> None:
    wanted = ByProperties(lambda name: name != "1100")
    units = [(1_000, 50, 1), (1_050, 50, 2), (1_100, 50, 1), (1_150, 50, 1), (2_851, 50, 1)]
    result = read(queue_of(*units), 10, 32, (lambda code: code == 1, wanted))
    assert (wanted.asked, result.offsets) == (["1000", "1100", "1150"], [10, 13])
    assert runs(result) == log_bytes((1_000, 1_050), (1_150, 1_200))
    wanted = ByProperties(lambda _name: False)
    result = read(queue_of((900, 50), (1_000, 50)), 10, 32, (None, wanted))
    assert (result.status, wanted.asked) == (GetStatus.NO_MATCHED_MESSAGE, ["1000"])


@pytest.mark.usefixtures("properties")
@pytest.mark.parametrize(("work_max", "count"), [(15_999, 1), (16_000, 2), (31_999, 2), (32_000, 3), (48_000, 4)])
def test_what_filtering_costs_ends_a_read(monkeypatch: pytest.MonkeyPatch, work_max: int, count: int) -> None:
    monkeypatch.setattr(selection, "WORK_MAX", work_max)
    wanted = ByProperties(lambda _name: False)
    result = read(queue_of(*PLACES[:9]), 10, 32, (None, wanted))
    assert (len(wanted.asked), result.offset_next) == (count, 10 + count)


MESSAGES = 400
SIZES = (1, 40, 900)


def _config(**settings: Any) -> StoreConfig:
    return StoreConfig(commit_log_file_size=64 * 1024, consume_queue_file_size=1_000, **settings)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three queues whose messages lie mixed over several small files of log and queue."""
    made = open_store(str(tmp_path_factory.mktemp("store")), _config())
    for number in range(MESSAGES):
        # Many of one queue, then turns: long runs as well as single records.
        queue = number // 50 % 3 if number % 100 < 70 else number % 3
        made.put(message("T", queue, bytes(SIZES[number % 3])))
    made.dispatch(MESSAGES)
    yield made
    made.close()


def _read(store: MessageStore, config: StoreConfig, place: tuple[int, int, int], *, quick: bool) -> GetResult:
    """One read of (queue, offset, count), with the short loop or without it."""
    queue_id, offset, count_max = place
    queue = present(store._table.find("T", queue_id))
    # A filter that lets everything through means the same and takes the long loop.
    matches = (None, None) if quick else (lambda _code: True, None)
    return selection.read_queue(store._log, queue, config, offset, count_max, matches=matches)


def _plain(result: GetResult) -> tuple[Any, ...]:
    records = [bytes(record) for record in result.records]
    return (*(getattr(result, name) for name in msgspec.structs.asdict(result) if name != "records"), records)


READS = st.tuples(st.integers(0, 2), st.integers(0, 160), st.integers(0, 70))
LIMITS = st.tuples(st.integers(1, 40), st.sampled_from([1, 300, 2_000, 100_000]), st.sampled_from([1, 20_000, 10**9]))


@given(READS, LIMITS)
def test_both_loops_agree(store: MessageStore, place: tuple[int, int, int], limits: tuple[int, int, int]) -> None:
    count, size, memory = limits
    config = _config(
        transfer_count_max_in_memory=count, transfer_bytes_max_in_memory=size, memory_size=memory, memory_ratio_max=100
    )
    assert _plain(_read(store, config, place, quick=False)) == _plain(_read(store, config, place, quick=True))

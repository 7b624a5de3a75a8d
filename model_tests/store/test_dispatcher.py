"""The cursor between log and queues: what is handed over, what is read, and where it stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest
from msgspec import structs

from longpoll_broker.errors import StoreDamageError
from longpoll_broker.store import dispatch
from longpoll_broker.store.dispatch import Dispatcher, Handed
from longpoll_broker.store.messages import Arrival
from longpoll_protocol.log_record import MAGIC_V1, SCHEDULE_TOPIC, Damage, Record

SIZE = 10
"""Bytes of each record here; record n begins at n times that."""


class NotedLock:
    """Notes that it is taken."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def __enter__(self) -> None:
        self._notes.append("lock")

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._notes.append("unlock")


class Queue:
    """Queue of a number: lists every record once, unless its file cannot grow."""

    topic = "T"

    def __init__(self, queue_id: int = 0) -> None:
        self.queue_id = queue_id
        self.listed: list[int] = []
        self.is_full = False

    def may_list(self, offset: int, physical_offset: int) -> bool:
        """Any record there is; `test_outsiders` has those that a queue may not list."""
        return offset >= 0 and physical_offset >= 0

    def put(self, arrival: Arrival) -> bool:
        if self.is_full:
            raise OSError("no room")
        is_new = arrival.physical_offset not in self.listed
        self.listed += [arrival.physical_offset] * is_new
        return is_new


class Bench:
    """A log of some records, a queue of all, and further queues of some."""

    def __init__(self, count: int = 0, cursor: int = 0) -> None:
        self.notes: list[str] = []
        self.end = self.flushed_end = count * SIZE
        self.special: dict[int, Any] = {}
        """What stands at an offset in place of a record."""
        self.queue = Queue()
        self.inner: dict[int, list[tuple[Queue, int]]] = {}
        """By a record's offset."""
        log: Any = self
        queue_of: Any = lambda _record: self.queue  # noqa: E731
        inner_of: Any = lambda record: self.inner.get(record.physical_offset, [])  # noqa: E731
        lock: Any = NotedLock(self.notes)
        self.cursor = Dispatcher(log, lock, queue_of, inner_of, cursor * SIZE)

    def read(self, position: int) -> Any:
        self.notes.append(f"read {position}")
        record = SimpleNamespace(
            topic="T", queue_id=0, queue_offset=position // SIZE, tags_code=3, store_ms=4, physical_offset=position,
            size=SIZE,
        )  # fmt: skip
        return self.special.get(position, record)

    def append(self, *numbers: int, queue: Queue | None = None) -> list[Handed]:
        before = self.end
        self.end = self.flushed_end = (numbers[-1] + 1) * SIZE
        burst: Any = [(queue or self.queue, arrival_of(number)) for number in numbers]
        self.cursor.hand(burst, before)
        return list(burst)

    def dispatched(self, limit: int = 100) -> list[int]:
        return [arrival.physical_offset // SIZE for arrival in self.cursor.dispatch(limit)]

    def handed(self) -> list[int]:
        """The records that are handed over and not visible."""
        return [arrival.physical_offset // SIZE for arrival in self.cursor.waiting()]


def arrival_of(number: int) -> Arrival:
    return Arrival("T", 0, number + 1, 3, 4, number * SIZE, SIZE)


def test_what_is_handed_over_is_not_read() -> None:
    """It arrives in the order of the log, as many at a time as are asked for."""
    bench = Bench()
    bench.append(0, 1)
    bench.append(2)
    assert bench.handed() == [0, 1, 2]
    assert (bench.dispatched(2), bench.cursor.cursor, bench.handed()) == ([0, 1], 2 * SIZE, [2])
    assert (bench.dispatched(2), bench.cursor.cursor, bench.handed()) == ([2], 3 * SIZE, [])
    assert bench.notes == []
    assert bench.queue.listed == [0, SIZE, 2 * SIZE]


def test_a_record_read_arrives_as_one_handed_over() -> None:
    """Under the append lock it is looked at whether anything was handed over since; the read is outside it."""
    bench = Bench(2)
    assert bench.cursor.dispatch(1) == [arrival_of(0)]
    assert bench.notes == ["lock", "unlock", "read 0"]
    assert bench.dispatched() == [1]
    assert bench.cursor.cursor == 2 * SIZE


def test_nothing_is_handed_over_to_a_cursor_that_is_behind() -> None:
    """Until it has caught up with the log, which it finds under the append lock."""
    bench = Bench(1)
    bench.append(1)
    assert bench.handed() == []
    assert bench.dispatched(2) == [0, 1]
    bench.append(2)
    assert bench.handed() == []
    assert bench.dispatched() == [2]
    bench.append(3, 4)
    bench.append(5)
    assert bench.handed() == [3, 4, 5]


def test_after_a_record_that_was_not_handed_over_none_is() -> None:
    """What comes behind it is read, and so is the next one, until the cursor has caught up."""
    bench = Bench()
    bench.append(0)
    bench.end += SIZE
    bench.append(2)
    bench.end = SIZE
    bench.append(1)
    bench.end = 3 * SIZE
    assert bench.handed() == [0]
    assert bench.dispatched() == [0, 1, 2]
    bench.append(3)
    assert bench.handed() == [3]


def test_so_many_are_handed_over_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is read; none is lost and none comes twice."""
    monkeypatch.setattr(dispatch, "HANDED_COUNT_MAX", 2)
    bench = Bench()
    for number in range(4):
        bench.append(number)
    assert bench.handed() == [0, 1]
    bench.flushed_end = bench.end
    assert bench.dispatched() == [0, 1, 2, 3]


def test_what_was_handed_over_while_the_cursor_read_is_not_read() -> None:
    """It looks under the lock before each record."""
    bench = Bench()
    bench.append(0)
    bench.cursor.handed.clear()
    waiting = bench.append(1)
    assert list(bench.cursor.handed) == waiting
    bench.cursor._read(5, bench.end, [])
    assert bench.notes == ["lock", "unlock"]


def test_a_queue_that_is_gone_lists_nothing_more() -> None:
    """What was handed over for it goes by; other queues, and what no queue listed, stay as they are."""
    bench = Bench()
    gone = Queue()
    bench.append(0)
    bench.append(1, queue=gone)
    bench.cursor.hand([(None, arrival_of(2))], bench.end)
    bench.end = bench.flushed_end = 3 * SIZE
    assert bench.handed() == [0, 1]
    bench.cursor.unlist([gone])  # type: ignore[list-item] # the fake one
    assert bench.handed() == [0]
    assert (bench.dispatched(), bench.cursor.cursor, gone.listed) == ([0], 3 * SIZE, [])


def test_what_is_listed_already_does_not_arrive_again() -> None:
    """A recovery may begin before where the queues stand."""
    bench = Bench(2)
    bench.queue.listed.append(0)
    assert (bench.dispatched(), bench.cursor.cursor) == ([1], 2 * SIZE)


def test_nothing_is_shown_before_it_is_durable() -> None:
    """Handed over or read; without that the log's end is the bound."""
    for handed in (True, False):
        bench = Bench(0 if handed else 3)
        if handed:
            bench.append(0, 1, 2)
        bench.cursor.only_durable = True
        bench.flushed_end = 2 * SIZE
        assert bench.dispatched() == [0, 1]
        assert bench.dispatched() == []
        reads = len(bench.notes)
        bench.cursor.only_durable = False
        assert bench.dispatched() == [2]
        assert (len(bench.notes) > reads) is not handed


@pytest.mark.parametrize("handed", [True, False])
def test_a_queue_that_cannot_grow_keeps_back_its_own_records_only(handed: bool) -> None:
    """They are tried again with every call, before what comes behind them."""
    bench = Bench(0 if handed else 2)
    other = Queue(1)
    if handed:
        bench.append(0, 1)
    bench.dispatched(1)
    bench.queue.is_full = True
    assert (bench.dispatched(), bench.cursor.cursor, bench.cursor.visible_end) == ([], 2 * SIZE, SIZE)
    bench.append(2, queue=other)
    bench.append(3)
    assert (bench.dispatched(), str(bench.cursor.trouble)) == ([2], "no room")
    bench.queue.is_full = False
    bench.append(4, queue=other)
    assert bench.dispatched() == [1, 3, 4]
    assert (bench.cursor.trouble, bench.cursor.visible_end) == (None, 5 * SIZE)


def test_another_thread_may_ask_at_any_time_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention does: it is told neither of a failure nor of more than is visible."""
    bench, seen = Bench(), []

    class Watched(deque[Arrival]):
        """Another thread asks around every change."""

        def append(self, arrival: Arrival) -> None:
            seen.append(bench.cursor.visible_end)
            super().append(arrival)

        def popleft(self) -> Arrival:
            first = super().popleft()
            seen.append(bench.cursor.visible_end)
            return first

    monkeypatch.setattr(dispatch, "deque", Watched)
    bench.append(0, 1, 2)
    bench.queue.is_full = True
    assert (bench.dispatched(), seen) == ([], [0, 0])
    bench.queue.is_full = False
    assert (bench.dispatched(), seen) == ([0, 1, 2], [0, 0, SIZE, 2 * SIZE, 3 * SIZE])


def test_arrivals_are_told_of_before_damage() -> None:
    """The next call meets it, and says where, and what to do."""
    damage: Sequence[Any] = (None, Damage(0, "zeros", "a record"))
    for found in damage:
        bench = Bench(2)
        bench.special[SIZE] = found
        assert bench.dispatched() == [0]
        with pytest.raises(StoreDamageError, match=r"physical offset 10: .*longpoll store verify"):
            bench.dispatched()
        assert bench.cursor.cursor == SIZE


def test_a_blank_is_passed_over() -> None:
    """It counts as one of the limit, and lists nowhere."""
    bench = Bench(3)
    bench.special[SIZE] = 2 * SIZE
    assert bench.dispatched(2) == [0]
    assert bench.cursor.cursor == 2 * SIZE
    assert bench.dispatched(1) == [2]


def test_further_queues_list_a_record_first() -> None:
    """Each at its own offset; one that lists it already is passed over."""
    bench = Bench(1)
    other, known = Queue(7), Queue(8)
    known.listed.append(0)
    bench.inner[0] = [(other, 5), (known, 6)]
    assert bench.cursor.dispatch(1) == [Arrival("T", 7, 6, 3, 4, 0, SIZE), arrival_of(0)]


def test_a_log_may_begin_later() -> None:
    """A copy begins where its master's log does: nothing before that is looked for."""
    bench = Bench()
    bench.cursor.begin_at(3 * SIZE)
    assert bench.cursor.cursor == 3 * SIZE
    bench.end = bench.flushed_end = 5 * SIZE
    bench.cursor.handing = False
    assert bench.dispatched() == [3, 4]
    assert bench.notes.count("read 0") == 0


def test_a_delayed_message_is_due_by_this_brokers_levels() -> None:
    """When it is read, too; any other arrives with the hash of its tag."""
    record = Record(
        100, MAGIC_V1, 0, 2, 0, 5, 700, 0, 0, b"", 1_000, b"", 0, 0, memoryview(b""), SCHEDULE_TOPIC, b"DELAY\x012"
    )
    found = dispatch.arrival_of(record, "T", 1, 9, (3_000, 77_000))
    assert found == Arrival("T", 1, 10, 78_000, 1_000, 700, 100)
    other = dispatch.arrival_of(structs.replace(record, topic="T"), "T", 1, 9, (3_000, 77_000))
    assert other.tags_code == 0

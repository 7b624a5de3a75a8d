"""The indexer: which records it indexes, how it counts its work, and where it continues after a stop."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.support.broker.stores import HOST_V6, message, result_of
from model_tests.support.service import HeldLock

from longpoll_broker.store import index
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.index import (
    CATCH_UP_COUNT_MAX,
    HASHED_COUNT,
    QUERY_COUNT_MAX,
    RECORD_WORTH,
    TURN_COUNT,
    Indexer,
    Keyed,
)
from longpoll_broker.store.messages import QueryResult
from longpoll_protocol.log_record import Record
from longpoll_runtime.files import RealFiles

FILE_SIZE: Final = 4_096
TOPIC: Final = b"\x01T"


class World:
    def __init__(self, directory: Path, file_size: int = FILE_SIZE) -> None:
        self.log = CommitLog(RealFiles(), str(directory), file_size)
        self.lock = HeldLock()
        self.given: list[Keyed] = []
        """The records that the index has accepted with all their keys."""
        self.calls: list[tuple[int, int]] = []
        """The number of records and the limit of work of each call of `put`."""
        self.keys_a_call: int | None = None
        """Number of keys that the index accepts in each call; None sets no limit."""
        self.takes_nothing = False
        """Whether the index reports the permitted work as done and accepts no record."""
        self.done = 0
        """Number of keys of the next record that the index has accepted already."""
        self.goes_on_at = -1
        self.end_offset = -1
        self.end_ms = 99
        self.flushed_ms = 55
        self.notes: list[Any] = []
        self.found: list[int] = []
        self.error: OSError | None = None
        index: Any = self
        lock: Any = self.lock
        self.indexer = Indexer(self.log, index, lock)

    def append(self, *properties: str, body: bytes = b"", **changes: Any) -> list[tuple[int, int]]:
        places = []
        for text in properties:
            told = message(body=body, **changes)
            start = self.log.append(replaced(told, text), TOPIC, 0, 7)
            places.append((start, self.log.end))
        return places

    # -- the index ---------------------------------------------------------------------------------------------------

    def put(self, records: Sequence[Keyed], work_max: int) -> tuple[int, int]:
        """Accept records, or only some of their keys if the test limits the number of keys."""
        assert self.lock.is_held
        if self.error is not None:
            raise self.error
        self.calls.append((len(records), work_max))
        if self.takes_nothing:
            return work_max, 0
        left = work_max if self.keys_a_call is None else self.keys_a_call
        whole = work = 0
        for record in records:
            taken = min(left, len(record.keys) - self.done)
            left, work, self.done = left - taken, work + taken + (not record.keys), self.done + taken
            if self.done < len(record.keys):
                break
            self.given.append(record)
            self.done = 0
            whole += 1
        return work, whole

    def forget_unsure(self, durable_ms: int, log_end: int) -> None:
        self.notes.append(("forget", durable_ms, log_end))

    def go_on(self) -> int:
        return self.goes_on_at

    def find(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_meant: Callable[[int], bool],
    ) -> Generator[None, None, list[int]]:
        """Yield twice, like a long search that lets other work run in between, and then return the given result."""
        assert all(map(is_meant, self.found))
        self.notes.append(("find", topic, key, count_max, begin_ms, end_ms))
        yield
        yield
        return self.found

    def remove_before(self, log_start: int) -> None:
        self.notes.append(("remove", log_start, self.lock.is_held))

    def flush(self) -> None:
        self.notes.append(("flush", self.lock.is_held))

    def close(self) -> None:
        self.notes.append("close")

    # -- the test ----------------------------------------------------------------------------------------------------

    def build(self, count_max: int = 10_000) -> int:
        calls = 1
        while not self.indexer.build(self.log.end, count_max):
            calls += 1
            assert calls < 10_000
        return calls


def replaced(told: Any, text: str) -> Any:
    return type(told)(**{**{name: getattr(told, name) for name in told.__struct_fields__}, "properties": text.encode()})


def keyed(place: tuple[int, int], *keys: str) -> Keyed:
    return Keyed(place[0], "T", list(keys), 7, place[1])


@pytest.mark.parametrize("count_max", [1, 2, 3, 10_000])
def test_each_record_with_keys_is_indexed_once(tmp_path: Path, count_max: int) -> None:
    world = World(tmp_path)
    with_keys = []
    for number in range(40):
        world.append(*["a\x01b\x02"] * (number % 3), body=b"x" * number)
        with_keys += world.append(f"KEYS\x01k{number}\x02", body=b"y" * (number * 7 % 100))
    assert len(world.log.segments.segments) > 2
    world.build(count_max)
    assert world.given == [keyed(place, f"k{number}") for number, place in enumerate(with_keys)]
    assert (world.indexer.cursor, world.build(), len(world.given)) == (world.log.end, 1, 40)


@pytest.mark.parametrize("hosts", [{}, {"born_host": HOST_V6, "store_host": HOST_V6}])
def test_a_record_is_found_by_its_keys(tmp_path: Path, hosts: dict[str, bytes]) -> None:
    world = World(tmp_path)
    (one,) = world.append("KEYS\x01a b\x02UNIQ_KEY\x01u\x02", **hosts)
    (other,) = world.append("TAGS\x01KEY\x02", **hosts)
    (last,) = world.append("KEYS\x01c\x02", **hosts)
    world.build()
    assert world.given == [keyed(one, "u", "a", "b"), keyed(other), keyed(last, "c")]


def test_a_damaged_record_is_skipped_by_the_index(tmp_path: Path) -> None:
    world = World(tmp_path)
    one, other, last = world.append(*["KEYS\x01a\x02"] * 3, body=b"body", born_host=HOST_V6)
    view = world.log.segments.segments[0].view
    view[bytes(view).index(b"body", other[0])] ^= 1
    world.build()
    assert world.given == [keyed(one, "a"), Keyed(other[0], "", (), 0, other[1]), keyed(last, "a")]


@pytest.mark.parametrize("start", [0, FILE_SIZE])
def test_only_records_before_the_end_are_indexed(tmp_path: Path, start: int) -> None:
    world = World(tmp_path)
    world.log.end = world.log.flushed_end = start
    places = world.append(*["KEYS\x01a\x02"] * 3, *["b\x01c\x02"] * 3, "KEYS\x01a\x02")
    assert world.indexer.build(places[1][1], 99)
    assert world.given == [keyed(place, "a") for place in places[:2]]
    assert world.indexer.build(places[4][1], 99)
    assert (len(world.given), world.indexer.cursor) == (3, places[4][1])
    assert world.indexer.build(world.log.end, 99)
    assert (len(world.given), world.indexer.cursor) == (4, world.log.end)


def test_an_empty_log_needs_no_indexing(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.indexer.build(0, 9)
    world.log.end = world.log.flushed_end = FILE_SIZE
    assert world.indexer.build(FILE_SIZE, 9)
    assert world.indexer.cursor == 0


def test_removed_records_are_skipped_by_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.append(*["KEYS\x01a\x02"] * 100)
    world.log.segments.remove(1)
    assert not world.indexer.build(world.log.end, 1)
    assert [record.physical_offset for record in world.given] == [FILE_SIZE]
    find, left = world.log.segments.find, [1]

    def gone(offset: int) -> Any:
        if left[0]:
            left[0] = 0
            world.log.segments.remove(1)
            return None
        return find(offset)

    monkeypatch.setattr(type(world.log.segments), "find", lambda _segments, offset: gone(offset))
    world.given.clear()
    assert not world.indexer.build(world.log.end, 1)
    assert (world.given, world.indexer.cursor) == ([], 2 * FILE_SIZE)


def test_a_record_with_many_keys_continues_in_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    ((_start, world.indexer.cursor),) = world.append("KEYS\x01first\x02")
    places = world.append("KEYS\x01" + " ".join("abcdefg") + "\x02", "KEYS\x01h\x02")
    looked: list[int] = []
    honest = Indexer._keyed

    def looking(self: Indexer, physical_offset: int, record: bytes) -> Keyed:
        looked.append(physical_offset)
        return honest(self, physical_offset, record)

    monkeypatch.setattr(Indexer, "_keyed", looking)
    world.keys_a_call = 3
    assert [world.indexer.build(world.log.end, 3) for _ in range(3)] == [False, False, True]
    assert world.given == [keyed(places[0], *"abcdefg"), keyed(places[1], "h")]
    assert looked == [places[0][0], places[1][0]]
    assert world.indexer._begun is None


def test_records_are_hashed_together_up_to_a_limit(tmp_path: Path) -> None:
    world = World(tmp_path, 1 << 20)
    places = world.append(*["KEYS\x01a\x02"] * (HASHED_COUNT + 5))
    world.append("b\x01c\x02", *["KEYS\x01a\x02"] * 3)
    world.build()
    first_work = HASHED_COUNT + places[HASHED_COUNT][0] // RECORD_WORTH
    assert first_work > HASHED_COUNT, "bytes of records without keys count too"
    assert world.calls == [(HASHED_COUNT, 10_000), (5, 10_000 - first_work), (3, 10_000 - first_work - 6)]
    world.calls.clear()
    world.indexer.cursor = 0
    world.indexer.build(world.log.end, 7)
    assert world.calls == [(7, 7)]


def test_the_work_of_keyless_records_and_file_ends(tmp_path: Path) -> None:
    """A record without keys and the end of a file each count as one unit of work."""
    world = World(tmp_path, 1 << 20)
    world.append(*["TAGS\x01KEY\x02"] * (HASHED_COUNT + 1))
    world.build()
    assert [count for count, _work in world.calls] == [HASHED_COUNT, 1]
    (tmp_path := tmp_path / "next").mkdir()
    world = World(tmp_path)
    places = world.append(*["KEYS\x01a\x02"] * 60)
    world.indexer.cursor = max(stop for _start, stop in places if stop < FILE_SIZE)
    assert not world.indexer.build(world.log.end, 1)
    assert (world.given, world.indexer.cursor) == ([], FILE_SIZE)
    (tmp_path := tmp_path / "next").mkdir()
    world = World(tmp_path, 4 << 20)
    places = world.append(*["b\x01c\x02"] * 60, body=bytes(RECORD_WORTH))
    assert world.indexer._pass_some(world.log.end, 10) == 1 + (world.log.end - places[0][1]) // RECORD_WORTH
    assert world.indexer.cursor == world.log.end


@pytest.mark.parametrize(("worth", "count"), [(0, 20), (1, 10), (3, 5)])
def test_a_long_record_counts_for_several(tmp_path: Path, worth: int, count: int) -> None:
    world = World(tmp_path, 4 << 20)
    world.append(*["KEYS\x01a\x02"] * 60, body=bytes(worth * RECORD_WORTH))
    assert not world.indexer.build(world.log.end, 20)
    assert world.calls == [(count, 20)]


@pytest.mark.parametrize("more", [0, 7])
def test_keyless_records_are_skipped_with_few_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    world = World(tmp_path, 1 << 20)
    places = world.append(*["b\x01c\x02"] * 50, "KEYS\x01a\x02", *["b\x01c\x02"] * 50)
    size = places[0][1]
    monkeypatch.setattr(index, "PASS_SIZE", 5 * size + more)
    world.indexer.build(world.log.end, 1)
    assert world.indexer.cursor == 6 * size
    world.build()
    assert (world.indexer.cursor, len(world.given)) == (world.log.end, 1)
    monkeypatch.setattr(index, "PASS_SIZE", 1 << 20)
    world.indexer.cursor = 0
    assert not world.indexer.build(world.log.end, 49)
    assert world.indexer.cursor == places[50][0], "records before the one with the key count one by one"
    assert not world.indexer.build(world.log.end, 1)
    assert world.indexer.build(world.log.end, 2)


@pytest.mark.parametrize(
    ("crashed", "end_offset", "forgets"),
    [(True, -1, True), (False, 299, False), (False, 300, True), (False, -1, False)],
)
def test_after_a_stop_the_index_keeps_sure_files(tmp_path: Path, crashed: bool, end_offset: int, forgets: bool) -> None:
    """After a clean stop the index keeps all its files, unless a file has entries beyond the log's end."""
    world = World(tmp_path)
    world.log.end = 300
    world.end_offset = end_offset
    world.goes_on_at = 200
    world.indexer.recover(crashed=crashed, durable_ms=44)
    assert (world.notes, world.indexer.cursor) == ([("forget", 44, 300)] if forgets else [], 200)


def test_index_changes_hold_the_lock(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.indexer.remove_before(7)
    world.indexer.flush()
    world.indexer.close()
    assert world.notes == [("remove", 7, True), ("flush", True), "close"]
    assert world.indexer.flushed_ms == 55


def asked(world: World, count_max: int = 9, log_end: int | None = None) -> tuple[QueryResult, int]:
    return result_of(world.indexer.query("T", "a", count_max, (3, 4), world.log.end if log_end is None else log_end))


def test_queries_of_an_index_that_is_behind(tmp_path: Path) -> None:
    """Before a query, the indexer adds new records of the log, within limits of time and space."""
    world = World(tmp_path, 1 << 20)
    places = world.append(*["KEYS\x01a\x02"] * (TURN_COUNT + 1))
    world.found = [places[0][0], places[1][0] + 1, places[2][0], 1 << 30]
    world.end_offset = 77
    result, turns = asked(world)
    assert (turns, len(world.given)) == (3, TURN_COUNT + 1)
    assert world.notes == [("find", "T", "a", 9, 3, 4)]
    assert [bytes(view) for view in result.records] == [
        bytes(world.log.slice(start, stop - start) or b"") for start, stop in (places[0], places[2])
    ]
    assert (result.index_end_ms, result.index_end_offset) == (99, 77)
    assert asked(world, QUERY_COUNT_MAX + 1)[1] == 2
    assert world.notes[1] == ("find", "T", "a", QUERY_COUNT_MAX, 3, 4)
    assert isinstance(world.log.read(places[0][0]), Record)
    (tmp_path := tmp_path / "next").mkdir()
    world = World(tmp_path, 4 << 20)
    world.append(*["KEYS\x01a\x02"] * 700)
    world.keys_a_call = 1
    _result, turns = asked(world)
    assert turns == 2 + 1
    world.indexer.cursor = 0
    world.takes_nothing = True
    _result, turns = asked(world)
    assert turns == 2 + -(-CATCH_UP_COUNT_MAX // TURN_COUNT)
    (tmp_path := tmp_path / "next").mkdir()
    world = World(tmp_path)
    places = world.append("KEYS\x01a\x02")
    world.error = OSError(errno.ENOSPC, "No space left on device")
    world.found = [places[0][0]]
    assert len(asked(world)[0].records) == 1
    world.found = []
    assert asked(world)[0] == QueryResult([], 0, 0)
    world.found = [1 << 30]
    assert asked(world)[0] == QueryResult([], 99, -1)

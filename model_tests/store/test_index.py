"""The index files: bytes equal to the Java broker's, limits of each file, and no lost entry after a crash."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, result_of
from model_tests.support.examples import fewer
from model_tests.support.store import index_all

from longpoll_broker.config import StoreConfig
from longpoll_broker.store import index
from longpoll_broker.store.index import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT,
    IndexFile,
    IndexHeader,
    index_file_size,
    read_header,
)
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.log_record import Record, decode
from longpoll_runtime import Files
from longpoll_runtime.files import RealMappedFile

PIECE = 64 * 1024
SLOTS = 3


class Mapped:
    """A file in memory that records which of its bytes have reserved disk blocks."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.reserved: list[tuple[int, int]] = []
        self.room = 1 << 40

    def reserve(self, start: int, stop: int) -> None:
        if stop > self.room:
            raise OSError(28, "No space left on device")
        self.reserved.append((start, stop))


def made(entry_count: int = 5, slot_count: int = SLOTS, mapped: Mapped | None = None) -> tuple[IndexFile, Mapped]:
    found = Mapped(index_file_size(slot_count, entry_count)) if mapped is None else mapped
    files = cast("Files", SimpleNamespace(map=lambda *_path, **_how: found))
    return IndexFile(files, "index/1", slot_count, entry_count), found


def entry(mapped: Mapped, number: int, slot_count: int = SLOTS) -> tuple[Any, ...]:
    return ENTRY.unpack_from(mapped.view, HEADER_SIZE + SLOT.size * slot_count + ENTRY_SIZE * number)


@pytest.mark.parametrize(("entry_next", "counts_as"), [(-1, 1), (0, 1), (1, 1), (2, 2)])
def test_a_header_has_the_number_of_the_next_entry(entry_next: int, counts_as: int) -> None:
    content = bytearray(HEADER_SIZE)
    HEADER.pack_into(content, 0, 11, 12, 13, 14, 15, entry_next)
    assert read_header(memoryview(content)) == IndexHeader(11, 12, 13, 14, 15, counts_as)


@pytest.mark.parametrize(
    ("slots_used", "entry_next", "is_plausible"),
    [(0, 1, True), (SLOTS, 5, True), (0, 6, False), (SLOTS + 1, 5, False), (-1, 1, False), (0, 5, True)],
)
def test_a_header_pointing_out_of_the_file_is_rejected(slots_used: int, entry_next: int, is_plausible: bool) -> None:
    mapped = Mapped(index_file_size(SLOTS, 5))
    HEADER.pack_into(mapped.view, 0, 1, 1, 1, 1, slots_used, entry_next)
    file, _mapped = made(mapped=mapped)
    assert file.is_plausible is is_plausible
    assert file.is_full is (entry_next >= 5)


def test_entries_and_slots_of_a_file() -> None:
    """Each entry stores its time in seconds after the file's first message, and a damaged slot counts as unused."""
    file, mapped = made(entry_count=8)
    times = [5_000, 7_999, 4_000, 5_000 + 1000 * (2**31 - 1), 5_000 + 1000 * 2**31]
    entries = [(7 + SLOTS * (number == 4), 100 + number, at) for number, at in enumerate(times)]
    assert (file.put(entries[:1]), file.put(entries[1:])) == (1, 4)
    assert [entry(mapped, number) for number in range(1, 6)] == [
        (7, 100, 0, 0),
        (7, 101, 2, 1),
        (7, 102, 0, 2),
        (7, 103, 2**31 - 1, 3),
        (10, 104, 2**31 - 1, 4),
    ]
    header = IndexHeader(5_000, times[-1], 100, 104, 1, 6)
    assert file.header == read_header(mapped.view) == header
    assert list(file.find(7, 5_000, 8_000)) == [None, None, 102, 101, 100]
    for wrong, is_kept in ((-1, False), (0, False), (1, True), (2, True), (3, False)):
        file, mapped = made()
        file.put([(0, 100, 1_000), (1, 101, 1_000)][:1])
        SLOT.pack_into(mapped.view, HEADER_SIZE + SLOT.size * 2, wrong)
        file.put([(2, 102, 1_000)])
        assert entry(mapped, 2)[3] == (wrong if is_kept else 0)
        assert file.header.slot_count == 1 + (not is_kept)


def test_where_a_file_begins_and_ends() -> None:
    """A file takes as many entries as fit, and its first entry sets its start time."""
    file, mapped = made(entry_count=4)
    assert file.put([(0, 100 + number, 1_000) for number in range(9)]) == 3
    assert file.is_full
    assert entry(mapped, 0) == (0, 0, 0, 0)
    assert entry(mapped, 3) == (0, 102, 0, 2)
    before, _mapped = made()
    before.put([(0, 100, 1_000), (0, 200, 4_000)])
    file, mapped = made()
    file.begin_after(before)
    assert mapped.reserved == [(0, index_file_size(SLOTS, 5))]
    assert file.header == read_header(mapped.view) == IndexHeader(4_000, 4_000, 200, 200, 0, 1)
    file.put([(0, 300, 6_000), (0, 400, 9_000)])
    assert [entry(mapped, number)[2] for number in (1, 2)] == [2, 3]
    assert file.header == IndexHeader(6_000, 9_000, 300, 400, 1, 3)


def test_disk_blocks_are_reserved_once_before_the_write() -> None:
    slot_count = 3 * PIECE // SLOT.size
    file, mapped = made(entry_count=10_000, slot_count=slot_count)
    file.put([(2 * PIECE // SLOT.size, 100, 1_000)])
    assert mapped.reserved == [(0, PIECE), (3 * PIECE, 4 * PIECE), (2 * PIECE, 3 * PIECE)]
    start = HEADER_SIZE + SLOT.size * slot_count
    across = (4 * PIECE - start) // ENTRY_SIZE
    assert start + ENTRY_SIZE * across < 4 * PIECE < start + ENTRY_SIZE * (across + 1)
    file.put([(0, 101, 1_000)] * (across - 2))
    assert len(mapped.reserved) == 3
    file.put([(0, 102, 1_000)])
    assert mapped.reserved[3:] == [(4 * PIECE, min(5 * PIECE, index_file_size(slot_count, 10_000)))]
    assert file.header.entry_next == across + 1
    mapped.room = 0
    assert file.put([(0, 103, 1_000)]) == 1, "reserved blocks are not reserved again"
    with pytest.raises(OSError, match="No space"):
        file.put([(PIECE // SLOT.size, 104, 1_000)])
    assert file.header.entry_next == across + 2


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "overlaps"),
    [
        (0, 9, False),
        (0, 10, True),
        (0, 15, True),
        (10, 10, True),
        (20, 99, True),
        (21, 99, False),
        (9, 21, True),
        (12, 13, True),
        (10, 21, True),
        (9, 20, True),
    ],
)
def test_a_file_overlaps_a_period_that_touches_it(begin_ms: int, end_ms: int, overlaps: bool) -> None:
    mapped = Mapped(index_file_size(SLOTS, 5))
    HEADER.pack_into(mapped.view, 0, 10, 20, 0, 0, 0, 1)
    assert made(mapped=mapped)[0].overlaps(begin_ms, end_ms) is overlaps


@pytest.mark.parametrize(("slot", "found"), [(-1, []), (0, []), (1, [100]), (2, [101, 100]), (3, []), (4, [])])
def test_a_search_ignores_a_slot_with_a_missing_entry(slot: int, found: list[int]) -> None:
    file, mapped = made()
    file.put([(0, 100, 1_000), (0, 101, 1_000)])
    SLOT.pack_into(mapped.view, HEADER_SIZE, slot)
    assert list(file.find(0, 0, 9_999)) == found
    for before in (-1, 0, 2, 3):
        ENTRY.pack_into(mapped.view, HEADER_SIZE + SLOT.size * SLOTS + ENTRY_SIZE * 2, 0, 101, 0, before)
        SLOT.pack_into(mapped.view, HEADER_SIZE, 2)
        assert list(file.find(0, 0, 9_999)) == [101]
    ENTRY.pack_into(mapped.view, HEADER_SIZE + SLOT.size * SLOTS + ENTRY_SIZE * 2, 0, 101, -1, 1)
    assert list(file.find(0, 0, 9_999)) == [], "no entry has seconds below 0"


def test_a_search_ends_at_an_entry_older_than_its_period() -> None:
    file, _mapped = made(entry_count=9)
    file.put([(0, 100 + number, 1_000 * number) for number in range(1, 6)])
    assert list(file.find(0, 3_000, 4_000)) == [None, 104, 103, None]
    assert list(file.find(SLOTS, 3_000, 4_000)) == [None, None, None, None]


def test_a_failed_sync_is_permanent() -> None:
    """The next sync may succeed without writing the lost data, so the file counts as unsynced for good."""
    file, mapped = made()
    synced: list[tuple[int, int]] = []
    holder = cast("Any", mapped)
    holder.sync = lambda start, stop: synced.append((start, stop))
    file.flush()
    assert synced == [(0, index_file_size(SLOTS, 5))]

    def fails(_start: int, _stop: int) -> None:
        synced.append((-1, -1))
        raise OSError(5, "Input/output error")

    holder.sync = fails
    with pytest.raises(OSError, match="Input/output error"):
        file.flush()
    holder.sync = lambda start, stop: synced.append((start, stop))
    with pytest.raises(OSError, match="index/1"):
        file.flush()
    assert synced == [(0, index_file_size(SLOTS, 5)), (-1, -1)]


FOR_EVER = 2**60
Stored = list[tuple[str, list[str], int, int]]
"""A simple reference index: (topic, keys, physical offset, store time) of every message."""


def offsets(
    store: MessageStore, topic: str, key: str, count: int = 64, stored_ms: tuple[int, int] = (0, FOR_EVER)
) -> list[int]:
    found = []
    for view in result_of(store.query(topic, key, count, *stored_ms))[0].records:
        physical_offset = int.from_bytes(view[28:36])
        assert isinstance(decode(view, 0, len(view), physical_offset), Record)
        found.append(physical_offset)
    return found


def index_files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / "index").iterdir())]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_index_files_equal_javas_byte_for_byte(java_store: Path, java_config: StoreConfig, kept: int) -> None:
    before = index_files(java_store)
    assert len(before) == 4
    # The first file refers to deleted records, so it cannot be rebuilt.
    for path in sorted((java_store / "index").iterdir())[kept:]:
        path.unlink()
    store = open_store(java_store, java_config)
    index_all(store, 7)
    store.close()
    # The comparison is outside the assert statement, because pytest would take minutes to format thousands of entries.
    are_equal = index_files(java_store) == before
    assert are_equal


def test_recorded_queries_of_java_find_the_same_messages(
    java_store: Path, java_config: StoreConfig, java_expected: dict[str, Any]
) -> None:
    store = open_store(java_store, java_config)
    asked = java_expected["keyQueries"]
    for query in asked:
        records = [(at, store.read_record(at)) for at in query["physicalOffsets"]]
        expected = [
            at for at, read in records if read and query["key"] in index.keys_of(read.sys_flag, bytes(read.properties))
        ]
        found = offsets(store, query["topic"], query["key"])
        assert found[len(found) - len(expected) :] == expected, query
        assert len(found) == len(expected) or len(expected) < len(query["physicalOffsets"]) == index.QUERY_COUNT_MAX, (
            query
        )
    assert len([query for query in asked if query["physicalOffsets"]]) > 10


@given(
    sent=st.lists(
        st.tuples(st.sampled_from("AB"), st.lists(st.sampled_from(["k", "Aa", "BB", "ü", "long" * 60]), max_size=4)),
        max_size=40,
    ),
    built=st.integers(0, 40),
    killed=st.booleans(),
)
def test_the_index_finds_the_same_as_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str, list[str]]], built: int, killed: bool
) -> None:
    root = tmp_path_factory.mktemp("index")
    store = open_store(root / "0")
    stored: Stored = []
    for number, (topic, keys) in enumerate(sent):
        put, _arrivals = put_and_dispatch(
            store, [message(topic, 0, properties={"KEYS": " ".join(keys), "UNIQ_KEY": f"u{number}"})]
        )
        stored.append((topic, [f"u{number}", *keys], put[0].physical_offset, put[0].store_ms))
    store.index(built)
    if killed:
        shutil.copytree(root / "0", root / "1")
        store.abandon()
    else:
        store.close()
    store = open_store(root / ("1" if killed else "0"))
    for topic in "AB":
        for key in ("k", "Aa", "ü", "long" * 60, "u3"):
            equal = {"Aa", "BB"} if key == "Aa" else {key}
            had = [(keys, where) for name, keys, where, _ms in stored if name == topic and key in keys]
            expected = [where for keys, where in had for each in keys if each in equal]
            assert offsets(store, topic, key) == sorted(expected)[-64:], (topic, key)
            assert offsets(store, topic, key, 2) == sorted(expected)[-2:], (topic, key)


def test_only_intact_index_files_survive_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path / "0")
    put_and_dispatch(store, [message(properties={"KEYS": f"k{number} x"}) for number in range(50)])
    index_all(store, 7)
    store.flush()
    store.flush_queues()
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    expected = index_files(tmp_path / "0")
    assert len(expected) > 4
    store.abandon()
    files = sorted((tmp_path / "1" / "index").iterdir())
    files[-1].write_bytes(bytes(len(expected[-1])))
    sure = files[0].stat().st_mtime_ns
    store = open_store(tmp_path / "1")
    index_all(store, 7)
    store.close()
    assert (index_files(tmp_path / "1"), files[0].stat().st_mtime_ns) == (expected, sure)


def test_without_an_index_nothing_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path, evolve(SMALL, index=False))
    put, _arrivals = put_and_dispatch(store, [message(properties={"KEYS": "k"})])
    assert store.index(1)
    assert result_of(store.query("T", "k", 1, 0, FOR_EVER))[0].records == []
    store.close()
    assert not (tmp_path / "index").exists()
    store = open_store(tmp_path)
    assert offsets(store, "T", "k") == [put[0].physical_offset]


@fewer(2)
@given(gaps=st.lists(st.integers(0, 3), max_size=40), count_max=st.integers(1, 80))
def test_batched_entries_equal_single_ones(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], count_max: int
) -> None:
    root = tmp_path_factory.mktemp("index")
    times = iter(range(1_800_000_000_000, 1_800_000_200_000, 700))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longpoll_runtime.real.RealRuntime.unix_ms", lambda _: next(times))
        store = open_store(root / "0", evolve(SMALL, index=False))
        put_and_dispatch(
            store,
            [
                message("AB"[number % 2], properties={"UNIQ_KEY": f"u{number}", "KEYS": "k " * (number % 4) + "Aa"})
                for number in range(30)
            ],
        )
        store.close()
        shutil.copytree(root / "0", root / "1")
        patch.setattr(index.Index, "_next_name", next_number)
        store = open_store(root / "0")
        index_all(store, 1)
        store.close()
        patch.setattr(RealMappedFile, "reserve", reserve_sometimes(gaps))
        patch.setattr(index, "_PIECE_BITS", 3)
        store = open_store(root / "1")
        for _turn in range(1_000):
            with contextlib.suppress(OSError):
                if store.index(count_max):
                    break
        patch.undo()
        store.close()
    are_equal = index_files(root / "1") == index_files(root / "0")
    assert are_equal


def next_number(_self: index.Index, last: index.IndexFile | None) -> str:
    return f"{0 if last is None else int(last.path.rpartition('/')[2]) + 1:017d}"


def reserve_sometimes(gaps: list[int]) -> Callable[[RealMappedFile, int, int], None]:
    """Returns a `reserve` that fails once after each number of successes in `gaps`, and from then on succeeds."""
    reserve, left = RealMappedFile.reserve, list(gaps)

    def sometimes(self: RealMappedFile, start: int, stop: int) -> None:
        if left:
            left[0] -= 1
            if left[0] < 0:
                del left[0]
                raise OSError(errno.ENOSPC, "no space")
        reserve(self, start, stop)

    return sometimes


def test_a_concurrent_reader_finds_complete_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, evolve(SMALL, index_entry_count=400))
    put, _arrivals = put_and_dispatch(store, [message(properties={"KEYS": "a b"}) for _ in range(20)])
    pack, seen = index._pack_slot, []

    def looked_at(view: memoryview, position: int, number: int) -> None:
        pack(view, position, number)
        assert store._indexer is not None
        (file,) = store._indexer._index._files
        hashed = index.key_hashes(["T#a"])[0]
        found = [each for each in file.find(hashed, 0, FOR_EVER) if each is not None]
        seen.append((number, found))

    monkeypatch.setattr(index, "_pack_slot", looked_at)
    index_all(store, 7)
    newest_first = [each.physical_offset for each in put][::-1]
    assert [number for number, _found in seen] == list(range(1, 41))
    for number, found in seen:
        assert found == newest_first[len(newest_first) - (number + 1) // 2 :], number


def found_behind_keyless(directory: Path) -> list[int]:
    """Returns which of twenty keys are found. Messages without keys precede each message with a key in the log."""
    store = open_store(directory, evolve(SMALL, commit_log_file_size=16_384))
    for number in range(20):
        put_and_dispatch(store, [message("A", body=b"x" * size) for size in (5, number)])
        put_and_dispatch(store, [message("A", properties={"KEYS": f"k{number}"})])
    index_all(store, 7)
    found = [number for number in range(20) if offsets(store, "A", f"k{number}")]
    store.close()
    return found


def test_keys_are_found_after_messages_without_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stretch_size, pass_size in ((16, 1 << 20), (1 << 20, 300), (17, 100)):
        monkeypatch.setattr(index, "STRETCH_SIZE", stretch_size)
        monkeypatch.setattr(index, "PASS_SIZE", pass_size)
        assert found_behind_keyless(tmp_path / f"{stretch_size}") == list(range(20))

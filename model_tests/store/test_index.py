"""The index: its bytes are the Java broker's, it finds what a plain search finds, and a crash costs it nothing."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.index import index, index_file, indexer
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.testing.stores import SMALL, message, open_store, put_and_dispatch
from longpoll_protocol.log_record import Record, decode
from longpoll_runtime.files import RealMappedFile

FOR_EVER = 2**60
Stored = list[tuple[str, list[str], int, int]]
"""(topic, keys, physical offset, store time) of every message, as a plain index keeps them."""


def index_all(store: MessageStore) -> None:
    """Bring the index up to the log."""
    while not store.index(7):
        pass


def offsets(
    store: MessageStore, topic: str, key: str, count: int = 64, stored_ms: tuple[int, int] = (0, FOR_EVER)
) -> list[int]:
    """Physical offsets of what a query finds."""
    found = []
    for view in store.query(topic, key, count, *stored_ms).records:
        physical_offset = int.from_bytes(view[28:36])
        assert isinstance(decode(view, 0, len(view), physical_offset), Record)
        found.append(physical_offset)
    return found


def index_files(directory: Path) -> list[bytes]:
    """The content of every index file, in the order of the names."""
    return [path.read_bytes() for path in sorted((directory / "index").iterdir())]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_files_are_java_s_byte_for_byte(java_store: Path, java_config: StoreConfig, kept: int) -> None:
    """Index files made anew from the Java broker's log, after its own first ones, are its own bytes."""
    before = index_files(java_store)
    assert len(before) == 4
    # The first file speaks of records that the broker has deleted since, so it cannot be made again.
    for path in sorted((java_store / "index").iterdir())[kept:]:
        path.unlink()
    store = open_store(java_store, java_config)
    index_all(store)
    store.close()
    # Not in the assertion itself: pytest would explain a difference of thousands of entries for minutes.
    are_equal = index_files(java_store) == before
    assert are_equal


def test_java_s_queries_are_answered_alike(
    java_store: Path, java_config: StoreConfig, java_expected: dict[str, Any]
) -> None:
    """Every key query that was asked of the Java broker finds the same messages."""
    store = open_store(java_store, java_config)
    asked = java_expected["keyQueries"]
    for query in asked:
        assert offsets(store, query["topic"], query["key"]) == query["physicalOffsets"], query
    assert len([query for query in asked if query["physicalOffsets"]]) > 10


@given(
    sent=st.lists(
        st.tuples(st.sampled_from("AB"), st.lists(st.sampled_from(["k", "Aa", "BB", "ü", "long" * 60]), max_size=4)),
        max_size=40,
    ),
    built=st.integers(0, 40),
    killed=st.booleans(),
)
def test_finds_what_a_plain_search_finds(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str, list[str]]], built: int, killed: bool
) -> None:
    """Whatever was sent and indexed before a stop or a kill: every key finds its messages, those of equal hash too."""
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
        for key, equal in (
            ("k", {"k"}),
            ("Aa", {"Aa", "BB"}),
            ("ü", {"ü"}),
            ("long" * 60, {"long" * 60}),
            ("u3", {"u3"}),
        ):
            expected = [where for name, keys, where, _ms in stored if name == topic for each in keys if each in equal]
            assert offsets(store, topic, key) == sorted(expected)[-64:], (topic, key)
            assert offsets(store, topic, key, 2) == sorted(expected)[-2:], (topic, key)


def test_times_are_compared_by_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query gives the messages stored between two times, counted in whole seconds from each file's first message."""
    times = iter(range(1_800_000_000_000, 1_800_000_100_000, 700))
    monkeypatch.setattr("longpoll_runtime.real.RealRuntime.unix_ms", lambda _: next(times))
    store = open_store(tmp_path)
    put, _arrivals = put_and_dispatch(store, [message(properties={"KEYS": "k"}) for _ in range(15)])
    index_all(store)
    first_ms = put[0].store_ms
    for begin in range(0, 11_000, 500):
        for end in (begin, begin + 900, begin + 5000):
            expected = [
                each.physical_offset
                for each in put
                if begin <= (each.store_ms - first_ms) // 1000 * 1000 <= end and begin <= put[-1].store_ms - first_ms
            ]
            assert offsets(store, "T", "k", 64, (first_ms + begin, first_ms + end)) == expected, (begin, end)


def test_a_crash_keeps_only_what_is_sure(tmp_path: Path) -> None:
    """After a crash the newest file, and each that the checkpoint does not know, is made again as it was."""
    store = open_store(tmp_path / "0")
    put_and_dispatch(store, [message(properties={"KEYS": f"k{number} x"}) for number in range(50)])
    index_all(store)
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
    index_all(store)
    store.close()
    assert index_files(tmp_path / "1") == expected
    assert files[0].stat().st_mtime_ns == sure


def test_without_an_index_nothing_is_found(tmp_path: Path) -> None:
    """`messageIndexEnable=false` makes no files; switched on later everything is indexed."""
    store = open_store(tmp_path, evolve(SMALL, index=False))
    put, _arrivals = put_and_dispatch(store, [message(properties={"KEYS": "k"})])
    assert store.index(1)
    assert store.query("T", "k", 1, 0, FOR_EVER).records == []
    store.close()
    assert not (tmp_path / "index").exists()
    store = open_store(tmp_path)
    assert offsets(store, "T", "k") == [put[0].physical_offset]


@given(gaps=st.lists(st.integers(0, 3), max_size=40), count_max=st.integers(1, 80))
def test_entries_added_together_are_those_added_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], count_max: int
) -> None:
    """Whatever a disk that is full now and then, the size of a turn, and a file's end cut apart."""
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
        while not store.index(1):
            pass
        store.close()
        patch.setattr(RealMappedFile, "reserve", reserve_sometimes(gaps))
        patch.setattr(index_file, "_PIECE_BITS", 3)
        store = open_store(root / "1")
        for _turn in range(1_000):
            with contextlib.suppress(OSError):
                if store.index(count_max):
                    break
        patch.undo()
        store.close()
    are_equal = index_files(root / "1") == index_files(root / "0")
    assert are_equal


def next_number(_self: index.Index, last: index_file.IndexFile | None) -> str:
    """Names that do not tell the time."""
    return f"{0 if last is None else int(last.path.rpartition('/')[2]) + 1:017d}"


def reserve_sometimes(gaps: list[int]) -> Callable[[RealMappedFile, int, int], None]:
    """Disk blocks that come as often as each of `gaps` says until they are refused once, and then always."""
    reserve, left = RealMappedFile.reserve, list(gaps)

    def sometimes(self: RealMappedFile, start: int, stop: int) -> None:
        if left:
            left[0] -= 1
            if left[0] < 0:
                del left[0]
                raise OSError(errno.ENOSPC, "no space")
        reserve(self, start, stop)

    return sometimes


def test_who_reads_meanwhile_finds_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each moment while entries are added together, all that slots name, older ones in the same slot among them."""
    store = open_store(tmp_path, evolve(SMALL, index_entry_count=400))
    put, _arrivals = put_and_dispatch(store, [message(properties={"KEYS": "a b"}) for _ in range(20)])
    pack, seen = index_file._pack_slot, []

    def looked_at(view: memoryview, position: int, number: int) -> None:
        pack(view, position, number)
        assert store._indexer is not None
        (file,) = store._indexer._index._files
        hashed = index_file.key_hashes(["T#a"])[0]
        found = [each for each in file.find(hashed, 0, FOR_EVER) if each is not None]
        seen.append((number, found))

    monkeypatch.setattr(index_file, "_pack_slot", looked_at)
    index_all(store)
    newest_first = [each.physical_offset for each in put][::-1]
    assert [number for number, _found in seen] == list(range(1, 41))
    for number, found in seen:
        assert found == newest_first[len(newest_first) - (number + 1) // 2 :], number


def found_behind_keyless(directory: Path) -> list[int]:
    """Which of twenty keys are found, each behind messages without any, at every place of a stretch of the log."""
    store = open_store(directory, evolve(SMALL, commit_log_file_size=16_384))
    for number in range(20):
        put_and_dispatch(store, [message("A", body=b"x" * size) for size in (5, number)])
        put_and_dispatch(store, [message("A", properties={"KEYS": f"k{number}"})])
    index_all(store)
    found = [number for number in range(20) if offsets(store, "A", f"k{number}")]
    store.close()
    return found


def test_keys_are_seen_behind_messages_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a stretch or a pass ends."""
    for stretch_size, pass_size in ((16, 1 << 20), (1 << 20, 300), (17, 100)):
        monkeypatch.setattr(indexer, "STRETCH_SIZE", stretch_size)
        monkeypatch.setattr(indexer, "PASS_SIZE", pass_size)
        assert found_behind_keyless(tmp_path / f"{stretch_size}") == list(range(20))
    # A look that ends at the border of a stretch, as a planted fault.
    monkeypatch.setattr(indexer, "PASS_SIZE", 1 << 20)
    monkeypatch.setattr(indexer, "_find_key", in_whole_stretches)
    assert found_behind_keyless(tmp_path / "planted") != list(range(20))


def in_whole_stretches(view: memoryview, start: int, stop: int) -> int:
    """As `_find_key`, but blind to what lies across a border."""
    for at in range(start, stop, 17):
        found = bytes(view[at : min(at + 17, stop)]).find(b"KEY")
        if found >= 0:
            return at + found
    return -1

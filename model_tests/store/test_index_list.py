"""The list of index files: retained files, positions of entries, query results, and entries rebuilt from the log."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.support.broker.stores import result_of

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.index import KEY_WORTH, Index, IndexFile, Keyed, index_file_size, keys_of
from longpoll_protocol.log_record import SYS_FLAG_TRANSACTION_ROLLBACK
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime

SLOTS: Final = 4
ENTRIES: Final = 4
"""The number of entries in a file. An index file never uses its first entry, so a file holds three keys."""
NOW_MS: Final = 1_700_000_000_123
FIRST_NAME: Final = "20231114221320123"
"""The name of the first file, a time in UTC."""
FOR_EVER: Final = (0, 1 << 60)


class Files(RealFiles):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, str]] = []
        self.refused = ""

    def sync_directory(self, path: str) -> None:
        self.notes.append(("names", Path(path).name))
        if self.refused == "names":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync_directory(path)

    def remove(self, path: str) -> None:
        self.notes.append(("remove", Path(path).name))
        if self.refused:
            raise OSError(errno.EROFS, "Read-only file system")
        super().remove(path)


class World(RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.noted = Files()
        self.now_ms = NOW_MS

    @property
    def files(self) -> Files:
        return self.noted

    def unix_ms(self) -> int:
        return self.now_ms


def index_in(directory: Path, world: World | None = None, *, entries: int = ENTRIES) -> Index:
    return Index(world or World(), str(directory / "index"), SLOTS, entries)


def keyed(offset: int, *keys: str, ms: int = 0) -> Keyed:
    return Keyed(offset, "T", keys, ms or offset, offset + 1)


def found(index: Index, key: str, count_max: int = 64, stored_ms: tuple[int, int] = FOR_EVER) -> list[int]:
    return result_of(index.find("T", key, count_max, *stored_ms))[0]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "index").iterdir())


def filled(directory: Path, *offsets: int, world: World | None = None) -> Index:
    index = index_in(directory, world)
    for offset in offsets:
        assert index.put([keyed(offset, "k")], 9) == (1, 1)
    return index


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("KEYS\x01a b\x02UNIQ_KEY\x01u\x02", ["u", "a", "b"]),
        ("KEYS\x01 a  b \x02UNIQ_KEY\x01u\x02", ["u", "a", "b"]),
        ("UNIQ_KEY\x01u\x02", ["u"]),
        ("KEYS\x01a\x02", ["a"]),
        ("TAGS\x01a\x02", []),
    ],
)
def test_which_keys_find_a_record(text: str, keys: list[str]) -> None:
    """A rolled-back message is not found by any key, and a committed message is found by its own keys."""
    assert (keys_of(0, text.encode()), keys_of(0x8, text.encode())) == (keys, keys)
    assert keys_of(0x1 | SYS_FLAG_TRANSACTION_ROLLBACK, text.encode()) == []


def test_records_are_put_with_all_their_keys_over_several_files(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    records = [keyed(5, "a", "b"), keyed(6), keyed(7, "c", "a", "d"), keyed(8, "e")]
    assert index.put(records, 99) == (7, 4)
    assert [found(index, key) for key in "abcde"] == [[5, 7], [5], [7], [7], [8]]
    assert (index.end_offset, index.end_ms, len(names(tmp_path))) == (8, 8, 2)


@pytest.mark.parametrize(
    ("work_max", "work", "whole"), [(1, 2, 0), (2, 3, 2), (3, 3, 2), (4, 4, 2), (5, 5, 2), (6, 6, 3), (7, 7, 4)]
)
def test_records_beyond_the_work_limit_wait_for_the_next_call(
    tmp_path: Path, work_max: int, work: int, whole: int
) -> None:
    index = index_in(tmp_path)
    records = [keyed(5, "a", "b"), keyed(6), keyed(7, "a", "a", "a"), keyed(8, "a")]
    assert index.put(records, work_max) == (work, whole)
    for _turn in range(9):
        if whole == len(records):
            break
        whole += index.put(records[whole:], 1)[1]
    assert (found(index, "a"), found(index, "b")) == ([5, 7, 7, 7, 8], [5])


def test_long_keys_count_for_more(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    for size, work in ((KEY_WORTH - 1, 1), (KEY_WORTH, 2), (2 * KEY_WORTH, 3)):
        assert index.put([keyed(5 + size, "k" * size)], 99) == (work, 1)


def refuse(monkeypatch: pytest.MonkeyPatch, room: int) -> Callable[[], None]:
    """Make the index files accept `room` more entries and then be full; returns a function that makes space again."""
    put = IndexFile.put
    left = [room]

    def putting(file: IndexFile, entries: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = put(file, entries[: left[0]])
        left[0] -= count
        return count

    monkeypatch.setattr(IndexFile, "put", putting)
    return lambda: left.__setitem__(0, 1 << 20)


@pytest.mark.parametrize("room", range(1, 8))
def test_no_key_is_lost_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    index = index_in(tmp_path, entries=99)
    there_is_room = refuse(monkeypatch, room)
    records = [keyed(5, "a", "a"), keyed(6, "a"), keyed(7, "a", "a", "a"), keyed(8, "a")]
    _work, whole = index.put(records, 99)
    assert whole == sum(done <= room for done in (2, 3, 6, 7))
    if room < 7:
        with pytest.raises(OSError, match="No space"):
            index.put(records[whole:], 99)
    there_is_room()
    assert index.put(records[whole:], 99)[1] == len(records) - whole
    assert found(index, "a") == [5, 5, 6, 7, 7, 7, 8]


def test_an_index_file_is_named_by_its_creation_time(tmp_path: Path) -> None:
    world = World()
    index = filled(tmp_path, 1, 2, 3, 4, world=world)
    world.now_ms -= 5_000
    index.put([keyed(5, "k"), keyed(6, "k"), keyed(7, "k")], 9)
    world.now_ms += 65_007
    index.put([keyed(8, "k"), keyed(9, "k"), keyed(10, "k")], 9)
    assert names(tmp_path) == [FIRST_NAME, "20231114221320124", "20231114221320125", "20231114221420130"]
    assert world.noted.notes.count(("names", "index")) == 4, "each name is durable"
    assert found(index, "k") == list(range(1, 11))


def test_an_index_is_created_in_an_existing_store(tmp_path: Path) -> None:
    index = index_in(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="the store no longer exists"):
        index.put([keyed(1, "k")], 9)
    assert not (tmp_path / "none").exists()


def test_a_full_file_is_durable_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(IndexFile, "flush", lambda file: flushed.append(Path(file.path).name))
    index = index_in(tmp_path)
    index.flush()
    index.put([keyed(offset, "k") for offset in (1, 2, 3)], 9)
    assert (flushed, index.flushed_ms) == ([], 0)
    index.put([keyed(4, "k")], 9)
    assert (flushed, index.flushed_ms) == ([FIRST_NAME], 3)
    index.flush()
    assert flushed == names(tmp_path)


@pytest.mark.parametrize("step", ["make", "begin", "names"])
def test_a_failed_creation_leaves_no_index_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """If a new file cannot be created, neither its name nor its map remains."""
    world = World()
    index = filled(tmp_path, 1, 2, 3, world=world)
    closed: list[str] = []
    close = IndexFile.close

    def closing(file: IndexFile) -> None:
        closed.append(Path(file.path).name)
        close(file)

    with monkeypatch.context() as patched:
        patched.setattr(IndexFile, "close", closing)
        if step == "make":
            patched.setattr(IndexFile, "__init__", lambda *_: _full())
        elif step == "begin":
            patched.setattr(IndexFile, "begin_after", lambda *_: _full())
        else:
            world.noted.refused = "names"
        with pytest.raises(OSError, match="No space left"):
            index.put([keyed(4, "k")], 9)
    second = "20231114221320124"
    assert closed == ([] if step == "make" else [second])
    assert names(tmp_path) == ([FIRST_NAME, second] if step == "names" else [FIRST_NAME])
    world.noted.refused = ""
    assert found(index, "k") == [1, 2, 3]
    assert index.put([keyed(4, "k")], 9) == (1, 1)
    assert found(index, "k") == [1, 2, 3, 4]


def _full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_existing_index_files_are_mapped_and_others_ignored(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3, 4).close()
    for name in ("2023111422132012", "202311142213201230", "2023111422132012x", "٣" * 17):
        (tmp_path / "index" / name).write_bytes(b"x")
    index = index_in(tmp_path)
    assert (found(index, "k"), len(names(tmp_path))) == ([1, 2, 3, 4], 6)


def test_an_index_file_of_another_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 1, 2, 3, 4).close()
    last = tmp_path / "index" / "20231114221320124"
    last.write_bytes(bytes(7))
    closed: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(IndexFile, "close", lambda file: closed.append(Path(file.path).name))
        size = index_file_size(SLOTS, ENTRIES)
        with pytest.raises(StoreUserError, match=f"has 7 bytes, maxHashSlotNum=4 and maxIndexNum=4 make {size}; "):
            index_in(tmp_path)
    assert closed == [FIRST_NAME]
    last.write_bytes(b"")
    index = index_in(tmp_path)
    assert (found(index, "k"), index.end_offset) == ([1, 2, 3], 3)


def test_a_damaged_index_file_is_removed_with_later_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, *range(1, 11)).close()
    second = names(tmp_path)[1]
    content = bytearray((tmp_path / "index" / second).read_bytes())
    content[36:40] = (ENTRIES + 1).to_bytes(4, "big")
    (tmp_path / "index" / second).write_bytes(content)
    index = index_in(tmp_path)
    assert (names(tmp_path), found(index, "k")) == ([FIRST_NAME], [1, 2, 3])
    assert f"{second} is damaged" in caplog.text


@pytest.mark.parametrize(
    ("durable_ms", "log_end", "kept"),
    [(99, 99, 2), (6, 7, 2), (5, 99, 1), (99, 6, 1), (3, 4, 1), (2, 99, 0), (99, 3, 0)],
)
def test_after_a_crash_full_durable_files_are_kept(tmp_path: Path, durable_ms: int, log_end: int, kept: int) -> None:
    """The newest index file is dropped even if it is full."""
    world = World()
    index = filled(tmp_path, *range(1, 10), world=world)
    all_names = names(tmp_path)
    assert len(all_names) == 3
    world.noted.notes.clear()
    index.forget_unsure(durable_ms, log_end)
    assert [note[1] for note in world.noted.notes] == all_names[kept:]
    assert (names(tmp_path), index.flushed_ms, index.end_offset) == (all_names[:kept], 3 * kept, 3 * kept or -1)


@pytest.mark.parametrize(
    ("before", "last_keys"),
    [(0, 1), (0, 2), (0, 3), (0, 4), (0, 7), (1, 1), (1, 2), (1, 3), (1, 8), (2, 1), (3, 1), (3, 4)],
)
def test_indexing_continues_after_the_last_indexed_key(tmp_path: Path, before: int, last_keys: int) -> None:
    index = index_in(tmp_path)
    last = keyed(9, *"k" * 12)
    index.put([keyed(offset, "k") for offset in range(1, before + 1)], 99)
    assert index.put([last], last_keys) == (last_keys, 0)
    index.close()
    (tmp_path / "index" / "20991114221320124").write_bytes(b"")
    index = index_in(tmp_path)
    assert index.go_on() == 9
    assert index.put([last], 99) == (12 - last_keys, 1)
    assert found(index, "k") == [*range(1, before + 1), *[9] * 12]


def test_an_empty_index_starts_at_the_beginning(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    assert (index.go_on(), index.end_offset, index.end_ms) == (-1, -1, 0)
    index.put([keyed(0, "k")], 9)
    assert found(index, "k") == [0]


@pytest.mark.parametrize(("log_start", "gone"), [(0, 0), (3, 0), (4, 1), (6, 1), (7, 2), (10, 2), (99, 2)])
def test_index_files_without_log_records_are_removed(tmp_path: Path, log_start: int, gone: int) -> None:
    world = World()
    index = filled(tmp_path, *range(1, 8), world=world)
    all_names = names(tmp_path)
    world.noted.notes.clear()
    index.remove_before(log_start)
    assert (names(tmp_path), [note[1] for note in world.noted.notes]) == (all_names[gone:], all_names[:gone])
    assert found(index, "k") == list(range(3 * gone + 1, 8))


def test_the_newest_messages_are_found_in_log_order(tmp_path: Path) -> None:
    index = filled(tmp_path, *range(1, 8))
    index.put([keyed(8, "other"), Keyed(9, "U", ("k",), 9, 10)], 9)
    for count in range(1, 9):
        assert found(index, "k", count) == list(range(1, 8))[-count:]
    assert (found(index, "other"), found(index, "none")) == ([8], [])


@pytest.mark.parametrize(("walked_max", "turns"), [(1, 7), (3, 2), (7, 1), (8, 0)])
def test_a_search_yields_between_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walked_max: int, turns: int
) -> None:
    index = index_in(tmp_path, entries=64)
    index.put([keyed(number, "k", ms=number * 10_000) for number in range(1, 8)], 99)
    monkeypatch.setattr("longpoll_broker.store.index.WALKED_MAX", walked_max)
    assert result_of(index.find("T", "k", 64, *FOR_EVER)) == (list(range(1, 8)), turns)
    assert result_of(index.find("T", "k", 64, 10_000, 40_000)) == ([1, 2, 3, 4], turns)


def test_a_search_reads_only_files_of_its_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_in(tmp_path)
    for number in range(1, 13):
        index.put([keyed(number, "k", ms=number * 10_000)], 9)
    looked: list[str] = []
    find = IndexFile.find

    def finding(file: IndexFile, hashed: int, begin_ms: int, end_ms: int) -> Any:
        looked.append(Path(file.path).name[-1])
        return find(file, hashed, begin_ms, end_ms)

    monkeypatch.setattr(IndexFile, "find", finding)
    for (begin, end), numbers, files in (
        ((0, 130_000), list(range(1, 13)), ["6", "5", "4", "3"]),
        # An index file covers the records after the previous file's end, so the seventh record also gets 80,000 ms.
        ((51_000, 80_000), [6, 7, 8], ["5", "4"]),
        ((30_000, 30_000), [3], ["3"]),
        ((31_000, 39_000), [], []),
    ):
        looked.clear()
        assert found(index, "k", 64, (begin, end)) == numbers
        assert looked == files, (begin, end)
    for count, files in ((2, ["6"]), (3, ["6"]), (4, ["6", "5"])):
        looked.clear()
        assert found(index, "k", count) == list(range(13 - count, 13))
        assert looked == files, "the search ends with the wanted number of results"

"""The real file layer, and a list of mapped segments: removals, syncs and reserved disk blocks."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import define, evolve, field
from model_tests.support.broker.stores import SMALL, message, open_store
from model_tests.support.faults import raising

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.segment import RESERVE_SIZE, RESERVE_SIZE_MIN, Maps, Segment, SegmentList, segment_name
from longpoll_runtime.files import RealFiles, RealMappedFile

SIZE = 10
"""The size of a file in bytes; tests of reserved blocks use whole mebibytes."""
LARGE_SIZE = 4 * RESERVE_SIZE


@define
class Disk:
    room: int = LARGE_SIZE
    """Disk blocks can be reserved up to this position of a file, in bytes."""
    refusal: int = errno.ENOSPC
    """The error code with which blocks beyond `room` are refused."""
    reserved: list[tuple[int, int]] = field(factory=list)
    synced: list[tuple[str, int, int]] = field(factory=list)
    directories: list[str] = field(factory=list)
    """The directories that were synced."""
    removed: list[str] = field(factory=list)
    closed: list[str] = field(factory=list)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The real files, except that the disk only records reservations and syncs."""
    seen = Disk()
    remove, close = RealFiles.remove, RealMappedFile.close

    def name_of(mapped: RealMappedFile) -> str:
        return Path(mapped._path).name

    def reserve(_mapped: RealMappedFile, start: int, stop: int) -> None:
        seen.reserved.append((start, stop))
        if stop > seen.room:
            raise OSError(seen.refusal, "no")

    def removing(files: RealFiles, path: str) -> None:
        remove(files, path)
        seen.removed.append(Path(path).name)

    def closing(mapped: RealMappedFile) -> None:
        seen.closed.append(name_of(mapped))
        close(mapped)

    def sync(mapped: RealMappedFile, start: int, stop: int) -> None:
        seen.synced.append((name_of(mapped), start, stop))

    def sync_directory(_files: RealFiles, path: str) -> None:
        seen.directories.append(path)

    monkeypatch.setattr(RealMappedFile, "reserve", reserve)
    monkeypatch.setattr(RealMappedFile, "sync", sync)
    monkeypatch.setattr(RealMappedFile, "close", closing)
    monkeypatch.setattr(RealFiles, "remove", removing)
    monkeypatch.setattr(RealFiles, "sync_directory", sync_directory)
    return seen


def names(*starts: int) -> list[str]:
    return [segment_name(start) for start in starts]


def filled(directory: Path, *starts: int) -> SegmentList:
    """Create files full of `x` whose contents, directory and names are synced."""
    segments = SegmentList(RealFiles(), str(directory), SIZE)
    for start in starts:
        segments.append(start).view[:] = b"x" * SIZE
    segments.flush(0, 0)
    return segments


def left(store: Path) -> list[str]:
    return sorted(each.name for each in (store / "log").iterdir())


def write(directory: Path, sizes: dict[int, int]) -> None:
    directory.mkdir(exist_ok=True)
    for start, size in sizes.items():
        (directory / segment_name(start)).write_bytes(b"x" * size)


def test_disk_blocks_are_reserved_a_mebibyte_ahead(tmp_path: Path, disk: Disk) -> None:
    segment = Segment(RealFiles(), str(tmp_path / "file"), 0, LARGE_SIZE)
    assert segment.reserved_end == 0
    segment.reserve(100, 200)
    assert segment.reserved_end == 100 + RESERVE_SIZE
    segment.reserve(0, 2 * RESERVE_SIZE)
    assert segment.reserved_end == 2 * RESERVE_SIZE
    segment.reserve(LARGE_SIZE - 10, LARGE_SIZE - 5)
    assert segment.reserved_end == LARGE_SIZE
    assert disk.reserved == [(100, 100 + RESERVE_SIZE), (0, 2 * RESERVE_SIZE), (LARGE_SIZE - 10, LARGE_SIZE)]
    segment.mapped.close()


def test_a_queue_file_doubles_its_reserved_blocks(tmp_path: Path, disk: Disk) -> None:
    segment = Segment(RealFiles(), str(tmp_path / "file"), 0, LARGE_SIZE, Maps(1))
    for position in (0, 100, 5000, RESERVE_SIZE, 3 * RESERVE_SIZE, LARGE_SIZE - 40):
        segment.reserve(position, position + 20)
    assert disk.reserved == [
        (0, RESERVE_SIZE_MIN),
        (100, 100 + RESERVE_SIZE_MIN),
        (5000, 10_000),
        (RESERVE_SIZE, 2 * RESERVE_SIZE),
        (3 * RESERVE_SIZE, 4 * RESERVE_SIZE),
        (LARGE_SIZE - 40, LARGE_SIZE),
    ]
    segment.reserve(0, 2 * RESERVE_SIZE_MIN)
    assert segment.reserved_end == 2 * RESERVE_SIZE_MIN
    segment.mapped.close()


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EDQUOT])
def test_a_nearly_full_disk_reserves_only_needed_blocks(tmp_path: Path, disk: Disk, refusal: int) -> None:
    disk.room, disk.refusal = 500, refusal
    segment = Segment(RealFiles(), str(tmp_path / "file"), 0, LARGE_SIZE)
    segment.reserve(0, 500)
    assert (segment.reserved_end, disk.reserved) == (500, [(0, RESERVE_SIZE), (0, 500)])
    with pytest.raises(OSError, match="no"):
        segment.reserve(500, 501)
    assert segment.reserved_end == 500
    segment.mapped.close()


def test_refused_disk_blocks_are_requested_once(tmp_path: Path, disk: Disk) -> None:
    disk.room = 0
    segment = Segment(RealFiles(), str(tmp_path / "file"), 0, LARGE_SIZE)
    with pytest.raises(OSError, match="no"):
        segment.reserve(LARGE_SIZE - 10, LARGE_SIZE)
    disk.refusal = errno.EIO
    with pytest.raises(OSError, match="no"):
        segment.reserve(0, 10)
    assert disk.reserved == [(LARGE_SIZE - 10, LARGE_SIZE), (0, RESERVE_SIZE)]
    assert segment.reserved_end == 0
    segment.mapped.close()


def test_each_byte_is_in_one_file(tmp_path: Path, disk: Disk) -> None:
    segments = SegmentList(RealFiles(), str(tmp_path / "log"), SIZE)
    assert (segments.start, segments.find(0), segments.segments) == (0, None, ())
    made = [segments.append(start) for start in (20, 30)]
    assert [(each.path, each.start, each.stop, each.size) for each in made] == [
        (f"{tmp_path}/log/{'20':>020}", 20, 30, SIZE),
        (f"{tmp_path}/log/{'30':>020}", 30, 40, SIZE),
    ]
    assert segments.start == 20
    found = {offset: segments.find(offset) for offset in (0, 19, 20, 29, 30, 39, 40, 1000)}
    assert found == {0: None, 19: None, 20: made[0], 29: made[0], 30: made[1], 39: made[1], 40: None, 1000: None}
    segments.close()
    assert segments.segments == ()
    segments.close()
    assert disk.closed == names(20, 30)


def test_written_bytes_are_readable_after_reopening(tmp_path: Path, disk: Disk) -> None:
    filled(tmp_path / "log", 20, 30, 40).close()
    for stranger in ("x" * 20, "1" * 19, "1" * 21, "\N{ARABIC-INDIC DIGIT THREE}" * 20):
        (tmp_path / "log" / stranger).touch()
    disk.directories.clear()
    segments = SegmentList(RealFiles(), str(tmp_path / "log"), SIZE)
    assert [(each.start, bytes(each.view)) for each in segments.segments] == [(n, b"x" * SIZE) for n in (20, 30, 40)]
    segments.flush(0, 100)
    assert disk.directories == [], "after a clean stop every file name is synced"


@pytest.mark.parametrize(("size", "after_a_crash"), [(0, False), (0, True), (1, True), (SIZE - 1, True)], ids=str)
def test_a_short_newest_file_is_extended(tmp_path: Path, disk: Disk, size: int, after_a_crash: bool) -> None:
    write(tmp_path / "log", {0: SIZE, 10: SIZE, 20: size})
    segments = SegmentList(RealFiles(), str(tmp_path / "log"), SIZE, lengthen=after_a_crash)
    assert [each.start for each in segments.segments] == [0, 10, 20]
    assert bytes(segments.segments[-1].view) == b"x" * size + bytes(SIZE - size)
    segments.flush(0, 30)
    # After a crash the names are synced again, because the earlier process may have been killed before it synced them.
    assert disk.directories == ([f"{tmp_path}/log", str(tmp_path), str(tmp_path.parent)] if after_a_crash else [])


@pytest.mark.parametrize(
    ("sizes", "after_a_crash", "found"),
    [
        ({0: SIZE, 10: 3}, False, "has 3 bytes, but the settings say 10"),
        ({0: SIZE, 10: 1}, False, "has 1 bytes, but the settings say 10"),
        ({0: SIZE, 10: 3, 20: SIZE}, True, "has 3 bytes, but the settings say 10"),
        ({0: SIZE, 10: 0, 20: SIZE}, True, "has 0 bytes, but the settings say 10"),
        ({0: SIZE, 10: 0, 20: 0}, False, "has 0 bytes, but the settings say 10"),
        ({0: SIZE, 10: SIZE + 1}, False, "has 11 bytes, but the settings say 10"),
        ({0: SIZE, 10: SIZE + 1}, True, "has 11 bytes, but the settings say 10"),
        ({0: SIZE, 20: SIZE}, False, "has no file 00000000000000000010 before 00000000000000000020"),
        ({0: SIZE, 10: SIZE, 30: SIZE}, True, "has no file 00000000000000000020 before 00000000000000000030"),
    ],
)
def test_files_with_a_gap_or_another_size_are_refused(
    tmp_path: Path, disk: Disk, sizes: dict[int, int], after_a_crash: bool, found: str
) -> None:
    """A file of a wrong size, or a gap between files, is refused, and no file changes."""
    write(tmp_path / "log", sizes)
    with pytest.raises(StoreUserError, match=found):
        SegmentList(RealFiles(), str(tmp_path / "log"), SIZE, lengthen=after_a_crash)
    good = [start for start in sizes if f"before {segment_name(start)}" not in found and sizes[start] == SIZE]
    assert disk.closed == names(*good[: len(disk.closed)]) != []
    assert {int(each.name): each.stat().st_size for each in (tmp_path / "log").iterdir()} == sizes


def test_a_failed_creation_leaves_no_segment_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def no_length(files: RealFiles, path: str, _size: int, **_how: bool) -> RealMappedFile:
        Path(path).touch()
        raise OSError(errno.ENOSPC, "the disk is full")

    segments = filled(tmp_path / "log", 0)
    monkeypatch.setattr(RealFiles, "map", no_length)
    with pytest.raises(OSError, match="the disk is full"):
        segments.append(10)
    assert (left(tmp_path), [each.start for each in segments.segments]) == (names(0), [0])
    monkeypatch.setattr(RealFiles, "remove", raising(OSError(errno.EIO, "it stays")))
    with pytest.raises(OSError, match="the disk is full"):
        segments.append(10)


def test_the_names_of_new_directories_are_synced(tmp_path: Path, disk: Disk) -> None:
    """The names of the file and of its two new directories are synced."""
    segments = SegmentList(RealFiles(), f"{tmp_path}/T/0", SIZE)
    segments.append(0)
    segments.append(10)
    # The name and length of the first file are synced before the second file can be found.
    assert (disk.synced, disk.directories) == ([("0" * 20, 0, 1)], [f"{tmp_path}/T/0"])
    disk.directories.clear()
    segments.flush(0, 20)
    assert disk.directories == [f"{tmp_path}/T/0", f"{tmp_path}/T", str(tmp_path)]
    disk.directories.clear()
    segments.flush(0, 20)
    assert disk.directories == []
    segments.append(20)
    segments.flush(20, 30)
    assert disk.directories == [f"{tmp_path}/T/0"]


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("log", ["log", ".", "."]),
        ("store/log", ["store/log", "store", "."]),
        ("/log", ["/log", "/", "/"]),
        ("/store/log", ["/store/log", "/store", "/"]),
    ],
)
def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, disk: Disk, directory: str, expected: list[str]
) -> None:

    class Within(RealFiles):
        """Files under the test's own directory, which is also the working directory."""

        def make_directory(self, path: str) -> None:
            super().make_directory(f"{tmp_path}/{path}")

        def map(self, path: str, size: int, *, writable: bool, create: bool = False) -> RealMappedFile:
            return super().map(f"{tmp_path}/{path}", size, writable=writable, create=create)

        def identity(self, path: str) -> int:
            return super().identity(f"{tmp_path}/{path}")

    segments = SegmentList(Within(), directory, SIZE)
    segments.append(0)
    segments.flush(0, SIZE)
    assert disk.directories == expected


def test_a_sync_covers_only_the_requested_bytes(tmp_path: Path, disk: Disk) -> None:
    """A sync covers only the requested bytes, because a sync of another file would wait for the disk needlessly."""
    segments = filled(tmp_path / "log", 20, 30, 40, 50)
    asked = {(35, 50): [(30, 5, 10), (40, 0, 10)], (40, 45): [(40, 0, 5)], (20, 21): [(20, 0, 1)], (60, 70): []}
    for (start, stop), expected in asked.items():
        disk.synced.clear()
        segments.flush(start, stop)
        assert disk.synced == [(segment_name(first), *part) for first, *part in expected]


def test_truncated_bytes_do_not_return(tmp_path: Path, disk: Disk) -> None:
    segments = filled(tmp_path / "log", 20, 30, 40, 50, 60)
    for each in segments.segments:
        each.reserve(0, SIZE)
    disk.directories.clear()
    segments.truncate(45)
    assert (disk.removed, disk.closed) == (names(60, 50), names(60, 50))
    assert disk.directories == [f"{tmp_path}/log"] * 2
    assert [bytes(each.view) for each in segments.segments] == [b"x" * SIZE, b"x" * SIZE, b"xxxxx" + bytes(5)]
    assert [each.reserved_end for each in segments.segments] == [SIZE, SIZE, 0]
    segments.truncate(45)
    assert disk.directories == [f"{tmp_path}/log"] * 2, "no file was removed, so no name has to be synced"
    segments.truncate(40)
    assert left(tmp_path) == names(20, 30)
    assert [(bytes(each.view), each.reserved_end) for each in segments.segments] == [(b"x" * SIZE, SIZE)] * 2
    segments.truncate(20)
    assert (left(tmp_path), segments.segments) == ([], ())


def test_the_oldest_files_are_removed_first(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = filled(tmp_path / "log", 0, 10, 20, 30)
    oldest = segments.segments[0].view[2:4]
    segments.remove(2)
    assert disk.removed == names(0, 10)
    assert (segments.start, left(tmp_path)) == (20, names(20, 30))
    assert bytes(oldest) == b"xx"
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "remove", raising(OSError(errno.EIO, "it stays")))
        with pytest.raises(OSError, match="it stays"):
            segments.remove()
    assert [each.start for each in segments.segments] == [20, 30]
    segments.remove()
    assert (left(tmp_path), segments.segments) == ([], ())


@pytest.mark.parametrize(("lengthen", "expected"), [(False, []), (True, [("0" * 20, 0, 1)])])
def test_a_durable_file_is_not_made_so_again(
    tmp_path: Path, disk: Disk, *, lengthen: bool, expected: list[tuple[str, int, int]]
) -> None:
    """A synced file is not synced again, except after a crash, when its name may be missing on the disk."""
    segments = filled(tmp_path / "log", 0)
    segments.flush(0, 1)
    segments = SegmentList(RealFiles(), f"{tmp_path}/log", SIZE, lengthen=lengthen)
    disk.synced.clear()
    segments.append(10)
    segments.flush(10, 20)
    segments.append(20)
    assert disk.synced == [*expected, ("0" * 18 + "10", 0, 10)]


def test_a_file_is_durable_before_the_next_is_created(tmp_path: Path, disk: Disk) -> None:
    """A file is synced before the next file is created, because a power cut could remove a file in the middle."""
    segments = SegmentList(RealFiles(), str(tmp_path / "log"), SIZE)
    made = [segments.append(start) for start in (20, 30, 40)]
    first, second = names(20, 30)
    assert disk.synced == [(first, 0, 1), (second, 0, 1)]
    assert disk.directories == [str(tmp_path / "log")] * 2
    assert [segment.is_durable for segment in made] == [True, True, False]
    segments.flush(40, 50)
    disk.synced.clear()
    segments.append(50)
    assert disk.synced == []


def test_removed_names_are_durable_one_by_one(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removals are synced one by one, so that a power cut leaves no gap."""
    segments = filled(tmp_path / "log", 20, 30, 40)
    disk.directories.clear()
    remove = RealFiles.remove
    seen: list[int] = []

    def removing(files: RealFiles, path: str) -> None:
        seen.append(len(disk.directories))
        remove(files, path)

    monkeypatch.setattr(RealFiles, "remove", removing)
    segments.remove(2)
    assert (seen, disk.directories) == ([0, 1], [str(tmp_path / "log")])


def first_messages(directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sends the first message of each of 64 queues while every sync blocks; returns how many are visible."""

    def stand_still(*_: object) -> None:
        raise AssertionError("who waits for a sync keeps every other queue waiting")

    # All records fit into one log file, because a second file would wait for the sync of the first.
    store = open_store(directory, evolve(SMALL, commit_log_file_size=1 << 20))
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "sync_directory", stand_still)
        patch.setattr(RealFiles, "write_atomic", stand_still)
        patch.setattr(RealMappedFile, "sync", stand_still)
        for queue_id in range(64):
            store.put(message("NEW", queue_id))
        store.dispatch(64)
    visible = sum(store.visible_end("NEW", queue_id) for queue_id in range(64))
    store.close()
    return visible


def test_the_first_message_of_a_queue_waits_for_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_messages(tmp_path, monkeypatch) == 64


def test_writes_to_a_map_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    mapped = RealFiles().map(str(path), 1 << 20, writable=True, create=True)
    assert path.read_bytes() == bytes(1 << 20)
    assert path.stat().st_blocks * 512 < 1 << 20
    mapped.reserve(0, 8192)
    assert path.stat().st_blocks * 512 >= 8192
    mapped.view[5000:5004] = b"here"
    mapped.sync(5000, 5004)
    assert path.read_bytes()[5000:5004] == b"here"
    assert mapped.data_from(0) <= 5000
    assert mapped.data_from(500_000) == mapped.data_from(1 << 20) == 1 << 20
    mapped.clear_from(5002)
    assert (bytes(mapped.view[5000:5004]), path.stat().st_size) == (b"he\0\0", 1 << 20)
    mapped.close()


def test_a_file_keeps_its_length_while_it_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while a file is overwritten with zeros must not leave a file that is too short."""
    mapped = RealFiles().map(str(tmp_path / "file"), 8192, writable=True, create=True)
    mapped.view[:] = b"x" * 8192
    cut_short: list[int] = []
    truncate = os.ftruncate

    def cut(descriptor: int, size: int) -> None:
        cut_short.append(size)
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", cut)
    mapped.clear_from(5000)
    assert (bytes(mapped.view), cut_short) == (b"x" * 5000 + bytes(3192), [])
    mapped.clear_from(8192)

    class NoHoles:
        def fallocate(self, *_: object) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr("longpoll_runtime.files._LIBC", NoHoles())
    mapped.clear_from(100)
    assert (bytes(mapped.view), cut_short) == (b"x" * 100 + bytes(8092), [100, 8192])
    mapped.close()


def test_zeros_are_not_overwritten_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros and holes are not written again."""

    class Counting:
        calls = 0

        def fallocate(self, *arguments: int) -> int:
            self.calls += 1
            done: int = libc.fallocate(*arguments)
            return done

    libc, counting = ctypes.CDLL(None, use_errno=True), Counting()
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    mapped = RealFiles().map(str(tmp_path / "file"), 1 << 20, writable=True, create=True)
    mapped.view[:5000] = b"x" * 5000
    monkeypatch.setattr("longpoll_runtime.files._LIBC", counting)
    mapped.clear_from(5000)
    mapped.clear_from(8192)
    assert counting.calls == 0
    for place in (5000, 8191, 8192, (1 << 20) - 1):
        mapped.view[place] = 1
        mapped.clear_from(5000)
        assert bytes(mapped.view) == b"x" * 5000 + bytes((1 << 20) - 5000)
    assert counting.calls == 4
    monkeypatch.undo()
    mapped.close()


def test_mapped_files_that_fail(tmp_path: Path) -> None:
    """A slice stays readable after the file is closed; errors name the file and the reason."""
    mapped = RealFiles().map(str(tmp_path / "file"), 4096, writable=True, create=True)
    mapped.view[:3] = b"abc"
    held = mapped.view[:3]
    mapped.close()
    assert bytes(held) == b"abc"
    (tmp_path := tmp_path / "next").mkdir()
    files = RealFiles()
    with pytest.raises(FileNotFoundError):
        files.map(str(tmp_path / "none"), 10, writable=False)
    (tmp_path / "long").write_bytes(b"x" * 20)
    with pytest.raises(OSError, match="20 bytes, not 10"):
        files.map(str(tmp_path / "long"), 10, writable=True, create=True)
    read_only = files.map(str(tmp_path / "long"), 20, writable=False)
    with pytest.raises(TypeError):
        read_only.view[0] = 1
    read_only.close()
    (tmp_path / "empty").touch()
    empty = files.map(str(tmp_path / "empty"), 0, writable=False)
    assert len(empty.view) == 0
    empty.close()
    (tmp_path := tmp_path / "next").mkdir()
    mapped = RealFiles().map(str(tmp_path / "file"), 4096, writable=True, create=True)
    mapped._address = 4096
    with pytest.raises(OSError, match="file") as raised:
        mapped.sync(0, 4096)
    assert raised.value.errno == errno.ENOMEM
    mapped.close()


def test_replacing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = RealFiles(), tmp_path / "file"
    files.write_atomic(str(path), b"old")
    assert files.read(str(path)) == b"old"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", raising(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            files.write_atomic(str(path), b"new")
    assert (files.read(str(path)), files.list(str(tmp_path))) == (b"old", ["file"])


def test_operations_of_real_files_directories_and_locks(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path / "file")
    for part in (b"one", b"two"):
        file = files.open_append(path)
        file.write(part)
        file.sync()
        file.close()
        file.close()
    assert (files.read(path), files.size(path)) == (b"onetwo", 6)
    (tmp_path := tmp_path / "next").mkdir()
    files = RealFiles()
    files.make_directory(f"{tmp_path}/a/b")
    files.make_directory(f"{tmp_path}/a/b")
    files.sync_directory(f"{tmp_path}/a")
    for name in ("z", "y"):
        files.write_atomic(f"{tmp_path}/a/{name}", b"")
    assert (files.list(f"{tmp_path}/a"), files.list(f"{tmp_path}/none")) == (["b", "y", "z"], [])
    files.remove(f"{tmp_path}/a/y")
    files.remove(f"{tmp_path}/a/y")
    assert (files.exists(f"{tmp_path}/a/y"), files.exists(f"{tmp_path}/a/z")) == (False, True)
    (tmp_path := tmp_path / "next").mkdir()
    files = RealFiles()
    (tmp_path / "other").symlink_to(tmp_path / "lock")
    unlock = files.lock(str(tmp_path / "lock"))
    for name in ("lock", "other"):
        with pytest.raises(BlockingIOError):
            RealFiles().lock(str(tmp_path / name))
    unlock()
    RealFiles().lock(str(tmp_path / "lock"))()


def test_many_files_raise_the_limit(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from longpoll_runtime.files import RealFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, int(sys.argv[2])))\n"
        "taken = [open(sys.executable) for _ in range(32 - 3)]\n"
        "held = RealFiles().map(f'{sys.argv[1]}/file', 10, writable=True, create=True)\n"
        "print(len(held.view))\n"
    )
    hard = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    raised = subprocess.run([*arguments, str(hard)], capture_output=True, text=True, check=False, timeout=60)
    assert raised.stdout == "10\n", raised.stderr
    kept = subprocess.run([*arguments, "32"], capture_output=True, text=True, check=False, timeout=60)
    assert "Too many open files" in kept.stderr


def test_a_mapped_file_keeps_no_descriptor(tmp_path: Path) -> None:
    """A process may map more files than it may have open, so a map keeps no descriptor."""
    script = (
        "import os, resource, sys\n"
        "from longpoll_runtime.files import RealFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "maps = lambda: open('/proc/self/maps').read().count(sys.argv[1])\n"
        "files = RealFiles()\n"
        "held = [files.map(f'{sys.argv[1]}/{n}', 10, writable=True, create=True) for n in range(64)]\n"
        "part = held[0].view[2:5]\n"
        "print(maps())\n"
        "for each in held: each.close()\n"
        "print(maps(), bytes(part))\n"
        "del part\n"
        "print(maps())\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "64\n1 b'\\x00\\x00\\x00'\n0\n", ended.stderr


def test_exists_raises_when_the_disk_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `exists` returned False on a disk error, a crashed store would open without recovery."""
    file = tmp_path / "file"
    file.touch()
    files = RealFiles()
    assert files.exists(str(file))
    assert not files.exists(str(tmp_path / "none"))
    assert not files.exists(str(file / "below"))

    def fail(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.exists(str(file))

"""The simulated disk, compared with real files call by call, and its state after kills and power cuts."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.simulation.disk import PAGE_SIZE, SECTOR_SIZE, SMALL_SIZE_MAX, Disk, Order
from model_tests.support.simulation.files import ERRORS, SimulatedFiles

from longpoll_runtime import AppendFile, Files, MappedFile
from longpoll_runtime.files import RealFiles

PATHS = ["a", "b", "a/x", "a/y", "a/x/deep", "c/d", "a//x", "./b"]
SIZES = [0, 1, 700, 2 * PAGE_SIZE, PAGE_SIZE + 1, SMALL_SIZE_MAX + 5000]
BIG = SMALL_SIZE_MAX + PAGE_SIZE


class Side:
    """The real or the simulated file layer, with its open files. Invariant: both layers open the same files."""

    def __init__(self, files: Files, root: str) -> None:
        self.files = files
        self.root = root
        self.maps: list[MappedFile] = []
        self.appends: list[AppendFile] = []
        self.unlocks: list[Callable[[], None]] = []

    def do(self, operation: str, path: str, arguments: tuple[Any, ...]) -> object:
        try:
            return getattr(self, operation)(f"{self.root}/{path}", *arguments)
        except OSError as error:
            return type(error).__name__, error.errno

    def map(self, path: str, size: int, writable: bool, create: bool) -> int:
        self.maps.append(self.files.map(path, size, writable=writable, create=create))
        return len(self.maps[-1].view)

    def map_write(self, _path: str, which: int, at: int, content: bytes) -> object:
        """Write through one map of a file; other maps of the file see the change."""
        if not self.maps or not (view := self.maps[which % len(self.maps)].view):
            return None
        at %= len(view)
        content = content[: len(view) - at]
        try:
            view[at : at + len(content)] = content
        except TypeError:
            return "read-only"
        return content

    def map_view(self, _path: str, which: int) -> object:
        return bytes(self.maps[which % len(self.maps)].view) if self.maps else None

    def map_call(self, _path: str, which: int, name: str, start: int, length: int) -> None:
        if self.maps and len((mapped := self.maps[which % len(self.maps)]).view) > 1 and not mapped.view.readonly:
            size = len(mapped.view)
            start %= size
            {
                "reserve": lambda: mapped.reserve(start, min(size, start + length)),
                "sync": lambda: mapped.sync(start, min(size, start + length)),
                "clear": lambda: mapped.clear_from(start),
            }[name]()

    def data_from(self, _path: str, which: int, at: int) -> object:
        """Skip zeros from `at` on; returns whether the position is valid, and the skipped bytes that are not zero."""
        if not self.maps:
            return None
        mapped = self.maps[which % len(self.maps)]
        found = mapped.data_from(at)
        return found >= min(at, len(mapped.view)), bytes(mapped.view[at:found]).strip(b"\0")

    def close_maps(self, _path: str) -> None:
        while self.maps:
            self.maps.pop().close()

    def append(self, path: str, content: bytes, is_synced: bool) -> object:
        file = self.files.open_append(path)
        self.appends.append(file)
        file.reserve(10)
        file.write(content)
        if is_synced:
            file.sync()
        return None

    def append_more(self, _path: str, which: int, content: bytes) -> None:
        """Append to a file that was opened earlier, even if the file is removed or closed by now."""
        if self.appends:
            self.appends[which % len(self.appends)].write(content)

    def close_append(self, _path: str, which: int) -> None:
        if self.appends:
            self.appends[which % len(self.appends)].close()

    def lock(self, path: str) -> None:
        self.unlocks.append(self.files.lock(path))

    def unlock(self, _path: str) -> None:
        if self.unlocks:
            self.unlocks.pop()()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def close(self) -> None:
        self.close_maps("")
        for file in self.appends:
            file.close()
        for unlock in self.unlocks:
            unlock()

    def tree(self) -> dict[str, bytes | None]:
        """Maps every path below the root to the file's bytes, or to None for a directory."""
        found: dict[str, bytes | None] = {}
        waiting = [""]
        while waiting:
            below = waiting.pop()
            for name in self.files.list(f"{self.root}/{below}"):
                path = f"{below}/{name}"
                try:
                    found[path] = self.files.read(f"{self.root}{path}")
                except IsADirectoryError:
                    found[path] = None
                    waiting.append(path)
        return found


def operations() -> st.SearchStrategy[tuple[str, str, tuple[Any, ...]]]:
    content, which, at = st.binary(max_size=20), st.integers(0, 3), st.integers(0, SIZES[-1])
    map_call = st.tuples(which, st.sampled_from(["reserve", "sync", "clear"]), at, st.integers(0, 5000))
    arguments: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
        "map": st.tuples(st.sampled_from(SIZES), st.booleans(), st.booleans()),
        "map_write": st.tuples(which, at, content),
        "map_view": st.tuples(which),
        "map_call": map_call,
        "data_from": st.tuples(which, at),
        "close_maps": st.just(()),
        "append": st.tuples(content, st.booleans()),
        "append_more": st.tuples(which, content),
        "close_append": st.tuples(which),
        "write_atomic": st.tuples(content),
    }
    plain = ["read", "exists", "list", "make_directory", "sync_directory", "remove", "lock", "unlock"]
    arguments.update(dict.fromkeys(plain, st.just(())))
    return st.sampled_from(sorted(arguments)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(PATHS), arguments[name])
    )


def is_left_out(side: Side, operation: str, path: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an operation needs all maps closed, because a mapped file would grow or its name be reused."""
    if operation in {"append", "append_more", "write_atomic"}:
        return True
    if operation != "map" or not arguments[2]:
        return False
    found = side.do("size", path, ())
    # Maps of a removed file stay valid until another file gets its name.
    return not isinstance(found, int) or found < arguments[0]


@given(st.lists(operations(), min_size=5, max_size=40))
def test_the_simulated_disk_behaves_like_real_files(drawn: list[tuple[str, str, tuple[Any, ...]]]) -> None:
    directory = tempfile.mkdtemp(prefix="longpoll-disk-")
    disk = Disk()
    disk.make_directory("/root")
    real, simulated = Side(RealFiles(), directory), Side(SimulatedFiles(disk), "/root")
    try:
        for operation, path, arguments in drawn:
            if is_left_out(real, operation, path, arguments):
                real.close_maps("")
                simulated.close_maps("")
            expected = real.do(operation, path, arguments)
            assert simulated.do(operation, path, arguments) == expected, (operation, path, arguments)
        assert simulated.tree() == real.tree()
    finally:
        real.close()
        simulated.close()
        shutil.rmtree(directory)


def filled(before: Callable[[str, str], None] = lambda _operation, _path: None) -> tuple[Disk, SimulatedFiles]:
    disk = Disk()
    files = SimulatedFiles(disk, before=before)
    files.make_directory("/d")
    files.sync_directory("/")
    return disk, files


def cuts(disk: Disk, count: int = 200, order: Order = "none") -> list[SimulatedFiles]:
    return [SimulatedFiles(disk.cut(random.Random(seed), order)) for seed in range(count)]


def test_only_synced_bytes_survive_a_power_cut_for_certain() -> None:
    """After a power cut, a page written since its last sync may be old, new or torn, and a synced page is unchanged."""
    disk, files = filled()
    mapped = files.map("/d/f", 2 * PAGE_SIZE, writable=True, create=True)
    mapped.view[:] = b"s" * len(mapped.view)
    mapped.sync(0, len(mapped.view))
    files.sync_directory("/d")
    assert {each.read("/d/f") for each in cuts(disk)} == {b"s" * 2 * PAGE_SIZE}
    mapped.view[:PAGE_SIZE] = b"n" * PAGE_SIZE
    mapped.view[PAGE_SIZE] = ord("n")
    mapped.sync(PAGE_SIZE, PAGE_SIZE + 1)
    left = {each.read("/d/f") for each in cuts(disk)}
    assert {content[PAGE_SIZE:] for content in left} == {b"n" + b"s" * (PAGE_SIZE - 1)}
    heads = {content[:PAGE_SIZE] for content in left}
    assert {b"s" * PAGE_SIZE, b"n" * PAGE_SIZE} < heads
    assert {len(set(head[at : at + SECTOR_SIZE])) for head in heads for at in range(0, PAGE_SIZE, SECTOR_SIZE)} == {1}


@pytest.mark.parametrize("cleared", [None, 0, 1, 2])
def test_a_page_of_a_failed_sync_is_written_after_it_was_cleared(cleared: int | None) -> None:
    """After a failed sync, the system treats the page as written until the page is changed, for example cleared."""
    failing = ["sync"]

    def before(operation: str, _path: str) -> None:
        if operation in failing:
            failing.remove(operation)
            raise OSError(errno.EIO, "Input/output error")

    disk, files = filled(before)
    mapped = files.map("/d/f", 3, writable=True, create=True)
    files.sync_directory("/d")
    mapped.view[:2] = b"ab"
    with pytest.raises(OSError, match="Input/output error"):
        mapped.sync(0, 3)
    if cleared is not None:
        mapped.clear_from(cleared)
        mapped.view[:2] = b"ab"
    mapped.sync(0, 3)
    # Clearing bytes that are already zero does not change the page.
    left = {b"ab\0"} if cleared in {0, 1} else {b"ab\0", b"\0\0\0"}
    assert {each.read("/d/f") for each in cuts(disk)} == left


def test_any_prefix_of_the_appended_bytes_may_survive() -> None:
    """After a power cut, any prefix of the bytes appended since the last sync may remain, perhaps followed by zeros."""
    disk, files = filled()
    file = files.open_append("/d/f")
    file.write(b"s" * 5000)
    file.sync()
    files.sync_directory("/d")
    file.write(b"n" * 5000)
    left = {each.read("/d/f") for each in cuts(disk)}
    assert {content[:5000] for content in left} == {b"s" * 5000}
    tails = {content[5000:] for content in left}
    assert len({len(tail) for tail in tails}) > 20
    assert {b"", b"n" * 5000} < tails
    assert any(tail.strip(b"n").strip(b"\0") == b"" and b"\0" in tail for tail in tails)
    file.sync()
    assert {each.read("/d/f") for each in cuts(disk)} == {b"s" * 5000 + b"n" * 5000}


def test_names_are_durable_with_their_directory() -> None:
    """A created or removed name is durable only after a sync of its directory, even if the file itself was synced."""
    disk, files = filled()
    files.make_directory("/d/sub")
    mapped = files.map("/d/new", 10, writable=True, create=True)
    mapped.sync(0, 10)
    assert {(each.exists("/d/sub"), each.exists("/d/new")) for each in cuts(disk)} == {
        (sub, new) for sub in (True, False) for new in (True, False)
    }
    files.sync_directory("/d")
    assert {tuple(each.list("/d")) for each in cuts(disk)} == {("new", "sub")}
    files.remove("/d/new")
    assert {each.exists("/d/new") for each in cuts(disk)} == {True, False}
    assert {each.read("/d/new") for each in cuts(disk) if each.exists("/d/new")} == {bytes(10)}
    files.sync_directory("/d")
    assert {each.exists("/d/new") for each in cuts(disk)} == {False}


def test_lengths_are_durable_with_their_file() -> None:
    """A file with a durable name may be empty until the file is synced. A file that was cleared keeps its length."""
    disk, files = filled()
    mapped = files.map("/d/f", 100, writable=True, create=True)
    files.sync_directory("/d")
    assert {each.size("/d/f") for each in cuts(disk)} == {0, 100}
    mapped.view[:] = b"x" * 100
    mapped.sync(0, 100)
    mapped.clear_from(40)
    left = {each.read("/d/f") for each in cuts(disk)}
    assert {b"x" * 40 + bytes(60), b"x" * 100} == left


def test_a_replaced_file_is_old_or_new() -> None:
    """A power cut during a replacement leaves the old or the new bytes; a later power cut leaves the new bytes."""
    seen: list[set[bytes]] = []

    def before(_operation: str, _path: str) -> None:
        if planned:
            seen.append({each.read("/d/f") for each in cuts(disk)})

    planned = False
    disk, files = filled(before)
    files.write_atomic("/d/f", b"old")
    planned = True
    files.write_atomic("/d/f", b"new")
    assert len(seen) == len(["replace", "write", "sync", "rename", "sync_directory"])
    assert seen[:4] == [{b"old"}] * 4
    assert seen[4] == {b"old", b"new"}
    planned = False
    assert {each.read("/d/f") for each in cuts(disk)} == {b"new"}


def test_ordered_changes_survive_in_order() -> None:
    """If a file system orders changes and a name survives a power cut, all earlier names survive too."""
    disk, files = filled()
    mapped = [files.map(f"/d/{name}", 1, writable=True, create=True) for name in "abc"]
    prefixes = {("",), ("a",), ("a", "b"), ("a", "b", "c")}
    assert {tuple(each.list("/d")) or ("",) for each in cuts(disk, order="all")} == prefixes
    assert ("a", "c") in {tuple(each.list("/d")) for each in cuts(disk)}
    # On this disk, a sync makes all earlier changes of the file system durable.
    mapped[0].sync(0, 1)
    assert {tuple(each.list("/d")) for each in cuts(disk, order="all")} == {("a", "b", "c")}


def test_a_kill_keeps_all_data_and_frees_the_locks() -> None:
    """A kill keeps all written data but makes nothing durable, and the killed process writes no more."""
    disk, files = filled()
    files.lock("/d/lock")
    with pytest.raises(BlockingIOError) as locked:
        SimulatedFiles(disk).lock("/d/lock")
    assert locked.value.errno == errno.EAGAIN
    view = files.map("/d/f", BIG, writable=True, create=True).view
    view[0] = view[BIG - 1] = 7
    left = disk.kill()
    view[0] = 8
    again = SimulatedFiles(left)
    content = again.read("/d/f")
    assert (content[0], content[BIG - 1], len(content), any(content[1:-1])) == (7, 7, BIG, False)
    again.lock("/d/lock")
    assert {each.exists("/d/f") for each in cuts(left)} == {True, False}
    again.map("/d/f", BIG, writable=True).sync(0, BIG)
    again.sync_directory("/d")
    assert {each.read("/d/f") for each in cuts(left, 5)} == {content}


CALLS: dict[str, Callable[[SimulatedFiles, MappedFile, AppendFile], object]] = {
    "map": lambda files, _mapped, _file: files.map("/d/f", 9, writable=True),
    "create": lambda files, _mapped, _file: files.map("/d/new", 5, writable=True, create=True),
    "lengthen": lambda files, _mapped, _file: files.map("/d/log", 5, writable=True, create=True),
    "reserve": lambda _files, mapped, _file: mapped.reserve(0, 9),
    "clear": lambda _files, mapped, _file: mapped.clear_from(0),
    "data_from": lambda _files, mapped, _file: mapped.data_from(0),
    "sync": lambda _files, mapped, _file: mapped.sync(0, 9),
    "read": lambda files, _mapped, _file: files.read("/d/f"),
    "replace": lambda files, _mapped, _file: files.write_atomic("/d/f", b"x"),
    "write": lambda _files, _mapped, file: file.write(b"y"),
    "rename": lambda files, _mapped, _file: files.write_atomic("/d/f", b"x"),
    "append": lambda files, _mapped, _file: files.open_append("/d/g"),
    "size": lambda files, _mapped, _file: files.size("/d/f"),
    "identity": lambda files, _mapped, _file: files.identity("/d/f"),
    "list": lambda files, _mapped, _file: files.list("/d"),
    "make_directory": lambda files, _mapped, _file: files.make_directory("/d/sub"),
    "sync_directory": lambda files, _mapped, _file: files.sync_directory("/d"),
    "changed_ms": lambda files, _mapped, _file: files.changed_ms("/d/f"),
    "used_ratio": lambda files, _mapped, _file: files.used_ratio("/d"),
    "remove": lambda files, _mapped, _file: files.remove("/d/f"),
    "lock": lambda files, _mapped, _file: files.lock("/d/lock"),
    "exists": lambda files, _mapped, _file: files.exists("/d/f"),
}


@pytest.mark.parametrize("operation", CALLS)
def test_every_operation_can_fail(operation: str) -> None:
    """If the hook `before` raises an exception, the operation raises it too and changes no bytes."""
    failing = False

    def before(told: str, path: str) -> None:
        if failing and told == operation:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    _disk, files = filled(before)
    files.write_atomic("/d/f", b"content!!")
    mapped, file = files.map("/d/f", 9, writable=True), files.open_append("/d/log")
    failing = True
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        CALLS[operation](files, mapped, file)
    failing = False
    assert (files.read("/d/f"), files.read("/d/log")) == (b"content!!", b"")
    CALLS[operation](files, mapped, file)


def test_every_operation_that_may_fail_is_listed() -> None:
    assert {*CALLS} == {*ERRORS}

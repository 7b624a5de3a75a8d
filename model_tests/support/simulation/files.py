"""The file layer over a simulated disk: the interface and errors of `longpoll_runtime.files`, without system calls.

Every operation first calls `before`, where a scheduler may run another actor, and where a fault plan may raise an error
of the operating system. An operation of several system calls calls `before` for each system call that other actors can
interleave with or that can fail separately.

As on Linux, a failed sync of a mapped file loses the file's pages, and the next sync silently skips them.

Symbolic links, permissions, partial writes and sizes of directories are not modelled, and a mapped file does not grow.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import posixpath
import random
from collections.abc import Callable
from typing import Final

from attrs import define, field
from model_tests.support.simulation.disk import ROOT, Directory, Disk, FileBytes

from longpoll_runtime import Buffer
from longpoll_simulation.world import World

Before = Callable[[str, str], None]
"""A function that is called with the operation's name and path before each operation; it may raise OSError."""

_ANYWHERE: Final = (errno.EIO,)
_OPENING: Final = (errno.EIO, errno.EMFILE, errno.ENFILE)
_GROWING: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT)

ERRORS: Final[dict[str, tuple[int, ...]]] = {
    "map": _OPENING,
    "create": (*_OPENING, errno.ENOSPC, errno.EDQUOT),
    "lengthen": _GROWING,
    "reserve": (*_GROWING, errno.EMFILE, errno.ENFILE),
    "clear": _OPENING,
    "data_from": _OPENING,
    "sync": _GROWING,
    "read": _OPENING,
    "replace": (*_OPENING, errno.ENOSPC, errno.EDQUOT),
    "write": _GROWING,
    "rename": (errno.EIO, errno.ENOSPC),
    "append": _OPENING,
    "exists": _ANYWHERE,
    "size": _ANYWHERE,
    "identity": _ANYWHERE,
    "list": _OPENING,
    "make_directory": _GROWING,
    "sync_directory": _OPENING,
    "changed_ms": _ANYWHERE,
    "used_ratio": _ANYWHERE,
    "remove": _ANYWHERE,
    "lock": _OPENING,
}
"""Maps each operation that is passed to `before` to the error codes that an operating system may return for it."""


def _nothing(_operation: str, _path: str) -> None:
    """Do nothing: no other actor runs and no fault occurs."""


def _always_zero() -> int:
    return 0


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


@functools.lru_cache(maxsize=4096)
def _plain(path: str) -> str:
    """Returns the normalised path, with one leading slash, because `normpath` would keep two."""
    path = posixpath.normpath(path)
    return path[1:] if path.startswith("//") else path


SPACE: Final = 2**40
"""The reported capacity of the disk in bytes. Only a planned fault makes the disk full."""


class SimulatedMappedFile:
    __slots__ = ("_file", "_files", "_is_open", "_path", "_writable", "view")

    def __init__(self, files: SimulatedFiles, path: str, file: FileBytes, *, writable: bool) -> None:
        self._files = files
        self._path = path
        self._file = file
        self._writable = writable
        self._is_open = True
        # The operating system cannot map an empty file, whose view is therefore read-only.
        view = memoryview(file.memory) if file.size else memoryview(b"")
        self.view = view if writable else view.toreadonly()
        file.map_count += 1
        file.was_mapped |= writable

    def _named(self) -> FileBytes:
        """Returns the file that has the path now, as operations by descriptor open it; raises FileNotFoundError."""
        file = self._files.disk.file(self._path)
        assert file is self._file, f"{self._path} was replaced while it was mapped"
        return file

    def reserve(self, start: int, stop: int) -> None:
        """Reserve disk blocks for bytes [start, stop). Only a planned fault makes this fail."""
        self._files.before("reserve", self._path)
        file = self._named()
        if start < 0 or stop <= start:
            raise _error(errno.EINVAL, self._path)
        assert stop <= file.size

    def clear_from(self, start: int) -> None:
        """Overwrite all bytes from `start` on with zeros. The length stays, as if a hole were punched."""
        if start >= len(self.view):
            return
        self._files.before("clear", self._path)
        file = self._named()
        if start < 0:
            raise _error(errno.EINVAL, self._path)
        file.clear_from(start)
        file.changed_ms = self._files.now_ms()

    def data_from(self, position: int) -> int:
        """Returns the first position from `position` on that may have a byte other than zero, or else the length."""
        if position >= len(self.view):
            return len(self.view)
        self._files.before("data_from", self._path)
        return self._named().data_from(position)

    def sync(self, start: int, stop: int) -> None:
        """Make all pages that contain bytes [start, stop) durable."""
        assert self._writable
        assert 0 <= start <= stop <= len(self.view)
        try:
            self._files.before("sync", self._path)
        except OSError:
            self._file.lose(start, stop)
            raise
        if self._file.sync(start, stop):
            self._file.changed_ms = self._files.now_ms()
        self._files.disk.commit()

    def write_anew(self, start: int, stop: int) -> None:
        """Make the next sync write bytes [start, stop) again."""
        assert self._writable
        self._file.write_anew(start, stop)

    @property
    def identity(self) -> int:
        return id(self._file)

    def close(self) -> None:
        """Release the map's view. The memory is freed when the last slice of the view is gone."""
        if self._is_open:
            self._is_open = False
            self._file.map_count -= 1
        with contextlib.suppress(BufferError):
            self.view.release()


class SimulatedAppendFile:
    """An open file to which bytes can only be appended."""

    __slots__ = ("_file", "_files", "_path")

    def __init__(self, files: SimulatedFiles, path: str, file: FileBytes) -> None:
        self._files = files
        self._path = path
        self._file: FileBytes | None = file

    def _opened(self) -> FileBytes:
        if self._file is None:
            raise _error(errno.EBADF, self._path)
        return self._file

    def reserve(self, size: int) -> None:
        """Reserve disk blocks for the next `size` bytes. Only a planned fault makes this fail."""
        self._opened()
        self._files.before("reserve", self._path)

    def write(self, content: Buffer) -> None:
        if len(content):
            file = self._opened()
            self._files.before("write", self._path)
            file.append(content)
            file.changed_ms = self._files.now_ms()

    def sync(self) -> None:
        """Make all bytes of the file durable."""
        file = self._opened()
        self._files.before("sync", self._path)
        file.sync_all()
        self._files.disk.commit()

    def close(self) -> None:
        self._file = None


class SimulatedFiles:
    """The files of a simulated disk. Invariant: all state is on the disk.

    `now_ms` returns the wall clock for time stamps in ms. `used_ratio` returns the used part of the disk, 0 to 1.
    `maps_max` is only reported. A write through a map is dated by the next sync or query of its time.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        before: Before = _nothing,
        now_ms: Callable[[], int] = _always_zero,
        used_ratio: Callable[[], float] = lambda: 0.0,
        maps_max: int = 1 << 31,
    ) -> None:
        self.disk = disk
        self.before = before
        self.now_ms = now_ms
        self._used_ratio = used_ratio
        self._maps_max = maps_max

    def _begun(self, operation: str, path: str) -> str:
        """Call `before` and return the normalised path."""
        path = _plain(path)
        self.before(operation, path)
        return path

    def maps_max(self) -> int:
        return self._maps_max

    def map(self, path: str, size: int, *, writable: bool, create: bool = False) -> SimulatedMappedFile:
        """Map a file of exactly `size` bytes. With `create`, create the file or extend it with zeros first."""
        path = _plain(path)
        disk = self.disk
        found = disk.find(path)
        if create and found is None:
            self.before("create", path)
        else:
            self.before("map", path)
        if isinstance(found, Directory) and not (create or writable):
            raise OSError(errno.EINVAL, "a directory cannot be mapped", path)
        file = self._opened(path) if create else disk.file(path)
        if file.size < size and create:
            if not writable:
                raise _error(errno.EINVAL, path)
            self.before("lengthen", path)
            file.lengthen(size, disk.next_number())
            file.changed_ms = self.now_ms()
        elif file.size != size:
            raise OSError(errno.EINVAL, f"the file has {file.size} bytes, not {size}", path)
        return SimulatedMappedFile(self, path, file, writable=writable)

    def _opened(self, path: str) -> FileBytes:
        """Returns the file of a path, and creates it if it is missing; raises the errors of opening a file."""
        holder, name = self.disk.place(path)
        found = holder.names.get(name)
        if isinstance(found, Directory) or path == ROOT:
            raise _error(errno.EISDIR, path)
        if found is None:
            found = FileBytes(0, self.now_ms())
            holder.change(self.disk.next_number(), {name: found})
        return found

    def read(self, path: str) -> bytes:
        path = self._begun("read", path)
        return self.disk.file(path).content()

    def write_atomic(self, path: str, content: Buffer) -> None:
        """Replace the file durably: write and sync a temporary file, rename it, and sync the directory."""
        path = _plain(path)
        disk, temporary = self.disk, f"{path}.tmp"
        self.before("replace", path)
        holder, name = disk.place(temporary)
        if isinstance(holder.names.get(name), Directory):
            raise _error(errno.EISDIR, temporary)
        file = FileBytes(0, self.now_ms())
        holder.change(disk.next_number(), {name: file})
        try:
            self.before("write", temporary)
            if content:
                file.append(content)
            self.before("sync", temporary)
            file.sync_all()
            disk.commit()
        except OSError:
            holder.change(disk.next_number(), {name: None})
            raise
        self.before("rename", path)
        replaced = posixpath.basename(path)
        if isinstance(holder.names.get(replaced), Directory):
            raise _error(errno.EISDIR, path)
        holder.change(disk.next_number(), {replaced: file, name: None})
        self.sync_directory(posixpath.dirname(path))

    def open_append(self, path: str) -> SimulatedAppendFile:
        """Open a file for appending, and create it if it is missing."""
        path = self._begun("append", path)
        return SimulatedAppendFile(self, path, self._opened(path))

    def exists(self, path: str) -> bool:
        """Whether the path is a file or a directory; raises OSError for a disk error."""
        path = self._begun("exists", path)
        return self.disk.find(path) is not None

    def size(self, path: str) -> int:
        path = self._begun("size", path)
        return self.disk.file(path).size

    def identity(self, path: str) -> int:
        """Returns a number that identifies the file that has the path now."""
        path = self._begun("identity", path)
        return id(self.disk.file(path))

    def list(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted; empty if the directory is missing."""
        path = self._begun("list", path)
        try:
            return sorted(self.disk.directory(path).names)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless they exist."""
        path = self._begun("make_directory", path)
        if isinstance(self.disk.find(path), Directory):
            return
        parent = posixpath.dirname(path)
        with contextlib.suppress(FileExistsError):
            if self.disk.find(parent) is None:
                self.make_directory(parent)
        self.disk.make_directory(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        path = self._begun("sync_directory", path)
        self.disk.directory(path).sync(self.disk.number)
        self.disk.commit()

    def changed_ms(self, path: str) -> int:
        """Returns the wall-clock time in ms at which the file's content last changed."""
        path = self._begun("changed_ms", path)
        file = self.disk.file(path)
        if file.dirty_pages():
            file.changed_ms = self.now_ms()
        return file.changed_ms

    def used_ratio(self, path: str) -> float:
        path = self._begun("used_ratio", path)
        if self.disk.find(path) is None:
            self.disk.file(path)
        return self._used_ratio()

    def space(self, path: str) -> tuple[int, int]:
        """Returns the disk's size and its free space, in bytes."""
        return SPACE, int(SPACE * (1 - self.used_ratio(path)))

    def remove(self, path: str) -> None:
        """Remove a file, unless it is already gone."""
        path = self._begun("remove", path)
        with contextlib.suppress(FileNotFoundError):
            self.disk.file(path)
            holder, name = self.disk.place(path)
            holder.change(self.disk.next_number(), {name: None})

    def lock(self, path: str) -> Callable[[], None]:
        """Lock a file and return a function that unlocks it; raises BlockingIOError if it is locked."""
        path = self._begun("lock", path)
        disk = self.disk
        if path in disk.locked:
            raise BlockingIOError(errno.EAGAIN, "locked by this process", path)
        self._opened(path)
        disk.locked.add(path)
        return lambda: disk.locked.discard(path)


SPARED: Final = frozenset({"exists", "remove"})
"""Calls that no injected fault lets fail.

If a queue's file could not be removed, it would be taken for a file of the next topic with the same name."""
SLOW_CALLS: Final = frozenset({"sync", "write", "reserve", "create"})


@define(eq=False)
class DiskFaults:
    """Injects errors and delays before file calls.

    Invariant: `last_ms` is the time of the last of `error_count` errors.
    """

    world: World
    random: random.Random
    slow_ms_max: float = 0.0
    """The longest duration in ms of a call that waits for the disk."""
    error_count: int = 0
    last_ms: float = float("-inf")
    spent_ms: float = 0.0
    """The total time in ms that calls have waited for the disk."""
    told: set[str] = field(factory=set)
    """Texts of errors and warnings that the injected faults explain in the log."""
    _left: int = 0
    _where: str = ""

    def fail(self, count: int, where: str) -> None:
        """Make the next `count` calls fail that have a path containing `where`."""
        self._left, self._where = count, where

    def before(self, operation: str, path: str) -> None:
        """Let other actors run, and wait or fail as planned. Raises OSError."""
        world = self.world
        world.point(operation, path)
        if world.over:
            return
        if self.slow_ms_max and operation in SLOW_CALLS:
            for_ms = self.random.random() * self.slow_ms_max
            self.spent_ms += for_ms
            world.wait([], f"{path}, of a slow disk", for_ms / 1000)
        if self._left and self._where in path and operation not in SPARED:
            self._left -= 1
            self.error_count += 1
            self.last_ms = world.now_ns / 1e6
            code = self.random.choice(ERRORS[operation])
            self.told.add(os.strerror(code))
            raise OSError(code, os.strerror(code), path)

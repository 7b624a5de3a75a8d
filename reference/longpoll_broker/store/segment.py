"""Mapped files of equal size that form one long sequence of bytes.

A file is named by the offset of its first byte, twenty digits (`MappedFileQueue.java`). Queues may have more files than
a process may map. All queues share a `Maps` object, which releases the oldest maps; a file is mapped again on access.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from longpoll_broker.errors import StoreUserError, SyncFailedError
from longpoll_runtime import Files, MappedFile

NAME_DIGITS: Final = 20
MAPS_LOOKED_AT: Final = 8
"""Number of the oldest maps tried for release. If all of these have unsynced writes, the next map is synced."""
NOT_TRIED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Error numbers of a failed open of a directory for a sync. A failure with one of these numbers loses no data, so the
sync can be retried."""
PIECE_SIZE: Final = 1024 * 1024
"""Maximum bytes of a file searched at once."""
ASIDE: Final = "_cut"
"""Suffix of the directory that keeps the bytes cut off the files of another directory."""
RESERVE_SIZE: Final = 1024 * 1024
"""Disk blocks reserved ahead of writing, bytes: one system call per MiB of the log or a long queue."""
RESERVE_SIZE_MIN: Final = 4096
"""Disk blocks reserved for a short queue, bytes; 1 MiB for each of a hundred thousand queues would take 100 GB."""


class Maps:
    """The mapped files of queues: at most `count_max`, plus one for each thread that is mapping a file.

    Invariant: each mapped file is listed, or its thread is about to list it; a listed file may have lost its map. The
    oldest map is released instead of the least recently used, so that readers need not report their use. Therefore a
    file in constant use is mapped again once per `count_max` maps. No lock is needed, because every step is one call of
    a deque, and the steps of several threads may come in any order.
    """

    __slots__ = ("_listed", "count_max")

    def __init__(self, count_max: int) -> None:
        assert count_max > 0
        self.count_max = count_max
        self._listed: deque[Segment] = deque()

    def took(self, segment: Segment) -> None:
        """Register a mapped file. Raises OSError if another file's map must be released and cannot be made durable."""
        listed = self._listed
        listed.append(segment)
        for turns_left in range(MAPS_LOOKED_AT, -1, -1):
            if len(listed) <= self.count_max:
                return
            try:
                oldest = listed.popleft()
            except IndexError:
                # Other threads have released all listed maps in between.
                return
            if oldest.give_back():
                continue
            try:
                if not turns_left:
                    # Every map that was tried has unsynced writes, so sync one file before releasing its map.
                    oldest.sync(0, oldest.size)
            finally:
                if turns_left or not oldest.give_back():
                    listed.append(oldest)


class Segment:
    """One mapped file. Invariant: bytes below `reserved_end` have disk blocks, so writing them cannot fail.

    - `failed`: a sync failed. Linux then marks the unwritten pages as written, so a later sync would succeed without
      writing them. Therefore no more syncs are tried, and the next opening of the store writes the pages again.
    - `is_durable`: name and length survive a power cut.
    - `maps`: if set, the file is mapped on access.
    - `is_dirty`: set before a write and reset by a sync. Meanwhile the map stays, because a write error would be lost
      with the last map of the file.
    - `is_gone`: the file is never mapped again, because its name may belong to another file.
    """

    __slots__ = (
        "_files",
        "_identity",
        "_mapped",
        "_maps",
        "failed",
        "is_dirty",
        "is_durable",
        "is_gone",
        "path",
        "reserved_end",
        "size",
        "start",
        "stop",
    )

    def __init__(
        self, files: Files, path: str, start: int, size: int, maps: Maps | None = None, *, is_whole: bool = False
    ) -> None:
        """Map the file, and create or extend it if needed. With `is_whole` and `maps`, the file is mapped on access."""
        self._files = files
        self._maps = maps
        self.path = path
        self.start = start
        self.size = size
        self.stop = start + size
        self.reserved_end = 0
        self.is_durable = False
        self.is_dirty = False
        self.is_gone = False
        self.failed: OSError | None = None
        self._identity = 0
        self._mapped: MappedFile | None = None
        if maps is None or not is_whole:
            self._mapped = files.map(path, size, writable=True, create=True)
            self._identity = self._mapped.identity
            if maps is not None:
                maps.took(self)

    @property
    def view(self) -> memoryview:
        """The bytes of the whole file. Raises OSError if the file must be mapped again and this fails."""
        mapped = self._mapped
        return (mapped if mapped is not None else self._map_again()).view

    def view_unless_gone(self) -> memoryview | None:
        """Returns the bytes of the whole file, or None if it was removed; raises OSError as `view` does."""
        try:
            return self.view
        except FileNotFoundError:
            if not self.is_gone:
                raise
            return None

    @property
    def mapped(self) -> MappedFile:
        """Returns the mapped file; raises OSError as `view` does."""
        mapped = self._mapped
        return mapped if mapped is not None else self._map_again()

    def _map_again(self) -> MappedFile:
        assert self._maps is not None
        mapped = self._files.map(self.path, self.size, writable=True)
        # `is_gone` is checked after the mapping, because `is_gone` is set before another file can get this name.
        if self.is_gone:
            raise FileNotFoundError(errno.ENOENT, "it was removed", self.path)
        if self._identity not in {0, mapped.identity}:
            raise self._not_ours()
        self._identity = mapped.identity
        # The map is stored before the file is listed: if `took` fails, the map can still be released later.
        self._mapped = mapped
        self._maps.took(self)
        return mapped

    def give_back(self) -> bool:
        """Release the map unless a write is not durable; returns whether it did. Slices in use stay valid."""
        mapped = self._mapped
        if self.is_dirty:
            return mapped is None
        # The map is dropped instead of closed, because a reader may hold the view without a slice of it.
        self._mapped = None
        if self.is_dirty and mapped is not None:
            # A writer has set `is_dirty` in between, perhaps after it got the view, so the map must stay.
            self._mapped = mapped
            return False
        return True

    def sync(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable, or the whole file if it has `maps`. Raises OSError.

        Also raises OSError if the path no longer leads to this file, because its bytes would not be found later. A file
        that was removed on purpose need not be durable.
        """
        if self.failed is not None:
            raise sync_failed(self.failed, self.path)
        if self._maps is not None:
            # `is_dirty` covers every write to the file, so all writes must become durable, not only those in the given
            # range.
            stop = self.size
        self.is_dirty = False
        try:
            mapped = self.mapped
            try:
                mapped.sync(start, stop)
            except OSError as error:
                self.failed = error
                raise
            self.check_name()
        except OSError:
            if self.is_gone:
                return
            self.is_dirty = True
            raise

    def check_name(self) -> None:
        """Raise OSError if this file was removed or replaced."""
        if self._files.identity(self.path) != self._identity:
            raise self._not_ours()

    def _not_ours(self) -> OSError:
        return FileNotFoundError(errno.ENOENT, "another file replaced it; restore it or restart", self.path)

    def data(self, start: int) -> Iterator[tuple[int, int]]:
        """Iterate over ranges of possibly non-zero bytes at or after `start`, each at most `PIECE_SIZE`.

        Holes of a sparse file are not read, because a hole may have a gigabyte, and on a tmpfs reading allocates memory
        for it. For the same reason each range ends at the end of a page.
        """
        at = start
        while (at := self.mapped.data_from(at)) < self.size:
            stop = min(at - at % PIECE_SIZE + PIECE_SIZE, self.size)
            yield at, stop
            at = stop

    def data_stop(self, start: int) -> int:
        """Returns the position after the last non-zero byte at or after `start`, or `start` if all bytes are zero."""
        found = start
        for at, stop in self.data(start):
            content = bytes(self.view[at:stop]).rstrip(b"\0")
            found = at + len(content) if content else found
        return found

    def close(self) -> None:
        """Unmap the file permanently."""
        self.is_gone = True
        mapped = self._mapped
        if mapped is not None:
            mapped.close()

    def let_go(self) -> None:
        """Release the map of a removed file at once if the file has `maps`; a file of the log keeps its map."""
        if self._maps is not None:
            self.is_dirty = False
            self._mapped = None

    def reserve(self, position: int, stop: int) -> None:
        """Reserve disk blocks for [position, stop) inside the file; raises OSError if the disk is full.

        A file with `maps` belongs to one of many queues, so it reserves in advance only as much as it already has.
        """
        ahead = RESERVE_SIZE if self._maps is None else min(RESERVE_SIZE, max(RESERVE_SIZE_MIN, position))
        end = min(self.size, max(stop, position + ahead))
        try:
            self.mapped.reserve(position, end)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or end == stop:
                raise
            # The disk has no room to reserve ahead, but may have enough for these bytes.
            end = stop
            self.mapped.reserve(position, end)
        self.reserved_end = end


def sync_failed(failed: OSError, path: str) -> SyncFailedError:
    """Returns the error that every later sync raises, because a later sync would succeed and hide the lost data."""
    return SyncFailedError(
        failed.errno or errno.EIO,
        f"an earlier sync failed ({failed.strerror}), and a later one would not report the lost data; restart the "
        "broker to write it again",
        path,
    )


def make_durable(files: Files, directory: str) -> None:
    """Create a directory and its missing parents, and make the name of each directory durable. Raises OSError."""
    if not files.exists(directory):
        parent = _parent(directory)
        make_durable(files, parent)
        files.make_directory(directory)
        files.sync_directory(parent)


def make_beside(files: Files, directory: str) -> None:
    """Create a directory inside a store durably; raises OSError, also if the store was moved away."""
    if not files.exists(directory):
        check_is_there(files, _parent(directory))
        files.make_directory(directory)
        files.sync_directory(_parent(directory))


def check_is_there(files: Files, store: str) -> None:
    """Raise FileNotFoundError if the store was moved away.

    Without this check, a new file would create a second store at the old path. The second store would block the return
    of the first store and seem to keep data.
    """
    if not files.exists(store):
        raise FileNotFoundError(errno.ENOENT, "the store no longer exists", store)


def _parent(directory: str) -> str:
    """Returns the parent directory, or `.` for a relative path without a directory."""
    return directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")


def segment_name(start: int) -> str:
    """Returns the file name of the segment that begins at `start`."""
    return f"{start:0{NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    """Whether a file name is twenty digits."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


class SegmentList:
    """The mapped files of one directory, oldest first.

    Invariant: `segments` are adjacent without gaps, even after a power cut, in whatever order the disk writes names.
    Therefore each file is durable before the next file is created, and removed before the next file is removed. The
    tuple is replaced instead of changed, so readers need no lock. Writers and removers hold the owner's lock.
    """

    __slots__ = (
        "_changed_directories",
        "_failed",
        "_files",
        "_guard",
        "_maps",
        "_store",
        "directory",
        "segments",
        "size",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        size: int,
        *,
        lengthen: bool = False,
        maps: Maps | None = None,
        store: str | None = None,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Map every existing segment; raises StoreUserError if a segment is missing or does not have `size` bytes.

        With `lengthen` (after a crash), the newest file is extended with zeros if it is too short. With `maps`, files
        are mapped on access. The first file is created only while the directory `store` exists. `guard` is needed if
        different threads write and remove files.
        """
        self._guard: AbstractContextManager[Any] = nullcontext() if guard is None else guard
        self._files = files
        self._store = store
        self._maps = maps
        self._changed_directories: tuple[str, ...] = ()
        self._failed: OSError | None = None
        self.directory = directory
        self.size = size
        self.segments: tuple[Segment, ...] = ()
        try:
            self._load(lengthen=lengthen)
        except StoreUserError:
            self.close()
            raise

    def _load(self, *, lengthen: bool) -> None:
        names = [name for name in self._files.list(self.directory) if is_segment_name(name)]
        for index, name in enumerate(names):
            path, start = f"{self.directory}/{name}", int(name)
            found = self._files.size(path)
            is_short = found < self.size and index == len(names) - 1 and (lengthen or found == 0)
            # A crash between creating the newest file and setting its length leaves it empty.
            if found != self.size and not is_short:
                raise StoreUserError(
                    f"{path} has {found} bytes, but the settings say {self.size}; open the store with its original "
                    "file sizes"
                )
            if self.segments and self.segments[-1].stop != start:
                raise StoreUserError(
                    f"{self.directory} has no file {segment_name(self.segments[-1].stop)} before {name}: run "
                    "`longpoll store verify` and restore the missing file"
                )
            segment = Segment(self._files, path, start, self.size, self._maps, is_whole=not is_short)
            self.segments = (*self.segments, segment)
        if lengthen and self.segments:
            # A killed process may have created files without making their names durable.
            self._changed_directories = self._all_directories()
        else:
            for segment in self.segments:
                segment.is_durable = True

    @property
    def start(self) -> int:
        """Offset of the first byte of the oldest segment; 0 without a segment."""
        segments = self.segments
        return segments[0].start if segments else 0

    def find(self, offset: int) -> Segment | None:
        """Returns the segment with the byte at `offset`, or None if no segment has this byte."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].start) // self.size
        return segments[index] if 0 <= index < len(segments) else None

    def append(self, start: int) -> Segment:
        """Create the segment that begins at `start`. The file is sparse, so creating it is fast. Raises OSError."""
        assert not self.segments or self.segments[-1].stop == start
        assert start % self.size == 0
        if not self.segments:
            if self._store is not None:
                check_is_there(self._files, self._store)
            self._files.make_directory(self.directory)
            self._changed_directories = self._all_directories()
        elif not self.segments[-1].is_durable:
            # Usually a flush has done this already. A sync of one byte also makes the file's length durable.
            self.segments[-1].sync(0, 1)
            self._sync_directory(self.directory)
            self.segments[-1].is_durable = True
        path = f"{self.directory}/{segment_name(start)}"
        try:
            segment = Segment(self._files, path, start, self.size, self._maps)
        except OSError:
            # If the disk is full, the file may have a name but no length, which counts as damage after a clean stop.
            with contextlib.suppress(OSError):
                self._files.remove(path)
            raise
        self._changed_directories = self._changed_directories or (self.directory,)
        with self._guard:
            self.segments = (*self.segments, segment)
        return segment

    def _all_directories(self) -> tuple[str, ...]:
        """Returns the directories that may be new: the first file may create directories for queue and topic."""
        topic_directory = _parent(self.directory)
        return self.directory, topic_directory, _parent(topic_directory)

    def truncate(self, end: int) -> None:
        """Delete all bytes from `end` on: remove later segments, and clear the last segment from `end` on.

        The bytes are cleared because the next recovery could take them for complete records.
        """
        keep = tuple(segment for segment in self.segments if segment.start < end)
        drop = self.segments[len(keep) :]
        self.segments = keep
        for segment in reversed(drop):
            segment.close()
            self._files.remove(segment.path)
            # The removal is made durable, because a file that returns after a power cut would add its old bytes after
            # the new bytes.
            self._sync_directory(self.directory)
        if keep and end < keep[-1].stop:
            keep[-1].mapped.clear_from(end - keep[-1].start)
            keep[-1].reserved_end = 0

    def set_aside(self, end: int) -> tuple[str, int]:
        """Copy the bytes from `end` to the last non-zero byte into a separate directory.

        Returns the directory and the number of bytes. Each segment's bytes become one file, named by the offset of its
        first byte, with a number added if that name exists. The segments stay unchanged. Raises OSError.
        """
        directory = f"{self.directory}{ASIDE}"
        self._files.make_directory(directory)
        made: list[str] = []
        size = 0
        try:
            for segment in self.segments:
                start = max(end - segment.start, 0)
                stop = segment.data_stop(start)
                if start < stop:
                    path = self._free_path(f"{directory}/{segment_name(segment.start + start)}")
                    # The copy is written atomically, so that a kill leaves no partial copy.
                    self._files.write_atomic(path, segment.view[start:stop])
                    made.append(path)
                    size += stop - start
            self._files.sync_directory(_parent(directory))
        except OSError:
            # Remove the copies: opening the store fails now and may be retried often, so copies that stay would fill
            # the disk.
            for path in made:
                with contextlib.suppress(OSError):
                    self._files.remove(path)
            raise
        return directory, size

    def _free_path(self, path: str) -> str:
        free, number = path, 0
        while self._files.exists(free):
            number += 1
            free = f"{path}.{number}"
        return free

    def flush(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) and the names of their files durable. Raises OSError."""
        if self._failed is not None:
            raise sync_failed(self._failed, self.directory)
        synced = [segment for segment in self.segments if segment.start < stop and start < segment.stop]
        for segment in synced:
            segment.sync(max(0, start - segment.start), min(self.size, stop - segment.start))
        # Reset the list before the syncs, because a directory that changes during the syncs must be synced next time.
        changed, self._changed_directories = self._changed_directories, ()
        try:
            for directory in changed:
                self._sync_directory(directory)
        except OSError:
            self._changed_directories = (*changed, *self._changed_directories)
            raise
        for segment in synced:
            segment.is_durable = True

    def _sync_directory(self, directory: str) -> None:
        """Make the file names in a directory durable. Raises OSError, and marks a permanent failure: see `Segment`."""
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            if error.errno not in NOT_TRIED:
                self._failed = error
            raise

    @property
    def failed(self) -> OSError | None:
        """The error of a failed sync of a file or directory. After a failed sync, no data becomes durable."""
        return self._failed or next((each.failed for each in self.segments if each.failed is not None), None)

    def remove(self, count: int | None = None) -> None:
        """Remove the `count` oldest files, or all files for None.

        Readers that use a file or slices of it keep its map.
        """
        gone = self.segments[:count]
        for segment in gone:
            # `is_gone` is set before the file's name is free, because another file may then get that name.
            segment.is_gone = True
            try:
                self._files.remove(segment.path)
            except OSError:
                # A file that cannot be removed stays in the list, and later files stay too, because removing them would
                # leave a gap.
                segment.is_gone = False
                raise
            with self._guard:
                self.segments = self.segments[1:]
            segment.let_go()
            if segment is not gone[-1]:
                self._sync_directory(self.directory)

    def close(self) -> None:
        """Unmap every file."""
        segments, self.segments = self.segments, ()
        for segment in segments:
            segment.close()

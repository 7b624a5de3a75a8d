"""Files of one size that together are one long string of bytes, each mapped into memory.

A file is named by the offset of its first byte, twenty digits (`MappedFileQueue.java`). Of queues there may be more
files than a process may map: theirs share `Maps`, which gives the oldest maps back, and who looks at such a file again
maps it again. Leaves out what the bytes mean and where writing stands: a commit log and a consume queue each know that.
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
"""As many of the oldest maps are looked at for one that may go, before one is made durable so that it may."""
NOT_TRIED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""A directory could not even be opened to be synced, so nothing is lost, and it can be tried again."""
PIECE_SIZE: Final = 1024 * 1024
"""Bytes that are looked through at once."""
ASIDE: Final = "_cut"
"""What the directory beside another is called that has what was cut off from it."""
RESERVE_SIZE: Final = 1024 * 1024
"""How far ahead of writing disk blocks are taken, bytes: one system call a mebibyte of the log, or of a long queue."""
RESERVE_SIZE_MIN: Final = 4096
"""And of a short queue: with a mebibyte for each a hundred thousand queues of a message each would take 100 GB."""


class Maps:
    """Which files of queues are mapped: no more than `count_max`, and one more for each thread that maps one now.

    Invariant: each that is mapped is listed, or its thread is about to list it; one that is listed may have no map any
    more. The map that is given back is the oldest, not the one that was used last: a file in use is mapped again once
    in `count_max`, and no reader has to say that it reads. No lock: every step is one call of a deque, and which of two
    threads comes first is all the same.
    """

    __slots__ = ("_listed", "count_max")

    def __init__(self, count_max: int) -> None:
        assert count_max > 0
        self.count_max = count_max
        self._listed: deque[Segment] = deque()

    def took(self, segment: Segment) -> None:
        """A file was mapped. Raises OSError where another's map has to go and what it holds cannot be made durable."""
        listed = self._listed
        listed.append(segment)
        for turns_left in range(MAPS_LOOKED_AT, -1, -1):
            if len(listed) <= self.count_max:
                return
            try:
                oldest = listed.popleft()
            except IndexError:
                # Other threads took them all.
                return
            if oldest.give_back():
                continue
            try:
                if not turns_left:
                    # More was written to since the last flush than may be mapped.
                    oldest.sync(0, oldest.size)
            finally:
                if turns_left or not oldest.give_back():
                    listed.append(oldest)


class Segment:
    """One mapped file. Invariant: bytes below `reserved_end` have disk blocks, so writing them cannot fail.

    Where `failed` is set a sync has failed. On Linux the pages that could not be written count as written then, and the
    next sync would say that all is well; so none is tried. Opening the store again has them written anew.

    `is_durable` says that a power cut leaves its name and its length. One with `maps` is mapped when it is looked at;
    who writes to it sets `is_dirty` first, and until a sync takes that back its map stays: what the disk said of the
    write would be lost with the last map of a file. Once it `is_gone` it is not mapped again, for its name may be
    another's.
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
        """Map it, made or filled up if need be; one that `is_whole` and has `maps` is mapped when it is looked at."""
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
        """The whole file. Raises OSError where it has to be mapped again and cannot be."""
        mapped = self._mapped
        return (mapped if mapped is not None else self._map_again()).view

    def view_unless_gone(self) -> memoryview | None:
        """The whole file, or None where it was removed meanwhile; raises OSError as `view` does."""
        try:
            return self.view
        except FileNotFoundError:
            if not self.is_gone:
                raise
            return None

    @property
    def mapped(self) -> MappedFile:
        """The file as it is mapped; raises OSError as `view` does."""
        mapped = self._mapped
        return mapped if mapped is not None else self._map_again()

    def _map_again(self) -> MappedFile:
        assert self._maps is not None
        mapped = self._files.map(self.path, self.size, writable=True)
        # Asked afterwards: it is set before the name can be another file's.
        if self.is_gone:
            raise FileNotFoundError(errno.ENOENT, "it was removed", self.path)
        if self._identity not in {0, mapped.identity}:
            raise self._not_ours()
        self._identity = mapped.identity
        # Before it is listed: one that is mapped and never listed would never go.
        self._mapped = mapped
        self._maps.took(self)
        return mapped

    def give_back(self) -> bool:
        """Give the map back unless something written is not durable; whether there is none. Slices keep theirs."""
        mapped = self._mapped
        if self.is_dirty:
            return mapped is None
        # Not closed: a reader that has the view has no slice of it yet.
        self._mapped = None
        if self.is_dirty and mapped is not None:
            # Whoever set this meanwhile may have taken the view before it went.
            self._mapped = mapped
            return False
        return True

    def sync(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable; of a file with `maps` all to its end. Raises OSError.

        Also where the path leads to it no more: nobody would find what it holds. One that was removed on purpose
        meanwhile need not be durable.
        """
        if self.failed is not None:
            raise sync_failed(self.failed, self.path)
        if self._maps is not None:
            # What was written before `is_dirty` is taken back has to be durable, and there may be more than was told.
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
        """Raise OSError where the path does not lead to this file any more: somebody removed or replaced it."""
        if self._files.identity(self.path) != self._identity:
            raise self._not_ours()

    def _not_ours(self) -> OSError:
        return FileNotFoundError(errno.ENOENT, "another file replaced it; restore it or restart", self.path)

    def data(self, start: int) -> Iterator[tuple[int, int]]:
        """Where bytes at or after `start` may be no zeros, in pieces of `PIECE_SIZE` at most.

        Holes of a sparse file are not read: that may take a gigabyte, and on a tmpfs what is read becomes data. So each
        piece ends where a page does, or the next one would begin in a hole that this one has made data of.
        """
        at = start
        while (at := self.mapped.data_from(at)) < self.size:
            stop = min(at - at % PIECE_SIZE + PIECE_SIZE, self.size)
            yield at, stop
            at = stop

    def data_stop(self, start: int) -> int:
        """The position after the last byte that is no zero, at or after `start`; `start` if there is none."""
        found = start
        for at, stop in self.data(start):
            content = bytes(self.view[at:stop]).rstrip(b"\0")
            found = at + len(content) if content else found
        return found

    def close(self) -> None:
        """Unmap it, and map it no more."""
        self.is_gone = True
        mapped = self._mapped
        if mapped is not None:
            mapped.close()

    def let_go(self) -> None:
        """Its file was removed: no list of maps keeps its bytes. Readers at work in the log keep their map."""
        if self._maps is not None:
            self.is_dirty = False
            self._mapped = None

    def reserve(self, position: int, stop: int) -> None:
        """Make writing [position, stop) safe; raises OSError when the disk is full. Positions are inside the file.

        A file with `maps` is one of many: it takes as much again as it has, so that none takes much more than it needs.
        """
        ahead = RESERVE_SIZE if self._maps is None else min(RESERVE_SIZE, max(RESERVE_SIZE_MIN, position))
        end = min(self.size, max(stop, position + ahead))
        try:
            self.mapped.reserve(position, end)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or end == stop:
                raise
            # The disk has no room to spare, but perhaps enough for these bytes.
            end = stop
            self.mapped.reserve(position, end)
        self.reserved_end = end


def sync_failed(failed: OSError, path: str) -> SyncFailedError:
    """The error that every sync after one that failed is."""
    return SyncFailedError(
        failed.errno or errno.EIO,
        f"an earlier sync failed ({failed.strerror}), and a later one would not report the lost data; restart the "
        "broker to write it again",
        path,
    )


def make_durable(files: Files, directory: str) -> None:
    """Make a directory and its missing parents, each with its name on the disk. Raises OSError."""
    if not files.exists(directory):
        parent = _parent(directory)
        make_durable(files, parent)
        files.make_directory(directory)
        files.sync_directory(parent)


def make_beside(files: Files, directory: str) -> None:
    """Make a directory of a store durably, beside its others; raises as `check_is_there`."""
    if not files.exists(directory):
        check_is_there(files, _parent(directory))
        files.make_directory(directory)
        files.sync_directory(_parent(directory))


def check_is_there(files: Files, store: str) -> None:
    """Raise FileNotFoundError where somebody has taken the store away.

    What is new would make another one at its place: it would be in the way of who puts the first one back, and what is
    written there would seem to be kept.
    """
    if not files.exists(store):
        raise FileNotFoundError(errno.ENOENT, "the store no longer exists", store)


def _parent(directory: str) -> str:
    """The directory that has this one's name; a path that is not absolute begins where the process stands."""
    return directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")


def segment_name(start: int) -> str:
    """The file name of the segment that begins at `start`."""
    return f"{start:0{NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    """Whether a file name is twenty digits."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


class SegmentList:
    """The mapped files of one directory, oldest first.

    Invariant: `segments` are neighbours without gaps, and so is what a power cut leaves of them, in whatever order the
    disk keeps changes of names: each is durable before the next is made, and gone before the next goes. The tuple is
    replaced, never changed, so that readers on other threads need no lock. Writers and removers hold the owner's lock.
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
        """Map every segment that is there; raises StoreUserError when one does not have `size` bytes or is missing.

        With `lengthen`, after a crash, a newest file that is too short is filled up with zeros. With `maps` a file has
        its map while it is looked at, and for how long after that others decide. The first file is made only while the
        directory `store` is there. `guard` is for a list whose writer and remover are two threads.
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
            # A crash between making a file and giving it its length leaves an empty one; it is the newest.
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
            # Made by a process that was killed, perhaps before it had synced their names.
            self._changed_directories = self._all_directories()
        else:
            for segment in self.segments:
                segment.is_durable = True

    @property
    def start(self) -> int:
        """Offset of the first byte of the oldest segment; 0 when there is none."""
        segments = self.segments
        return segments[0].start if segments else 0

    def find(self, offset: int) -> Segment | None:
        """The segment that holds the byte at `offset`; None when it is before the first or after the last."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].start) // self.size
        return segments[index] if 0 <= index < len(segments) else None

    def append(self, start: int) -> Segment:
        """Make the segment that begins at `start`; raises OSError. It is sparse: this takes no time on a disk."""
        assert not self.segments or self.segments[-1].stop == start
        assert start % self.size == 0
        if not self.segments:
            if self._store is not None:
                check_is_there(self._files, self._store)
            self._files.make_directory(self.directory)
            self._changed_directories = self._all_directories()
        elif not self.segments[-1].is_durable:
            # Mostly a flush has done this long ago. A byte takes the length with it.
            self.segments[-1].sync(0, 1)
            self._sync_directory(self.directory)
            self.segments[-1].is_durable = True
        path = f"{self.directory}/{segment_name(start)}"
        try:
            segment = Segment(self._files, path, start, self.size, self._maps)
        except OSError:
            # On a full disk it may have a name and no length; after a clean stop that would be damage.
            with contextlib.suppress(OSError):
                self._files.remove(path)
            raise
        self._changed_directories = self._changed_directories or (self.directory,)
        with self._guard:
            self.segments = (*self.segments, segment)
        return segment

    def _all_directories(self) -> tuple[str, ...]:
        """Those whose names may be new: a queue's first file may come with its directory and its topic's."""
        topic_directory = _parent(self.directory)
        return self.directory, topic_directory, _parent(topic_directory)

    def truncate(self, end: int) -> None:
        """Forget every byte from `end` on: later segments are removed, the rest of its own becomes zeros.

        Zeros, because what stays behind could be taken for whole records after the next crash.
        """
        keep = tuple(segment for segment in self.segments if segment.start < end)
        drop = self.segments[len(keep) :]
        self.segments = keep
        for segment in reversed(drop):
            segment.close()
            self._files.remove(segment.path)
            # Its name must not come back: what it holds could then follow what is written from now on.
            self._sync_directory(self.directory)
        if keep and end < keep[-1].stop:
            keep[-1].mapped.clear_from(end - keep[-1].start)
            keep[-1].reserved_end = 0

    def set_aside(self, end: int) -> tuple[str, int]:
        """Copy what stands from `end` on, up to the last byte that is no zero, to a directory beside this one.

        Returns its path, and how many bytes. Of each segment it gets a file, named by the offset of its first byte, and
        by a further number where an earlier one has that name. Raises OSError; nothing is taken away here.
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
                    # Whole or not at all: nobody is to take half a copy, which a kill has left, for the bytes.
                    self._files.write_atomic(path, segment.view[start:stop])
                    made.append(path)
                    size += stop - start
            self._files.sync_directory(_parent(directory))
        except OSError:
            # Who is refused a start tries it again and again, and would fill the disk with copies.
            for path in made:
                with contextlib.suppress(OSError):
                    self._files.remove(path)
            raise
        return directory, size

    def _free_path(self, path: str) -> str:
        """The path, or with the first further number that makes it nobody's."""
        free, number = path, 0
        while self._files.exists(free):
            number += 1
            free = f"{path}.{number}"
        return free

    def flush(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable, and the names of the files that hold them. Raises OSError."""
        if self._failed is not None:
            raise sync_failed(self._failed, self.directory)
        synced = [segment for segment in self.segments if segment.start < stop and start < segment.stop]
        for segment in synced:
            segment.sync(max(0, start - segment.start), min(self.size, stop - segment.start))
        # Taken first: a segment made while a directory is being synced must be seen the next time.
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
        """Make its names durable. Raises OSError, and where the disk failed for ever: see `Segment`."""
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            if error.errno not in NOT_TRIED:
                self._failed = error
            raise

    @property
    def failed(self) -> OSError | None:
        """What a sync of a file, or of their names, has failed with; then nothing is made durable any more."""
        return self._failed or next((each.failed for each in self.segments if each.failed is not None), None)

    def remove(self, count: int | None = None) -> None:
        """Remove the `count` oldest files, or all. Slices handed out, and readers at work, keep their maps."""
        gone = self.segments[:count]
        for segment in gone:
            # Before its name is free.
            segment.is_gone = True
            try:
                self._files.remove(segment.path)
            except OSError:
                # One that cannot be removed stays, or those after it would leave a gap behind.
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

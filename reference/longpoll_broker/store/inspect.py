"""Reads any RocketMQ 4.9 or 5.x store directory without writing to it.

File sizes are derived from names and lengths instead of settings. Damage is reported, and reading continues with the
next complete record. Validation: see `verify`. The index, batch queues and extended queues are not read. If another
process shortens a mapped file, this process crashes, as with any mapped file.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.commit_log import ChecksumBudget, claimed_size
from longpoll_broker.store.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from longpoll_broker.store.messages import QueueRange
from longpoll_broker.store.recovery import Checkpoint, load_checkpoint
from longpoll_broker.store.segment import ASIDE, is_segment_name, segment_name
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    Damage,
    Record,
    decode,
)
from longpoll_runtime import Files, MappedFile

MAPS_MAX: Final = 1024
"""Maximum files mapped at a time, far below the operating system's limit per process."""
_CHUNK_SIZE: Final = 1024 * 1024
_FIRST_CHUNK_SIZE: Final = 4 * 1024
"""Size of a search's first chunk, bytes. Chunks double, so that damage in many places costs little reading."""
_ZEROS: Final = bytes(_CHUNK_SIZE)
_MAGIC_START: Final = struct.pack(">I", MAGIC_V1)[:3]
assert struct.pack(">I", MAGIC_V2)[:3] == _MAGIC_START, "a search for three bytes finds both magics"


@frozen
class FoundFile:
    """One file of a log or queue. Its name gives its start, and the neighbouring files give its expected length."""

    name: str
    """The file's path, relative to the store directory."""
    start: int
    size: int
    expected_size: int
    _mapped: Callable[[FoundFile], MappedFile]

    @property
    def view(self) -> memoryview:
        """The bytes of the whole file; raises StoreUserError if the file cannot be read."""
        return self._mapped(self).view

    def data_from(self, position: int) -> int:
        """Returns the next position, at or after a position, that may be non-zero (`MappedFile.data_from`)."""
        return self._mapped(self).data_from(position)

    @property
    def is_cut(self) -> bool:
        """Whether the file's length differs from that of its neighbours."""
        return self.size != self.expected_size


@frozen
class Blank:
    """The filler at the end of a commit-log file."""

    physical_offset: int
    size: int


@frozen
class Torn:
    """Bytes that are not a record. `offset` counts from the start of the file."""

    file: str
    offset: int
    found: str
    expected: str
    followed: bool
    """Whether a complete record follows these bytes."""


LogEntry = Record | Blank | Torn


@frozen
class FoundQueue:
    """One consume queue as found on disk: its files, and the offset after its last written unit."""

    topic: str
    queue_id: int
    files: tuple[FoundFile, ...]
    offset_end: int

    @property
    def offset_start(self) -> int:
        """The first offset that has a unit on disk."""
        return self.files[0].start // UNIT_SIZE if self.files else 0

    def place(self, offset: int) -> tuple[str, int]:
        """Returns the path of the file with the unit at an offset, and the unit's position in that file.

        Returns the end of the last file if no file has the unit.
        """
        for file in self.files:
            position = offset * UNIT_SIZE - file.start
            if 0 <= position < file.expected_size:
                return file.name, position
        return (self.files[-1].name, self.files[-1].size) if self.files else (f"{self.topic}/{self.queue_id}", 0)

    def units(self, start: int) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over every written unit from `start` on, as (queue offset, physical offset, size, tags code)."""
        for file in self.files:
            first = file.start // UNIT_SIZE
            begin = min(max(0, start - first), file.size // UNIT_SIZE) * UNIT_SIZE
            stop = max(begin, min(file.size // UNIT_SIZE, self.offset_end - first) * UNIT_SIZE)
            for index, unit in enumerate(UNIT.iter_unpack(file.view[begin:stop]), first + begin // UNIT_SIZE):
                yield index, *unit


class StoreDirectory:
    """A store directory opened for reading. Invariant: at most `maps_max` maps, read-only, and no map after `close`.

    A store may have more files than a process may map. A file is mapped on access, and the oldest map is released. A
    view in use keeps its memory.
    """

    def __init__(self, files: Files, directory: str, maps_max: int = MAPS_MAX) -> None:
        """Find the files; raises StoreUserError if the directory is not a store or cannot be read."""
        if not files.exists(directory):
            raise StoreUserError(f"the directory {directory} does not exist; name a store directory")
        if not any(files.exists(f"{directory}/{name}") for name in ("commitlog", "consumequeue")):
            raise StoreUserError(f"{directory} is not a store: it contains neither commitlog/ nor consumequeue/")
        self._files = files
        self._directory = directory
        self._maps_max = maps_max
        self._maps: dict[str, MappedFile] = {}
        try:
            self.crashed = files.exists(f"{directory}/abort")
            self.checkpoint: Checkpoint = load_checkpoint(files, f"{directory}/checkpoint")
            self.log = self._load("commitlog")
            self._log_starts = [file.start for file in self.log]
            self.queues = tuple(self._load_queues())
        except OSError as error:
            self.close()
            raise StoreUserError(f"{error.filename or directory} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Release the maps."""
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()

    def _mapped(self, file: FoundFile) -> MappedFile:
        mapped = self._maps.get(file.name)
        if mapped is None:
            path = f"{self._directory}/{file.name}"
            try:
                mapped = self._files.map(path, file.size, writable=False)
            except OSError as error:
                raise StoreUserError(f"{path} cannot be read: {error.strerror}") from error
            self._maps[file.name] = mapped
            if len(self._maps) > self._maps_max:
                # The map is dropped instead of closed, because a view of it may be in use.
                del self._maps[next(iter(self._maps))]
        return mapped

    def _load(self, folder: str) -> tuple[FoundFile, ...]:
        names = [name for name in self._listed(folder) if is_segment_name(name)]
        sizes = [self._files.size(f"{self._directory}/{folder}/{name}") for name in names]
        expected = _file_size([int(name) for name in names], sizes)
        return tuple(
            FoundFile(f"{folder}/{name}", int(name), size, expected, self._mapped)
            for name, size in zip(names, sizes, strict=True)
        )

    def _listed(self, folder: str) -> list[str]:
        try:
            return self._files.list(f"{self._directory}/{folder}")
        except NotADirectoryError:
            return []

    def _load_queues(self) -> Iterator[FoundQueue]:
        root = "consumequeue"
        for topic in self._files.list(f"{self._directory}/{root}"):
            names = self._listed(f"{root}/{topic}")
            for queue_id in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
                files = self._load(f"{root}/{topic}/{queue_id}")
                yield FoundQueue(topic, queue_id, files, _written_end(files))

    def set_aside(self) -> tuple[int, int]:
        """Returns the number and total size of the files in which recovery saved bytes that it had cut off the log."""
        folder = f"commitlog{ASIDE}"
        names = [name for name in self._listed(folder) if is_segment_name(name.partition(".")[0])]
        return len(names), sum(self._files.size(f"{self._directory}/{folder}/{name}") for name in names)

    @property
    def log_start(self) -> int:
        """Physical offset of the oldest byte of the log."""
        return self.log[0].start if self.log else 0

    def place(self, physical_offset: int) -> tuple[str, int]:
        """Returns the path of the log file with a physical offset, and the offset's position in that file."""
        file = self.log[bisect.bisect_right(self._log_starts, physical_offset) - 1]
        return file.name, physical_offset - file.start

    def record_at(self, physical_offset: int) -> Record | Damage:
        """Returns the record at a physical offset, or the damage there."""
        index = bisect.bisect_right(self._log_starts, physical_offset) - 1
        if index >= 0:
            file = self.log[index]
            if physical_offset - file.start < file.size:
                return decode(file.view, physical_offset - file.start, file.size, physical_offset)
        return Damage(0, "no commit-log file", f"one that holds byte {physical_offset}")

    def range_of(self, queue: FoundQueue) -> QueueRange:
        """Returns the offsets that a consumer can read, by the rule of RocketMQ 4.9 (`correctMinOffset`).

        The minimum is the first unit of the oldest file whose record is still in the log. If the log has no record of
        that file, the minimum is 0.
        """
        first_end = queue.files[0].start + queue.files[0].expected_size if queue.files else 0
        for offset, physical_offset, _size, _tags_code in queue.units(0):
            if offset * UNIT_SIZE >= first_end:
                break
            if physical_offset >= self.log_start:
                return QueueRange(queue.topic, queue.queue_id, offset, queue.offset_end)
        return QueueRange(queue.topic, queue.queue_id, 0, queue.offset_end)

    def walk_log(self) -> Iterator[LogEntry]:
        """Iterate over every record, blank and torn range in log order; ends where all later bytes are zero."""
        search = _Search()
        for index, file in enumerate(self.log):
            yield from self._walk_file(index, file, search)

    def _is_followed(self, index: int, search: _Search) -> bool:
        return any(search.next_record(file, 0) is not None for file in self.log[index + 1 :])

    def _walk_file(self, index: int, file: FoundFile, search: _Search) -> Iterator[LogEntry]:
        position, view = 0, file.view
        while position < len(view):
            entry = _entry_at(file, position)
            if isinstance(entry, Blank):
                yield entry
                return
            if isinstance(entry, Record):
                yield entry
                position += entry.size
                continue
            following = None if is_zero(file, position) else search.next_record(file, position + 1)
            followed = following is not None or self._is_followed(index, search)
            if not followed and is_zero(file, position):
                return
            yield Torn(file.name, position + entry.offset, entry.found, entry.expected, followed)
            if following is None:
                return
            position = following
        yield Torn(file.name, position, "no blank", "a blank that ends the file", self._is_followed(index, search))


def _entry_at(file: FoundFile, position: int) -> Record | Blank | Damage:
    view = file.view
    if len(view) - position >= BLANK_SIZE_MIN:
        size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
        if magic == MAGIC_BLANK:
            rest = file.expected_size - position
            return Blank(file.start + position, size) if size == rest else Damage(0, f"blank of {size}", f"{rest}")
    return decode(view, position, len(view), file.start + position)


@define(slots=True, eq=False)
class _Search:
    """Searches for complete records after damage.

    Invariant: no record with a valid checksum begins before `refuted_end`, unless its check was skipped. When the
    checksum budget is used up, a head inside a range with a wrong checksum is skipped.
    """

    checks: ChecksumBudget = field(factory=ChecksumBudget)
    refuted_end: int = 0
    """A physical offset, before which no valid record begins."""

    def next_record(self, file: FoundFile, position: int) -> int | None:
        """Returns the position of the next complete record of the file, or None.

        Holes of a sparse file are not read.
        """
        view = file.view
        at, chunk_size, stop = position + 4, _FIRST_CHUNK_SIZE, -1
        while (at := file.data_from(at)) < len(view):
            # Overlap the previous chunk by two bytes, so that a magic number that crosses the border is found.
            begin = at - 2 if at == stop else at
            stop = _chunk_stop(at, chunk_size, len(view))
            chunk_size = min(2 * chunk_size, _CHUNK_SIZE)
            chunk = bytes(view[begin:stop])
            self.checks.passed(stop - at)
            found = chunk.find(_MAGIC_START)
            while found >= 0:
                start = begin + found - 4
                if start >= position and self._is_record(file, start):
                    return start
                found = chunk.find(_MAGIC_START, found + 1)
            at = stop
        return None

    def _is_record(self, file: FoundFile, start: int) -> bool:
        size = claimed_size(file.view, start, file.start + start)
        if not size or not (self.checks.may(size) or file.start + start >= self.refuted_end):
            return False
        if isinstance(decode(file.view, start, file.size, file.start + start), Record):
            return True
        self.refuted_end = max(self.refuted_end, file.start + start + size)
        return False


def _chunk_stop(start: int, chunk_size: int, size: int) -> int:
    """Returns a chunk's end, at the end of a page, because on a tmpfs reading a hole would turn its page into data."""
    return min(start - start % chunk_size + chunk_size, size)


def is_zero(file: FoundFile, position: int) -> bool:
    """Whether all bytes from a position on are zero; holes of a sparse file are not read."""
    view, chunk_size = file.view, _FIRST_CHUNK_SIZE
    while (start := file.data_from(position)) < len(view):
        chunk = bytes(view[start : _chunk_stop(start, chunk_size, len(view))])
        chunk_size = min(2 * chunk_size, _CHUNK_SIZE)
        if chunk != _ZEROS[: len(chunk)]:
            return False
        position = start + len(chunk)
    return True


def _file_size(starts: list[int], sizes: list[int]) -> int:
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    largest = max(sizes, default=0)
    if gaps and (largest == 0 or any(gap % largest for gap in gaps)):
        return min(gaps)
    return largest


def _written_end(files: tuple[FoundFile, ...]) -> int:
    """Returns the offset of the first unwritten unit (`ConsumeQueue.recover`)."""
    offset = files[0].start // UNIT_SIZE if files else 0
    for file in files:
        whole = file.size - file.size % UNIT_SIZE
        offset = file.start // UNIT_SIZE
        for physical_offset, size, _tags_code in UNIT.iter_unpack(file.view[:whole]):
            if physical_offset < 0 or size <= 0:
                return offset
            offset += 1
        if whole < file.expected_size:
            return offset
    return offset


def is_pre_blank(physical_offset: int, size: int) -> bool:
    """Whether a unit is a placeholder before the queue's first message."""
    return physical_offset == 0 and size == PRE_BLANK_SIZE


def missing_files(files: tuple[FoundFile, ...]) -> Iterator[tuple[FoundFile, str]]:
    """Iterate over gaps between files: yields the file after each gap, and the name of the missing file."""
    for earlier, later in itertools.pairwise(files):
        expected = earlier.start + earlier.expected_size
        if later.start != expected:
            yield later, segment_name(expected)

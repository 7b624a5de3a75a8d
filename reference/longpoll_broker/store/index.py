"""The index by message key: its files, the list of them, and the indexer that follows the log (`IndexService.java`).

One file is a hash table from keys to messages (`IndexFile.java`, `IndexHeader.java`).

    Offset            Size  What (big-endian, signed)
    0                 8     store timestamp of the first message, ms
    8                 8     store timestamp of the last message, ms
    16                8     physical offset of the first message
    24                8     physical offset of the last message
    32                4     slots that are in use
    36                4     number of the next entry; the first is 1, and entry 0 is never used
    40 + 4 s          4     slot s: number of its newest entry, 0 for none
    40 + 4 S + 20 n   20    entry n, S being the count of slots:
       0               4       hash of the key, not negative
       4               8       physical offset of the message
       12              4       whole seconds from the first message to this one
       16              4       number of the previous entry of the slot, 0 for none

A key's slot is its hash modulo S. The header of a new file begins with the last message of the previous, full file.
`Indexer.query` drops messages of other keys with the same hash. `Indexer.build` adds entries; the flush thread and
every query call it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import logging
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.messages import QueryResult
from longpoll_broker.store.segment import Segment, make_beside, sync_failed
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    SIZE_AND_MAGIC,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    Record,
    keyed_part,
    property_of,
)
from longpoll_protocol.properties import java_hashes
from longpoll_runtime import Files, Lock, Runtime
from longpoll_spec.tables import with_table

HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = 40
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
ENTRY_SIZE: Final = 20
_PIECE_BITS: Final = 16
"""Disk blocks are reserved in pieces of 2^16 bytes, because writes to slots are spread over the whole slot table."""
_INT_MAX: Final = 2**31 - 1
_pack_entry: Final = ENTRY.pack_into
_pack_slot: Final = SLOT.pack_into
_unpack_slot: Final = SLOT.unpack_from


Entry: TypeAlias = tuple[int, int, int]
"""A new entry: the hash of a key, and its message's physical offset and store timestamp in ms."""


@with_table
class IndexHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of an index file: its first 40 bytes."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    entry_next: int = 1


def key_hashes(keys: Sequence[str]) -> list[int]:
    """Returns the hashes of keys in the form TOPIC#KEY (`IndexService.buildKey`, `indexKeyHashMethod`)."""
    # In Java, the absolute value of the smallest 32-bit number overflows, and RocketMQ then uses 0.
    return [abs(hashed) & _INT_MAX for hashed in java_hashes(keys)]


def index_file_size(slot_count: int, entry_count: int) -> int:
    """Returns the size of a file with `slot_count` slots and `entry_count` entries, including the unused entry."""
    return HEADER_SIZE + SLOT.size * slot_count + ENTRY_SIZE * entry_count


def read_header(view: memoryview) -> IndexHeader:
    """Read the header. As in RocketMQ, a next entry number below 1 is treated as 1."""
    header = IndexHeader(*HEADER.unpack_from(view))
    if header.entry_next > 0:
        return header
    return IndexHeader(header.begin_ms, header.end_ms, header.begin_offset, header.end_offset, header.slot_count)


class IndexFile:
    """One mapped file. Invariant: entries below `header.entry_next` are complete and reachable from their slots.

    One thread writes while others may read: an entry is complete before a slot refers to it, and the header is written
    last, once per `put`. A reader reads a slot first, and then the number of entries.
    """

    def __init__(self, files: Files, path: str, slot_count: int, entry_count: int) -> None:
        """Map the file, and create it if needed; raises OSError, also if the file has a different length."""
        self.path = path
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_start = HEADER_SIZE + SLOT.size * slot_count
        size = index_file_size(slot_count, entry_count)
        self._mapped = files.map(path, size, writable=True, create=True)
        self._view = self._mapped.view
        self._size = size
        self._reserved: set[int] = set()
        """The pieces that have disk blocks."""
        self._entries_reserved = 0
        """The position up to which entries have disk blocks."""
        self._failed: OSError | None = None
        self.header = read_header(self._view)
        self._entry_next = self.header.entry_next
        """As in the header, and ahead of it during `put`."""

    @property
    def is_full(self) -> bool:
        """Whether the file has no room for another entry."""
        return self.header.entry_next >= self._entry_count

    @property
    def is_plausible(self) -> bool:
        """Whether the header is valid for these counts. With an invalid header, a search could leave the file."""
        header = self.header
        return 0 <= header.entry_next <= self._entry_count and 0 <= header.slot_count <= self._slot_count

    def begin_after(self, before: IndexFile) -> None:
        """Begin a new file after a full file; raises OSError if the disk is full."""
        self._reserve(0, HEADER_SIZE)
        last = before.header
        self._write_header(IndexHeader(last.end_ms, last.end_ms, last.end_offset, last.end_offset))

    def put(self, entries: Sequence[Entry]) -> int:
        """Add entries in log order, as many as fit; returns the number of added entries.

        If the disk becomes full, the entries added so far stay and the next call fails. Raises OSError if no entry was
        added.
        """
        header, view = self.header, self._view
        number = first = header.entry_next
        assert number < self._entry_count
        slots_used, slot_count, reserved = header.slot_count, self._slot_count, self._reserved
        begin_ms, begin_offset = header.begin_ms, header.begin_offset
        physical_offset, store_ms = header.end_offset, header.end_ms
        position = self._entries_start + ENTRY_SIZE * number
        try:
            self._reserve(0, HEADER_SIZE)
            for hashed, physical_offset_now, store_ms_now in entries[: self._entry_count - number]:
                slot_position = HEADER_SIZE + SLOT.size * (hashed % slot_count)
                if position + ENTRY_SIZE > self._entries_reserved:
                    self._entries_reserved = self._reserve(position, ENTRY_SIZE)
                if slot_position >> _PIECE_BITS not in reserved:
                    self._reserve(slot_position, SLOT.size)
                physical_offset, store_ms = physical_offset_now, store_ms_now
                seconds = (store_ms - begin_ms) // 1000 if begin_ms > 0 else 0
                if not 0 <= seconds <= _INT_MAX:
                    seconds = min(max(seconds, 0), _INT_MAX)
                (before,) = _unpack_slot(view, slot_position)
                if not 0 < before <= number:
                    before = 0
                    slots_used += 1
                _pack_entry(view, position, hashed, physical_offset, seconds, before)
                if number <= 1:
                    # Later entries count their seconds from this message, but the first entry counts from the last
                    # message of the previous file.
                    begin_ms, begin_offset = store_ms, physical_offset
                # Increase the number before the slot refers to the entry, because a concurrent reader rejects an entry
                # with a higher number.
                self._entry_next = number + 1
                _pack_slot(view, slot_position, number)
                number += 1
                position += ENTRY_SIZE
        except OSError:
            if number == first:
                raise
        self._write_header(IndexHeader(begin_ms, store_ms, begin_offset, physical_offset, slots_used, number))
        return number - first

    def _write_header(self, header: IndexHeader) -> None:
        HEADER.pack_into(
            self._view, 0, header.begin_ms, header.end_ms, header.begin_offset, header.end_offset,
            header.slot_count, header.entry_next,
        )  # fmt: skip
        self.header = header
        self._entry_next = header.entry_next

    def _reserve(self, position: int, size: int) -> int:
        """Reserve disk blocks for a part of the file before its first write; returns the end of that part."""
        first, last = position >> _PIECE_BITS, position + size - 1 >> _PIECE_BITS
        for piece in range(first, last + 1):
            if piece not in self._reserved:
                start = piece << _PIECE_BITS
                self._mapped.reserve(start, min(start + (1 << _PIECE_BITS), self._size))
                self._reserved.add(piece)
        return last + 1 << _PIECE_BITS

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have messages that were stored in a period (`isTimeMatched`)."""
        header = self.header
        return (
            (begin_ms < header.begin_ms and end_ms > header.end_ms)
            or header.begin_ms <= begin_ms <= header.end_ms
            or header.begin_ms <= end_ms <= header.end_ms
        )

    def find(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Find messages with a key of this hash that were stored in a period; yields physical offsets, newest first.

        Times are compared in whole seconds. Yields None for each visited entry of another key or time, so that the
        caller can count the work.
        """
        file_begin_ms = self.header.begin_ms
        (number,) = _unpack_slot(self._view, HEADER_SIZE + SLOT.size * (hashed % self._slot_count))
        if not 0 < number < self._entry_next:
            return
        while True:
            found, physical_offset, seconds, before = ENTRY.unpack_from(
                self._view, self._entries_start + ENTRY_SIZE * number
            )
            stored_ms = file_begin_ms + 1000 * seconds
            if seconds < 0:
                return
            yield physical_offset if found == hashed and begin_ms <= stored_ms <= end_ms else None
            # An entry must point to an older entry, because otherwise a damaged file could lead the reader in a circle.
            if not 0 < before < number or stored_ms < begin_ms:
                return
            number = before

    def last_entries(self) -> int:
        """Returns the number of entries of the last indexed message, which are the newest entries."""
        count = 0
        for number in range(self.header.entry_next - 1, 0, -1):
            position = self._entries_start + ENTRY_SIZE * number
            if ENTRY.unpack_from(self._view, position)[1] != self.header.end_offset:
                break
            count += 1
        return count

    def flush(self) -> None:
        """Make the file durable; raises OSError.

        After a failed sync every call raises, because a later sync would succeed and hide the failure.
        """
        if self._failed is not None:
            raise sync_failed(self._failed, self.path)
        try:
            self._mapped.sync(0, self._size)
        except OSError as error:
            self._failed = error
            raise

    def close(self) -> None:
        """Unmap the file."""
        self._mapped.close()


_lines = logging.getLogger(__name__)

NAME_DIGITS: Final = 17
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
KEY_WORTH: Final = 128
"""Hashing a key of this many characters takes as long as adding one entry."""
WALKED_MAX: Final = 2048
"""Maximum number of entries that a search visits before it yields, which takes 1 to 2 ms."""


class Keyed(NamedTuple):
    """A record and its keys."""

    physical_offset: int
    topic: str
    keys: Sequence[str]
    store_ms: int
    stop: int
    """The record's end in the log."""


def keys_of(sys_flag: int, properties: bytes) -> list[str]:
    """Returns the keys of a record, the unique key first; a rolled-back message has no keys (`buildIndex`)."""
    if sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK:
        return []
    unique = property_of(properties, UNIQUE_KEY)
    own = property_of(properties, KEYS)
    keys = own.split(" ") if own else []
    if unique:
        keys.insert(0, unique)
    return keys if "" not in keys else list(filter(None, keys))


class Index:
    """The files of one directory, oldest first.

    Invariant: all files except the last are full; times and offsets never decrease. The tuple of files is replaced
    instead of changed, so readers need no lock. Writers hold the owner's lock.
    """

    def __init__(self, runtime: Runtime, directory: str, slot_count: int, entry_count: int) -> None:
        """Map every file; raises StoreUserError if a file's length does not match these counts."""
        self._runtime = runtime
        self._directory = directory
        self._counts = (slot_count, entry_count)
        self._files: tuple[IndexFile, ...] = ()
        # The physical offset of the last message, and the number of its keys that are indexed. A full disk or a crash
        # may leave some keys unindexed.
        self._begun = (-1, 0)
        self.flushed_ms = 0
        """Store timestamp of the last entry in the newest durable full file."""
        try:
            self._load()
        except StoreUserError:
            self.close()
            raise

    def _load(self) -> None:
        files, size = self._runtime.files, index_file_size(*self._counts)
        found_names = files.list(self._directory)
        names = [name for name in found_names if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()]
        for name in names:
            path = f"{self._directory}/{name}"
            found = files.size(path)
            # A crash between creating a file and setting its length leaves an empty file.
            if found not in {0, size}:
                raise StoreUserError(
                    f"{path} has {found} bytes, maxHashSlotNum={self._counts[0]} and maxIndexNum={self._counts[1]} "
                    f"make {size}; open the store with its original settings"
                )
            made = IndexFile(files, path, *self._counts)
            if not made.is_plausible:
                # The damaged file and later files are removed, and their messages are indexed again from the log.
                _lines.error("%s is damaged: it and the files after it are made anew from the log", path)
                later = [later for later in names if later >= name]
                for each in later:
                    files.remove(f"{self._directory}/{each}")
                return
            self._files = (*self._files, made)

    def forget_unsure(self, durable_ms: int, log_end: int) -> None:
        """After a crash, keep the oldest files that are certainly intact, and remove the others; raises OSError.

        A file is intact if it is full, is not the newest, is covered by the checkpoint and refers to no lost record.
        """
        kept = 0
        for file in self._files[:-1]:
            if not file.is_full or file.header.end_ms > durable_ms or file.header.end_offset >= log_end:
                break
            kept += 1
        self._remove(self._files[kept:])
        self._files = self._files[:kept]
        self.flushed_ms = self._files[-1].header.end_ms if self._files else 0

    def go_on(self) -> int:
        """Find how many keys of the last message are indexed; returns its physical offset, or -1 for an empty index.

        The keys of one message may be in several files, and a crash may have removed the last of these files.
        """
        offset, done = self.end_offset, 0
        for file in reversed(self._files):
            if file.header.entry_next > 1:
                done += file.last_entries() if file.header.end_offset == offset else 0
                if file.header.begin_offset != offset:
                    break
        self._begun = (offset, done)
        return offset

    def remove_before(self, log_start: int) -> None:
        """Remove files whose messages are all deleted from the log, but never the newest file (`deleteExpiredFile`)."""
        gone = 0
        while gone < len(self._files) - 1 and self._files[gone].header.end_offset < log_start:
            gone += 1
        removed, self._files = self._files[:gone], self._files[gone:]
        self._remove(removed)

    def _remove(self, files: tuple[IndexFile, ...]) -> None:
        # The files are not unmapped, because readers may still use the maps.
        for file in files:
            self._runtime.files.remove(file.path)

    @property
    def end_offset(self) -> int:
        """Physical offset of the last indexed message; -1 if the index is empty."""
        last = self._last()
        return last.header.end_offset if last is not None else -1

    @property
    def end_ms(self) -> int:
        """Store timestamp of the last indexed message, ms; 0 if the index is empty."""
        last = self._last()
        return last.header.end_ms if last is not None else 0

    def _last(self) -> IndexFile | None:
        files = self._files
        # A file without entries was just created, or was left by a crash.
        return next((file for file in reversed(files) if file.header.entry_next > 1), None)

    def put(self, records: Sequence[Keyed], work_max: int) -> tuple[int, int]:
        """Index records up to a cost of about `work_max`; returns the cost and the number of fully indexed records.

        To continue, call again with the records from the first incomplete one on. A key costs one, plus one per
        `KEY_WORTH` characters; a record without keys costs one. If the disk becomes full, the entries added so far stay
        and the next call fails. Raises OSError if nothing was indexed.
        """
        keys: list[str] = []
        offsets: list[int] = []
        times: list[int] = []
        stops: list[int] = []
        work = 0
        for physical_offset, topic, own, store_ms, _stop in records:
            done = self._done(physical_offset)
            for key in itertools.islice(own, done, None) if done else own:
                if work >= work_max:
                    break
                keys.append(f"{topic}#{key}")
                offsets.append(physical_offset)
                times.append(store_ms)
                work += 1 + len(key) // KEY_WORTH
            work += not own
            stops.append(len(keys))
        entries = list(zip(key_hashes(keys), offsets, times, strict=True))
        put = 0
        try:
            while put < len(entries):
                put += self._writable().put(entries[put:] if put else entries)
        except OSError:
            if not put:
                raise
        start = whole = 0
        for record, stop in zip(records, stops, strict=True):
            done = self._done(record.physical_offset) + min(put, stop) - start
            if done < len(record.keys):
                self._begun = (record.physical_offset, done)
                break
            start = stop
            whole += 1
        return work, whole

    def _done(self, physical_offset: int) -> int:
        """Returns how many keys of a record are indexed. The record is the last indexed record or a later record."""
        return self._begun[1] if self._begun[0] == physical_offset else 0

    def _writable(self) -> IndexFile:
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        files = self._runtime.files
        if last is None:
            make_beside(files, self._directory)
        else:
            last.flush()
            self.flushed_ms = last.header.end_ms
        path = f"{self._directory}/{self._next_name(last)}"
        made = None
        try:
            made = IndexFile(files, path, *self._counts)
            if last is not None:
                made.begin_after(last)
            files.sync_directory(self._directory)
        except OSError:
            # Remove the new file: the retry uses another name, so this file would stay empty between full files.
            if made is not None:
                made.close()
            with contextlib.suppress(OSError):
                files.remove(path)
            raise
        self._files = (*self._files, made)
        return made

    def _next_name(self, last: IndexFile | None) -> str:
        """Returns the current UTC time as a file name, or the last file's name plus one if that is later."""
        now = dt.datetime.fromtimestamp(self._runtime.unix_ms() / 1000, dt.UTC)
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"
        if last is None:
            return name
        return max(name, f"{int(last.path.rpartition('/')[2]) + 1:0{NAME_DIGITS}d}")

    def find(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_meant: Callable[[int], bool] = lambda _physical_offset: True,
    ) -> Generator[None, None, list[int]]:
        """Find the newest messages with a key, up to `count_max`, in log order (`queryOffset`).

        Returns physical offsets. `is_meant` rejects a message with a different key that has the same hash. Yields every
        `WALKED_MAX` entries, so that other work can run.
        """
        (hashed,) = key_hashes([f"{topic}#{key}"])
        found: list[int] = []
        walked = 0
        for file in reversed(self._files):
            if file.overlaps(begin_ms, end_ms):
                for physical_offset in file.find(hashed, begin_ms, end_ms):
                    if len(found) >= count_max:
                        break
                    if physical_offset is not None and is_meant(physical_offset):
                        found.append(physical_offset)
                    walked += 1
                    if walked % WALKED_MAX == 0:
                        yield
            if file.header.begin_ms < begin_ms or len(found) >= count_max:
                break
        return sorted(found)

    def flush(self) -> None:
        """Make the newest file durable. The older files are durable already. Raises OSError."""
        if self._files:
            self._files[-1].flush()

    def close(self) -> None:
        """Unmap every file."""
        files, self._files = self._files, ()
        for file in files:
            file.close()


QUERY_COUNT_MAX: Final = 64
"""`maxMsgsNumBatch`: maximum messages that one query returns."""
CATCH_UP_COUNT_MAX: Final = 20_000
"""Maximum records, or keys, that a query indexes before its search. The flush thread indexes the remaining records."""
TURN_COUNT: Final = 512
"""Number of records indexed before other work runs, which takes a few milliseconds."""
STRETCH_SIZE: Final = 16 * 1024
"""Number of bytes of the log searched for keys at once, which takes a few microseconds."""
PASS_SIZE: Final = 64 * 1024 * 1024
"""Maximum bytes skipped before control returns to the caller; skipping so many takes a few milliseconds."""
RECORD_WORTH: Final = 4 * 1024
"""Searching this many bytes takes as long as indexing one record."""
HASHED_COUNT: Final = 64
"""Maximum number of keys hashed together."""
_KEY: Final = b"KEY"
"""Both property names with keys contain this text, so a record without it need not be decoded."""


class Indexer:
    """The index and its cursor. Invariant: every record before `cursor` is indexed or no longer in the log."""

    __slots__ = ("_begun", "_index", "_lock", "_log", "cursor")

    def __init__(self, log: CommitLog, index: Index, lock: Lock) -> None:
        self._log = log
        self._index = index
        self._lock = lock
        self._begun: Keyed | None = None
        """The record with only some keys indexed, kept so that it is split once."""
        self.cursor = 0

    def recover(self, *, crashed: bool, durable_ms: int) -> None:
        """Keep the intact part of the index and continue after it, once the log is recovered. Raises OSError."""
        index, log = self._index, self._log
        if crashed or index.end_offset >= log.end:
            index.forget_unsure(durable_ms, log.end)
        # Start with the last indexed message again, because some of its keys may be missing.
        self.cursor = max(index.go_on(), log.start)

    def build(self, end: int, count_max: int) -> bool:
        """Index about `count_max` records before `end`; returns whether all are indexed. Raises OSError (retry).

        A record that is long, or has many or long keys, counts as several records, so its keys may take several calls.
        `end` must be the end of a record or a blank.
        """
        with self._lock:
            if not self._log.segments.segments:
                # The start of a copied log may be above 0 although the log has no data yet.
                return True
            count = 0
            while count < count_max and self.cursor < end:
                self.cursor = max(self.cursor, self._log.start)
                count += self._pass_some(end, count_max - count)
            return self.cursor >= end

    def _pass_some(self, end: int, work_max: int) -> int:
        """Advance the cursor by some records, and index keys for at most `work_max`; returns the work done."""
        cursor = self.cursor
        segment = self._log.segments.find(cursor)
        if segment is None:
            # Retention has removed this file since the log's start was read.
            self.cursor = self._log.start
            return 1
        position = cursor - segment.start
        size: int
        size, magic = SIZE_AND_MAGIC.unpack_from(segment.view, position)
        if magic == MAGIC_BLANK:
            self.cursor = segment.stop
            return 1
        records = self._keyed_records(segment, position, min(end - segment.start, segment.size), work_max)
        if not records:
            self.cursor = cursor + size
            return 1 + self._pass_keyless(segment, end)
        work, whole = self._index.put(records, work_max)
        if whole:
            self.cursor = records[whole - 1].stop
        self._begun = records[whole] if whole < len(records) else None
        return work + (self.cursor - cursor) // RECORD_WORTH

    def _keyed_records(self, segment: Segment, position: int, border: int, work_max: int) -> list[Keyed]:
        """Returns the records from `position` on that may have keys, up to a record without keys or the work limit.

        The records are collected, because hashing all keys in one call costs little more than hashing one.
        """
        view, start = segment.view, segment.start
        records: list[Keyed] = []
        count, count_max = 0, min(work_max, HASHED_COUNT)
        while count < count_max and position + BLANK_SIZE_MIN <= border:
            keyed = self._begun
            if keyed is None or keyed.physical_offset != start + position:
                size: int
                size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
                record = bytes(view[position : position + size])
                if magic == MAGIC_BLANK or _KEY not in record:
                    break
                assert size > 0
                keyed = self._keyed(start + position, record)
            records.append(keyed)
            count += (len(keyed.keys) or 1) + (keyed.stop - keyed.physical_offset) // RECORD_WORTH
            position = keyed.stop - start
        return records

    def _pass_keyless(self, segment: Segment, end: int) -> int:
        """Skip records that contain no key, with a few searches over all their bytes.

        Returns how many records could be indexed in the same time.
        """
        position = self.cursor - segment.start
        border = min(end - segment.start, segment.size)
        stop = min(border, position + PASS_SIZE)
        key_at = _find_key(segment.view, position, stop)
        if key_at < 0 and stop == border:
            # No key was found up to the end of a record or file, so the boundaries of records are not needed.
            self.cursor = segment.start + border
            return (border - position) // RECORD_WORTH
        passed, count = _whole_records(segment.view, position, stop if key_at < 0 else key_at)
        self.cursor = segment.start + passed
        return count

    def _keyed(self, physical_offset: int, record: bytes) -> Keyed:
        """Returns a record with its keys, or with no keys if the record is incomplete."""
        stop = physical_offset + len(record)
        part = keyed_part(record)
        if part is None:
            found = self._log.read(physical_offset)
            if not isinstance(found, Record):
                return Keyed(physical_offset, "", (), 0, stop)
            part = found.sys_flag, found.store_ms, found.topic, found.properties
        sys_flag, store_ms, topic, properties = part
        return Keyed(physical_offset, topic, keys_of(sys_flag, properties), store_ms, stop)

    def query(
        self, topic: str, key: str, count_max: int, stored_ms: tuple[int, int], log_end: int
    ) -> Generator[None, None, QueryResult]:
        """Find the newest messages of a topic that have a key and were stored in the period `stored_ms`.

        Yields after every few milliseconds of work, so that other work can run.
        """
        # On a full disk the existing index still gives an answer, and the flush thread logs the error and retries.
        with contextlib.suppress(OSError):
            for _ in range(0, CATCH_UP_COUNT_MAX, TURN_COUNT):
                if self.build(log_end, TURN_COUNT):
                    break
                yield
        index, log = self._index, self._log

        def is_meant(physical_offset: int) -> bool:
            """Whether the message at this offset really has the key.

            A message with another key of the same hash is dropped, because the client may have no right to read its
            topic.
            """
            found = log.read(physical_offset)
            if not isinstance(found, Record):
                return True
            return found.topic == topic and key in keys_of(found.sys_flag, bytes(found.properties))

        count = min(count_max, QUERY_COUNT_MAX)
        offsets = yield from index.find(topic, key, count, *stored_ms, is_meant=is_meant)
        if not offsets:
            return QueryResult([], 0, 0)
        # As in RocketMQ, the answer has the end of the index if any entry was found, even if the log no longer has the
        # message. RocketMQ then queries twice more for older messages but finds nothing, because it uses the time of a
        # missing message.
        records: list[memoryview] = []
        for physical_offset in offsets:
            found = log.read(physical_offset)
            view = log.slice(physical_offset, found.size) if isinstance(found, Record) else None
            if view is not None:
                records.append(view)
        return QueryResult(records, index.end_ms, index.end_offset)

    def remove_before(self, log_start: int) -> None:
        """Remove files that refer only to removed records; raises OSError."""
        with self._lock:
            self._index.remove_before(log_start)

    @property
    def flushed_ms(self) -> int:
        """Store timestamp of the last entry in the newest file that is full and durable (`indexMsgTimestamp`)."""
        return self._index.flushed_ms

    def flush(self) -> None:
        """Make the index durable; raises OSError."""
        with self._lock:
            self._index.flush()

    def close(self) -> None:
        """Unmap the files."""
        self._index.close()


def _find_key(view: memoryview, start: int, stop: int) -> int:
    """Returns the position of the first possible key in `view[start:stop]`, or -1."""
    for at in range(start, stop, STRETCH_SIZE):
        # Read a few bytes beyond the border, so that a key that crosses the border is found too.
        found = bytes(view[at : min(at + STRETCH_SIZE + len(_KEY) - 1, stop)]).find(_KEY)
        if found >= 0:
            return at + found
    return -1


def _whole_records(view: memoryview, start: int, stop: int) -> tuple[int, int]:
    """Returns the end of the last complete record in `view[start:stop]`, and the number of complete records."""
    at = start
    count = 0
    while at + BLANK_SIZE_MIN <= stop:
        size, magic = SIZE_AND_MAGIC.unpack_from(view, at)
        if magic == MAGIC_BLANK or at + size > stop:
            break
        assert size > 0
        at += size
        count += 1
    return at, count

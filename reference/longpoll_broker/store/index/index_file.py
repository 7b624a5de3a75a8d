"""One file of the index: a hash table from keys to messages (`IndexFile.java`, `IndexHeader.java`).

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
       16              4       number of the slot's entry before this one, 0 for none

A key's slot is its hash modulo S. A new file begins with the last message of the full one before in its header. The
caller distinguishes keys with equal hashes. Choice of the file: see `index`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from longpoll_broker.store.segment import sync_failed
from longpoll_protocol.tags import java_hashes
from longpoll_runtime import Files
from longpoll_spec.tables import with_table

HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = 40
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
ENTRY_SIZE: Final = 20
_PIECE_BITS: Final = 16
"""Disk blocks are reserved in pieces of 64 KiB, because slots are written all over their part of the file."""
_INT_MAX: Final = 2**31 - 1
_pack_entry: Final = ENTRY.pack_into
_pack_slot: Final = SLOT.pack_into
_unpack_slot: Final = SLOT.unpack_from


Entry: TypeAlias = tuple[int, int, int]
"""A new entry: the hash of a key, and its message's physical offset and store timestamp in ms."""


@with_table
class IndexHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 40 bytes."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    entry_next: int = 1


def key_hashes(keys: Sequence[str]) -> list[int]:
    """Returns the hashes of keys in the form TOPIC#KEY (`IndexService.buildKey`, `indexKeyHashMethod`)."""
    # As in Java, the smallest number has no positive counterpart and becomes 0.
    return [abs(hashed) & _INT_MAX for hashed in java_hashes(keys)]


def index_file_size(slot_count: int, entry_count: int) -> int:
    """Bytes of a file with `slot_count` slots and `entry_count` entries, including the unused one."""
    return HEADER_SIZE + SLOT.size * slot_count + ENTRY_SIZE * entry_count


def read_header(view: memoryview) -> IndexHeader:
    """Read the header; a next entry number below 1 counts as 1, as in Java."""
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
        """Map the file, creating it if needed; raises OSError, also for a different length."""
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
        """Whether the header is valid for these counts; otherwise it would lead outside of the file."""
        header = self.header
        return 0 <= header.entry_next <= self._entry_count and 0 <= header.slot_count <= self._slot_count

    def begin_after(self, before: IndexFile) -> None:
        """Begin a new file after a full one; raises OSError when the disk is full."""
        self._reserve(0, HEADER_SIZE)
        last = before.header
        self._write_header(IndexHeader(last.end_ms, last.end_ms, last.end_offset, last.end_offset))

    def put(self, entries: Sequence[Entry]) -> int:
        """Add entries in log order, as many as fit; returns their number.

        On a full disk the earlier entries stay and the next call fails. Raises OSError when none was added.
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
                    # From here on: the first entry itself counts from the previous file's end.
                    begin_ms, begin_offset = store_ms, physical_offset
                # Before the slot refers to it, so that a concurrent reader accepts the entry.
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
        """Reserve disk blocks for a part of the file before its first write; returns the end of the reserved part."""
        first, last = position >> _PIECE_BITS, position + size - 1 >> _PIECE_BITS
        for piece in range(first, last + 1):
            if piece not in self._reserved:
                start = piece << _PIECE_BITS
                self._mapped.reserve(start, min(start + (1 << _PIECE_BITS), self._size))
                self._reserved.add(piece)
        return last + 1 << _PIECE_BITS

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have messages of that period (`isTimeMatched`)."""
        header = self.header
        return (
            (begin_ms < header.begin_ms and end_ms > header.end_ms)
            or header.begin_ms <= begin_ms <= header.end_ms
            or header.begin_ms <= end_ms <= header.end_ms
        )

    def find(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Find messages with a key of this hash, stored in that period to the second; physical offsets, newest first.

        Yields None for each visited entry of another key or time, so that the caller can count the work.
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
            # An entry points to an older one; in a damaged file it might form a cycle.
            if not 0 < before < number or stored_ms < begin_ms:
                return
            number = before

    def last_entries(self) -> int:
        """Returns how many of the newest entries belong to the last message."""
        count = 0
        for number in range(self.header.entry_next - 1, 0, -1):
            position = self._entries_start + ENTRY_SIZE * number
            if ENTRY.unpack_from(self._view, position)[1] != self.header.end_offset:
                break
            count += 1
        return count

    def flush(self) -> None:
        """Make the file durable. Raises OSError, and always after a failed sync: a later one would hide lost data."""
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

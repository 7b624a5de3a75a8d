"""One file of the index: a hash table from a key to the messages that carry it (`IndexFile.java`, `IndexHeader.java`).

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

A key's slot is its hash modulo S. A file made after a full one begins with that one's last message in its header. Keys
of equal hash are not told apart: who asks compares what was found. Leaves out which file is written (`index`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from longpoll_broker.store.segment import sync_failed
from longpoll_protocol.tags import java_hash
from longpoll_runtime import Files
from longpoll_spec.tables import with_table

HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = 40
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
ENTRY_SIZE: Final = 20
_PIECE_BITS: Final = 16
"""Disk blocks are taken in pieces of 64 KiB: slots are written all over their part of the file."""
_INT_MAX: Final = 2**31 - 1


@with_table
class IndexHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 40 bytes."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    entry_next: int = 1


def key_hash(topic: str, key: str) -> int:
    """What the index keeps of a key (`IndexService.buildKey`, `indexKeyHashMethod`)."""
    # The smallest number has no positive counterpart in Java and becomes 0.
    return abs(java_hash(f"{topic}#{key}")) & _INT_MAX


def index_file_size(slot_count: int, entry_count: int) -> int:
    """Bytes of a file with `slot_count` slots and room for `entry_count` entries, the unused one among them."""
    return HEADER_SIZE + SLOT.size * slot_count + ENTRY_SIZE * entry_count


def read_header(view: memoryview) -> IndexHeader:
    """The header; a number of the next entry below 1 counts as 1, as in Java."""
    header = IndexHeader(*HEADER.unpack_from(view))
    if header.entry_next > 0:
        return header
    return IndexHeader(header.begin_ms, header.end_ms, header.begin_offset, header.end_offset, header.slot_count)


class IndexFile:
    """One mapped file. Invariant: the entries below `header.entry_next` are whole and reached from their slots.

    One thread writes. Others may read meanwhile: an entry is whole before a slot names it, the header follows last.
    """

    def __init__(self, files: Files, path: str, slot_count: int, entry_count: int) -> None:
        """Map the file, making it if needed; raises OSError, also for another length."""
        self.path = path
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_start = HEADER_SIZE + SLOT.size * slot_count
        size = index_file_size(slot_count, entry_count)
        self._mapped = files.map(path, size, writable=True, create=True)
        self._view = self._mapped.view
        self._size = size
        self._reserved: set[int] = set()
        self._failed: OSError | None = None
        self.header = read_header(self._view)

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self.header.entry_next >= self._entry_count

    @property
    def is_plausible(self) -> bool:
        """Whether its header may be that of a file of these counts; another one leads outside of it."""
        header = self.header
        return 0 <= header.entry_next <= self._entry_count and 0 <= header.slot_count <= self._slot_count

    def begin_after(self, before: IndexFile) -> None:
        """Begin a new file where a full one ends."""
        last = before.header
        self._write_header(IndexHeader(last.end_ms, last.end_ms, last.end_offset, last.end_offset))

    def put(self, hashed: int, physical_offset: int, store_ms: int) -> None:
        """Add an entry; raises OSError when the disk is full, and nothing is added then."""
        header, view = self.header, self._view
        number = header.entry_next
        assert number < self._entry_count
        slot_position = HEADER_SIZE + SLOT.size * (hashed % self._slot_count)
        entry_position = self._entries_start + ENTRY_SIZE * number
        self._reserve(entry_position, ENTRY_SIZE)
        self._reserve(slot_position, SLOT.size)
        self._reserve(0, HEADER_SIZE)
        before = self._newest(slot_position, number)
        seconds = (store_ms - header.begin_ms) // 1000 if header.begin_ms > 0 else 0
        ENTRY.pack_into(view, entry_position, hashed, physical_offset, min(max(seconds, 0), _INT_MAX), before)
        SLOT.pack_into(view, slot_position, number)
        first = number <= 1
        self._write_header(
            IndexHeader(
                store_ms if first else header.begin_ms,
                store_ms,
                physical_offset if first else header.begin_offset,
                physical_offset,
                header.slot_count + (before == 0),
                number + 1,
            )
        )

    def _write_header(self, header: IndexHeader) -> None:
        HEADER.pack_into(
            self._view, 0, header.begin_ms, header.end_ms, header.begin_offset, header.end_offset,
            header.slot_count, header.entry_next,
        )  # fmt: skip
        self.header = header

    def _newest(self, slot_position: int, entry_next: int) -> int:
        """The newest entry of a slot; 0 for none, and for a number that no entry can have."""
        (number,) = SLOT.unpack_from(self._view, slot_position)
        return number if 0 < number <= entry_next else 0

    def _reserve(self, position: int, size: int) -> None:
        """Take disk blocks for a piece of the file before its first write."""
        first, last = position >> _PIECE_BITS, position + size - 1 >> _PIECE_BITS
        if first in self._reserved and last in self._reserved:
            return
        for piece in {first, last} - self._reserved:
            start = piece << _PIECE_BITS
            self._mapped.reserve(start, min(start + (1 << _PIECE_BITS), self._size))
            self._reserved.add(piece)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether messages of that time may be here (`isTimeMatched`)."""
        header = self.header
        return (
            (begin_ms < header.begin_ms and end_ms > header.end_ms)
            or header.begin_ms <= begin_ms <= header.end_ms
            or header.begin_ms <= end_ms <= header.end_ms
        )

    def find(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of messages with a key of this hash, stored in that time to the second, newest first.

        None for each entry looked at in vain, of another key or another time: the caller counts the work.
        """
        entry_next, file_begin_ms = self.header.entry_next, self.header.begin_ms
        if entry_next <= 1:
            return
        number = self._newest(HEADER_SIZE + SLOT.size * (hashed % self._slot_count), entry_next)
        while number:
            found, physical_offset, seconds, before = ENTRY.unpack_from(
                self._view, self._entries_start + ENTRY_SIZE * number
            )
            stored_ms = file_begin_ms + 1000 * seconds
            if seconds < 0:
                return
            yield physical_offset if found == hashed and begin_ms <= stored_ms <= end_ms else None
            # An entry points back to an older one; in a damaged file it might point in circles.
            if not 0 < before < number or stored_ms < begin_ms:
                return
            number = before

    def last_entries(self) -> int:
        """How many of the newest entries are of the last message."""
        count = 0
        for number in range(self.header.entry_next - 1, 0, -1):
            position = self._entries_start + ENTRY_SIZE * number
            if ENTRY.unpack_from(self._view, position)[1] != self.header.end_offset:
                break
            count += 1
        return count

    def flush(self) -> None:
        """Make the file durable; raises OSError, and from then on: a later sync would not say what the disk lacks."""
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

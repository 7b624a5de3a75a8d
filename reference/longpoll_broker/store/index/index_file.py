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
of equal hash are not told apart: the indexer compares what was found. Leaves out which file is written (`index`).
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
"""Disk blocks are taken in pieces of 64 KiB: slots are written all over their part of the file."""
_INT_MAX: Final = 2**31 - 1
_pack_entry: Final = ENTRY.pack_into
_pack_slot: Final = SLOT.pack_into
_unpack_slot: Final = SLOT.unpack_from


Entry: TypeAlias = tuple[int, int, int]
"""What is added: the hash of a key, the physical offset of its message, and the message's store timestamp, ms."""


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
    """What the index keeps of each key, which is written TOPIC#KEY (`IndexService.buildKey`, `indexKeyHashMethod`)."""
    # The smallest number has no positive counterpart in Java and becomes 0.
    return [abs(hashed) & _INT_MAX for hashed in java_hashes(keys)]


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

    One thread writes. Others may read meanwhile: an entry is whole before a slot names it, the header follows last,
    once for all that are added together. A reader looks at a slot first, and then how many entries there are.
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
        """The pieces that have disk blocks."""
        self._entries_reserved = 0
        """Up to where the entries have them."""
        self._failed: OSError | None = None
        self.header = read_header(self._view)
        self._entry_next = self.header.entry_next
        """As the header says, and ahead of it while several are added."""

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
        """Begin a new file where a full one ends; raises OSError when the disk is full."""
        self._reserve(0, HEADER_SIZE)
        last = before.header
        self._write_header(IndexHeader(last.end_ms, last.end_ms, last.end_offset, last.end_offset))

    def put(self, entries: Sequence[Entry]) -> int:
        """Add entries in the order of the log, as many as fit; how many.

        When the disk becomes full those before stay, and the next call meets the same; raises OSError when there are
        none, and nothing is added then.
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
                    # From here on: the first entry itself counts from where the file before ended.
                    begin_ms, begin_offset = store_ms, physical_offset
                # Before a slot names it, so that a reader who meets it there knows that it may follow.
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
        """Take disk blocks for a piece of the file before its first write; up to where it has them."""
        first, last = position >> _PIECE_BITS, position + size - 1 >> _PIECE_BITS
        for piece in range(first, last + 1):
            if piece not in self._reserved:
                start = piece << _PIECE_BITS
                self._mapped.reserve(start, min(start + (1 << _PIECE_BITS), self._size))
                self._reserved.add(piece)
        return last + 1 << _PIECE_BITS

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

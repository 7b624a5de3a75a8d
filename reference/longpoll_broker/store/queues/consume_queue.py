"""A consume queue: a sequence of 20-byte units that point into the commit log (`ConsumeQueue.java` 4.9).

    Offset  Size  What (big-endian, signed)
    0       8     physical offset of the record in the commit log
    8       4     size of the record, bytes; above 0 in every written unit
    12      8     tags code: the hash of the TAGS property, the delivery time of a delayed message, or an address in
                  the extended queue

Unit n is at byte 20 n of the queue's files, so a queue offset needs no search. A queue whose oldest messages were
deleted with the log begins with pre-blank units {0, 7FFFFFFF, 0}. Extended units: see `consume_queue_ext`.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.queues.consume_queue_ext import ConsumeQueueExt, is_address
from longpoll_broker.store.segment import Segment, SegmentList
from longpoll_protocol.log_record import FIXED_SIZE

_lines = logging.getLogger(__name__)

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)


class ConsumeQueue:
    """One mapped queue. Invariant: units [0, offset_end) on disk are written; `offset_end` moves after the write.

    `offset_end` is the visible end (`getMaxOffsetInQueue`); `offset_min` the least offset whose record may still exist.
    One dispatcher writes; any thread reads. `offset_next` is the next appended message's offset; it is ahead of
    `offset_end` and changes under the append lock. Units before `room_end` have files and disk blocks, so their
    messages become visible even on a full disk.
    """

    __slots__ = (
        "_segment",
        "_segment_offset",
        "extended",
        "flushed_offset",
        "follows_log",
        "offset_end",
        "offset_min",
        "offset_next",
        "passed_over",
        "physical_end",
        "queue_id",
        "room_end",
        "segments",
        "topic",
    )

    def __init__(
        self,
        segments: SegmentList,
        topic: str,
        queue_id: int,
        extended: ConsumeQueueExt | None = None,
        *,
        follows_log: bool = False,
    ) -> None:
        """Open the files; `offset_end` is the last file's end until `recovery` sets the true one.

        With `follows_log` a queue whose records are all gone begins at its end.
        """
        assert segments.size % UNIT_SIZE == 0
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self.extended = extended
        self.follows_log = follows_log
        loaded = self.segments.segments
        self.offset_end = loaded[-1].stop // UNIT_SIZE if loaded else 0
        self.offset_min = 0
        self.offset_next = self.offset_end
        self.room_end = 0
        self.physical_end = -1
        # Number of skipped duplicates: RocketMQ gives a record that names its own queue two offsets.
        self.passed_over = 0
        self.flushed_offset = self.offset_end
        self._segment: Segment | None = None
        self._segment_offset = 0

    def may_list(self, offset: int, physical_offset: int) -> bool:
        """Whether a record at `physical_offset` may have this queue offset: the log must have room before it.

        Units may be lost, but each had a record of at least the smallest size. An existing offset is accepted: `put`
        skips it.
        """
        if offset < self.offset_end:
            return offset >= 0
        ahead = offset - self.offset_end - self.passed_over
        return ahead * FIXED_SIZE <= physical_offset - max(self.physical_end, 0)

    def make_room(self, count: int) -> None:
        """Reserve files and disk blocks for the next `count` units; the caller holds the append lock.

        Raises OSError.
        """
        if self.offset_next + count <= self.room_end:
            return
        at, stop = self.offset_next * UNIT_SIZE, (self.offset_next + count) * UNIT_SIZE
        while at < stop:
            segment = self.segments.find(at) or self.segments.append(at - at % self.segments.size)
            end = min(stop, segment.stop)
            if end - segment.start > segment.reserved_end:
                segment.reserve(at - segment.start, end - segment.start)
            at = end
            self.room_end = (segment.start + segment.reserved_end) // UNIT_SIZE

    def put(self, arrival: Arrival) -> bool:
        """Write a message's unit and make it visible; returns false if it exists already.

        Fills a gap before it with pre-blank units. Raises OSError when the disk is full; nothing becomes visible then.
        """
        offset = arrival.offset_end - 1
        if offset != self.offset_end:
            if offset < self.offset_end:
                self.passed_over += 1
                return False
            self._fill_gap(offset)
        segment = self._segment
        position = (offset - self._segment_offset) * UNIT_SIZE
        if segment is None or position >= segment.size:
            segment = self._segment_for(offset)
            position = (offset - self._segment_offset) * UNIT_SIZE
        if position + UNIT_SIZE > segment.reserved_end:
            segment.reserve(position, position + UNIT_SIZE)
        physical_offset, size, tags_code = arrival.physical_offset, arrival.size, arrival.tags_code
        if self.extended is not None:
            tags_code = self.extended.put(tags_code, arrival.store_ms)
        segment.is_dirty = True
        UNIT.pack_into(segment.view, position, physical_offset, size, tags_code)
        self.physical_end = physical_offset + size
        # Last, because it makes the unit visible to readers.
        self.offset_end = offset + 1
        return True

    def _segment_for(self, offset: int) -> Segment:
        byte = offset * UNIT_SIZE
        segment = self.segments.find(byte)
        if segment is None:
            segment = self.segments.append(byte - byte % self.segments.size)
        self._segment = segment
        self._segment_offset = segment.start // UNIT_SIZE
        return segment

    def _fill_gap(self, offset: int) -> None:
        """Write pre-blank units up to `offset` (`ConsumeQueue.fillPreBlank`); the next unit makes them visible."""
        start = self.offset_end
        if not self.segments.segments:
            # The file with the offset is the queue's first; earlier files do not exist.
            start = self._segment_for(offset).start // UNIT_SIZE
            # Before the disk can be full: a retry finds the file and continues from its start.
            self.offset_min, self.offset_end = offset, start
        elif start > self.segments.start // UNIT_SIZE:
            _lines.error(
                "%s lacks units %d to %d, whose messages cannot be read: stop the broker and remove the whole "
                "directory `consumequeue` to have all queues made anew from the log",
                self.segments.directory, start, offset - 1,
            )  # fmt: skip
        while start < offset:
            segment = self._segment_for(start)
            position = start * UNIT_SIZE - segment.start
            count = min(offset - start, (segment.size - position) // UNIT_SIZE)
            segment.reserve(position, position + count * UNIT_SIZE)
            segment.is_dirty = True
            segment.view[position : position + count * UNIT_SIZE] = PRE_BLANK * count
            start += count

    def units_from(self, offset: int) -> memoryview | None:
        """Returns the written units from `offset` to the end of its file (`getIndexBuffer`); None if the file is gone.

        Raises OSError if the file cannot be mapped.
        """
        end = self.offset_end
        segment = self.segments.find(offset * UNIT_SIZE)
        if segment is None or not self.offset_min <= offset < end:
            return None
        stop = min(segment.stop, end * UNIT_SIZE)
        view = segment.view_unless_gone()
        if view is None:
            return None
        return view[offset * UNIT_SIZE - segment.start : stop - segment.start]

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Returns (physical offset, size, tags code) at a queue offset; None without one."""
        units = self.units_from(offset)
        return UNIT.unpack_from(units, 0) if units is not None else None

    def first_unit(self) -> tuple[int, int, int] | None:
        """Returns the oldest file's first unit that points to a record, visible or not; None without one."""
        for segment in self.segments.segments:
            for unit in UNIT.iter_unpack(segment.view):
                if unit[1] <= 0:
                    return None
                if unit[1] != PRE_BLANK_SIZE:
                    return unit
        return None

    def next_file_offset(self, offset: int) -> int:
        """Returns the first queue offset of the file after the one for `offset` (`rollNextFile`)."""
        count = self.segments.size // UNIT_SIZE
        return offset + count - offset % count

    def correct_min(self, log_start: int) -> None:
        """Move `offset_min` to the first unit whose record the log still has (`correctMinOffset`).

        As in Java, only the oldest file is searched. Without a match the minimum stays, even if the last record is
        gone, unless the queue `follows_log`.
        """
        segments = self.segments.segments
        if not segments:
            return
        first_offset = segments[0].start // UNIT_SIZE
        if log_start == 0 and self.offset_end > first_offset:
            # All records exist, so no file needs to be mapped.
            self.offset_min = first_offset
            return
        last = self.segments.find((self.offset_end - 1) * UNIT_SIZE)
        if self.follows_log and last is not None:
            position = (self.offset_end - 1) * UNIT_SIZE - last.start
            if UNIT.unpack_from(last.view, position)[0] < log_start:
                self.offset_min = self.offset_end
                return
        first = segments[0]
        count = min(first.size, self.offset_end * UNIT_SIZE - first.start) // UNIT_SIZE
        for index in range(count):
            if UNIT.unpack_from(first.view, index * UNIT_SIZE)[0] >= log_start:
                self.offset_min = first_offset + index
                return

    def remove_before(self, log_start: int) -> None:
        """Remove the oldest files without records, never the newest, and move the minimum. Raises OSError.

        As `ConsumeQueue.deleteExpiredFile`, which reads each file's last unit.
        """
        gone = 0
        for segment in self.segments.segments[:-1]:
            # The next file may exist before this one is full.
            is_full = segment.stop <= self.offset_end * UNIT_SIZE
            if not is_full or UNIT.unpack_from(segment.view, segment.size - UNIT_SIZE)[0] >= log_start:
                break
            gone += 1
        if gone:
            self.segments.remove(gone)
        self.correct_min(log_start)
        unit = self.unit(self.offset_min)
        if self.extended is not None and unit is not None and is_address(unit[2]):
            self.extended.remove_before(unit[2])

    def tags_code(self, unit: tuple[int, int, int]) -> int | None:
        """Returns the tags code in a unit or at its address; None for an invalid address."""
        if not is_address(unit[2]):
            return unit[2]
        return self.extended.tags_code(unit[2]) if self.extended is not None else None

    def stand_at(self, offset: int, physical_end: int) -> None:
        """Continue at `offset`, as recovery found, and forget the rest."""
        self.segments.truncate(offset * UNIT_SIZE)
        self.offset_end = self.offset_next = offset
        self.room_end = 0
        self.physical_end = physical_end
        self.flushed_offset = min(self.flushed_offset, offset)
        self._segment = None
        if self.extended is not None:
            self.extended.stand_after(self._last_address())

    def _last_address(self) -> int | None:
        """Returns the newest address in the extended queue; searches backwards through the units."""
        for segment in reversed(self.segments.segments):
            for offset in range(min(segment.stop, self.offset_end * UNIT_SIZE) // UNIT_SIZE - 1, -1, -1):
                position = offset * UNIT_SIZE - segment.start
                if position < 0:
                    break
                tags_code: int = UNIT.unpack_from(segment.view, position)[2]
                if is_address(tags_code):
                    return tags_code
        return None

    def segment_lists(self) -> list[SegmentList]:
        """The files of the queue and of its extended queue, if any."""
        return [self.segments] if self.extended is None else [self.segments, self.extended.segments]

    def flush(self) -> None:
        """Make every written unit durable."""
        end = self.offset_end
        if self.extended is not None:
            self.extended.flush()
        if self.flushed_offset < end:
            self.segments.flush(self.flushed_offset * UNIT_SIZE, end * UNIT_SIZE)
            self.flushed_offset = end

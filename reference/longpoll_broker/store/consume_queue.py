"""Consume queues: sequences of 20-byte units that point into the commit log (`ConsumeQueue.java` 4.9), and their table.

    Offset  Size  What (big-endian, signed)
    0       8     physical offset of the record in the commit log
    8       4     size of the record, bytes; above 0 in every written unit
    12      8     tags code: the hash of the TAGS property, the delivery time of a delayed message, or an address in
                  the extended queue

Unit n is at byte 20 n of the queue's files, so finding a queue offset needs no search. A queue whose oldest messages
were deleted with the log begins with pre-blank units {0, 7FFFFFFF, 0}.

With `enableConsumeQueueExt` a tags code is an address in the extended queue (`ConsumeQueueExt.java` 4.9): -2^63 plus
the byte where the extended unit begins. Addresses are at most -2^31 - 1, so no tag's hash is an address.

    Offset  Size  Extended unit (big-endian, signed)
    0       2     size of the unit, 20 at least
    2       8     tags code that the unit would otherwise contain
    10      8     store timestamp of the message, ms
    18      2     size of the bit map
    20      n     bit map: which SQL filters would take the message (`enableCalcFilterBitMap`)

Four bytes of a file stay free: where the next unit does not fit, two of them contain -1 and the rest is skipped. This
broker writes no bit maps and ignores existing bit maps, because its SQL filters read the message.
"""

from __future__ import annotations

import errno
import logging
import re
import struct
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import TopicLeavingError
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_broker.store.segment import Maps, Segment, SegmentList
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import FIXED_SIZE, Record, with_zeros
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.names import LMQ_PREFIX, RETRY_PREFIX, queue_name_problem
from longpoll_protocol.properties import (
    FORM_4_9,
    FORM_5,
    INNER_OFFSETS,
    INNER_QUEUES,
    read_properties,
    write_properties,
)
from longpoll_runtime import Files, Lock

EXTENDED_UNIT: Final = struct.Struct(">hqqh")
EXTENDED_UNIT_SIZE_MIN: Final = 20
ADDRESS_MAX: Final = -(2**31) - 1
"""The greatest address in an extended queue (`MAX_ADDR`)."""
END_MARK: Final = struct.Struct(">h")
END_SIZE: Final = 4
"""Number of free bytes at the end of an extended queue's file (`END_BLANK_DATA_LENGTH`)."""
_ADDRESS_ZERO: Final = -(2**63)


def is_address(tags_code: int) -> bool:
    """Whether a unit's tags code is an address in the extended queue (`isExtAddr`)."""
    return tags_code <= ADDRESS_MAX


class ConsumeQueueExt:
    """The extended units of one queue. Invariant: bytes [segments.start, end) are units and skipped bytes."""

    __slots__ = ("end", "flushed_end", "segments")

    def __init__(self, segments: SegmentList) -> None:
        """Open the files; `stand_after` later finds where the written units end."""
        assert segments.size > EXTENDED_UNIT_SIZE_MIN + END_SIZE
        self.segments = segments
        loaded = segments.segments
        self.end = loaded[-1].stop if loaded else 0
        self.flushed_end = self.end

    def put(self, tags_code: int, store_ms: int) -> int:
        """Write a unit and return its address; raises OSError if the disk is full."""
        segment = self.segments.find(self.end) or self.segments.append(self.end)
        position = self.end - segment.start
        if position + EXTENDED_UNIT_SIZE_MIN + END_SIZE > segment.size:
            segment.reserve(position, position + END_MARK.size)
            segment.is_dirty = True
            END_MARK.pack_into(segment.view, position, -1)
            self.end = segment.stop
            segment, position = self.segments.append(self.end), 0
        if position + EXTENDED_UNIT_SIZE_MIN > segment.reserved_end:
            segment.reserve(position, position + EXTENDED_UNIT_SIZE_MIN)
        segment.is_dirty = True
        EXTENDED_UNIT.pack_into(segment.view, position, EXTENDED_UNIT_SIZE_MIN, tags_code, store_ms, 0)
        self.end = segment.start + position + EXTENDED_UNIT_SIZE_MIN
        return _ADDRESS_ZERO + segment.start + position

    def tags_code(self, address: int) -> int | None:
        """Returns the tags code of the extended unit at an address, or None if the address has no unit."""
        found = self._unit(address)
        return found[1] if found is not None else None

    def matching(self, matches: Callable[[int], bool]) -> Callable[[int], bool]:
        """Returns a tags-code test that also resolves addresses. As in RocketMQ, an invalid address matches."""

        def matches_too(tags_code: int) -> bool:
            found = self.tags_code(tags_code) if is_address(tags_code) else tags_code
            return found is None or matches(found)

        return matches_too

    def _unit(self, address: int) -> tuple[int, int, int, int] | None:
        start = address - _ADDRESS_ZERO
        segment = self.segments.find(start)
        if segment is None or start + EXTENDED_UNIT_SIZE_MIN > min(segment.stop, self.end):
            return None
        view = segment.view_unless_gone()
        if view is None:
            return None
        size, tags_code, store_ms, map_size = EXTENDED_UNIT.unpack_from(view, start - segment.start)
        is_whole = EXTENDED_UNIT_SIZE_MIN <= size <= segment.stop - start
        return (size, tags_code, store_ms, map_size) if is_whole else None

    def stand_after(self, address: int | None) -> None:
        """Continue after the extended unit at this address, or at the start for None; clear all bytes after it.

        Raises OSError.
        """
        start = address - _ADDRESS_ZERO if address is not None else self.segments.start
        found = self._unit(address) if address is not None else None
        self.end = start + (found[0] if found is not None else 0)
        self.segments.truncate(self.end)
        self.flushed_end = min(self.flushed_end, self.end)

    def remove_before(self, address: int) -> None:
        """Remove files that end before the unit at an address, but never the newest file; raises OSError."""
        start = address - _ADDRESS_ZERO
        gone = sum(segment.stop < start for segment in self.segments.segments[:-1])
        if gone:
            self.segments.remove(gone)

    def flush(self) -> None:
        """Make every written unit durable; raises OSError."""
        end = self.end
        if self.flushed_end < end:
            self.segments.flush(self.flushed_end, end)
            self.flushed_end = end


_lines = logging.getLogger(__name__)

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)


class ConsumeQueue:
    """One mapped queue. Invariant: units [0, offset_end) on disk are written; `offset_end` moves after the write.

    `offset_end` is the visible end (`getMaxOffsetInQueue`), and `offset_min` is the least offset whose record may still
    exist. One dispatcher writes; any thread reads. `offset_next` is the offset for the next appended message; it is at
    least `offset_end` and changes under the append lock. Units before `room_end` have files and disk blocks, so their
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
        """Open the files; `offset_end` is the last file's end until `recovery` sets the queue's true end.

        With `follows_log`, the minimum offset of a queue whose records are all deleted is the queue's end.
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
        # Number of records skipped as duplicates. If a record's property names the record's own queue as an additional
        # queue, RocketMQ gives the record two offsets.
        self.passed_over = 0
        self.flushed_offset = self.offset_end
        self._segment: Segment | None = None
        self._segment_offset = 0

    def may_list(self, offset: int, physical_offset: int) -> bool:
        """Whether a record may have this queue offset: the log must have room for the records of all lower offsets.

        Units may be lost in a crash, but each unit belonged to a record of at least the minimum size. An offset that
        already has a unit is accepted, because `put` skips such a record.
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
        """Write a message's unit and make the message visible; returns false if the unit exists already.

        A gap before the unit is filled with pre-blank units. Raises OSError if the disk is full; then the message does
        not become visible.
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
        # `offset_end` moves last, because this makes the unit visible to readers.
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
            # The queue has no file yet, so the file with this offset becomes its first file.
            start = self._segment_for(offset).start // UNIT_SIZE
            # Set the fields before a write can fail on a full disk, so that a retry finds the new file and continues
            # there.
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
        """Returns the written units from `offset` to the end of its file (`getIndexBuffer`).

        Returns None if the file is gone. Raises OSError if the file cannot be mapped.
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
        """Returns (physical offset, size, tags code) of a readable unit, or None if the queue offset has no unit."""
        units = self.units_from(offset)
        return UNIT.unpack_from(units, 0) if units is not None else None

    def written_unit(self, offset: int) -> tuple[int, int, int] | None:
        """Returns the unit on disk at a queue offset, even if it is not visible yet; None if no unit is written."""
        segment = self.segments.find(offset * UNIT_SIZE)
        unit = None if segment is None else UNIT.unpack_from(segment.view, offset * UNIT_SIZE - segment.start)
        return unit if unit is not None and unit[1] > 0 and unit[0] >= 0 else None

    def first_unit(self) -> tuple[int, int, int] | None:
        """Returns the queue's first unit that points to a record, visible or not; None if no unit does."""
        for segment in self.segments.segments:
            for unit in UNIT.iter_unpack(segment.view):
                if unit[1] <= 0:
                    return None
                if unit[1] != PRE_BLANK_SIZE:
                    return unit
        return None

    def next_file_offset(self, offset: int) -> int:
        """Returns the first queue offset of the file after the file with `offset` (`rollNextFile`)."""
        count = self.segments.size // UNIT_SIZE
        return offset + count - offset % count

    def correct_min(self, log_start: int) -> None:
        """Move `offset_min` to the first unit whose record is still in the log (`correctMinOffset`).

        As in RocketMQ, only the oldest file is searched. If the log has no record of the oldest file, `offset_min`
        stays. With `follows_log`, however, `offset_min` moves to the queue's end when the queue's last record is
        deleted.
        """
        segments = self.segments.segments
        if not segments:
            return
        first_offset = segments[0].start // UNIT_SIZE
        if log_start == 0 and self.offset_end > first_offset:
            # The log still begins at 0, so every record exists and no file of the queue needs to be mapped.
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
        """Remove the oldest files whose records are all deleted, but never the newest file. Raises OSError.

        The last unit of each file decides, as in `ConsumeQueue.deleteExpiredFile`. This method also moves `offset_min`.
        """
        gone = 0
        for segment in self.segments.segments[:-1]:
            # Room is reserved before it is needed, so a next file may exist although this file is not full.
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
        """Returns the tags code in a unit or at the unit's address; None for an invalid address."""
        if not is_address(unit[2]):
            return unit[2]
        return self.extended.tags_code(unit[2]) if self.extended is not None else None

    def stand_at(self, offset: int, physical_end: int) -> None:
        """Continue at `offset`, where recovery found the queue's end, and clear all bytes after it."""
        self.segments.truncate(offset * UNIT_SIZE)
        self.offset_end = self.offset_next = offset
        self.room_end = 0
        self.physical_end = physical_end
        self.flushed_offset = min(self.flushed_offset, offset)
        self._segment = None
        if self.extended is not None:
            self.extended.stand_after(self._last_address())

    def _last_address(self) -> int | None:
        """Returns the newest address in the extended queue, by a search backwards through the units."""
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
        """Returns the files of the queue and of its extended queue, if any."""
        return [self.segments] if self.extended is None else [self.segments, self.extended.segments]

    def flush(self) -> None:
        """Make every written unit durable."""
        end = self.offset_end
        if self.extended is not None:
            self.extended.flush()
        if self.flushed_offset < end:
            self.segments.flush(self.flushed_offset * UNIT_SIZE, end * UNIT_SIZE)
            self.flushed_offset = end


OTHER_MAPS: Final = 4096
"""Number of memory maps reserved for the program, the log and the index."""
MAPS_MAX: Final = 16_384
"""Maximum mapped files of queues. Each map needs some kilobytes, mostly in the kernel's page tables."""
MAPS_MIN: Final = 1
"""Minimum number of mapped queue files, for systems that allow few maps. With one map, queues still work, but a file
may be mapped again for every message."""


class Topic:
    """A topic: its name as encoded in records, and its queues."""

    __slots__ = ("part", "queues")

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self.part = bytes((len(encoded),)) + encoded
        self.queues: dict[int, ConsumeQueue] = {}


class QueueTable:
    """The queues. Invariant: each queue occurs once, and its directory is `consumequeue/TOPIC/QUEUE`.

    Remaining files of a deleted topic are removed before a queue is created. A topic in `leaving` is not in `topics`
    and gets no queues. Writers hold the owner's lock; readers need no lock.
    """

    __slots__ = (
        "_config",
        "_extended_root",
        "_files",
        "_guard",
        "_left",
        "_lengthen",
        "_maps",
        "_root",
        "_store",
        "leaving",
        "topics",
    )

    def __init__(self, files: Files, directory: str, config: StoreConfig, guard: Lock, *, lengthen: bool) -> None:
        """Create an empty table.

        With `lengthen` (after a crash), the newest file of a queue is extended if it is too short. `guard` is held
        briefly when a queue gets or loses a file.
        """
        self._files = files
        self._guard = guard
        self._store = directory
        self._root = f"{directory}/consumequeue"
        self._extended_root = f"{directory}/consumequeue_ext"
        self._config = config
        self._lengthen = lengthen
        self.topics: dict[str, Topic] = {}
        self.leaving: dict[str, Topic] = {}
        """Topics being deleted, whose files still exist."""
        self._left: dict[str, list[ConsumeQueue]] = {}
        """Queues of deleted topics whose files could not be removed, by topic."""
        self._maps = Maps(min(max(files.maps_max() - OTHER_MAPS, MAPS_MIN), MAPS_MAX))

    def load(self) -> None:
        """Find every queue that has files; raises StoreUserError and OSError."""
        for name in self._files.list(self._root):
            for queue_name in self._listed(f"{self._root}/{name}"):
                if queue_name.isascii() and queue_name.isdigit() and self._listed(f"{self._root}/{name}/{queue_name}"):
                    self.make(name, int(queue_name))

    def _listed(self, path: str) -> list[str]:
        try:
            return self._files.list(path)
        except NotADirectoryError:
            return []

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue, if it is known."""
        known = self.topics.get(topic)
        return known.queues.get(queue_id) if known is not None else None

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Find or create a queue; its files are created with its first unit.

        Raises OSError if files of a deleted topic with this name remain, and TopicLeavingError while the topic is being
        deleted.
        """
        known = self.topics.get(topic)
        if known is None:
            if topic in self.leaving:
                raise TopicLeavingError(errno.EBUSY, f"the broker is deleting the topic {topic}; try again later")
            self.remove_left(topic)
            known = self.topics[topic] = Topic(topic)
        queue = known.queues.get(queue_id)
        if queue is None:
            # A known topic can also have remaining files, because a deletion may remove only some of its queues.
            self.remove_left(topic)
            name, config = f"{topic}/{queue_id}", self._config
            extended = None
            if config.extended_queues:
                extended = ConsumeQueueExt(self._segments(f"{self._extended_root}/{name}", config.extended_file_size))
            segments = self._segments(f"{self._root}/{name}", config.consume_queue_file_size)
            follows_log = config.minimum_follows_log
            queue = ConsumeQueue(segments, topic, queue_id, extended, follows_log=follows_log)
            known.queues[queue_id] = queue
        return queue

    def _segments(self, directory: str, file_size: int) -> SegmentList:
        return SegmentList(
            self._files,
            directory,
            file_size,
            lengthen=self._lengthen,
            maps=self._maps,
            store=self._store,
            guard=self._guard,
        )

    def all(self) -> list[ConsumeQueue]:
        """Returns every queue, including the queues of topics that are being deleted."""
        topics = (*self.topics.copy().values(), *self.leaving.copy().values())
        return [queue for topic in topics for queue in list(topic.queues.values())]

    def leave(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> None:
        """Hide a topic during its deletion, so that it is neither found nor created; ignores an unknown topic.

        With `queue_ids` only these queues are hidden, unless the topic has no other queues.
        """
        if topic in self.topics:
            leaving = Topic(topic)
            leaving.queues = {queue.queue_id: queue for queue in self.forget(topic, queue_ids)}
            self.leaving[topic] = leaving

    def stay(self, topic: str) -> None:
        """Undo `leave`."""
        leaving = self.leaving.pop(topic)
        self.topics.setdefault(topic, leaving).queues.update(leaving.queues)

    def forget(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> list[ConsumeQueue]:
        """Remove a topic, or some of its queues, from the table; returns the removed queues, which still have files."""
        known = self.topics.get(topic)
        if known is None:
            return []
        if queue_ids is None or known.queues.keys() <= queue_ids:
            return list(self.topics.pop(topic).queues.values())
        return [known.queues.pop(queue_id) for queue_id in known.queues.keys() & queue_ids]

    def remove_files(self, queues: list[ConsumeQueue]) -> None:
        """Remove the files of queues, so that they do not return after a power cut.

        Raises OSError if some files cannot be removed. The other files are removed nevertheless, and `left` contains
        the topics that still have files.
        """
        failed: OSError | None = None
        left: dict[str, list[ConsumeQueue]] = {}
        for queue in queues:
            try:
                self._remove_files_of(queue)
            except OSError as error:
                failed = failed or error
                left.setdefault(queue.topic, []).append(queue)
        for topic, remaining in left.items():
            self._left[topic] = [*self._left.get(topic, ()), *remaining]
        if failed is not None:
            raise failed

    @property
    def left(self) -> AbstractSet[str]:
        """The deleted topics that still have files."""
        return self._left.keys()

    def remove_left(self, topic: str) -> None:
        """Remove the remaining files of a deleted topic; raises OSError if this fails again."""
        queues = self._left.pop(topic, None)
        if queues is not None:
            self.remove_files(queues)

    def _remove_files_of(self, queue: ConsumeQueue) -> None:
        problem: OSError | None = None
        for segments in queue.segment_lists():
            try:
                segments.remove()
                # Sync the directory even if it had no file to remove, because an earlier attempt may have failed in the
                # sync.
                if self._files.exists(segments.directory):
                    self._files.sync_directory(segments.directory)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem


SEPARATOR: Final = ","
_MARK: Final = INNER_OFFSETS.encode()
_OFFSET: Final = re.compile("[0-9]{1,19}")
"""At most 19 digits, because longer numbers do not fit a long, and Python refuses thousands of digits."""

Place = tuple[str, int, int]
"""A queue by topic and id, and an offset in it."""


def with_offsets(message: MessageToStore, offsets: Sequence[int]) -> MessageToStore:
    """Add the message's offset in each inner queue to its properties, in their existing format.

    Raises MessageRefusedError if the offsets do not fit.
    """
    form = FORM_5 if message.properties.endswith(b"\x02") else FORM_4_9
    properties = read_properties(message.properties.decode("utf-8", "surrogatepass"))
    properties[INNER_OFFSETS] = SEPARATOR.join(map(str, offsets))
    written = write_properties(properties, form)
    if len(written) > PROPERTIES_SIZE_MAX:
        raise MessageRefusedError(f"the properties with {len(offsets)} inner queues do not fit a record")
    return replace(message, properties=with_zeros(written))


def inner_queue_id(topic: str, queue_id: int, *, light: bool) -> int:
    """Returns an inner queue's id: 0 for a light topic, and otherwise the id of the message's own queue."""
    return 0 if light and topic.startswith(LMQ_PREFIX) else queue_id


def is_inner_place(record: Record, place: Place) -> bool:
    """Whether the record is at this offset of an additional queue, with or without light queues."""
    return any(place in inner_places(record, light=light) for light in (False, True))


def inner_places(record: Record, *, light: bool) -> list[Place]:
    """Returns a record's offsets in additional queues, or an empty list if its properties are incomplete.

    Names that are unsafe as paths are skipped, because a broker without this feature stored the property unchecked.
    """
    if _MARK not in record.properties or record.topic.startswith(RETRY_PREFIX):
        return []
    properties = read_properties(record.properties.decode("utf-8", "surrogatepass"))
    names = properties.get(INNER_QUEUES, "").split(SEPARATOR)
    offsets = properties.get(INNER_OFFSETS, "").split(SEPARATOR)
    if len(names) != len(offsets) or not all(_OFFSET.fullmatch(text) for text in offsets):
        return []
    return [
        (name, inner_queue_id(name, record.queue_id, light=light), int(text))
        for name, text in zip(names, offsets, strict=True)
        if queue_name_problem(name) is None
    ]

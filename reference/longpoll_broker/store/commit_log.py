"""The commit log: every record of every queue, in the order of arrival (`CommitLog.java` 4.9).

A burst of encoded records is written at once. Record layout: see `longpoll_protocol.log_record`. Locks and queue
offsets: see `message_store`. Repair: see `recovery`.

`ChecksumBudget` limits the work of a search for records after damage. A message body may be full of record heads that
all claim to extend to the same end, and each checksum would cover all of these bytes: 1 MiB of such heads took 0.9 s at
start. Therefore the number of computed checksums is limited in proportion to the bytes searched.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from attrs import define

from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.segment import Segment, SegmentList, sync_failed
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    CRC_MASK,
    FIXED_SIZE,
    HEAD,
    HEAD_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    SIZE_AND_MAGIC,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Damage,
    Record,
    decode,
)
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Buffer, Files

SPARE_SIZE: Final = 64 * MIB
"""Number of bytes over which even a short search may compute checksums: several of the largest records."""
TIMES: Final = 4
"""A search of n bytes may compute checksums over this many times n bytes, in addition to `SPARE_SIZE`."""


def claimed_size(view: memoryview, at: int, physical_offset: int) -> int:
    """Returns the record length in a record's head.

    Returns 0 if the head contains a different offset or the record would extend beyond `view`.
    """
    if at < 0 or len(view) - at < HEAD_SIZE:
        return 0
    head = HEAD.unpack_from(view, at)
    size: int = head[0]
    return size if head[6] == physical_offset and FIXED_SIZE <= size <= len(view) - at else 0


@define(slots=True, eq=False)
class ChecksumBudget:
    """The number of bytes over which a search may still compute checksums. Invariant: the number is never below 0."""

    left: int = SPARE_SIZE

    def passed(self, size: int) -> None:
        """Increase the budget, because the search has passed `size` more bytes."""
        self.left += TIMES * size

    def may(self, size: int) -> bool:
        """Whether the budget allows a checksum over `size` bytes; if so, subtract them from the budget."""
        if size > self.left:
            return False
        self.left -= size
        return True


FUTURE_MS: Final = 10 * 365 * 24 * 3_600_000
"""Ten years, ms. A clock may be set back by years, but a store time further in the future must be damage."""


_lines = logging.getLogger(__name__)


def believed_ms(store_ms: int, unix_ms: Callable[[], int]) -> int:
    """Returns a record's store time, or 0 if it is in the future, because no checksum covers the store time.

    Store times never decrease, so one wrong bit would move every later message into the future.
    """
    if not store_ms or store_ms <= unix_ms() + FUTURE_MS:
        return store_ms
    _lines.error(
        "a record of the log speaks of a time to come (%d ms): it is damaged, or this machine's clock is wrong; "
        "what is stored after it gets the clock's time",
        store_ms,
    )
    return 0


HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
HOST_BITS: Final = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6

_HEADS: Final = {
    (born, store): struct.Struct(f">iIiiiqqiq{born}sq{store}siqi")
    for born in (HOST_V4_SIZE, HOST_V6_SIZE)
    for store in (HOST_V4_SIZE, HOST_V6_SIZE)
}
"""The fields from the size to the body's length, by the sizes of the born host and the store host."""
_HEAD_V4: Final = _HEADS[HOST_V4_SIZE, HOST_V4_SIZE]
_SHORT: Final = struct.Struct(">h")
_MARK_SIZE: Final = SIZE_AND_MAGIC.size
_HEAD_SIZE: Final = _HEAD_V4.size - 2 * HOST_V4_SIZE + _SHORT.size
"""Size of a record without hosts, body, topic and properties, bytes; this size is the same for every record."""


def size_of(message: MessageToStore) -> int:
    """Returns the size of a message's record, bytes."""
    return _HEAD_SIZE + _variable_size(message) + 1 + len(message.topic.encode())


def _variable_size(message: MessageToStore) -> int:
    return len(message.body) + len(message.born_host) + len(message.store_host) + len(message.properties)


def encode_record(message: MessageToStore, topic_part: bytes, queue_offset: int, start: int, store_ms: int) -> bytes:
    """Encode the record of a message at a physical offset; `topic_part` is the topic after its length byte.

    Raises MessageRefusedError for a number that does not fit its field.
    """
    body, properties = message.body, message.properties
    born_host, store_host = message.born_host, message.store_host
    body_size, properties_size = len(body), len(properties)
    # A sender may set any flag. These two bits give the length of the hosts, so a wrong bit would make this record and
    # all later records unreadable. RocketMQ trusts the sender; this broker derives the bits from the hosts.
    sys_flag = message.sys_flag & ~HOST_BITS
    if len(born_host) == HOST_V4_SIZE == len(store_host):
        head = _HEAD_V4
    else:
        head = _HEADS[len(born_host), len(store_host)]
        sys_flag |= SYS_FLAG_BORN_HOST_V6 if len(born_host) == HOST_V6_SIZE else 0
        sys_flag |= SYS_FLAG_STORE_HOST_V6 if len(store_host) == HOST_V6_SIZE else 0
    size = head.size + body_size + len(topic_part) + 2 + properties_size
    try:
        content = head.pack(
            size, MAGIC_V1, crc32(body) & CRC_MASK, message.queue_id, message.flag, queue_offset, start,
            sys_flag, message.born_ms, born_host, store_ms, store_host, message.reconsume_times,
            message.prepared_offset, body_size,
        )  # fmt: skip
    except struct.error as error:
        raise MessageRefusedError(f"a number of the message does not fit the record: {error}") from None
    return b"".join((content, body, topic_part, _SHORT.pack(properties_size), properties))


class CommitLog:
    """The mapped log. Invariant: bytes [segments.start, end) are complete records and blanks; `end` moves last.

    Also `start <= flushed_end <= end`, unless an old file was removed before it was flushed.
    """

    __slots__ = ("_segment", "end", "flushed_end", "segments")

    def __init__(
        self, files: Files, directory: str, file_size: int, *, lengthen: bool = False, store: str | None = None
    ) -> None:
        """Map the files; `end` is the last file's end until `recovery` sets the log's true end."""
        self.segments = SegmentList(files, directory, file_size, lengthen=lengthen, store=store)
        loaded = self.segments.segments
        self.end = loaded[-1].stop if loaded else 0
        self.flushed_end = self.end
        self._segment: Segment | None = None

    @property
    def start(self) -> int:
        """Physical offset of the oldest byte on disk."""
        return self.segments.start

    def stand_at(self, end: int) -> None:
        """Continue at `end`, where recovery found the end of the log, and clear all bytes after it."""
        self.segments.truncate(end)
        self.end = end
        self.flushed_end = min(self.flushed_end, end)
        self._segment = None

    def sync_rest(self) -> None:
        """Make the zeros after the end durable, so that old bytes cannot complete a half-written new record."""
        segment = self.segments.find(self.end)
        if segment is not None:
            segment.sync(self.end - segment.start, segment.size)

    def write_anew(self, start: int) -> None:
        """Mark all bytes from `start` on as unwritten, so that the next flush writes them.

        If a killed process had a failed sync, the operating system may consider pages as written that are not on disk.
        """
        for segment in self.segments.segments:
            if start < segment.stop and segment.start < self.end:
                segment.mapped.write_anew(max(0, start - segment.start), min(self.end - segment.start, segment.size))

    def check_names(self) -> None:
        """Raise OSError if appended data could be lost, because a sync failed or a file is missing."""
        if self.segments.failed is not None:
            raise sync_failed(self.segments.failed, self.segments.directory)
        for segment in self.segments.segments[-1:]:
            segment.check_name()

    def append(self, message: MessageToStore, topic_part: bytes, queue_offset: int, store_ms: int) -> int:
        """Write one record at the end and return its physical offset.

        `topic_part` is the topic after its length byte. Raises OSError if the disk is full, and MessageRefusedError if
        no file can hold the record or a number does not fit its field. After an error the log is unchanged, except for
        a blank that may end a file.
        """
        size = _HEAD_SIZE + _variable_size(message) + len(topic_part)
        segment, start = self._segment, self.end
        if segment is None or start + size > segment.start + min(segment.reserved_end, segment.size - BLANK_SIZE_MIN):
            self.make_room(size)
            start = self.end
        self._write(encode_record(message, topic_part, queue_offset, start, store_ms))
        return start

    @property
    def sure_end(self) -> int:
        """Physical offset up to which `append_records` may write: within the current file and its disk blocks."""
        segment = self._segment
        if segment is None:
            return self.end
        return segment.start + min(segment.reserved_end, segment.size - BLANK_SIZE_MIN)

    def append_records(self, records: Sequence[Buffer]) -> None:
        """Write complete records (`encode_record`) at the end, but not beyond `sure_end`. Raises nothing."""
        content = b"".join(records)
        assert self.end + len(content) <= self.sure_end
        self._write(content)

    def _write(self, content: Buffer) -> None:
        segment = self._segment
        assert segment is not None
        view, start = segment.view, self.end
        stop = start + len(content)
        position = start - segment.start
        mark_stop = position + _MARK_SIZE
        view[mark_stop : stop - segment.start] = content[_MARK_SIZE:]
        # The first record's size and magic are written last. If the process is killed before, recovery sees none of the
        # records.
        view[position:mark_stop] = content[:_MARK_SIZE]
        self.end = stop

    def make_room(self, size: int) -> None:
        """Reserve `size` bytes for several records in one file and on disk; raises the errors of `append`."""
        segment = self._segment
        if segment is None or self.end + size + BLANK_SIZE_MIN > segment.stop:
            segment = self._room_for(size)
        position = self.end - segment.start
        if position + size > segment.reserved_end:
            segment.reserve(position, position + size)

    def _room_for(self, size: int) -> Segment:
        """Returns the segment for `size` bytes. If the current segment has too little room, ends it with a blank."""
        assert size >= FIXED_SIZE
        if size + BLANK_SIZE_MIN > self.segments.size:
            raise MessageRefusedError(
                f"the record has {size} bytes; a commit-log file of {self.segments.size} cannot hold it"
            )
        segment = self.segments.find(self.end)
        if segment is not None and self.end + size + BLANK_SIZE_MIN > segment.stop:
            following = self.segments.find(segment.stop) or self.segments.append(segment.stop)
            position = self.end - segment.start
            segment.reserve(position, position + BLANK_SIZE_MIN)
            SIZE_AND_MAGIC.pack_into(segment.view, position, segment.stop - self.end, MAGIC_BLANK)
            self.end = segment.stop
            segment = following
        elif segment is None:
            segment = self.segments.append(self.end)
        assert self.end + size + BLANK_SIZE_MIN <= segment.stop
        self._segment = segment
        return segment

    def next_file(self, physical_offset: int) -> int:
        """Returns the start of the file after the file with this offset (`rollNextFile`)."""
        size = self.segments.size
        return physical_offset + size - physical_offset % size

    def slice(self, physical_offset: int, size: int) -> memoryview | None:
        """Returns `size` bytes of the log, or None if the log does not have all of them (`CommitLog.getMessage`)."""
        segment = self.segments.find(physical_offset)
        if segment is None or physical_offset + size > min(self.end, segment.stop) or size <= 0:
            return None
        position = physical_offset - segment.start
        return segment.view[position : position + size]

    def read(self, physical_offset: int) -> Record | Damage | int | None:
        """Returns the record or the damage at an offset, or the start of the next file if a blank begins there.

        Returns None for an offset outside [start, end).
        """
        segment = self.segments.find(physical_offset)
        if segment is None or physical_offset >= self.end:
            return None
        position = physical_offset - segment.start
        if segment.size - position >= BLANK_SIZE_MIN:
            size, magic = SIZE_AND_MAGIC.unpack_from(segment.view, position)
            if magic == MAGIC_BLANK:
                rest = segment.size - position
                return segment.stop if size == rest else Damage(0, f"blank of {size} bytes", f"a blank of {rest} bytes")
        return decode(segment.view, position, segment.size, physical_offset)

    def flush(self) -> int:
        """Make all written bytes durable; returns the end of the durable bytes."""
        end = self.end
        if self.flushed_end < end:
            self.segments.flush(self.flushed_end, end)
            self.flushed_end = end
        return self.flushed_end

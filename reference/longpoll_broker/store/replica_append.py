"""Appends another store's log record by record, as a byte-exact copy. A slave's log grows only in this way.

Each piece must be complete, contain its own physical offset, pass its checksum and fit its file as in the other store.
Each record must be the next one of its queue. Gaps and repetitions are refused. The source of the bytes: see
`rocketmq.replication.follower`.

Source: `DefaultMessageStore.appendToCommitLog` 4.9.7, which appends without checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from attrs import define, field

from longpoll_broker.errors import StoreError
from longpoll_broker.store.commit_log import CommitLog, believed_ms
from longpoll_broker.store.consume_queue import ConsumeQueue, QueueTable
from longpoll_broker.store.dispatch import Dispatcher, InnerOf, arrival_of
from longpoll_broker.store.messages import FOUND_NAME_SIZE_MAX, check_place
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.frames import HEADER_SIZE_MAX
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    Damage,
    Record,
    decode,
)
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Lock

OVERHEAD_SIZE_MAX: Final = 64 * KIB
"""Maximum bytes of a record without its body: properties, topic, and under 200 bytes of numbers."""

BATCH_OVERHEAD_SIZE_MAX: Final = HEADER_SIZE_MAX // 33 * 256 + OVERHEAD_SIZE_MAX
"""Maximum bytes of a batch's records without its body, which contains their bodies and properties.

Under 256 bytes per record, with its topic, for as many records as have their 32-character ids in one answer.
"""


class CopyRefusedError(StoreError):
    """Another store's bytes cannot follow this log; none of them were written."""


def next_piece(content: memoryview, physical_offset: int, file_size: int, body_size_max: int) -> Record | int | None:
    """Returns the first record of `content`, which begins at `physical_offset`, or the size of a blank.

    Returns None when more bytes are needed. Raises CopyRefusedError for anything else.
    """
    if len(content) < SIZE_AND_MAGIC.size:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(content)
    problem = _problem(size, magic, file_size - physical_offset % file_size)
    if problem is not None:
        raise CopyRefusedError(
            f"there is {problem} at {physical_offset} of the other log: the two logs differ before it, or their file "
            f"sizes differ (mappedFileSizeCommitLog is {file_size} here)"
        )
    # A blank may be as large as a batch that did not fit.
    size_max = body_size_max + (BATCH_OVERHEAD_SIZE_MAX if magic == MAGIC_BLANK else OVERHEAD_SIZE_MAX)
    if size > size_max:
        what = "blank" if magic == MAGIC_BLANK else "record"
        raise CopyRefusedError(
            f"the {what} at {physical_offset} of the other log has {size} bytes, but this broker allows "
            f"bodies of {body_size_max}; set maxMessageSize to the other broker's value"
        )
    if len(content) < size:
        return None
    if magic == MAGIC_BLANK:
        return int(size)
    found = decode(content, 0, size, physical_offset)
    if isinstance(found, Damage):
        raise CopyRefusedError(
            f"the record at {physical_offset} of the other log is damaged: {found.found} at its byte {found.offset} "
            f"where {found.expected} is due"
        )
    return found


def _problem(size: int, magic: int, rest: int) -> str | None:
    """Returns why a piece cannot be where a file has `rest` bytes left; None if it can."""
    if magic == MAGIC_BLANK:
        return None if size == rest else f"a blank of {size} bytes where a file has {rest} left"
    if magic not in {MAGIC_V1, MAGIC_V2}:
        return f"no record and no blank (magic {magic:08X})"
    return None if 0 < size <= rest - BLANK_SIZE_MIN else f"a record of {size} bytes where a file has {rest} left"


@define(slots=True, eq=False)
class ReplicaAppend:
    """Appends copied bytes; used by one thread, with no other appender."""

    log: CommitLog
    table: QueueTable
    dispatcher: Dispatcher
    append_lock: Lock
    inner_of: InnerOf
    """Finds the additional queues that list a record."""
    delete_topic: Callable[[str, AbstractSet[int] | None], None]
    """Removes queues of a topic and their files; acquires locks, including `append_lock`."""
    body_size_max: int
    levels_ms: Sequence[int]
    """Delay levels of this broker, ms; the other broker's may differ."""
    unix_ms: Callable[[], int]
    store_ms: int = field(default=0, init=False)
    """The greatest store time of a copied record."""
    _is_time_told: bool = field(default=False, init=False)
    """Whether a record with a time in the future was logged."""

    def put(self, physical_offset: int, content: memoryview) -> int:
        """Append the complete records of `content`, which begins at `physical_offset`; returns their size in bytes.

        Send the rest again, with what follows it. A log without files begins at the given offset. A record with queue
        offset 0 for a queue with messages means that its topic was deleted and created again, so this store does the
        same (`_outlived`). Raises CopyRefusedError and OSError; the pieces before the faulty one have been appended.
        """
        self._begin(physical_offset)
        taken = 0
        while True:
            rest = content[taken:]
            piece = next_piece(rest, physical_offset + taken, self.log.segments.size, self.body_size_max)
            if piece is None:
                return taken
            if isinstance(piece, Record):
                self._check(piece)
                with self.append_lock:
                    self._append(piece, rest[: piece.size])
                taken += piece.size
            else:
                with self.append_lock:
                    self.log.append_blank(rest[:piece])
                taken += piece

    def forget_beginning(self) -> None:
        """Let a log without files begin anywhere again: the offset perhaps came from a wrong peer."""
        with self.append_lock:
            if self.log.end and not self.log.segments.segments:
                self.log.begin_at(0)
                self.dispatcher.begin_at(0)

    def _begin(self, physical_offset: int) -> None:
        """Set the begin of a log without files; raises CopyRefusedError if copying cannot continue there."""
        log = self.log
        if not log.segments.segments and physical_offset != log.end:
            if physical_offset % log.segments.size:
                raise CopyRefusedError(
                    f"this log is empty, but the other broker sends its log from {physical_offset}, where no file of "
                    f"{log.segments.size} bytes begins; set mappedFileSizeCommitLog to the other broker's value"
                )
            with self.append_lock:
                log.begin_at(physical_offset)
                self.dispatcher.begin_at(physical_offset)
        if physical_offset != log.end:
            raise CopyRefusedError(
                f"this log ends at {log.end}, but the other broker sends its log from {physical_offset}"
            )

    def _check(self, record: Record) -> None:
        """Check that a record is the next of its queue or the first of a recreated topic; raises CopyRefusedError."""
        try:
            check_place(record.topic, record.queue_id, size_max=FOUND_NAME_SIZE_MAX)
        except MessageRefusedError as error:
            raise CopyRefusedError(f"the record at {record.physical_offset} of the other log: {error}") from None
        queue = self.table.find(record.topic, record.queue_id)
        if not record.in_queue or (queue is not None and record.queue_offset == queue.offset_next):
            return
        # An empty queue may begin anywhere: its older messages were not sent, or expired with the log's oldest files.
        if queue is None or not queue.offset_next:
            if not 0 <= record.queue_offset <= record.physical_offset // FIXED_SIZE:
                raise CopyRefusedError(
                    f"the record at {record.physical_offset} of the other log has number "
                    f"{record.queue_offset} of its queue, but the log before it is too short for so many"
                )
            return
        if record.queue_offset:
            raise CopyRefusedError(
                f"the record at {record.physical_offset} of the other log is number {record.queue_offset} of "
                f"{record.topic} queue {record.queue_id}, and number {queue.offset_next} comes next here: the two logs "
                "differ before it"
            )
        self.delete_topic(record.topic, self._outlived(queue))

    def _outlived(self, queue: ConsumeQueue) -> set[int]:
        """Returns the queues of a deleted topic: this one, and those that began before its last message.

        The deletion came after that message. A queue that began later may belong to the new topic, so it stays. If not,
        its next message has queue offset 0 and removes it.
        """
        first: dict[int, int] = {}
        last = queue.physical_end
        at = self.dispatcher.visible_end
        # Messages that are not visible yet are only in the log. The dispatcher may process them meanwhile, with the
        # same result.
        while at < self.log.end:
            found = self.log.read(at)
            if isinstance(found, int):
                at = found
                continue
            assert isinstance(found, Record)
            if found.topic == queue.topic and found.in_queue:
                first.setdefault(found.queue_id, at)
                last = at if found.queue_id == queue.queue_id else last
            at += found.size
        outlived = {queue.queue_id}
        for other in list(self.table.topics[queue.topic].queues.values()):
            unit = other.first_unit()
            begun = first.get(other.queue_id) if unit is None else unit[0]
            if begun is not None and begun < last:
                outlived.add(other.queue_id)
        return outlived

    def _append(self, record: Record, content: memoryview) -> None:
        """Write a checked record and hand it over; the caller holds the append lock. Raises OSError."""
        end_before = self.log.end
        # First, because it may fail.
        queue = self.table.make(record.topic, record.queue_id)
        inner = self.inner_of(record)
        self.log.append_copy(content)
        if record.store_ms > self.store_ms:
            known_ms = believed_ms(record.store_ms, self.unix_ms, tell=not self._is_time_told)
            self._is_time_told = self._is_time_told or not known_ms
            self.store_ms = max(self.store_ms, known_ms)
        if record.in_queue:
            queue.offset_next = record.queue_offset + 1
        if inner:
            # Not handed over: the dispatcher reads the queues from the record.
            for each, offset in inner:
                each.offset_next = offset + 1
        else:
            arrival = arrival_of(record, record.topic, record.queue_id, record.queue_offset, self.levels_ms)
            self.dispatcher.hand([(queue if record.in_queue else None, arrival)], end_before)

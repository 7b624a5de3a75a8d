"""Recovers a store on opening: finds the log's true end and the valid queue units. Reads and writes the checkpoint.

After a clean stop, recovery works as in RocketMQ (`ConsumeQueue.recover`, `CommitLog.recoverNormally`): it reads the
last three files of the log and of each queue up to the first incomplete unit or record, and drops all later bytes.

After a crash, only queue units before a safe point count, and later records are dispatched again. Every record up to
the checkpoint's time is durable in log and queues. Therefore the safe point is the start of the newest log file that,
like all earlier files, begins with a record that is not newer than that time (`isMappedFileMatchedRecover`). Our
checkpoint also names one durable record that follows only durable records. Recovery starts at this record instead of up
to a gigabyte earlier, at the start of a file.

Bytes after a queue's last unit are cleared, but a power cut may restore them. A restored unit points to a lost record,
whose place in the log may now have another record. Therefore a queue's last units must match the log.

The checkpoint says up to which store time log, queues and index are durable (`StoreCheckpoint.java`):

    Offset  Size  What (big-endian, signed, milliseconds; a file of 4096 bytes)
    0       8     store timestamp of the last flushed record of the commit log
    8       8     store timestamp of the last record whose consume-queue unit is flushed
    16      8     store timestamp of the last record whose index entry is flushed
    24      8     5.x: physical offset up to which the master has flushed
    32      8     5.x: physical offset up to which the log is confirmed
    4056    8     ours: "longpoll"
    4064    16    copy of the first two numbers; if it differs, RocketMQ wrote the file later: ignore our fields
    4080    8     number of files of the consume queues; -1 while they are rebuilt from the whole log
    4088    8     physical offset of a record that is, like all earlier records, durable in log and queues

Index: see `index`. Damage before the end is not repaired: see `verify`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import define, evolve, field, frozen

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.commit_log import FUTURE_MS, ChecksumBudget, CommitLog, claimed_size
from longpoll_broker.store.consume_queue import (
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    inner_places,
    is_address,
    is_inner_place,
)
from longpoll_broker.store.segment import Segment
from longpoll_protocol.log_record import MAGIC_V1, MAGIC_V2, SCHEDULE_TOPIC, SIZE_AND_MAGIC, Damage, Record
from longpoll_runtime import Files
from longpoll_runtime.logs import event

CHECKPOINT_SIZE: Final = 4096
SLACK_MS: Final = 3000
"""Store times may be out of order by this many ms, because a record gets its time before it is appended
(`getMinTimestamp`)."""
_FIELDS: Final = struct.Struct(">qqqqq")
_OURS: Final = struct.Struct(">8sqqqq")
_OURS_AT: Final = CHECKPOINT_SIZE - _OURS.size
_MARK: Final = b"longpoll"


@frozen
class Checkpoint:
    """The fields of the checkpoint file; a field is zero if nothing was flushed yet."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    durable_offset: int = -1
    """Physical offset of a record that is durable together with all earlier records; -1 if unknown."""
    queue_file_count: int = 0
    """Number of queue files at the checkpoint's time; -1 during a rebuild. With fewer files, units are missing."""

    @property
    def lacks_queues(self) -> bool:
        """Whether all queues must be rebuilt from the log, because an earlier rebuild was perhaps interrupted."""
        return self.queue_file_count < 0

    @property
    def safe_ms(self) -> int:
        """The store time up to which all records are durable in log and queues."""
        return max(0, min(self.physic_ms, self.logics_ms) - SLACK_MS)


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Decode the fields; a file that is too short is treated as never written."""
    if len(content) < _FIELDS.size:
        return Checkpoint()
    fields = _FIELDS.unpack_from(content)
    known = Checkpoint(*fields)
    if len(content) >= CHECKPOINT_SIZE:
        mark, physic_ms, logics_ms, queue_file_count, durable_offset = _OURS.unpack_from(content, _OURS_AT)
        if (mark, physic_ms, logics_ms) == (_MARK, known.physic_ms, known.logics_ms):
            return evolve(known, durable_offset=durable_offset, queue_file_count=queue_file_count)
    return known


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the whole file."""
    fields = _FIELDS.pack(
        checkpoint.physic_ms,
        checkpoint.logics_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirmed_offset,
    ).ljust(_OURS_AT, b"\0")
    if checkpoint.durable_offset < 0 and not checkpoint.lacks_queues:
        return fields.ljust(CHECKPOINT_SIZE, b"\0")
    return fields + _OURS.pack(
        _MARK, checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.queue_file_count, checkpoint.durable_offset
    )


def load_checkpoint(files: Files, path: str) -> Checkpoint:
    """Read the checkpoint; every field is 0 if the file does not exist."""
    return decode_checkpoint(files.read(path)) if files.exists(path) else Checkpoint()


_lines = logging.getLogger(__name__)

_Seen: TypeAlias = Callable[[Record], None]
"""Called with each record that recovery reads and that belongs in a queue."""
MAGIC_START: Final = struct.pack(">I", MAGIC_V1)[:3]
"""The common prefix of both magic numbers."""
FILES_WALKED: Final = 3
"""Number of newest files that a normal recovery reads."""


def ignore(_record: Record) -> None:
    """Do nothing with a record."""


@frozen
class Recovered:
    """The result of a recovery."""

    cursor: int
    """Physical offset where dispatching begins, because every earlier record is in its queue."""
    store_ms: int
    """Store time of the last record that was read from the log; 0 without a record."""
    set_aside: int = 0
    """Bytes of records after the log's end that were saved in a separate directory."""


@frozen
class _Following:
    physical_offset: int
    is_whole: bool
    """Whether the record's checksum was verified; false if the checksum budget allowed only reading its head."""

    @property
    def told(self) -> str:
        """Describe the record, as a part of a sentence in an error message."""
        what = "whole records follow" if self.is_whole else "what begins as records follows"
        return f"{what} from {self.physical_offset} on"


def recover(
    log: CommitLog,
    queues: Sequence[ConsumeQueue],
    checkpoint: Checkpoint,
    *,
    crashed: bool,
    covers: Callable[[str, int, int], bool],
    has_addresses: bool = False,
) -> Recovered | None:
    """Recover the store and log the result; returns None if the queues must be rebuilt and recovery must run again.

    A rebuild is needed if queues lack their last units or have wrong units. `covers` is `Deletions.covers`;
    `has_addresses` means that tags codes may be addresses in extended queues. Raises OSError, and StoreUserError if
    opening the store would drop complete records.
    """
    if crashed:
        found = recover_crashed(log, queues, checkpoint)
    else:
        units = _Units(log, {(queue.topic, queue.queue_id): queue for queue in queues}, covers, has_addresses)
        found = recover_clean(log, queues, checkpoint, ignore if checkpoint.lacks_queues else units.check)
        _log_rebuild(units.wrong.values(), "has a wrong unit")
        lacking = units.lacking() if found.cursor == log.end else []
        _log_rebuild(lacking)
        if lacking or units.wrong:
            return None
    _lines.log(
        logging.WARNING if crashed else logging.INFO,
        "the store was %s: its log is whole from %d to %d, and what stands from %d is made visible again",
        "left open by a crash" if crashed else "closed",
        log.start,
        log.end,
        found.cursor,
        extra=event(
            "store_recovered", crashed=crashed, log_start=log.start, log_end=log.end, dispatched_from=found.cursor
        ),
    )
    return found


def recover_clean(
    log: CommitLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint, seen: _Seen = ignore
) -> Recovered:
    """Recover after a clean stop; raises OSError, and StoreUserError as `_keep_what_goes` does.

    If the checkpoint says that the queues cover the whole log, no record is dispatched again, because the last records
    may belong to a deleted topic. If the checkpoint says that the queues are being rebuilt, every record is dispatched
    again.
    """
    queues = list(queues)
    walked = log.segments.segments[-FILES_WALKED:]
    end, store_ms = _walk_log(log, walked[0].start if walked else log.start, None, seen)
    is_short = store_ms < checkpoint.physic_ms or end <= checkpoint.durable_offset
    set_aside = _keep_what_goes(log, end, is_short=is_short, crashed=False)
    for queue in queues:
        if checkpoint.lacks_queues:
            _walk_queue(queue, _file_before(queue, log.start), log.start)
        else:
            _walk_queue(queue, len(queue.segments.segments) - FILES_WALKED, None)
        _forget_unfounded(log, queue)
    log.stand_at(end)
    for queue in queues:
        if queue.physical_end > end:
            _walk_queue(queue, _file_before(queue, end), end)
    if store_ms <= checkpoint.logics_ms and not checkpoint.lacks_queues:
        return Recovered(end, store_ms, set_aside)
    # Records with a unit count as dispatched. If old log files are missing, the log may begin after a queue's end.
    cursor = max((queue.physical_end for queue in queues), default=log.start)
    return Recovered(min(max(cursor, log.start), end), store_ms, set_aside)


def recover_crashed(log: CommitLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint) -> Recovered:
    """Recover after a crash, trusting queues only before the safe point; raises OSError."""
    start = _durable_start(log, checkpoint)
    # Units after the safe point are rebuilt from the log, because a queue's file may have reached the disk before the
    # records that its units point to.
    for queue in queues:
        _walk_queue(queue, _file_before(queue, start), start)
        _forget_unfounded(log, queue)
    end, store_ms = _walk_log(log, start, checkpoint.physic_ms)
    set_aside = _keep_what_goes(log, end, is_short=store_ms < checkpoint.physic_ms, crashed=True)
    log.stand_at(end)
    log.write_anew(start)
    log.sync_rest()
    # After a kill, pages that are only in the system's cache are not on disk, so the log is durable only up to here.
    log.flushed_end = start
    return Recovered(start, store_ms, set_aside)


def _keep_what_goes(log: CommitLog, end: int, *, is_short: bool, crashed: bool) -> int:
    """Save records after the log's end to a separate directory before they are cleared, and log a warning.

    Recovery cannot distinguish a damaged record from a half-written record, and acknowledged records may follow a
    damaged record. Returns the number of saved bytes. Raises StoreUserError if the records cannot be saved. After a
    clean stop, it also raises StoreUserError if the log `is_short` and complete records follow its end, because no
    clean stop causes this.
    """
    where = f"{log.segments.directory} ends at {end}"
    behind = _next_record(log, end)
    if is_short and not crashed and behind is not None:
        raise StoreUserError(
            f"{where}, but the disk had more: the data there is damaged, and {behind.told}; run `longpoll store "
            "verify` and restore the file, or remove the store's `checkpoint` to drop everything after the damage"
        )
    if is_short:
        lacks = "more than that was on the disk: what is missing was acknowledged; restore the files if you have them"
        _lines.error("%s, and %s", where, lacks)
    if behind is None and not _is_begun(log, end):
        return 0
    try:
        path, size = log.segments.set_aside(end)
    except OSError as error:
        raise StoreUserError(
            f"{where}, where a record is damaged, and the data after it cannot be saved next to it ({error}): "
            "the store was not changed; free some disk space"
        ) from error
    following = None if behind is None else behind.physical_offset
    _lines.log(
        logging.WARNING if behind is None else logging.ERROR,
        "%s, where a record is damaged%s: it was torn by a crash, or rotted, and then what goes was acknowledged; "
        "its %d bytes are kept in %s",
        where,
        "" if behind is None else f" and {behind.told}",
        size,
        path,
        extra=event("log_cut", log_end=end, following=following, size=size, path=path),
    )
    return size


def _is_begun(log: CommitLog, end: int) -> bool:
    """Whether a record begins at the log's end. A write interrupted by a kill leaves neither size nor magic."""
    found = log.read(end)
    if isinstance(found, Damage):
        mark = log.slice(end, SIZE_AND_MAGIC.size)
        return mark is not None and any(mark)
    return isinstance(found, Record)


def _next_record(log: CommitLog, start: int) -> _Following | None:
    """Returns the first complete record after `start`, found by its magic number, or None.

    If the search found only heads whose checksums would exceed the `ChecksumBudget`, returns the first of these heads,
    so that its bytes are kept too.
    """
    checks = ChecksumBudget()
    unchecked: _Following | None = None
    for segment in log.segments.segments:
        if segment.stop <= start:
            continue
        for at, stop in segment.data(max(0, start - segment.start)):
            # Overlap the previous piece, so that a magic number that crosses the border is found.
            begin = max(0, at - SIZE_AND_MAGIC.size)
            piece = bytes(segment.view[begin:stop])
            checks.passed(stop - at)
            found = piece.find(MAGIC_START, 4)
            while found >= 0:
                physical_offset = segment.start + begin + found - 4
                size = claimed_size(segment.view, begin + found - 4, physical_offset) if physical_offset > start else 0
                if size and not checks.may(size):
                    unchecked = unchecked or _Following(physical_offset, is_whole=False)
                elif size and isinstance(log.read(physical_offset), Record):
                    return _Following(physical_offset, is_whole=True)
                found = piece.find(MAGIC_START, found + 1)
    return unchecked


def _check_firsts(log: CommitLog, queues: Iterable[ConsumeQueue]) -> None:
    """Check that the newest files of each queue begin with units of the queue's topic; raises StoreUserError.

    If a file of another topic was copied into the queue's directory, its units and their records are valid. Only the
    topic in the records shows the mistake.
    """
    for queue in queues:
        for segment in queue.segments.segments[-FILES_WALKED:]:
            physical_offset, size, _tags_code = UNIT.unpack_from(segment.view, 0)
            found = log.read(physical_offset) if size > 0 and size != PRE_BLANK_SIZE else None
            if not isinstance(found, Record) or found.size != size or not found.in_queue:
                continue
            inner = (place for light in (False, True) for place in inner_places(found, light=light))
            if queue.topic != found.topic and all(topic != queue.topic for topic, _queue_id, _offset in inner):
                raise StoreUserError(
                    f"{segment.path} lists messages of {found.topic}, queue {found.queue_id}: this file belongs to "
                    "another queue; restore the right one, or remove the whole directory `consumequeue` to rebuild all "
                    "queues"
                )


def safe_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Returns the start of the newest file that, like all earlier files, begins with a record up to the safe time."""
    start = log.start
    for segment in log.segments.segments:
        first = log.read(segment.start)
        if not isinstance(first, Record) or not 0 < first.store_ms <= checkpoint.safe_ms:
            break
        start = segment.start
    return start


def _durable_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Returns where recovery after a crash begins; all earlier records are durable in log and queues."""
    return max(safe_start(log, checkpoint), checkpoint.durable_offset)


def file_count(queues: Iterable[ConsumeQueue]) -> int:
    """Returns the number of the queues' files."""
    return sum(len(queue.segments.segments) for queue in queues)


def of_the_past(checkpoint: Checkpoint, unix_ms: Callable[[], int]) -> Checkpoint:
    """Returns the checkpoint, or an empty one if its times are in the future."""
    latest_ms = max(checkpoint.physic_ms, checkpoint.logics_ms)
    if not latest_ms or latest_ms <= unix_ms() + FUTURE_MS:
        return checkpoint
    _lines.error("the checkpoint speaks of a time to come: it counts as never written")
    return Checkpoint()


def without_queues(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint of a store whose queues are being rebuilt.

    This checkpoint is written before the rebuild, because a crash during the rebuild leaves incomplete queues.
    """
    return evolve(checkpoint, logics_ms=0, durable_offset=-1, queue_file_count=-1)


def believed(
    log: CommitLog, queues: Sequence[ConsumeQueue], checkpoint: Checkpoint, *, had_queues: bool, crashed: bool
) -> Checkpoint:
    """Returns the checkpoint without the parts that log and queues contradict.

    The queues do not count if their directory is missing (an operator removes it to rebuild them), or if units are
    missing that must be on disk. The durable record in the checkpoint does not count if another log has replaced this
    log. Raises StoreUserError if files of different queues were exchanged.
    """
    # The queues are checked in reverse order, because recovery begins with the first queue, and the last mapped files
    # stay mapped.
    _check_firsts(log, reversed(queues))
    if not had_queues or checkpoint.lacks_queues:
        return without_queues(checkpoint)
    gone = checkpoint.queue_file_count - file_count(queues)
    if gone > 0 and not crashed:
        _lines.error("%d files of queues are gone since the store was closed: all are made anew from the log", gone)
        return without_queues(checkpoint)
    if gone > 0 or not isinstance(log.read(checkpoint.durable_offset), Record):
        checkpoint = evolve(checkpoint, durable_offset=-1, queue_file_count=0)
    durable_end = _durable_start(log, checkpoint) if crashed else None
    holed = [queue for queue in queues if _has_hole(log, queue, durable_end)]
    _log_rebuild(holed)
    return without_queues(checkpoint) if holed else checkpoint


def _log_rebuild(queues: Iterable[ConsumeQueue], why: str = "lacks units") -> None:
    for queue in queues:
        _lines.error("%s %s: all queues are made anew from the log", queue.segments.directory, why)


def _walk_log(log: CommitLog, start: int, durable_ms: int | None, seen: _Seen = ignore) -> tuple[int, int]:
    """Returns the end of the last complete record from `start` on, and its store time.

    A blank counts only if a file follows it. After a crash, `durable_ms` is the store time up to which the log was
    flushed. The last record, and any record after that time, is rejected if a sector outside its checksum is all zeros.
    """
    position = end = start
    store_ms = 0
    doubtful: int | None = None
    while True:
        found = log.read(position)
        if found is None or isinstance(found, Damage):
            return end if doubtful is None else doubtful, store_ms
        doubtful = None
        if isinstance(found, Record):
            if durable_ms is not None and found.lacks_sector(log.segments.size):
                if found.store_ms >= durable_ms:
                    return end, store_ms
                doubtful = end
            if found.in_queue:
                seen(found)
            position = end = position + found.size
            store_ms = found.store_ms
        else:
            position = found
            # Writing continues in the next file if that file exists, even if it is empty, and otherwise before the
            # blank.
            if log.segments.find(position) is not None:
                end = position


def _file_before(queue: ConsumeQueue, log_end: int) -> int:
    """Returns the index of the newest file whose first record is before `log_end`, or -1."""
    segments = queue.segments.segments
    for index in range(len(segments) - 1, -1, -1):
        physical_offset, size, _tags_code = UNIT.unpack_from(segments[index].view, 0)
        if physical_offset >= 0 and size > 0 and physical_offset < log_end:
            return index
    return -1


def _walk_queue(queue: ConsumeQueue, file_first: int, log_end: int | None) -> None:
    """End the queue after its last valid unit from `file_first` on.

    A unit is valid if it is written and its record begins before `log_end`.
    """
    segments = queue.segments.segments
    if file_first < 0 and log_end is not None:
        queue.stand_at(0, -1)
    elif segments:
        queue.stand_at(*_last_good(segments[max(0, file_first) :], log_end))


def _has_hole(log: CommitLog, queue: ConsumeQueue, log_end: int | None) -> bool:
    """Whether a queue's newest files have an invalid unit before a unit whose record is before `log_end`.

    A unit without a record does not prove a gap, because a power cut may have restored a unit that was cleared.
    """
    newest = queue.segments.segments[-FILES_WALKED:]
    if not newest:
        return False
    offset_end, _physical_end = _last_good(newest, log_end)
    for segment in newest:
        for at, stop in segment.data(max(0, offset_end * UNIT_SIZE - segment.start)):
            # A copied store may have megabytes of written zeros where the original has a gap in a sparse file.
            if bytes(segment.view[at:stop]).count(0) == stop - at:
                continue
            first = at // UNIT_SIZE
            units = UNIT.iter_unpack(segment.view[first * UNIT_SIZE : -(-stop // UNIT_SIZE) * UNIT_SIZE])
            for offset, (physical_offset, size, _tags_code) in enumerate(units, segment.start // UNIT_SIZE + first):
                is_listing = offset > offset_end and 0 < size < PRE_BLANK_SIZE
                if not is_listing or (log_end is not None and physical_offset >= log_end):
                    continue
                if isinstance(log.read(physical_offset), Record) and _is_founded(
                    log, queue, offset, queue.unit(offset)
                ):
                    return True
    return False


@define
class _Units:
    """Compares each record that recovery reads after a clean stop with the record's units."""

    log: CommitLog
    queues: Mapping[tuple[str, int], ConsumeQueue]
    covers: Callable[[str, int, int], bool]
    has_addresses: bool
    ends: dict[tuple[str, int], tuple[int, int]] = field(factory=dict)
    """The queue offset and physical offset of each queue's last record, by topic and queue id."""
    wrong: dict[tuple[str, int], ConsumeQueue] = field(factory=dict)

    def check(self, record: Record) -> None:
        """Compare a record with its unit in its own queue and in each additional queue."""
        topic, queue_id, offset = record.topic, record.queue_id, record.queue_offset
        self.ends[topic, queue_id] = (offset, record.physical_offset)
        self._check_at(topic, queue_id, offset, record)
        for light in (False, True):
            for place in inner_places(record, light=light):
                self._check_at(*place, record)

    def _check_at(self, topic: str, queue_id: int, offset: int, record: Record) -> None:
        queue = self.queues.get((topic, queue_id))
        unit = None if queue is None else queue.written_unit(offset)
        if queue is None or unit is None or unit == (record.physical_offset, record.size, record.tags_code):
            return
        is_covered = self.covers(topic, queue_id, record.physical_offset)
        if not is_covered and not self._lists(queue, offset, unit, record):
            self.wrong[topic, queue_id] = queue

    def _lists(self, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int], record: Record) -> bool:
        """Whether a unit belongs to this record or, after a deletion by RocketMQ, to a record with the same offset."""
        if unit[0] != record.physical_offset:
            has_record = unit[0] >= self.log.start or unit[1] == PRE_BLANK_SIZE
            return has_record and _is_founded(self.log, queue, offset, unit)
        # A delayed message's tags code is its delivery time, which depends on settings, so only the size is compared.
        if unit[1] != record.size or record.topic == SCHEDULE_TOPIC:
            return unit[1] == record.size
        known = queue.tags_code(unit) if self.has_addresses and is_address(unit[2]) else unit[2]
        return known is None or known == record.tags_code

    def lacking(self) -> list[ConsumeQueue]:
        """Returns the queues that lack the unit of their last record, although that record was not deleted."""
        return [
            queue
            for place, queue in self.queues.items()
            for offset, physical_offset in [self.ends.get(place, (-1, 0))]
            if offset >= queue.offset_end
            and queue.may_list(offset, physical_offset)
            and not self.covers(*place, physical_offset)
        ]


def _forget_unfounded(log: CommitLog, queue: ConsumeQueue) -> None:
    """Drop the units at a queue's end that do not match a record.

    A unit stays if its record is damaged but has a valid head, or if its record was deleted with the log's oldest
    files.
    """
    offset, start = queue.offset_end, queue.segments.start // UNIT_SIZE
    while offset > start and not _is_founded(log, queue, offset - 1, queue.unit(offset - 1)):
        offset -= 1
    if offset < queue.offset_end:
        unit = queue.unit(offset - 1)
        queue.stand_at(offset, unit[0] + unit[1] if unit is not None and unit[1] != PRE_BLANK_SIZE else -1)


def _is_founded(log: CommitLog, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int] | None) -> bool:
    """Whether a unit matches its record, or its record is damaged or was deleted with the log's oldest files."""
    if unit is None or unit[1] == PRE_BLANK_SIZE or unit[0] < log.start:
        return True
    found = log.read(unit[0])
    if not isinstance(found, Record):
        begins = log.slice(unit[0], SIZE_AND_MAGIC.size)
        return begins is not None and SIZE_AND_MAGIC.unpack(begins) in {(unit[1], MAGIC_V1), (unit[1], MAGIC_V2)}
    if found.size != unit[1]:
        return False
    place = (queue.topic, queue.queue_id, offset)
    return place == (found.topic, found.queue_id, found.queue_offset) or is_inner_place(found, place)


def _last_good(segments: tuple[Segment, ...], log_end: int | None) -> tuple[int, int]:
    """Returns the offset after the last valid unit of these files, and the end of its record in the log, or -1."""
    offset, physical_end = segments[0].start // UNIT_SIZE, -1
    for segment in segments:
        for physical_offset, size, _tags_code in UNIT.iter_unpack(segment.view):
            if physical_offset < 0 or size <= 0 or (log_end is not None and physical_offset >= log_end):
                return offset, physical_end
            if size != PRE_BLANK_SIZE:
                if physical_offset < physical_end:
                    return offset, physical_end
                physical_end = physical_offset + size
            offset += 1
    return offset, physical_end

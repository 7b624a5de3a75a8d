"""Opening a store again: where the log truly ends, and which queue units to believe.

After a clean stop as RocketMQ does (`ConsumeQueue.recover`, `CommitLog.recoverNormally`): the last three files of each
are walked to the first unit or record that is not whole, and what follows is forgotten. After a crash the queues are
believed only for records before a safe point, and everything from there is dispatched again. The safe point is the
newest file that begins with a record no younger than the checkpoint (`isMappedFileMatchedRecover`), and so do all files
before it: what was stored up to the checkpoint is durable in log and queues, whatever pages a power cut lost. Unlike
RocketMQ's, our checkpoint names a record too that is durable with all before it: then it is there, and a file of a
gigabyte is not read whole.

What stands behind a queue's last unit is cleared, which a power cut may undo: a unit that comes back speaks of a record
that was lost, and where that was others stand by now. So a queue's last units are believed only if the log bears them
out.

Leaves out the index (`indexer`), and repairing damage before the tail: `verify` names it, nobody guesses.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from attrs import evolve, frozen

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.checkpoint import Checkpoint
from longpoll_broker.store.limits import FUTURE_MS
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.log.record_heads import ChecksumBudget, claimed_size
from longpoll_broker.store.queues.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.queues.inner_queues import inner_places, is_inner_place
from longpoll_broker.store.segment import Segment
from longpoll_protocol.log_record import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, Damage, Record
from longpoll_runtime.logs import event

_lines = logging.getLogger(__name__)

MAGIC_START: Final = struct.pack(">I", MAGIC_V1)[:3]
"""Of both magics."""
FILES_WALKED: Final = 3
"""How many of the newest files a normal recovery walks."""


@frozen
class Recovered:
    """What recovery found."""

    cursor: int
    """Physical offset where dispatching begins; every record before it is in its queue."""
    store_ms: int
    """Store time of the log's last walked record; 0 when none was walked."""
    set_aside: int = 0
    """Bytes of records that stood behind the log's end, and are kept beside it now."""


@frozen
class _Following:
    """What stands behind the log's end."""

    physical_offset: int
    is_whole: bool
    """Else it begins as a record does, and there is too much of that to check it all."""

    @property
    def told(self) -> str:
        """As part of a sentence."""
        what = "whole records follow" if self.is_whole else "what begins as records follows"
        return f"{what} from {self.physical_offset} on"


def recover(
    log: CommitLog,
    queues: Sequence[ConsumeQueue],
    checkpoint: Checkpoint,
    *,
    crashed: bool,
    had_queues: bool,
    gone: int = 0,
) -> Recovered:
    """Recover as the store was left, and say so. Without queues all of the log is dispatched again.

    So it is after a clean stop where files of queues are `gone` since, or units before others. Raises OSError, and
    StoreUserError where opening the store would take away what is whole, or show one queue's messages as another's.
    """
    # The other way round than the recovery goes: of more files than may be mapped those are that were looked at last.
    _check_firsts(log, reversed(queues))
    holed = [] if crashed else [queue for queue in queues if _has_hole(log, queue)]
    if gone and not crashed:
        _lines.error("%d files of queues are gone since the store was closed: all are made anew from the log", gone)
        found = recover_crashed(log, queues, Checkpoint(physic_ms=checkpoint.physic_ms))
    elif crashed:
        found = recover_crashed(log, queues, checkpoint)
    elif holed:
        for queue in holed:
            _lines.error(
                "%s lacks units before others: all queues are made anew from the log", queue.segments.directory
            )
        found = recover_crashed(log, queues, Checkpoint(physic_ms=checkpoint.physic_ms))
    else:
        dispatched_ms = checkpoint.logics_ms if had_queues else -1
        found = recover_clean(log, queues, dispatched_ms, checkpoint.physic_ms, checkpoint.durable_offset)
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
    log: CommitLog,
    queues: Iterable[ConsumeQueue],
    dispatched_ms: int,
    durable_ms: int = 0,
    durable_offset: int = -1,
) -> Recovered:
    """Recover after a clean stop; raises OSError, and StoreUserError as `_keep_what_goes` does.

    `dispatched_ms` is the store time up to which the checkpoint says that everything was dispatched. Where it reaches
    the log's end nothing is dispatched again: the last records may be of a topic that was deleted with its queues.
    """
    queues = list(queues)
    walked = log.segments.segments[-FILES_WALKED:]
    end, store_ms = _walk_log(log, walked[0].start if walked else log.start, None)
    is_short = store_ms < durable_ms or end <= durable_offset
    set_aside = _keep_what_goes(log, end, is_short=is_short, crashed=False)
    for queue in queues:
        _walk_queue(queue, len(queue.segments.segments) - FILES_WALKED, None)
        _forget_unfounded(log, queue)
    log.stand_at(end)
    for queue in queues:
        if queue.physical_end > end:
            _walk_queue(queue, _file_before(queue, end), end)
    if store_ms <= dispatched_ms:
        return Recovered(end, store_ms, set_aside)
    # What the queues list is dispatched; a log that lost its oldest files begins later than a queue may say.
    cursor = max((queue.physical_end for queue in queues), default=log.start)
    return Recovered(min(max(cursor, log.start), end), store_ms, set_aside)


def recover_crashed(log: CommitLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint) -> Recovered:
    """Recover after a crash: believe queues before the safe point only; raises OSError."""
    start = max(safe_start(log, checkpoint), checkpoint.durable_offset)
    for queue in queues:
        _walk_queue(queue, _file_before(queue, start), start)
        _forget_unfounded(log, queue)
    end, store_ms = _walk_log(log, start, checkpoint.physic_ms)
    set_aside = _keep_what_goes(log, end, is_short=store_ms < checkpoint.physic_ms, crashed=True)
    log.stand_at(end)
    log.write_anew(start)
    log.sync_rest()
    # A kill leaves bytes in the page cache that no disk has seen yet.
    log.flushed_end = start
    return Recovered(start, store_ms, set_aside)


def _keep_what_goes(log: CommitLog, end: int, *, is_short: bool, crashed: bool) -> int:
    """See what stands behind a log's end before it is made zeros, and keep beside the log what was a record, or is one.

    Nobody can tell a record that rotted from one that a power cut tore, and what follows it may have been acknowledged:
    so it is told, and kept (how many bytes). Raises StoreUserError where whole records stand behind the end of a log
    that was closed and `is_short`, for no stop leaves that, and where it cannot be kept.
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
    """Whether a record stands at the log's end that is not whole; one that a kill interrupted has no mark yet."""
    found = log.read(end)
    if isinstance(found, Damage):
        mark = log.slice(end, SIZE_AND_MAGIC.size)
        return mark is not None and any(mark)
    return isinstance(found, Record)


def _next_record(log: CommitLog, start: int) -> _Following | None:
    """The first whole record after `start`, wherever its magic is found; None when there is none.

    Without one, the first head that was too much to be checked (`store.log.record_heads`): what goes is kept then as
    well.
    """
    checks = ChecksumBudget()
    unchecked: _Following | None = None
    for segment in log.segments.segments:
        if segment.stop <= start:
            continue
        for at, stop in segment.data(max(0, start - segment.start)):
            # From before the last piece's end, for a mark that lies across.
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
    """See that the newest files of each queue begin with its own units; raises StoreUserError.

    A file of another queue, put there by somebody, has whole units of whole records.
    """
    for queue in queues:
        for segment in queue.segments.segments[-FILES_WALKED:]:
            physical_offset, size, _tags_code = UNIT.unpack_from(segment.view, 0)
            found = log.read(physical_offset) if size > 0 and size != PRE_BLANK_SIZE else None
            if not isinstance(found, Record) or found.size != size or not found.in_queue:
                continue
            if queue.topic != found.topic and queue.topic not in _inner_topics(found):
                raise StoreUserError(
                    f"{segment.path} lists messages of {found.topic}, queue {found.queue_id}: this file belongs to "
                    "another queue; restore the right one, or remove the whole directory `consumequeue` to rebuild all "
                    "queues"
                )


def _inner_topics(record: Record) -> set[str]:
    return {topic for light in (False, True) for topic, _id, _at in inner_places(record, light=light)}


def safe_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Physical offset of the newest file that, with all before it, begins with a record up to `checkpoint.safe_ms`."""
    start = log.start
    for segment in log.segments.segments:
        first = log.read(segment.start)
        if not isinstance(first, Record) or not 0 < first.store_ms <= checkpoint.safe_ms:
            break
        start = segment.start
    return start


def file_count(queues: Iterable[ConsumeQueue]) -> int:
    """How many files the queues have."""
    return sum(len(queue.segments.segments) for queue in queues)


def gone_count(queues: Iterable[ConsumeQueue], checkpoint: Checkpoint, *, had_queues: bool) -> int:
    """How many files of queues fewer there are than the checkpoint says; 0 where there are none to go by."""
    return max(checkpoint.queue_file_count - file_count(queues), 0) if had_queues else 0


def of_the_past(checkpoint: Checkpoint, unix_ms: Callable[[], int]) -> Checkpoint:
    """The checkpoint, or one that was never written in place of one that speaks of a time to come."""
    latest_ms = max(checkpoint.physic_ms, checkpoint.logics_ms)
    if not latest_ms or latest_ms <= unix_ms() + FUTURE_MS:
        return checkpoint
    _lines.error("the checkpoint speaks of a time to come: it counts as never written")
    return Checkpoint()


def believed(log: CommitLog, queues: Sequence[ConsumeQueue], checkpoint: Checkpoint, *, had_queues: bool) -> Checkpoint:
    """As much of a checkpoint as log and queues bear out.

    A log that was put there from elsewhere may lack the record that it names, and somebody may have removed files of
    queues, or all of them, to have them made anew. What is taken back must be so on disk before a recovery makes them:
    a second crash would find queues that nobody has synced.
    """
    if not had_queues:
        return evolve(checkpoint, logics_ms=0, durable_offset=-1, queue_file_count=0)
    is_there = isinstance(log.read(checkpoint.durable_offset), Record)
    if is_there and file_count(queues) >= checkpoint.queue_file_count:
        return checkpoint
    return evolve(checkpoint, durable_offset=-1, queue_file_count=0)


def _walk_log(log: CommitLog, start: int, durable_ms: int | None) -> tuple[int, int]:
    """(end of the last whole record from `start` on, its store time); a blank counts only if a file follows it.

    After a crash `durable_ms` is the store time up to which the log was flushed. A record with a sector of zeros where
    no checksum looks is then not taken for whole if it may not have been flushed, or if it is the last.
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
            position = end = position + found.size
            store_ms = found.store_ms
        else:
            position = found
            # A following file, even an empty one, is where writing goes on; without one it is before the blank.
            if log.segments.find(position) is not None:
                end = position


def _file_before(queue: ConsumeQueue, log_end: int) -> int:
    """Index of the newest file that begins with a unit of a record before `log_end`; -1 when there is none."""
    segments = queue.segments.segments
    for index in range(len(segments) - 1, -1, -1):
        physical_offset, size, _tags_code = UNIT.unpack_from(segments[index].view, 0)
        if physical_offset >= 0 and size > 0 and physical_offset < log_end:
            return index
    return -1


def _walk_queue(queue: ConsumeQueue, file_first: int, log_end: int | None) -> None:
    """Let the queue stand after its last good unit, walking from a file; good is written and before `log_end`."""
    segments = queue.segments.segments
    if file_first < 0 and log_end is not None:
        queue.stand_at(0, -1)
    elif segments:
        queue.stand_at(*_last_good(segments[max(0, file_first) :], log_end))


def _has_hole(log: CommitLog, queue: ConsumeQueue) -> bool:
    """Whether a unit in a queue's newest files is not written, and one behind it lists a record of the log.

    What stands there and lists none may have been cleared, which a power cut undoes.
    """
    newest = queue.segments.segments[-FILES_WALKED:]
    if not newest:
        return False
    offset_end, _physical_end = _last_good(newest, None)
    for segment in newest:
        for at, stop in segment.data(max(0, offset_end * UNIT_SIZE - segment.start)):
            for offset in range((segment.start + at) // UNIT_SIZE, (segment.start + stop - 1) // UNIT_SIZE + 1):
                unit = queue.unit(offset)
                if offset > offset_end and unit is not None and 0 < unit[1] < PRE_BLANK_SIZE:
                    found = log.read(unit[0])
                    if isinstance(found, Record) and _is_founded(log, queue, offset):
                        return True
    return False


def _forget_unfounded(log: CommitLog, queue: ConsumeQueue) -> None:
    """Let a queue stand before the units at its end that speak of no record of its own.

    Believed is also one whose record is damaged and begins as one does, or is gone with the log's oldest files.
    """
    offset, start = queue.offset_end, queue.segments.start // UNIT_SIZE
    while offset > start and not _is_founded(log, queue, offset - 1):
        offset -= 1
    if offset < queue.offset_end:
        unit = queue.unit(offset - 1)
        queue.stand_at(offset, unit[0] + unit[1] if unit is not None and unit[1] != PRE_BLANK_SIZE else -1)


def _is_founded(log: CommitLog, queue: ConsumeQueue, offset: int) -> bool:
    unit = queue.unit(offset)
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
    """(offset after the last good unit of these files, end of its record in the log, -1 when there is none)."""
    offset, physical_end = segments[0].start // UNIT_SIZE, -1
    for segment in segments:
        for physical_offset, size, _tags_code in UNIT.iter_unpack(segment.view):
            if physical_offset < 0 or size <= 0 or (log_end is not None and physical_offset >= log_end):
                return offset, physical_end
            offset += 1
            physical_end = physical_offset + size if size != PRE_BLANK_SIZE else physical_end
    return offset, physical_end

"""Verifies a store directory: checks that records are intact, and that log and queues agree.

A problem is either `damage` or a `tail`: incomplete data that a crash leaves at the end of log and queues, and that
opening the store repairs. Only a store that was not closed (it has an `abort` file) can have a tail, and no complete
record may follow the tail in the log. The checks cannot find a flipped bit in fields that no checksum covers: times,
hosts, flag, and properties except the tag. A record counts as belonging to a deleted topic if its queue has no file, or
if the record is older than all records of its queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from attrs import Factory, define, frozen

from longpoll_broker.store.consume_queue import UNIT_SIZE, is_address, is_inner_place
from longpoll_broker.store.inspect import (
    FoundFile,
    FoundQueue,
    StoreDirectory,
    Torn,
    is_pre_blank,
    is_zero,
    missing_files,
)
from longpoll_broker.store.messages import QueueRange
from longpoll_broker.store.open_checks import Unsupported, unsupported_extensions, unsupported_parts
from longpoll_protocol.log_record import SCHEDULE_TOPIC, Damage, Record
from longpoll_runtime import Files

PROBLEM_COUNT_MAX: Final = 1000
"""Maximum problems in the list, because one broken disk may cause more problems than a reader can use."""

Kind = Literal["damage", "tail"]


@frozen
class Problem:
    """One faulty place; `offset` is a byte of the file."""

    kind: Kind
    file: str
    offset: int
    found: str
    expected: str


@define
class Verdict:
    """The result of `verify`. Invariant: `problems` has the first PROBLEM_COUNT_MAX of `problem_count` problems."""

    messages: int = 0
    lacking: int = 0
    """Records, except the last, with a sector of zeros outside the checksum, whose data a disk may have lost."""
    cut_files: int = 0
    """Number of files with bytes that were cut off after damage and kept in a separate directory."""
    cut_bytes: int = 0
    queues: list[QueueRange] = Factory(list)
    problems: list[Problem] = Factory(list)
    problem_count: int = 0
    unread: list[Unsupported] = Factory(list)
    """Parts of the store that were not checked, because this broker cannot read them."""

    @property
    def is_damaged(self) -> bool:
        """Whether any problem is more than a tail."""
        return self.problem_count > len(self.problems) or any(problem.kind == "damage" for problem in self.problems)

    def add(self, problem: Problem) -> None:
        """Add a problem, up to the limit."""
        self.problem_count += 1
        if len(self.problems) < PROBLEM_COUNT_MAX:
            self.problems.append(problem)


Progress = Callable[[int], None]
"""Called with the number of file bytes that were read since the last call."""


def verify(files: Files, directory: str, progress: Progress = lambda _size: None) -> Verdict:
    """Verify a store directory without writing to it; raises StoreUserError if it is not a store or unreadable."""
    store = StoreDirectory(files, directory)
    try:
        verdict = _Verifier(store, progress).run()
        verdict.unread = [*unsupported_parts(files, directory), *unsupported_extensions(files, directory)]
        return verdict
    finally:
        store.close()


class _Verifier:
    """One pass over the log, then one pass over every queue.

    Invariant: `log_end` is the end of the last complete record that was read.
    """

    def __init__(self, store: StoreDirectory, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._queues = {(queue.topic, queue.queue_id): queue for queue in store.queues}
        self._firsts: dict[tuple[str, int], int] = {}
        self._log_end = store.log_start
        self._verdict = Verdict()

    def run(self) -> Verdict:
        self._shapes(self._store.log, 1)
        self._walk_log()
        self._verdict.cut_files, self._verdict.cut_bytes = self._store.set_aside()
        for queue in self._store.queues:
            self._shapes(queue.files, UNIT_SIZE)
            self._walk_queue(queue)
            self._verdict.queues.append(self._store.range_of(queue))
        return self._verdict

    def _shapes(self, files: tuple[FoundFile, ...], unit: int) -> None:
        """Report missing files, and files that differ in length from their neighbours."""
        for later, name in missing_files(files):
            self._damage(later.name, 0, f"a file that begins at {later.start}", f"{name} before it")
        for file in files:
            size = file.size
            if file.is_cut or size % unit:
                expected = f"{file.expected_size} bytes" if file.is_cut else f"a multiple of {unit}"
                self._problem(file is files[-1], file.name, size, f"{size} bytes", expected)

    def _walk_log(self) -> None:
        passed = self._store.log_start
        last: Record | None = None
        file_size = self._store.log[-1].expected_size if self._store.log else 0
        for entry in self._store.walk_log():
            if last is not None and last.lacks_sector(file_size):
                self._verdict.lacking += 1
            last = entry if isinstance(entry, Record) else None
            if isinstance(entry, Torn):
                self._problem(not entry.followed, entry.file, entry.offset, entry.found, entry.expected)
            elif isinstance(entry, Record):
                self._verdict.messages += 1
                self._log_end = entry.physical_offset + entry.size
                if entry.in_queue:
                    self._find_unit(entry)
                if self._log_end - passed >= 1024 * 1024:
                    self._progress(self._log_end - passed)
                    passed = self._log_end
        if last is not None and last.lacks_sector(file_size):
            file, position = self._store.place(last.physical_offset)
            self._problem(
                True, file, position, "a last record without a sector of its properties", "no sector of zeros"
            )
            if self._store.crashed:
                # Recovery will drop this record, so it is not counted as a message, and its unit belongs to the tail.
                self._verdict.messages -= 1
                self._log_end = last.physical_offset

    def _find_unit(self, record: Record) -> None:
        """Check that the record's queue has a unit that points back to it."""
        key = (record.topic, record.queue_id)
        queue = self._queues.get(key)
        if queue is None or not queue.files or record.physical_offset < self._first_of(key, queue):
            return
        offset = record.queue_offset
        if queue.offset_start <= offset < queue.offset_end:
            # The queue has a unit at this offset; if the unit points elsewhere, the pass over the queue reports it.
            return
        file, position = queue.place(offset)
        self._problem(
            offset >= queue.offset_end, file, position, f"no unit {offset}",
            f"one for the record at physical offset {record.physical_offset}",
        )  # fmt: skip

    def _first_of(self, key: tuple[str, int], queue: FoundQueue) -> int:
        """Returns the physical offset of the queue's first message, or the log's start if the queue is empty."""
        if key not in self._firsts:
            units = (unit for unit in queue.units(0) if not is_pre_blank(unit[1], unit[2]))
            self._firsts[key] = next(units, (0, self._store.log_start))[1]
        return self._firsts[key]

    def _walk_queue(self, queue: FoundQueue) -> None:
        written = False
        for offset, physical_offset, size, tags_code in queue.units(0):
            if is_pre_blank(physical_offset, size):
                if written:
                    self._damage(*queue.place(offset), "a pre-blank unit", "one that points to a record")
                continue
            written = True
            if physical_offset >= self._store.log_start:
                self._check_unit(queue, offset, (physical_offset, size, tags_code))
        self._check_rest(queue)
        self._progress(sum(file.size for file in queue.files))

    def _check_unit(self, queue: FoundQueue, offset: int, unit: tuple[int, int, int]) -> None:
        physical_offset, size, tags_code = unit
        file, position = queue.place(offset)
        if physical_offset + size > self._log_end:
            found = f"physical offset {physical_offset}, size {size}"
            self._problem(True, file, position, found, f"a record before the log's end at {self._log_end}")
            return
        record = self._store.record_at(physical_offset)
        if isinstance(record, Damage):
            self._damage(file, position, f"physical offset {physical_offset}", "the place of a whole record")
            return
        if record.size != size:
            self._damage(file, position + 8, f"size {size}", f"{record.size}, the record's")
        if not _is_at(record, queue, offset):
            found = f"a record of {record.topic}@{record.queue_id} at {record.queue_offset}"
            self._damage(file, position, found, f"one of {queue.topic}@{queue.queue_id} at {offset}")
        elif not _is_tags_code(record, tags_code):
            self._damage(file, position + 12, f"tags code {tags_code}", f"{record.tags_code}, the record's")

    def _check_rest(self, queue: FoundQueue) -> None:
        end = queue.offset_end * UNIT_SIZE
        for file in queue.files:
            start = max(0, end - file.start)
            if start < file.size and not is_zero(file, start):
                self._damage(file.name, start, "a unit that is not written, and others after it", "zeros to the end")
                return

    def _problem(self, at_end: bool, file: str, offset: int, found: str, expected: str) -> None:
        kind: Kind = "tail" if at_end and self._store.crashed else "damage"
        self._verdict.add(Problem(kind, file, offset, found, expected))

    def _damage(self, file: str, offset: int, found: str, expected: str) -> None:
        self._verdict.add(Problem("damage", file, offset, found, expected))


def _is_at(record: Record, queue: FoundQueue, offset: int) -> bool:
    """Whether the record belongs to this queue at this offset, directly or by multi-dispatch (LMQ)."""
    if (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, offset):
        return True
    return is_inner_place(record, (queue.topic, queue.queue_id, offset))


def _is_tags_code(record: Record, tags_code: int) -> bool:
    if tags_code == record.tags_code or is_address(tags_code):
        return True
    # The broker may have used another table of delay levels, but the delay is still a whole number of seconds.
    delay_ms = tags_code - record.store_ms
    return record.topic == SCHEDULE_TOPIC and delay_ms >= 0 and delay_ms % 1000 == 0

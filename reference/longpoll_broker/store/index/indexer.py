"""Keeps the index up to date with the log, and answers queries by key (`DefaultMessageStore.queryMessage` 4.9).

The flush thread calls `build`, and every query does so first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Final

from longpoll_broker.store.index.index import Index, Keyed, keys_of
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.messages import QueryResult
from longpoll_broker.store.segment import Segment
from longpoll_protocol.log_record import BLANK_SIZE_MIN, MAGIC_BLANK, SIZE_AND_MAGIC, Record, keyed_part
from longpoll_runtime import Lock

QUERY_COUNT_MAX: Final = 64
"""`maxMsgsNumBatch`: maximum messages that one query returns."""
CATCH_UP_COUNT_MAX: Final = 20_000
"""Maximum records, or keys of records, that a query indexes before its search; the flush thread does the rest."""
TURN_COUNT: Final = 512
"""Records indexed in one turn: a few milliseconds."""
STRETCH_SIZE: Final = 16 * 1024
"""Bytes of the log searched for keys at once: a few microseconds."""
PASS_SIZE: Final = 64 * 1024 * 1024
"""Maximum bytes skipped before control returns to the caller: a few milliseconds."""
RECORD_WORTH: Final = 4 * 1024
"""Bytes whose search takes as long as indexing one record."""
HASHED_COUNT: Final = 64
"""Maximum keys hashed together."""
_KEY: Final = b"KEY"
"""Part of both property names with keys, so a record without it need not be decoded."""


class Indexer:
    """The index and its cursor. Invariant: every record before `cursor` is indexed, or no longer in the log."""

    __slots__ = ("_begun", "_index", "_lock", "_log", "cursor")

    def __init__(self, log: CommitLog, index: Index, lock: Lock) -> None:
        self._log = log
        self._index = index
        self._lock = lock
        self._begun: Keyed | None = None
        """The record with only some keys indexed, kept so that it is split once."""
        self.cursor = 0

    def recover(self, *, crashed: bool, durable_ms: int) -> None:
        """Keep the intact part of the index and continue after it, once the log is recovered. Raises OSError."""
        index, log = self._index, self._log
        if crashed or index.end_offset >= log.end:
            index.forget_unsure(durable_ms, log.end)
        # The last message again: some of its keys may be missing.
        self.cursor = max(index.go_on(), log.start)

    def build(self, end: int, count_max: int) -> bool:
        """Index about `count_max` records before `end`; returns whether that was all. Raises OSError; can be retried.

        Records that are long, or have many or long keys, count as several; many keys may take several calls. `end` must
        be the end of a record or a blank.
        """
        with self._lock:
            if not self._log.segments.segments:
                # A copy whose begin was set, but that has no data yet.
                return True
            count = 0
            while count < count_max and self.cursor < end:
                self.cursor = max(self.cursor, self._log.start)
                count += self._pass_some(end, count_max - count)
            return self.cursor >= end

    def _pass_some(self, end: int, work_max: int) -> int:
        """Advance the cursor by some records, indexing keys for at most `work_max`; returns the work done."""
        cursor = self.cursor
        segment = self._log.segments.find(cursor)
        if segment is None:
            # Removed since the log's start was read.
            self.cursor = self._log.start
            return 1
        position = cursor - segment.start
        size: int
        size, magic = SIZE_AND_MAGIC.unpack_from(segment.view, position)
        if magic == MAGIC_BLANK:
            self.cursor = segment.stop
            return 1
        records = self._keyed_records(segment, position, min(end - segment.start, segment.size), work_max)
        if not records:
            self.cursor = cursor + size
            return 1 + self._pass_keyless(segment, end)
        work, whole = self._index.put(records, work_max)
        if whole:
            self.cursor = records[whole - 1].stop
        self._begun = records[whole] if whole < len(records) else None
        return work + (self.cursor - cursor) // RECORD_WORTH

    def _keyed_records(self, segment: Segment, position: int, border: int, work_max: int) -> list[Keyed]:
        """Returns the records from `position` on that may have keys, up to one that has none.

        Together, because hashing many keys at once costs little more than a few. Also ends at the work limit.
        """
        view, start = segment.view, segment.start
        records: list[Keyed] = []
        count, count_max = 0, min(work_max, HASHED_COUNT)
        while count < count_max and position + BLANK_SIZE_MIN <= border:
            keyed = self._begun
            if keyed is None or keyed.physical_offset != start + position:
                size: int
                size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
                record = bytes(view[position : position + size])
                if magic == MAGIC_BLANK or _KEY not in record:
                    break
                assert size > 0
                keyed = self._keyed(start + position, record)
            records.append(keyed)
            count += (len(keyed.keys) or 1) + (keyed.stop - keyed.physical_offset) // RECORD_WORTH
            position = keyed.stop - start
        return records

    def _pass_keyless(self, segment: Segment, end: int) -> int:
        """Skip records that contain no key, with a few searches over all their bytes.

        Returns the number of records that this counts as.
        """
        position = self.cursor - segment.start
        border = min(end - segment.start, segment.size)
        stop = min(border, position + PASS_SIZE)
        key_at = _find_key(segment.view, position, stop)
        if key_at < 0 and stop == border:
            # A record or a file ends here, so the other boundaries are not needed.
            self.cursor = segment.start + border
            return (border - position) // RECORD_WORTH
        passed, count = _whole_records(segment.view, position, stop if key_at < 0 else key_at)
        self.cursor = segment.start + passed
        return count

    def _keyed(self, physical_offset: int, record: bytes) -> Keyed:
        """Returns a record with its keys; without keys if it is incomplete."""
        stop = physical_offset + len(record)
        part = keyed_part(record)
        if part is None:
            found = self._log.read(physical_offset)
            if not isinstance(found, Record):
                return Keyed(physical_offset, "", (), 0, stop)
            part = found.sys_flag, found.store_ms, found.topic, found.properties
        sys_flag, store_ms, topic, properties = part
        return Keyed(physical_offset, topic, keys_of(sys_flag, properties), store_ms, stop)

    def query(
        self, topic: str, key: str, count_max: int, stored_ms: tuple[int, int], log_end: int
    ) -> Generator[None, None, QueryResult]:
        """Find the newest messages with a key of that topic, stored between the two times.

        Yields after each few milliseconds of work, so that other work can run.
        """
        # Without disk space the existing index still gives an answer; the flush thread logs the error and retries.
        with contextlib.suppress(OSError):
            for _ in range(0, CATCH_UP_COUNT_MAX, TURN_COUNT):
                if self.build(log_end, TURN_COUNT):
                    break
                yield
        index, log = self._index, self._log

        def is_meant(physical_offset: int) -> bool:
            """Whether a message has the key.

            Others with an equal hash may belong to a topic that the client must not read.
            """
            found = log.read(physical_offset)
            if not isinstance(found, Record):
                return True
            return found.topic == topic and key in keys_of(found.sys_flag, bytes(found.properties))

        count = min(count_max, QUERY_COUNT_MAX)
        offsets = yield from index.find(topic, key, count, *stored_ms, is_meant=is_meant)
        if not offsets:
            return QueryResult([], 0, 0)
        # As in Java, the answer gives the index's end if anything was found, even if the log has lost it. Java's two
        # extra queries for older messages change nothing: they use the time of a missing message.
        records: list[memoryview] = []
        for physical_offset in offsets:
            found = log.read(physical_offset)
            view = log.slice(physical_offset, found.size) if isinstance(found, Record) else None
            if view is not None:
                records.append(view)
        return QueryResult(records, index.end_ms, index.end_offset)

    def remove_before(self, log_start: int) -> None:
        """Remove files that refer only to removed records; raises OSError."""
        with self._lock:
            self._index.remove_before(log_start)

    @property
    def flushed_ms(self) -> int:
        """Store timestamp of the last entry in the newest durable full file (`indexMsgTimestamp`)."""
        return self._index.flushed_ms

    def flush(self) -> None:
        """Make the index durable; raises OSError."""
        with self._lock:
            self._index.flush()

    def close(self) -> None:
        """Unmap the files."""
        self._index.close()


def _find_key(view: memoryview, start: int, stop: int) -> int:
    """Returns the position of the first possible key in `view[start:stop]`; -1 without one."""
    for at in range(start, stop, STRETCH_SIZE):
        # With the first bytes of the next part, for a match across the border.
        found = bytes(view[at : min(at + STRETCH_SIZE + len(_KEY) - 1, stop)]).find(_KEY)
        if found >= 0:
            return at + found
    return -1


def _whole_records(view: memoryview, start: int, stop: int) -> tuple[int, int]:
    """Returns the end of the last complete record in `view[start:stop]`, and their number."""
    at = start
    count = 0
    while at + BLANK_SIZE_MIN <= stop:
        size, magic = SIZE_AND_MAGIC.unpack_from(view, at)
        if magic == MAGIC_BLANK or at + size > stop:
            break
        assert size > 0
        at += size
        count += 1
    return at, count

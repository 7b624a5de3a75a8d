"""Keeps the index up to the log, and answers queries by key (`DefaultMessageStore.queryMessage` 4.9).

Leaves out when the cursor moves: the flush thread calls `build`, and every query does so first.
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
"""`maxMsgsNumBatch`: most messages that one query finds."""
CATCH_UP_COUNT_MAX: Final = 20_000
"""Most records, or keys of records, that a query indexes before it looks; the flush thread does the rest."""
TURN_COUNT: Final = 512
"""As many of them are indexed in one turn: some milliseconds."""
STRETCH_SIZE: Final = 16 * 1024
"""Bytes of the log looked at for keys at once: some microseconds."""
PASS_SIZE: Final = 64 * 1024 * 1024
"""Most bytes passed over, or not, before the caller hears of it: some milliseconds."""
RECORD_WORTH: Final = 4 * 1024
"""Bytes that are looked at in the time of one record."""
HASHED_COUNT: Final = 64
"""Keys that are hashed together, when there are as many."""
_KEY: Final = b"KEY"
"""In the name of both properties that hold keys, so a record without it need not be decoded."""


class Indexer:
    """The index and its cursor. Invariant: every record before `cursor` is indexed, or no longer in the log."""

    __slots__ = ("_begun", "_index", "_lock", "_log", "cursor")

    def __init__(self, log: CommitLog, index: Index, lock: Lock) -> None:
        self._log = log
        self._index = index
        self._lock = lock
        self._begun: Keyed | None = None
        """The record whose keys are not all in yet: what was split once need not be again in the next turn."""
        self.cursor = 0

    def recover(self, *, crashed: bool, durable_ms: int) -> None:
        """Keep of the index what is sure and go on after it; the log stands at its end already. Raises OSError."""
        index, log = self._index, self._log
        if crashed or index.end_offset >= log.end:
            index.forget_unsure(durable_ms, log.end)
        # The last message is looked at again: some of its keys may be missing.
        self.cursor = max(index.go_on(), log.start)

    def build(self, end: int, count_max: int) -> bool:
        """Index about `count_max` records before `end`; whether that was all. Raises OSError, and can be repeated.

        A record with many keys, or with long ones, or a long record counts for as many records; one with many keys may
        be indexed in several calls.
        `end` is behind a whole record, or a blank.
        """
        with self._lock:
            if not self._log.segments.segments:
                # A copy that was told where its log begins, and has nothing of it yet.
                return True
            count = 0
            while count < count_max and self.cursor < end:
                self.cursor = max(self.cursor, self._log.start)
                count += self._pass_some(end, count_max - count)
            return self.cursor >= end

    def _pass_some(self, end: int, work_max: int) -> int:
        """Pass some records from the cursor on, as far as their keys can be indexed for `work_max`; the work."""
        cursor = self.cursor
        segment = self._log.segments.find(cursor)
        if segment is None:
            # Removed since we looked where the log starts.
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
        """The records from `position` on that may have keys, up to one that has none or may be left to the next time.

        Together, for many keys are hashed at the cost of a few.
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
        """Pass over records in which nothing looks like a key, with a few looks at all their bytes.

        Returns how many records that counts for.
        """
        position = self.cursor - segment.start
        border = min(end - segment.start, segment.size)
        stop = min(border, position + PASS_SIZE)
        key_at = _find_key(segment.view, position, stop)
        if key_at < 0 and stop == border:
            # A record or a file ends here, so nobody needs to know where the others did.
            self.cursor = segment.start + border
            return (border - position) // RECORD_WORTH
        passed, count = _whole_records(segment.view, position, stop if key_at < 0 else key_at)
        self.cursor = segment.start + passed
        return count

    def _keyed(self, physical_offset: int, record: bytes) -> Keyed:
        """A record with its keys; without any where it is no whole record."""
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
        """The newest messages with a key of that topic, stored from the first to the second time.

        It yields after some milliseconds of work, and so on until it returns: others can have their turn.
        """
        # Without room for the index what it has is still an answer; the flush thread tells and tries again.
        with contextlib.suppress(OSError):
            for _ in range(0, CATCH_UP_COUNT_MAX, TURN_COUNT):
                if self.build(log_end, TURN_COUNT):
                    break
                yield
        index, log = self._index, self._log

        def is_meant(physical_offset: int) -> bool:
            """Whether a message has the key: others of equal hash may be of a topic that the asker must not read."""
            found = log.read(physical_offset)
            if not isinstance(found, Record):
                return True
            return found.topic == topic and key in keys_of(found.sys_flag, bytes(found.properties))

        count = min(count_max, QUERY_COUNT_MAX)
        offsets = yield from index.find(topic, key, count, *stored_ms, is_meant=is_meant)
        if not offsets:
            return QueryResult([], 0, 0)
        # As in Java an answer says how far the index is once something was found there, be it gone from the log. That
        # Java then asks twice more for older ones changes nothing: what it asks with is the time of a message it lacks.
        records: list[memoryview] = []
        for physical_offset in offsets:
            found = log.read(physical_offset)
            view = log.slice(physical_offset, found.size) if isinstance(found, Record) else None
            if view is not None:
                records.append(view)
        return QueryResult(records, index.end_ms, index.end_offset)

    def remove_before(self, log_start: int) -> None:
        """Remove files that speak only of records that are gone; raises OSError."""
        with self._lock:
            self._index.remove_before(log_start)

    @property
    def flushed_ms(self) -> int:
        """Store timestamp of the last entry of the newest full file that is durable (`indexMsgTimestamp`)."""
        return self._index.flushed_ms

    def flush(self) -> None:
        """Make the index durable; raises OSError."""
        with self._lock:
            self._index.flush()

    def close(self) -> None:
        """Unmap the files."""
        self._index.close()


def _find_key(view: memoryview, start: int, stop: int) -> int:
    """Where in `view[start:stop]` the first thing like a key begins; -1 when there is none."""
    for at in range(start, stop, STRETCH_SIZE):
        # A little of the next stretch too, for what lies across the border.
        found = bytes(view[at : min(at + STRETCH_SIZE + len(_KEY) - 1, stop)]).find(_KEY)
        if found >= 0:
            return at + found
    return -1


def _whole_records(view: memoryview, start: int, stop: int) -> tuple[int, int]:
    """(where the last record of `view[start:stop]` ends that lies there whole, how many they are)."""
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

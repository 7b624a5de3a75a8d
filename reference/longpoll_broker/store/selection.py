"""Selects the messages for a pull: `DefaultMessageStore.getMessage` of 4.9, with its statuses, limits and next offset.

Also finds the message of a queue stored nearest to a time, by 4.9's rule (`ConsumeQueue.getOffsetInQueueByTime`). An
exact match wins, otherwise the nearer neighbour, and in a tie the earlier neighbour. A time after the last message
finds the last message. RocketMQ first selects one file by its modification time; this module searches the whole queue.
5.x's rule: see `rocketmq.admin.offset_processor`.

Extended queues: see `store.consume_queue`. A slave's offsets: see `shared.broker_role`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from operator import add, gt
from struct import Struct
from typing import Final

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.commit_log import CommitLog
from longpoll_broker.store.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.messages import ALL, ByProperties, GetResult, GetStatus, Matches
from longpoll_broker.store.segment import Segment
from longpoll_protocol.log_record import properties_in, property_of

_lines = logging.getLogger(__name__)

SCAN_BYTES_MIN: Final = 16_000
"""Size of the units that one read may visit (800 units). A read visits more only if more messages were requested."""
SCAN_COUNT_MAX: Final = 16_384
"""Maximum units that one read visits, which takes a few milliseconds. RocketMQ's limit is a file's 300,000 units."""
LOOK_SIZE: Final = 1_500
"""The base cost of one property lookup equals the cost of searching this many bytes of properties."""
WORK_MAX: Final = 500_000_000
"""Maximum work of one read, in expression characters times property bytes; beyond this limit, the client must pull
again.

This much work takes about 20 ms. An expression of 60 characters over 800 messages with 300 bytes of properties needs a
sixth of the limit. Without a limit, 4,000 characters over 32 KB blocked all clients for ten seconds."""


@lru_cache(maxsize=64)
def _places(count: int) -> Struct:
    return Struct(">" + "qi8x" * count)


def memory_of(config: StoreConfig) -> int:
    """Returns how many bytes at the end of the log are assumed to be in memory (`accessMessageInMemoryMaxRatio`)."""
    return config.memory_size * config.memory_ratio_max // 100


def read_queue(
    log: CommitLog, queue: ConsumeQueue, config: StoreConfig, offset: int, count_max: int, *, matches: Matches
) -> GetResult:
    """Read a queue at `offset`; see `MessageStore.get`."""
    offset_min, offset_end = queue.offset_min, queue.offset_end
    if offset_end == 0:
        return nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, offset_min, offset_end)
    if offset < offset_min:
        return nothing(GetStatus.OFFSET_TOO_SMALL, offset_min, offset_min, offset_end)
    if offset == offset_end:
        return nothing(GetStatus.OFFSET_OVERFLOW_ONE, offset, offset_min, offset_end)
    if offset > offset_end:
        # The source of 4.9 returns `offset_min` here if it is 0, but a running 4.9.7 returned the end.
        return nothing(GetStatus.OFFSET_OVERFLOW_BADLY, offset_end, offset_min, offset_end)
    units = queue.units_from(offset)
    if units is None:
        return nothing(GetStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), offset_min, offset_end)
    # RocketMQ visits another unit while it is below the limit in bytes, so a limit inside a unit still includes that
    # unit.
    scan_count = min(-(-max(SCAN_BYTES_MIN, count_max * UNIT_SIZE) // UNIT_SIZE), SCAN_COUNT_MAX)
    units = units[: scan_count * UNIT_SIZE]
    found = None
    if matches == ALL:
        found = _read_unfiltered(log, config, offset, units, count_max, (offset_min, offset_end))
    if found is None:
        scan = _Scan(log)
        offset_next = scan.run(config, offset, units, count_max, matches)
        if scan.damaged >= 0:
            _lines.error(
                "%s: unit %d is damaged and skipped: stop the broker and remove the whole directory `consumequeue` to "
                "have all queues made anew from the log",
                queue.segments.directory, scan.damaged,
            )  # fmt: skip
        found = GetResult(
            scan.status, offset_next, offset_min, offset_end, scan.records, scan.offsets, scan.size_bytes,
            scan.log_end - scan.physical_last > memory_of(config),
        )  # fmt: skip
    return found


def nothing(status: GetStatus, offset_next: int, offset_min: int, offset_end: int) -> GetResult:
    """Returns the result of a read that found no message."""
    return GetResult(status, offset_next, offset_min, offset_end, [], [], 0, False)


def _read_unfiltered(  # noqa: PLR0917 - one caller, for each pull
    log: CommitLog, config: StoreConfig, offset: int, units: memoryview, count_max: int, ends: tuple[int, int]
) -> GetResult | None:
    """Read all requested messages without a filter; returns None unless they are in memory and in one segment.

    This is the fast path of the most common read, with the same result as the slow path. The fast path also returns
    None if the messages exceed the limit on bytes.
    """
    count = min(len(units) // UNIT_SIZE, count_max, config.transfer_count_max_in_memory)
    if count < 1:
        return None
    numbers = _places(count).unpack_from(units)
    first, log_end = numbers[0], log.end
    segment = log.segments.find(first)
    if segment is None or first < log_end - memory_of(config):
        return None
    starts, sizes = numbers[::2], numbers[1::2]
    view, base = segment.view, segment.start
    # The records are usually adjacent. Comparing all starts with the summed sizes at once is much faster than a loop.
    joined = tuple(accumulate(sizes, initial=first))
    end = joined[-1]
    size_bytes = end - first
    if joined[:-1] == starts:
        records = [view[first - base : end - base]]
    else:
        ends_of = list(map(add, starts, sizes))
        if any(map(gt, ends_of, starts[1:])):
            return None
        breaks = [at for at in range(1, count) if starts[at] != ends_of[at - 1]]
        runs = zip([0, *breaks], [*breaks, count], strict=True)
        records = [view[starts[at] - base : ends_of[to - 1] - base] for at, to in runs]
        end = ends_of[-1]
    if min(sizes) <= 0 or end > min(segment.stop, log_end) or size_bytes > config.transfer_bytes_max_in_memory:
        return None
    offset_next = offset + count
    # The first record is in memory, so the consumer is not too far behind.
    return GetResult(
        GetStatus.FOUND, offset_next, *ends, records, list(range(offset, offset_next)), size_bytes, suggest_slave=False
    )


class _Scan:
    """One pass over units. Invariant: `records` and the open run cover exactly the messages of `offsets`.

    A run is a range of adjacent records in one segment, [`_run_start`, `_run_end`), which becomes one slice.
    """

    __slots__ = (
        "_log",
        "_run_end",
        "_run_start",
        "_run_stop",
        "_segment",
        "_work",
        "damaged",
        "log_end",
        "offsets",
        "physical_last",
        "records",
        "size_bytes",
        "status",
    )
    physical_last: int
    """Physical offset of the last visited unit's record; never unset, because a read visits at least one unit."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._segment: Segment | None = None
        self._run_start = self._run_end = self._run_stop = -1
        self._work = 0
        """Work of filtering by properties, in the unit of `WORK_MAX`."""
        self.damaged = -1
        """The queue offset of the last damaged unit, or -1."""
        self.log_end = log.end
        self.status = GetStatus.NO_MATCHED_MESSAGE
        self.records: list[memoryview] = []
        self.offsets: list[int] = []
        self.size_bytes = 0

    def run(self, config: StoreConfig, offset: int, units: memoryview, count_max: int, matches: Matches) -> int:
        """Collect messages from `units`, whose first unit is at `offset`; returns the next offset.

        Stops at the limit of messages or of work.
        """
        memory_start = self.log_end - memory_of(config)
        matches_tags, by_properties = matches
        offsets = self.offsets
        removed_end = -1
        for physical_offset, size, tags_code in UNIT.iter_unpack(units):
            if self._work > WORK_MAX:
                break
            self.physical_last = physical_offset
            if physical_offset >= removed_end:
                if offsets and self._is_full(config, size, count_max, in_memory=physical_offset >= memory_start):
                    break
                if matches_tags is not None and not matches_tags(tags_code):
                    self._missed(GetStatus.NO_MATCHED_MESSAGE)
                elif not self._reach(physical_offset, size):
                    self._missed(GetStatus.MESSAGE_WAS_REMOVING)
                    removed_end = self._removed_end(offset, physical_offset, size)
                elif by_properties is not None and not self._wants(by_properties, physical_offset, size):
                    self._missed(GetStatus.NO_MATCHED_MESSAGE)
                else:
                    self._take(physical_offset, size)
                    offsets.append(offset)
                    removed_end = -1
            offset += 1
        self._end_run()
        if offsets:
            self.status = GetStatus.FOUND
        return offset

    def _removed_end(self, offset: int, physical_offset: int, size: int) -> int:
        """Returns the end of the log file that contained the record, if that file was removed.

        Otherwise returns -1, so that only this unit is skipped.
        """
        if physical_offset < self._log.start:
            return self._log.next_file(physical_offset)
        if size != PRE_BLANK_SIZE:
            self.damaged = offset
        return -1

    def _wants(self, wanted: ByProperties, physical_offset: int, size: int) -> bool:
        properties = properties_in(self._record(physical_offset, size))
        self._work += len(wanted.expression) * (LOOK_SIZE + len(properties))
        return wanted.matches_properties(partial(property_of, properties))

    def _missed(self, status: GetStatus) -> None:
        # As in RocketMQ, the last skipped unit decides the status of a read without messages.
        self.status = status

    def _is_full(self, config: StoreConfig, size: int, count_max: int, *, in_memory: bool) -> bool:
        """Whether another message of `size` bytes exceeds a limit (`isTheBatchFull`); requires at least one message."""
        count = len(self.offsets)
        if count >= count_max:
            return True
        if in_memory:
            return (
                self.size_bytes + size > config.transfer_bytes_max_in_memory
                or count >= config.transfer_count_max_in_memory
            )
        return self.size_bytes + size > config.transfer_bytes_max_on_disk or count >= config.transfer_count_max_on_disk

    def _reach(self, physical_offset: int, size: int) -> bool:
        """Whether the log has these bytes; if so, the segment that contains them becomes the current segment."""
        if self._run_start <= physical_offset and physical_offset + size <= self._run_stop and size > 0:
            return True
        segment = self._log.segments.find(physical_offset)
        if segment is None or size <= 0 or physical_offset + size > min(segment.stop, self.log_end):
            return False
        if segment is not self._segment:
            self._end_run()
            self._segment = segment
            self._run_stop = min(segment.stop, self.log_end)
            # The units of a damaged queue may point back in the log, so the next offset must be looked up again.
            self._run_start = self._run_end = physical_offset
        return True

    def _record(self, physical_offset: int, size: int) -> memoryview:
        segment = self._segment
        assert segment is not None
        return segment.view[physical_offset - segment.start : physical_offset - segment.start + size]

    def _take(self, physical_offset: int, size: int) -> None:
        if physical_offset != self._run_end:
            self._end_run()
            self._run_start = physical_offset
        self._run_end = physical_offset + size
        self.size_bytes += size

    def _end_run(self) -> None:
        if self._run_end > self._run_start:
            self.records.append(self._record(self._run_start, self._run_end - self._run_start))


def nearest_offset(first: int, last: int, store_ms_of: Callable[[int], int | None], time_ms: int) -> int:
    """Returns the offset, from `first` to `last`, of the message stored nearest to `time_ms`; 0 if no message exists.

    `store_ms_of` returns a message's store time in ms, which grows with the offset, or None for a removed message.
    """
    low, high = first, last
    left = right = -1
    left_ms = right_ms = 0
    while low <= high:
        middle = (low + high) // 2
        stored_ms = store_ms_of(middle)
        if stored_ms is None:
            low = middle + 1
        elif stored_ms == time_ms:
            return middle
        elif stored_ms < time_ms:
            left, left_ms, low = middle, stored_ms, middle + 1
        else:
            right, right_ms, high = middle, stored_ms, middle - 1
    if left < 0 or right < 0:
        return max(left, right, 0)
    return right if time_ms - left_ms > right_ms - time_ms else left

"""Which messages a pull gets: `DefaultMessageStore.getMessage` of 4.9, its statuses, limits and next offset.

Leaves out the extended consume queue and the slave's rule for uncorrected offsets.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import accumulate
from operator import add, gt
from struct import Struct
from typing import Final

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.queues.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.read import ALL, ByProperties, GetResult, GetStatus, Matches
from longpoll_broker.store.segment import Segment
from longpoll_protocol.log_record import properties_in, property_of

SCAN_BYTES_MIN: Final = 16_000
"""Bytes of units that one read looks at, at least: 800 units. More only when more messages were asked for."""
SCAN_COUNT_MAX: Final = 16_384
"""Units that one read looks at, however many messages were asked for: a few milliseconds. Java has no limit but the
file's 300,000."""
LOOK_SIZE: Final = 1_500
"""Looking for a property in one of no bytes takes as long as looking through as many bytes."""
WORK_MAX: Final = 500_000_000
"""Characters of an expression times bytes of properties after which a read ends, some 20 ms; the reader is told where
to go on, as if it had looked at 800 units. 60 characters over 800 messages with 300 bytes are a sixth of it; without a
limit 4,000 characters over 32 KB held everybody up for ten seconds."""


@lru_cache(maxsize=64)
def _places(count: int) -> Struct:
    """Physical offset and size of each of `count` units."""
    return Struct(">" + "qi8x" * count)


def memory_of(config: StoreConfig) -> int:
    """Bytes at the log's end that are taken to be in memory."""
    return config.memory_size * config.memory_ratio_max // 100


def read_queue(
    log: CommitLog, queue: ConsumeQueue, config: StoreConfig, offset: int, count_max: int, *, matches: Matches
) -> GetResult:
    """What a consumer at `offset` gets; see `MessageStore.get`."""
    offset_min, offset_end = queue.offset_min, queue.offset_end
    if offset_end == 0:
        return nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, offset_min, offset_end)
    if offset < offset_min:
        return nothing(GetStatus.OFFSET_TOO_SMALL, offset_min, offset_min, offset_end)
    if offset == offset_end:
        return nothing(GetStatus.OFFSET_OVERFLOW_ONE, offset, offset_min, offset_end)
    if offset > offset_end:
        # The source of 4.9 says `offset_min` when that is 0; 4.9.7 was seen to give the end.
        return nothing(GetStatus.OFFSET_OVERFLOW_BADLY, offset_end, offset_min, offset_end)
    units = queue.units_from(offset)
    if units is None:
        return nothing(GetStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), offset_min, offset_end)
    # Java counts up in steps of a unit while below the limit, so a limit inside a unit lets that unit in.
    scan_count = min(-(-max(SCAN_BYTES_MIN, count_max * UNIT_SIZE) // UNIT_SIZE), SCAN_COUNT_MAX)
    units = units[: scan_count * UNIT_SIZE]
    found = None
    if matches == ALL:
        found = _read_unfiltered(log, config, offset, units, count_max, (offset_min, offset_end))
    if found is None:
        scan = _Scan(log)
        offset_next = scan.run(config, offset, units, count_max, matches)
        found = GetResult(
            scan.status, offset_next, offset_min, offset_end, scan.records, scan.offsets, scan.size_bytes,
            scan.log_end - scan.physical_last > memory_of(config),
        )  # fmt: skip
    return found


def nothing(status: GetStatus, offset_next: int, offset_min: int, offset_end: int) -> GetResult:
    """A result without a message."""
    return GetResult(status, offset_next, offset_min, offset_end, [], [], 0, False)


def _read_unfiltered(  # noqa: PLR0917 - one caller, for each pull
    log: CommitLog, config: StoreConfig, offset: int, units: memoryview, count_max: int, ends: tuple[int, int]
) -> GetResult | None:
    """All that a reader without a filter asked for, if it lies in memory, in one segment, and under the limit.

    The common read in one short loop: the same messages and slices as message by message, or None and nothing done.
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
    # Far quicker than unit by unit: where each record starts if the one before it ends there, as it mostly does.
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
    # The first lies in memory, and so do those after it: nobody is further behind.
    return GetResult(
        GetStatus.FOUND, offset_next, *ends, records, list(range(offset, offset_next)), size_bytes, suggest_slave=False
    )


class _Scan:
    """One pass over units. Invariant: `records` and the open run cover exactly the messages of `offsets`.

    A run is a stretch of neighbouring records in one segment, [`_run_start`, `_run_end`); it becomes one slice.
    """

    __slots__ = (
        "_log",
        "_run_end",
        "_run_start",
        "_run_stop",
        "_segment",
        "_work",
        "log_end",
        "offsets",
        "physical_last",
        "records",
        "size_bytes",
        "status",
    )
    physical_last: int
    """Where the record of the last unit that was looked at begins; there is one in each read."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._segment: Segment | None = None
        self._run_start = self._run_end = self._run_stop = -1
        self._work = 0
        """What filtering by properties has cost, in the unit of `WORK_MAX`."""
        self.log_end = log.end
        self.status = GetStatus.NO_MATCHED_MESSAGE
        self.records: list[memoryview] = []
        self.offsets: list[int] = []
        self.size_bytes = 0

    def run(self, config: StoreConfig, offset: int, units: memoryview, count_max: int, matches: Matches) -> int:
        """Collect messages from `units`, the first of which is at `offset`; the offset after the last one passed.

        Unit by unit, up to the limits or the end of what one read may cost.
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
                    removed_end = self._log.next_file(physical_offset)
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

    def _wants(self, wanted: ByProperties, physical_offset: int, size: int) -> bool:
        properties = properties_in(self._record(physical_offset, size))
        self._work += len(wanted.expression) * (LOOK_SIZE + len(properties))
        return wanted.matches_properties(partial(property_of, properties))

    def _missed(self, status: GetStatus) -> None:
        # As in Java, the last unit that was passed over names the status of a read that found nothing.
        self.status = status

    def _is_full(self, config: StoreConfig, size: int, count_max: int, *, in_memory: bool) -> bool:
        """Whether a message of `size` bytes is one too many (`isTheBatchFull`); asked once there is one at least."""
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
        """Whether the log has these bytes; its segment becomes the present one."""
        if self._run_start <= physical_offset and physical_offset + size <= self._run_stop and size > 0:
            return True
        segment = self._log.segments.find(physical_offset)
        if segment is None or size <= 0 or physical_offset + size > min(segment.stop, self.log_end):
            return False
        if segment is not self._segment:
            self._end_run()
            self._segment = segment
            self._run_stop = min(segment.stop, self.log_end)
            # Nothing below this one is taken to lie in its segment: units of a damaged queue may point back.
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
        """Make a slice of the open run; a caller that goes on begins another one."""
        if self._run_end > self._run_start:
            self.records.append(self._record(self._run_start, self._run_end - self._run_start))

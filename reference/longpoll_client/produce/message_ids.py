"""The ids that a producer gives its messages, laid out as Java's, so that its tools read their time and place.

| offset | size | field                                                                        |
|--------|------|------------------------------------------------------------------------------|
| 0      | 4    | IPv4 address of the sender                                                   |
| 4      | 2    | its process, the low bits                                                    |
| 6      | 4    | drawn (Java: the hash of a class loader)                                     |
| 10     | 4    | milliseconds since the month began, in the sender's own time zone            |
| 14     | 2    | a counter                                                                    |

Written as 32 upper-case hexadecimal digits. Leaves out the longer form, which Java has where a machine has no other
address than one of IPv6, and the id that a broker gives (`log_record`).

Source: `MessageClientIDSetter.java` 4.9.7.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from longpoll_runtime import Runtime

COUNT_MAX: Final = 1 << 16
"""Ids of one millisecond that the counter tells apart."""


class MessageIds:
    """Makes the ids of one producer; may be used from many threads.

    No two are equal: within a millisecond by the counter, and where that and the time could be the same again (a
    process forked, the month changed, the clock was set back, the counter went round) by bytes drawn anew, of which
    every producer and process has its own.

    Invariant, under `_lock`: with the prefix `_prefix`, made in process `_process_id`, no id is of another month than
    [`_begin_ms`, `_end_ms`) or later than `_last_ms`, of which there are `_count` that end with `_counter`; those begin
    with `_written`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._unix_ms = runtime.unix_ms
        self._current_process_id = runtime.process_id
        self.forked()
        runtime.when_forked(self)
        self._prefix = self._written = ""
        self._process_id = -1
        self._begin_ms = self._end_ms = self._last_ms = 0
        self._count = 0
        self._counter = 0

    def forked(self) -> None:
        """The next id has a new prefix, because this is another process."""
        self._lock = self._runtime.lock()

    def new(self, count: int) -> list[str]:
        """As many ids as asked for, in order."""
        with self._lock:
            self._look_at_clock()
            return [self._one() for _number in range(count)]

    def one(self) -> tuple[str, int]:
        """One id, and its time: unix milliseconds."""
        with self._lock:
            now_ms = self._look_at_clock()
            return self._one(), now_ms

    def _look_at_clock(self) -> int:
        """Begin what has to be begun; the time."""
        now_ms = self._unix_ms()
        is_of_process = self._process_id == self._current_process_id()
        if is_of_process and now_ms == self._last_ms:
            return now_ms
        if is_of_process and self._last_ms < now_ms < self._end_ms:
            self._begin(now_ms)
        else:
            self._draw(now_ms)
        return now_ms

    def _one(self) -> str:
        if self._count == COUNT_MAX:
            self._draw(self._last_ms)
        self._count += 1
        self._counter = (self._counter + 1) % COUNT_MAX
        return f"{self._written}{self._counter:04X}"

    def _draw(self, now_ms: int) -> None:
        """Begin a new, unique prefix."""
        self._process_id = self._runtime.process_id()
        identity = self._runtime.identity()
        self._prefix = f"{identity[:4].hex()}{self._process_id % (1 << 16):04x}{identity[4:].hex()}".upper()
        self._begin_ms, self._end_ms = month_of(now_ms)
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        """Begin a millisecond: what is the same in all of its ids is written once."""
        self._last_ms, self._count = now_ms, 0
        self._written = f"{self._prefix}{now_ms - self._begin_ms:08X}"


def month_of(unix_ms: int) -> tuple[int, int]:
    """When the month of a time begins and when the next one does, unix milliseconds, by the clock on the wall."""
    now = datetime.fromtimestamp(unix_ms // 1000)  # noqa: DTZ006 - the sender's own zone, as `Calendar.getInstance`
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=31)).replace(day=1)
    return int(begin.timestamp()) * 1000, int(end.timestamp()) * 1000

"""Detects host pauses: times in which the host, and not the broker, kept programs from running.

A thread sleeps for a millisecond again and again; if a sleep takes much longer, the host did not run the thread in
time. The kernel also reports how long the threads of the load and of the broker waited for a processor. Both kinds of
delay are host pauses, which an idle machine would not have. Waiting for anything else, such as a disk or a lock, does
not count.

The kernel reports the waits in the second number of Linux's `/proc/<process>/task/<thread>/schedstat`, in nanoseconds.
The number grows when a wait ends, so a wait is assumed to end when the watch reads the number.

Three programs subtract the pauses from the delay of a late response: the race test (`longpoll.wire.race`), the kit
(`longpoll_kit.polls`) and the pytest plugin (`longpoll.pytest_plugin`). The judge subtracts no pauses, because
recordings do not contain pauses.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

SLEEP_S: Final = 0.001
STALL_MS: Final = 50.0
"""A delay of the watching thread counts as a pause if it is at least this long, in milliseconds. The limit is far above
the 5 ms for which the interpreter may let another thread run."""
WAIT_MS: Final = 2.0
"""The shortest wait for a processor that counts, in milliseconds. A time slice of the kernel's scheduler is about as
long."""
LOOK_S: Final = 0.005


SCHEDSTAT_SIZE_MAX: Final = 128
"""Maximum bytes of the three numbers of `schedstat`."""


def read_wait_ns(path: str) -> int:
    """Return how long a thread has waited for a processor, in nanoseconds; raises OSError if it has ended."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return int(os.read(descriptor, SCHEDSTAT_SIZE_MAX).split()[1])
    finally:
        os.close(descriptor)


class HostPauseWatch:
    """Records the host pauses inside its `with` block.

    Invariant: `_stalls` has every pause that ended before `_seen_ns`, sorted by end, and changes under the lock
    `_changed`. `process_id` is the broker's process; if it is None, only this process, which makes the load, is
    watched. A longer `sleep_s` takes less processor time, but pauses are detected later. Tests replace `now_ns`,
    `list_threads` and `read_wait_ns`.
    """

    def __init__(
        self,
        process_id: int | None = None,
        sleep_s: float = SLEEP_S,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        list_threads: Callable[[str], Sequence[str]] = os.listdir,
        read_wait_ns: Callable[[str], int] = read_wait_ns,
    ) -> None:
        self._sleep_s = sleep_s
        self._now_ns = now_ns
        self._list_threads = list_threads
        self._read_wait_ns = read_wait_ns
        self._tasks = [f"/proc/{each}/task" for each in (os.getpid(), process_id) if each is not None]
        self._waited_ns: dict[str, int] = {}
        self._changed = threading.Condition(threading.Lock())
        self._stalls: list[tuple[int, int]] = []
        self._seen_ns = 0
        self._ran_ns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    def add(self, process_id: int) -> None:
        """Watch one more process from now on."""
        tasks = f"/proc/{process_id}/task"
        if tasks not in self._tasks:
            self._tasks = [*self._tasks, tasks]

    def __enter__(self) -> Self:
        self._ran_ns = self._now_ns()
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        with self._changed:
            self._changed.notify_all()

    def stalled_ms(self, begin_ns: int, end_ns: int) -> float:
        """Return the milliseconds of host pauses between two times of the monotonic clock; overlaps count once."""
        with self._changed:
            first = bisect_right(self._stalls, begin_ns, key=lambda stall: stall[1])
            stalls = sorted((max(begin, begin_ns), min(end, end_ns)) for begin, end in self._stalls[first:])
        stalled_ns, counted_to = 0, begin_ns
        for begin, end in stalls:
            stalled_ns += max(0, end - max(begin, counted_to))
            counted_to = max(counted_to, end)
        return stalled_ns / 1e6

    def wait_seen(self, moment_ns: int) -> None:
        """Wait until every pause that ended before this time is recorded. Call this method only inside the block."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen_ns >= moment_ns or self._ended.is_set())

    def note_sleep(self, begin_ns: int, end_ns: int) -> None:
        """Record a sleep of at least `STALL_MS` as a pause."""
        if (end_ns - begin_ns) / 1e6 >= STALL_MS:
            self._note(begin_ns, end_ns)

    def note_wait(self, wait_ns: int, end_ns: int) -> None:
        """Record a wait for a processor as a pause if it took at least `WAIT_MS`."""
        if wait_ns / 1e6 >= WAIT_MS:
            self._note(end_ns - wait_ns, end_ns)

    def _note(self, begin_ns: int, end_ns: int) -> None:
        with self._changed:
            self._stalls.append((begin_ns, end_ns))

    def _run(self) -> None:
        look_ns = 0
        while not self._ended.is_set():
            time.sleep(self._sleep_s)
            end_ns = self._runs()
            if end_ns >= look_ns:
                look_ns = end_ns + int(LOOK_S * 1e9)
                self._look()
                with self._changed:
                    self._seen_ns = end_ns
                    self._changed.notify_all()

    def _runs(self) -> int:
        """Return the time, and record a pause if the last call of this method was long ago."""
        now_ns = self._now_ns()
        self.note_sleep(self._ran_ns, now_ns)
        self._ran_ns = now_ns
        return now_ns

    def _look(self) -> None:
        for tasks in self._tasks:
            # A thread, or the broker, may end between the listing and the read.
            with suppress(OSError):
                for thread in self._list_threads(tasks):
                    with suppress(OSError):
                        self._look_at(f"{tasks}/{thread}/schedstat", thread)

    def _look_at(self, path: str, thread: str) -> None:
        waited_ns = self._read_wait_ns(path)
        self.note_wait(waited_ns - self._waited_ns.get(thread, waited_ns), self._runs())
        self._waited_ns[thread] = waited_ns

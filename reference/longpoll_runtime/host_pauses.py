"""A control thread that tells when the machine, and not the broker, stood still.

It sleeps a millisecond at a time, and a sleep that took far longer shows that nothing ran in time. How long the
threads of load and broker waited for a processor, the kernel says itself. Both are stalls of the machine: on one that
does nothing else there would be none. Waiting for anything else, a disk or a lock, excuses nothing.

Source of the waits: Linux's `/proc/<process>/task/<thread>/schedstat`, second number, nanoseconds in the run
queue. It grows when a wait ends, so a wait is taken to lie just before the moment at which it was seen.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

SLEEP_S: Final = 0.001
STALL_MS: Final = 50.0
"""A sleep of a millisecond that takes longer is a stall; the interpreter's own turns take up to 5 ms a thread."""
WAIT_MS: Final = 2.0
"""A wait for a processor that counts; the kernel's turns are about as long."""
LOOK_S: Final = 0.005
"""How often the waits are looked at."""


SCHEDSTAT_SIZE_MAX: Final = 128
"""Bytes of three numbers."""


class HostPauseWatch:
    """Watches inside its block.

    Invariant: `_stalls` are in the order in which they ended, and hold those that ended before `_seen_ns`; all of it
    changes under `_changed`. `process_id` is the broker's; None watches the load alone. `sleep_s` is how long one sleep
    of the watch's own takes: less of a processor, and a later look, where it is longer.
    """

    def __init__(self, process_id: int | None = None, sleep_s: float = SLEEP_S) -> None:
        self._sleep_s = sleep_s
        self._tasks = [f"/proc/{each}/task" for each in (os.getpid(), process_id) if each is not None]
        self._waited_ns: dict[str, int] = {}
        self._changed = threading.Condition(threading.Lock())
        self._stalls: list[tuple[int, int]] = []
        self._seen_ns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    def add(self, process_id: int) -> None:
        """Watch one more process from now on."""
        tasks = f"/proc/{process_id}/task"
        if tasks not in self._tasks:
            self._tasks = [*self._tasks, tasks]

    def __enter__(self) -> Self:
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
        """How long the machine was seen to stand still between two moments of the monotonic clock."""
        with self._changed:
            stalls = sorted((max(begin, begin_ns), min(end, end_ns)) for begin, end in self._stalls)
        stalled_ns, counted_to = 0, begin_ns
        for begin, end in stalls:
            stalled_ns += max(0, end - max(begin, counted_to))
            counted_to = max(counted_to, end)
        return stalled_ns / 1e6

    def wait_seen(self, moment_ns: int) -> None:
        """Wait until every stall that ended before a moment has been noted; only inside the block."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen_ns >= moment_ns or self._ended.is_set())

    def note_sleep(self, begin_ns: int, end_ns: int) -> None:
        """Note a sleep; a short one is forgotten."""
        if (end_ns - begin_ns) / 1e6 >= STALL_MS:
            self._note(begin_ns, end_ns)

    def note_wait(self, wait_ns: int, end_ns: int) -> None:
        """Note a wait for a processor; a short one is forgotten."""
        if wait_ns / 1e6 >= WAIT_MS:
            self._note(end_ns - wait_ns, end_ns)

    def _note(self, begin_ns: int, end_ns: int) -> None:
        with self._changed:
            self._stalls.append((begin_ns, end_ns))

    def _run(self) -> None:
        look_ns = 0
        while not self._ended.is_set():
            begin_ns = time.monotonic_ns()
            time.sleep(self._sleep_s)
            end_ns = time.monotonic_ns()
            self.note_sleep(begin_ns, end_ns)
            if end_ns >= look_ns:
                look_ns = end_ns + int(LOOK_S * 1e9)
                self._look()
                with self._changed:
                    self._seen_ns = end_ns
                    self._changed.notify_all()

    def _look(self) -> None:
        """Note what each thread has waited since the last look."""
        for tasks in self._tasks:
            # A thread, or the broker, may end between the listing and the read.
            with suppress(OSError):
                for thread in os.listdir(tasks):  # noqa: PTH208 - a path is made many times a second
                    with suppress(OSError):
                        self._look_at(f"{tasks}/{thread}/schedstat", thread)

    def _look_at(self, path: str, thread: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            waited_ns = int(os.read(descriptor, SCHEDSTAT_SIZE_MAX).split()[1])
        finally:
            os.close(descriptor)
        self.note_wait(waited_ns - self._waited_ns.get(thread, waited_ns), time.monotonic_ns())
        self._waited_ns[thread] = waited_ns

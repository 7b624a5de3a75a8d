"""One thread that does things later: heartbeats, rebalance, retries.

Leaves out what is done; an action must not wait long, for the next ones wait for it.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable

from longpoll_runtime import Runtime
from longpoll_runtime.faults import KeepThread

log = logging.getLogger(__name__)


class Timer:
    """Runs actions at their time, one after the other, on a thread of its own.

    Invariant: `_entries` is a heap of (due_ns, number, action) and changes under `_changed`; numbers are unique, so
    actions are never compared.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._entries: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0
        self._is_closed = False
        self._thread = runtime.spawn(name, self._run)

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Run the action once after the delay; after `close` it is never run."""
        with self._changed:
            self._count += 1
            due_ns = self._runtime.monotonic_ns() + int(delay_s * 1e9)
            heapq.heappush(self._entries, (due_ns, self._count, action))
            self._changed.notify()

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Run the action after each period, also when it raised."""

        def run() -> None:
            try:
                action()
            finally:
                self.after(period_s, run)

        self.after(period_s, run)

    def close(self) -> None:
        """End the thread once the running action, which may be the caller, is finished; the others are dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if not self._thread.is_current():
            self._thread.join()

    def _run(self) -> None:
        while (action := self._take()) is not None:
            with KeepThread(log, "something that was due later failed"):
                action()

    def _take(self) -> Callable[[], object] | None:
        """Wait for the next action that is due; None once closed."""
        with self._changed:
            while not self._is_closed:
                if not self._entries:
                    self._changed.wait()
                    continue
                left_ns = self._entries[0][0] - self._runtime.monotonic_ns()
                if left_ns <= 0:
                    return heapq.heappop(self._entries)[2]
                self._changed.wait(left_ns / 1e9)
        return None

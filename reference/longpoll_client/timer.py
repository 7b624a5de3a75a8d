"""One thread that runs actions later: heartbeats, rebalance, retries. An action must not wait long."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable

from longpoll_client.errors import ClientError
from longpoll_runtime import Runtime, Thread
from longpoll_runtime.recoverable import KeepThread

log: logging.Logger = logging.getLogger(__name__)


class Timer:
    """Runs actions at their times, one after the other, on a thread that the first action starts.

    Invariant: `_entries` is a heap of (due_ns, number, action) and changes under `_changed`; numbers are unique, so
    actions are never compared. While there are entries, `_thread` exists; while `_is_ending`, there are none.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._entries: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0
        self._is_closed = self._is_ending = False
        self._name = name
        self._process_id = runtime.process_id()
        self._thread: Thread | None = None
        runtime.when_forked(self)

    def forked(self) -> None:
        """The thread is not here, and may have been in the middle of a change."""
        self._changed = self._runtime.condition()

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Run the action once after the delay; after `close` it is never run.

        Raises a ClientError when it is the first one and no thread can be started.
        """
        with self._changed:
            if self._is_ending:
                return
            if self._thread is None or self._process_id != self._runtime.process_id():
                # The first one, or the first of a forked process, which has not the thread.
                self._entries.clear()
                self._process_id = self._runtime.process_id()
                self._thread = started(self._runtime, self._name, self._run)
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
        self._is_closed = True
        self._end()

    def clear(self) -> None:
        """The same, but actions that come later are run: it is as if it were new. Not to be called by an action."""
        self._end()
        with self._changed:
            self._thread, self._is_ending = None, self._is_closed

    def _end(self) -> None:
        """End the thread, and drop what an action that runs still would have run later."""
        with self._changed:
            self._is_ending = True
            self._entries.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and not thread.is_current():
            thread.join()

    def _run(self) -> None:
        while (action := self._take()) is not None:
            with KeepThread(log, "something that was due later failed"):
                action()

    def _take(self) -> Callable[[], object] | None:
        """Wait for the next action that is due; None once it ends."""
        with self._changed:
            while not self._is_ending:
                if not self._entries:
                    self._changed.wait()
                    continue
                left_ns = self._entries[0][0] - self._runtime.monotonic_ns()
                if left_ns <= 0:
                    return heapq.heappop(self._entries)[2]
                self._changed.wait(left_ns / 1e9)
        return None


def started(runtime: Runtime, name: str, target: Callable[[], None]) -> Thread:
    """A new thread; raises a ClientError where the system has none left."""
    try:
        return runtime.spawn(name, target)
    except RuntimeError as error:
        raise ClientError(f"thread {name} cannot be started: {error}") from None

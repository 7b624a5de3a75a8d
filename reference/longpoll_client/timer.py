"""The background threads of a client: `Timer` runs actions later, `SingleFlight` runs blocking work once per key."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from longpoll_client.errors import ClientError, LifecycleError
from longpoll_runtime import Runtime, Thread
from longpoll_runtime.recoverable import ANYTHING, KeepThread
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)


class Timer:
    """Runs actions at their times, one after the other, on a thread that the first action starts.

    Invariant: `_entries` is a heap of (due_ns, number, action) and changes under `_changed`; numbers are unique, so
    actions are never compared. While `_entries` is not empty, `_thread` exists; while `_is_ending` is true, `_entries`
    is empty.
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
        """Replace the lock in the child process, because the parent's timer thread may have held it at the fork."""
        self._changed = self._runtime.condition()

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Run the action once after the delay; after `close` it is never run.

        Raises a ClientError if this is the first action and no thread can be started.
        """
        with self._changed:
            if self._is_ending:
                return
            if self._thread is None or self._process_id != self._runtime.process_id():
                # This is the first action, or the first in a forked process, where the thread does not exist.
                self._entries.clear()
                self._process_id = self._runtime.process_id()
                self._thread = started(self._runtime, self._name, self._run)
            self._count += 1
            due_ns = self._runtime.monotonic_ns() + int(delay_s * 1e9)
            heapq.heappush(self._entries, (due_ns, self._count, action))
            self._changed.notify()

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Run the action after each period, even after it raised an error."""

        def run() -> None:
            try:
                action()
            finally:
                self.after(period_s, run)

        self.after(period_s, run)

    def close(self) -> None:
        """End the thread after the running action, which may be the caller. Other actions are dropped."""
        self._is_closed = True
        self._end()

    def clear(self) -> None:
        """End the thread like `close`, but later calls of `after` start a new one. An action must not call `clear`."""
        self._end()
        with self._changed:
            self._thread, self._is_ending = None, self._is_closed

    def _end(self) -> None:
        """End the thread, and ignore actions that the running action adds."""
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
    """Start and return a new thread; raises a ClientError if the system can start no more threads."""
    try:
        return runtime.spawn(name, target)
    except RuntimeError as error:
        raise ClientError(f"thread {name} cannot be started: {error}") from None


WAIT_COUNT_MAX: Final = 32
"""Maximum number of keys whose work runs at the same time, while the work of other keys waits."""

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]
"""The key of blocking work: its kind, and an id."""
_Tell: TypeAlias = Callable[[Any], None]


class SingleFlight:
    """Runs blocking work on threads, once for each key, however many callers wait for it. Each callback is called once.

    Invariant: `_waiting` has the callbacks of each key whose work has not ended. `_queued` has the keys whose work has
    no thread yet. `_threads` maps numbers to at most `WAIT_COUNT_MAX` threads. All three change under `_lock`.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        """`name` is the name of the threads."""
        self._runtime = runtime
        self._name = name
        self._count = 0
        self._is_closed = False
        self.forked()
        runtime.when_forked(self)

    def forked(self) -> None:
        """Forget the threads and callbacks, which belong to the parent process."""
        self._lock = self._runtime.lock()
        self._waiting: dict[Key, list[_Tell]] = {}
        self._queued: deque[tuple[Key, Callable[[], object]]] = deque()
        self._threads: dict[int, Thread] = {}

    def wait(self, key: Key, work: Callable[[], T], tell: Callable[[T | LongpollError], None]) -> None:
        """Call `tell` on another thread with the result of `work`, or with the error that `work` raises.

        If work with this key is running, `tell` gets the result of that work instead. `tell` must return quickly and
        raise no error. The calling thread itself calls `tell` with a LifecycleError after the close, and with a
        ClientError if no thread can be started.
        """
        with self._lock:
            refused = _closed() if self._is_closed else None
            if refused is None:
                others = self._waiting.get(key)
                if others is not None:
                    others.append(tell)
                    return
                try:
                    self._waiting[key] = [tell]
                    self._queued.append((key, work))
                    refused = self._add_thread(key)
                except ANYTHING:
                    # Ctrl-C may have come before the thread started; the next call starts the work again.
                    self._waiting.pop(key, None)
                    self._queued = deque(queued for queued in self._queued if queued[0] != key)
                    raise
        if refused is not None:
            tell(refused)

    def _add_thread(self, key: Key) -> ClientError | None:
        """Start a thread for the work that was queued last, unless enough threads run. The caller holds the lock.

        Returns an error if no thread can be started and no other thread runs.
        """
        if len(self._threads) >= WAIT_COUNT_MAX:
            return None
        number = self._count = self._count + 1
        try:
            self._threads[number] = self._runtime.spawn(self._name, lambda: self._run(number))
        except RuntimeError as error:
            if self._threads:
                return None
            del self._waiting[key]
            self._queued.pop()
            return ClientError(f"nothing can wait for {' '.join(key)}: no thread can be started ({error})")
        return None

    def close(self) -> None:
        """Call the waiting callbacks with a LifecycleError, and wait for the end of all other threads."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = [tell for told in self._waiting.values() for tell in told], {}
            self._queued.clear()
            threads = list(self._threads.values())
        for tell in waiting:
            tell(_closed())
        for thread in threads:
            if not thread.is_current():
                thread.join()

    def _run(self, number: int) -> None:
        while (taken := self._take(number)) is not None:
            key, work = taken
            outcome: object
            try:
                outcome = work()
            except LongpollError as error:
                outcome = error
            except ANYTHING as error:
                outcome = ClientError(f"waiting for {' '.join(key)} failed: {error!r}")
            with self._lock:
                waiting = self._waiting.pop(key, [])
            for tell in waiting:
                with KeepThread(log, f"who waited for {' '.join(key)} failed at its outcome"):
                    tell(outcome)

    def _take(self, number: int) -> tuple[Key, Callable[[], object]] | None:
        with self._lock:
            if self._queued:
                return self._queued.popleft()
            self._threads.pop(number, None)
            return None


def _closed() -> ClientError:
    return LifecycleError("the client was closed during the wait")

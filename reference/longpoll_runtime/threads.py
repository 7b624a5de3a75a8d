"""Threads, locks and queues of the interpreter, and the handling of a thread that fails.

If a thread ends by an exception, its process could continue without serving: clients would wait, and a service manager
would notice nothing. Therefore `spawn` starts every thread, and a thread that ends by an exception ends the process,
with the traceback on stderr and exit code 70. An exception of a single request is caught and does not end its thread
(`longpoll_runtime.recoverable`).

Thread pools are built from threads and a queue, so that each pool has its own limit and refuses work in its own way
(`hold.pull_pool`).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from types import TracebackType
from typing import Final, Generic, NoReturn, TypeVar
from weakref import WeakSet

from attrs import define, field

from longpoll_runtime import Forked
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import ANYTHING

log = logging.getLogger(__name__)

T = TypeVar("T")
Died = Callable[[str, BaseException], None]
"""A function that gets the name of a failed thread and its exception."""
EXIT_THREAD_DIED: Final = 70
"""The exit code of a process in which a thread failed (`EX_SOFTWARE` of sysexits.h)."""


@define(slots=True, eq=False)
class RealEvent:
    """A flag that threads wait for.

    A `RealEvent` uses only locks of the interpreter, so Ctrl-C may interrupt a waiting thread at any time and no lock
    stays taken. In `threading.Event` a lock may stay taken, and the thread that sets the flag would then wait forever.
    Invariant: `_waiting` has one taken lock per waiting thread; `set` releases a lock before it removes the lock.
    """

    _is_set: bool = field(default=False, init=False)
    _waiting: deque[threading.Lock] = field(factory=deque, init=False)

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True
        while self._waiting:
            with suppress(IndexError):  # Another thread that sets the flag may have removed the last lock.
                woken = self._waiting[0]
                # Wake the thread before its lock is removed, so that an interrupt in between cannot leave the thread
                # asleep.
                with suppress(RuntimeError):  # Another thread has woken it.
                    woken.release()
                with suppress(ValueError):
                    self._waiting.remove(woken)

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; returns false after `timeout` seconds."""
        if self._is_set:
            return True
        woken = threading.Lock()
        woken.acquire()
        self._waiting.append(woken)
        is_woken = False
        # Another thread may have set the flag before this thread was in the list, so look again.
        is_set = self._is_set
        try:
            is_woken = not is_set and woken.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            if not is_woken:
                with suppress(ValueError):
                    self._waiting.remove(woken)
        return is_woken or is_set


class RealCondition(threading.Condition):
    """A condition whose lock is taken and released in one step of the interpreter, which Ctrl-C cannot interrupt.

    Ctrl-C interrupts only the main thread, which never calls `wait`, because `wait` can be interrupted halfway.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))  # Look the method up as the `with` statement does.
    __exit__ = property(attrgetter("_lock.__exit__"))  # Look the method up as the `with` statement does.


@define(slots=True, init=False, eq=False)
class RealQueue(Generic[T]):
    """A bounded queue between threads. Ctrl-C may interrupt a thread at any time without harm.

    A thread waits by acquiring a lock, the bell, and another thread rings the bell by releasing the lock. Therefore no
    list of waiters exists in which an interrupted thread could leave an entry. `SimpleQueue.get` of CPython up to 3.12
    is not sufficient: the call waits forever if it was woken for an item that another thread took, and its timeout has
    passed.

    Invariant, while `_lock` is free: if the queue has items, the bell is rung, or a thread that heard it is about to
    check for items. A thread that hears the bell and finds no item waits again.
    """

    _capacity: int
    _items: deque[T]
    _bell: threading.Lock
    _lock: threading.Lock

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self._capacity = capacity
        self._items = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._lock = threading.Lock()

    def offer(self, item: T) -> bool:
        """Append an item; returns false if the queue is full."""
        with self._lock:
            if len(self._items) >= self._capacity:
                return False
            # Ring before the item is added, because an interrupt between the two steps must not leave an item for which
            # no thread is woken.
            self._ring()
            self._items.append(item)
            return True

    def take(self, timeout: float | None = None) -> T | None:
        """Remove and return the first item, waiting up to `timeout` seconds; returns None if no item comes."""
        try:
            return self._take(timeout)
        except ANYTHING:
            # The thread was interrupted, perhaps after it heard the bell, so another thread must look for items.
            self._ring()
            raise

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """Remove and return the first item if `wanted` accepts it; otherwise None, without waiting."""
        with self._lock:
            return self._items.popleft() if self._items and wanted(self._items[0]) else None

    def _take(self, timeout: float | None) -> T | None:
        end_s = None if timeout is None else time.monotonic() + timeout
        has_heard = is_late = False
        while True:
            with self._lock:
                if self._items:
                    if has_heard and len(self._items) > 1:
                        self._ring()
                    return self._items.popleft()
            if is_late:
                return None
            has_heard = self._bell.acquire(timeout=-1 if end_s is None else max(0.0, end_s - time.monotonic()))
            is_late = not has_heard

    def _ring(self) -> None:
        """Wake a waiting thread, or the next thread that waits. A bell that is rung already stays rung."""
        if self._bell.locked():
            with suppress(RuntimeError):  # Another thread has rung the bell since.
                self._bell.release()

    def __len__(self) -> int:
        return len(self._items)


class _Supervised:
    """Reports an exception that ends its `with` block, including SystemExit."""

    def __init__(self, name: str, died: Died) -> None:
        self._name = name
        self._died = died

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._died(self._name, error)
        return True


class RealThread(threading.Thread):
    """A thread that knows whether it is the calling thread."""

    def is_current(self) -> bool:
        """Whether this is the calling thread."""
        return threading.current_thread() is self


def spawn(name: str, target: Callable[[], None], died: Died | None = None) -> RealThread:
    """Start a thread that does not keep the process alive; the caller joins it.

    If `target` raises an exception, `died` is called with the name and the exception, or the process ends if `died` is
    None.
    """

    def run() -> None:
        with _Supervised(name, died or end_process):
            target()

    thread = RealThread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def end_process(name: str, error: BaseException) -> NoReturn:
    """Log the failed thread and its exception, and end the process at once with exit code 70.

    Nothing is flushed or closed, because the thread may have left data incomplete; the next start recovers the store.
    """
    try:
        log.critical("thread %s has ended", name, extra=event("thread_died", thread=name, reason=repr(error)))
        told = "".join(traceback.format_exception(error))
        sys.stderr.write(
            f"longpoll: thread {name} has ended by a fault of the program, and so does the process.\n{told}"
        )
        sys.stderr.flush()
    finally:
        os._exit(EXIT_THREAD_DIED)


_told_of_forks: Final[WeakSet[Forked]] = WeakSet()
when_forked: Final = _told_of_forks.add
"""Calls an object's `forked` in each process that is forked from this one, as long as the object exists."""


def _forked() -> None:
    """Reset the registered objects. This function runs first in the new process, which has one thread."""
    for one in tuple(_told_of_forks):
        one.forked()


os.register_at_fork(after_in_child=_forked)

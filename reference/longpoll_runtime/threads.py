"""Threads, locks and queues as the interpreter has them, and what becomes of a thread that fails.

A thread whose work is gone leaves a process that lives and does nothing: clients wait, and a service manager sees
nothing wrong. So every thread is started here (`spawn`), and one that ends by an exception ends the process: the
traceback on stderr, exit code 70. What a single request raises is caught long before that
(`longpoll_runtime.recoverable`).

Leaves out thread pools: `service` builds them from threads and a queue, so that each has its own bound and refusal.
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

from longpoll_runtime.interface import Forked
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import ANYTHING

log = logging.getLogger(__name__)

T = TypeVar("T")
Died = Callable[[str, BaseException], None]
"""Told of a thread that ended by an exception: its name, and what it was."""
EXIT_THREAD_DIED: Final = 70
"""The exit code of a process of which a thread has died (`EX_SOFTWARE` of sysexits.h)."""


@define(slots=True, eq=False)
class RealEvent:
    """A flag that threads wait for.

    It is made of the interpreter's own locks alone: Ctrl-C may interrupt who waits at any moment and leaves none of
    them taken, as it does within `threading.Event`, where the one that sets the flag would then wait for ever.

    Invariant: `_waiting` has a lock, taken, for each thread that waits; none is taken out that was not given back.
    """

    _is_set: bool = field(default=False, init=False)
    _waiting: deque[threading.Lock] = field(factory=deque, init=False)

    def set(self) -> None:
        """Raise the flag."""
        self._is_set = True
        while self._waiting:
            with suppress(IndexError):  # another thread that sets it may have taken the last one
                woken = self._waiting[0]
                # Woken first and taken out then: an interrupt in between must not leave it asleep.
                with suppress(RuntimeError):  # another one has woken it
                    woken.release()
                with suppress(ValueError):
                    self._waiting.remove(woken)

    def clear(self) -> None:
        """Lower the flag."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; false after `timeout` seconds."""
        if self._is_set:
            return True
        woken = threading.Lock()
        woken.acquire()
        self._waiting.append(woken)
        is_woken = False
        # Who has set it before may have seen nobody wait.
        is_set = self._is_set
        try:
            is_woken = not is_set and woken.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            if not is_woken:
                with suppress(ValueError):
                    self._waiting.remove(woken)
        return is_woken or is_set


class RealCondition(threading.Condition):
    """A condition whose lock is taken and given back by the interpreter alone, so that Ctrl-C comes before or after.

    Only who waits may still be interrupted in between: a thread that may be, which is the main one, does not.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))  # looked up as a method would be
    __exit__ = property(attrgetter("_lock.__exit__"))  # looked up as a method would be


@define(slots=True, init=False, eq=False)
class RealQueue(Generic[T]):
    """A bounded queue between threads. As `RealEvent` it may be interrupted at any moment.

    Threads wait for a bell, a lock that is given back when it is rung, so that none which was interrupted is left in a
    list. `SimpleQueue.get` of CPython up to 3.12 would not do: it waits for ever where another thread takes what it was
    woken for and its time has passed by then.

    Invariant, while `_lock` is free: where there are items, the bell is rung, or heard by a thread that is about to
    look. It may be rung for nothing: who finds nothing waits on.
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
        """Add the item at the end; false when the queue is full."""
        with self._lock:
            if len(self._items) >= self._capacity:
                return False
            # First, for an interrupt in between must not leave an item that nobody is woken for.
            self._ring()
            self._items.append(item)
            return True

    def take(self, timeout: float | None = None) -> T | None:
        """The first item, waited for up to `timeout` seconds; None when none came."""
        try:
            return self._take(timeout)
        except ANYTHING:
            # Interrupted, perhaps after the bell was heard: somebody else is to look.
            self._ring()
            raise

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """The first item if it is wanted; None, at once, when it is not or there is none."""
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
        """Wake one that waits, or the next that will; nothing where the bell is rung already."""
        if self._bell.locked():
            with suppress(RuntimeError):  # another thread has rung it since
                self._bell.release()

    def __len__(self) -> int:
        return len(self._items)


class _Supervised:
    """Tells of whatever ends its block before the block's end, be it an exception or SystemExit."""

    def __init__(self, name: str, died: Died) -> None:
        self._name = name
        self._died = died

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._died(self._name, error)
        return True


class RealThread(threading.Thread):
    """A thread of the interpreter that can be asked whether it is the one that asks."""

    def is_current(self) -> bool:
        """Whether the caller runs on it."""
        return threading.current_thread() is self


def spawn(name: str, target: Callable[[], None], died: Died | None = None) -> RealThread:
    """Start a thread that does not keep the process alive by itself: the caller joins it.

    `died` is called with what `target` raises, whatever it is; without `died` the process ends.
    """

    def run() -> None:
        with _Supervised(name, died or end_process):
            target()

    thread = RealThread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def end_process(name: str, error: BaseException) -> NoReturn:
    """Say which thread has died of what, and end the process at once with exit code 70.

    Nothing is flushed or closed: the thread may have left anything half done, and the next start recovers the store.
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
"""Have something told, while somebody holds it, in each process that is forked from this one."""


def _forked() -> None:
    """In the new process, which has one thread, before it does anything else."""
    for one in tuple(_told_of_forks):
        one.forked()


os.register_at_fork(after_in_child=_forked)

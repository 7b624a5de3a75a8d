"""Threads, locks and queues as the interpreter has them, and what becomes of a thread that fails.

A thread whose work is gone leaves a process that lives and does nothing: clients wait, and a service manager sees
nothing wrong. So every thread is started here (`spawn`), and one that ends by an exception ends the process: the
traceback on stderr, exit code 70. What a single request raises is caught long before that (`longpoll_runtime.faults`).

Leaves out thread pools: `service` builds them from threads and a queue, so that each has its own bound and refusal.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, NoReturn, TypeVar

from attrs import define, field

from longpoll_runtime.logs import event

log = logging.getLogger(__name__)

T = TypeVar("T")
Died = Callable[[str, BaseException], None]
"""Told of a thread that ended by an exception: its name, and what it was."""
EXIT_THREAD_DIED: Final = 70
"""The exit code of a process of which a thread has died (`EX_SOFTWARE` of sysexits.h)."""


@define(slots=True, init=False, eq=False)
class RealQueue(Generic[T]):
    """A bounded queue between threads.

    Invariant: len(_items) <= _capacity; both change only under the condition's lock.
    """

    _capacity: int
    _items: deque[T] = field(factory=deque)
    _changed: threading.Condition = field(factory=threading.Condition)

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self._capacity = capacity
        self._items = deque()
        self._changed = threading.Condition(threading.Lock())

    def offer(self, item: T) -> bool:
        """Add the item at the end; false when the queue is full."""
        with self._changed:
            if len(self._items) >= self._capacity:
                return False
            self._items.append(item)
            self._changed.notify()
            return True

    def take(self, timeout: float | None = None) -> T | None:
        """The first item, waited for up to `timeout` seconds; None when none came."""
        with self._changed:
            if not self._changed.wait_for(self._items.__len__, timeout):
                return None
            return self._items.popleft()

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """The first item if it is wanted; None, at once, when it is not or there is none."""
        with self._changed:
            return self._items.popleft() if self._items and wanted(self._items[0]) else None

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

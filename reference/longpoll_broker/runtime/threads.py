"""Threads, locks and queues as the interpreter has them.

Leaves out thread pools: `service` builds them from threads and a queue, so that each has its own bound and refusal.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import define, field

T = TypeVar("T")


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


def spawn(name: str, target: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the process alive by itself: whoever starts it, joins it."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread

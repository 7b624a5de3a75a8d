"""A service with one thread that repeats rounds until it is stopped.

Threads that wait for work: see `hold.executors`, `send.group_commit`. Source: `ServiceThread.java`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from attrs import define, field

from longpoll_runtime import Event, Runtime, Thread


@define(slots=True, eq=False)
class ServiceThread(ABC):
    """One thread. Invariant: `_thread` exists from `start` on, and has ended after `stop`."""

    NAME: ClassVar[str]
    """The thread's name."""

    runtime: Runtime
    _stop: Event = field(init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stop = self.runtime.event()

    def start(self) -> None:
        """Start the thread."""
        self._thread = self.runtime.spawn(self.NAME, self._run)

    def stop(self) -> None:
        """End the thread, if it was started, and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Repeat rounds, waiting for `_stop` between them, until it is set."""

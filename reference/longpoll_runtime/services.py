"""Base classes of context managers that close or stop on exit, and of services with a thread (`ServiceThread.java`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from attrs import define, field

from longpoll_runtime import Event, Runtime, Thread


class _Ending(ABC):
    """Base class of objects that end on exit from their `with` block, even if the block fails."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    @abstractmethod
    def _leave(self) -> None: ...


class Closeable(_Ending):
    """Base class of objects that are closed on exit from their `with` block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close the object, which must not be used afterwards."""

    def _leave(self) -> None:
        self.close()


class Stoppable(_Ending):
    """Base class of objects that serve until they are stopped, at the latest on exit from their `with` block."""

    __slots__ = ()

    @abstractmethod
    def stop(self) -> object:
        """Stop serving; a second call does nothing."""

    def _leave(self) -> None:
        self.stop()


@define(slots=True, eq=False)
class ServiceThread(ABC):
    """Base class of services that do their work on their own thread.

    Invariant: `_thread` exists from `start` on, and has ended after `stop`.
    """

    NAME: ClassVar[str]
    """The name of the thread."""

    runtime: Runtime
    _stop: Event = field(init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stop = self.runtime.event()

    def start(self) -> None:
        """Start the thread."""
        self._thread = self.runtime.spawn(self.NAME, self._run)

    def stop(self) -> None:
        """End the thread, if it was started, and wait for its end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Repeat rounds of work until `_stop` is set, and wait for `_stop` between two rounds."""

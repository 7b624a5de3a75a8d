"""Base classes of context managers that close or stop on exit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class _Ending(ABC):
    """Ends on exit from its `with` block, even if the block fails."""

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
    """Closes on exit."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it; it must not be used afterwards."""

    def _leave(self) -> None:
        self.close()


class Stoppable(_Ending):
    """Serves until it is stopped."""

    __slots__ = ()

    @abstractmethod
    def stop(self) -> object:
        """Stop it; a second call does nothing."""

    def _leave(self) -> None:
        self.stop()

"""What ends with its `with` block.

Leaves out what closing and stopping do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class _Ending(ABC):
    """Something whose `with` block ends it, also when the block fails."""

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
    """Something that is closed."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """End it; nothing of it may be used afterwards."""

    def _leave(self) -> None:
        self.close()


class Stoppable(_Ending):
    """Something that serves until it is stopped."""

    __slots__ = ()

    @abstractmethod
    def stop(self) -> object:
        """End it; a second stop does nothing."""

    def _leave(self) -> None:
        self.stop()

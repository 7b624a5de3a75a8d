"""What is used of `greenlet`, typed: functions that stop in the middle and let another go on, on one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped] # its types are a package of their own


class Greenlet(Protocol):
    """A function under way. Its truth says whether it has begun and not ended."""

    parent: Greenlet
    """Who goes on when it ends."""

    def switch(self) -> object:
        """Let it go on, or begin; returns when somebody switches back."""
        ...

    def throw(self, error: type[BaseException]) -> object:
        """Raise in it, where it stands; returns when it ends or switches back."""
        ...

    def __bool__(self) -> bool: ...


def new_greenlet(run: Callable[[], None], parent: Greenlet | None = None) -> Greenlet:
    """One that runs this function once it is switched to, and then its parent goes on: the current one if not told."""
    return cast("Greenlet", greenlet(run, cast("Any", parent)))


def current_greenlet() -> Greenlet:
    """The one that runs."""
    return cast("Greenlet", getcurrent())

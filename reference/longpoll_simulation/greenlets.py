"""A typed subset of `greenlet`: functions that pause and let another continue, on one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped] # its types are a package of their own


class Greenlet(Protocol):
    """A running function. Its truth value says whether it has begun and not ended."""

    parent: Greenlet
    """Continues when this one ends."""

    def switch(self) -> object:
        """Continue or start it; returns when another greenlet switches back."""
        ...

    def throw(self, error: type[BaseException]) -> object:
        """Raise in it, at its current position; returns when it ends or switches back."""
        ...

    def __bool__(self) -> bool: ...


def new_greenlet(run: Callable[[], None], parent: Greenlet | None = None) -> Greenlet:
    """A greenlet that runs this function; its parent, by default the current one, continues afterwards."""
    return cast("Greenlet", greenlet(run, cast("Any", parent)))


def current_greenlet() -> Greenlet:
    """The running greenlet."""
    return cast("Greenlet", getcurrent())

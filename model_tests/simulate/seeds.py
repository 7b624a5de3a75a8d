"""Runs created from seeds, and the search for the first failing one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from longpoll_simulation.errors import StuckError
from longpoll_spec.errors import LongpollError

RAISED: Final = (
    AssertionError, StuckError, LongpollError, OSError, LookupError, AttributeError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""Exceptions of a failing run: failed checks, and errors of tables, files and clients that changed concurrently."""


class Run(Protocol):
    """A run created from a seed."""

    def play(self) -> None:
        """Run and check the result; raises on a fault."""
        ...


def first_fault(seeds: Iterable[int], make: Callable[[int], Run]) -> tuple[int, BaseException] | None:
    """Returns the first seed whose run fails, and its exception; None if none fails."""
    for seed in seeds:
        run = make(seed)
        try:
            run.play()
        except RAISED as error:
            return seed, error
    return None

"""Runs that are made of seeds, and the first of them that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from longpoll_simulation.errors import StuckError
from longpoll_spec.errors import LongpollError

RAISED: Final = (
    AssertionError, StuckError, LongpollError, OSError, LookupError, AttributeError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What a run that goes wrong ends with: what must hold, or what tables, files and clients raise that were changed
meanwhile."""


class Run(Protocol):
    """What a seed makes."""

    def play(self) -> None:
        """Let it run, and look; raises what is wrong."""
        ...


def first_fault(seeds: Iterable[int], make: Callable[[int], Run]) -> tuple[int, BaseException] | None:
    """The first seed whose run goes wrong, and how; None when none does."""
    for seed in seeds:
        run = make(seed)
        try:
            run.play()
        except RAISED as error:
            return seed, error
    return None

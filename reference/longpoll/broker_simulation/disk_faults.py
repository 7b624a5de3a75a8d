"""Injects errors and delays into the broker's file calls. Kills and power cuts: see `longpoll_simulation.disk`."""

from __future__ import annotations

import os
import random
from typing import Final

from attrs import define, field

from longpoll_simulation.files import ERRORS
from longpoll_simulation.world import World

SPARED: Final = frozenset({"exists", "remove"})
"""Calls that never fail: real files report no error for an existence check, and a queue's file that cannot be removed
would be taken for one of the next topic of that name.
"""
SLOW_CALLS: Final = frozenset({"sync", "write", "reserve", "create"})


@define(eq=False)
class DiskFaults:
    """Runs before every file call. Invariant: `last_ms` is when the last of `error_count` errors was raised."""

    world: World
    random: random.Random
    slow_ms_max: float = 0.0
    """The longest duration of a call that waits for the disk."""
    error_count: int = 0
    last_ms: float = float("-inf")
    spent_ms: float = 0.0
    """The total time that calls have waited."""
    told: set[str] = field(factory=set)
    """The texts of the errors."""
    _left: int = 0
    _where: str = ""

    def fail(self, count: int, where: str) -> None:
        """Make the next `count` calls fail whose path contains `where`."""
        self._left, self._where = count, where

    def before(self, operation: str, path: str) -> None:
        """Yield to other actors, wait, and fail, as planned. Raises OSError."""
        world = self.world
        world.point(operation, path)
        if world.over:
            return
        if self.slow_ms_max and operation in SLOW_CALLS:
            for_ms = self.random.random() * self.slow_ms_max
            self.spent_ms += for_ms
            world.wait([], f"{path}, of a slow disk", for_ms / 1000)
        if self._left and self._where in path and operation not in SPARED:
            self._left -= 1
            self.error_count += 1
            self.last_ms = world.now_ns / 1e6
            code = self.random.choice(ERRORS[operation])
            self.told.add(os.strerror(code))
            raise OSError(code, os.strerror(code), path)

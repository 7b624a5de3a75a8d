"""Injects errors and delays into the broker's file calls. Kills and power cuts: see `longpoll_simulation.disk`."""

from __future__ import annotations

import os
import random
from typing import Final

from attrs import define, field

from longpoll_simulation.files import ERRORS
from longpoll_simulation.world import World

SPARED: Final = frozenset({"exists", "remove"})
"""Calls that never fail: the real files tell of no error when asked whether a path exists, and a queue's file that
cannot be removed is taken for one of the next topic of that name."""
SLOW_CALLS: Final = frozenset({"sync", "write", "reserve", "create"})


@define(eq=False)
class DiskFaults:
    """Called before every call for a file. Invariant: `last_ms` is when the last of `error_count` errors was raised."""

    world: World
    random: random.Random
    slow_ms_max: float = 0.0
    """The longest that a call which waits for the disk takes."""
    error_count: int = 0
    last_ms: float = float("-inf")
    spent_ms: float = 0.0
    """How long calls have waited in all."""
    told: set[str] = field(factory=set)
    """What the errors said."""
    _left: int = 0
    _where: str = ""

    def fail(self, count: int, where: str) -> None:
        """Have the next `count` calls fail that are for a path with `where` in it."""
        self._left, self._where = count, where

    def before(self, operation: str, path: str) -> None:
        """A call comes: let others go on, wait, and fail, as planned. Raises OSError."""
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

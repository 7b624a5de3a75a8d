"""Stress runs created from seeds: actors that may be interrupted before every access of the tested code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from model_tests.support.simulation.runtime import SimulatedThread
from model_tests.support.simulation.strategies import FewSwitches

from longpoll_simulation.sync import SimulatedLock
from longpoll_simulation.world import Grain, LineTracing, StuckError, World
from longpoll_spec.errors import LongpollError

STEPS_MAX: Final = 200_000
"""Maximum points of a run; only an endless loop reaches it."""
FEW_SHARE: Final = 0.7
"""Share of runs with only a few switches; the others switch every few points."""


class Preemption:
    """One run, determined by its seed."""

    def __init__(
        self, seed: int, files: Iterable[str], grain: Grain = "access", *, few_share: float = FEW_SHARE
    ) -> None:
        self.random = random.Random(seed)
        """For other random choices of the run."""
        self.world = World(FewSwitches(seed, few_share=few_share), steps_max=STEPS_MAX)
        LineTracing.of(self.world, files, grain)

    @property
    def switches(self) -> int:
        """Number of switches away from the default order."""
        return len(self.world.turns)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self.world)

    def run(self, targets: dict[str, Callable[[], None]]) -> None:
        """Run the targets as actors to their ends; raises the first exception."""

        def main() -> None:
            actors = [self.world.spawn(name, target) for name, target in targets.items()]
            for actor in actors:
                SimulatedThread(self.world, actor).join()

        self.world.run(main)


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

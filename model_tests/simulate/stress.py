"""Stress runs created from seeds, in which an actor may be interrupted before every access of the tested code."""

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
"""Maximum number of scheduling points of a run. Only an endless loop reaches this number."""
FEW_SHARE: Final = 0.7
"""Share of runs with only a few switches between actors. The other runs switch every few scheduling points."""


class Preemption:
    def __init__(
        self, seed: int, files: Iterable[str], grain: Grain = "access", *, few_share: float = FEW_SHARE
    ) -> None:
        self.random = random.Random(seed)
        """The generator of the run's random choices other than its schedule."""
        self.world = World(FewSwitches(seed, few_share=few_share), steps_max=STEPS_MAX)
        LineTracing.of(self.world, files, grain)

    @property
    def switches(self) -> int:
        return len(self.world.turns)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self.world)

    def run(self, targets: dict[str, Callable[[], None]]) -> None:
        def main() -> None:
            actors = [self.world.spawn(name, target) for name, target in targets.items()]
            for actor in actors:
                SimulatedThread(self.world, actor).join()

        self.world.run(main)


RAISED: Final = (
    AssertionError, StuckError, LongpollError, OSError, LookupError, AttributeError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


class Run(Protocol):
    def play(self) -> None: ...


def first_fault(seeds: Iterable[int], make: Callable[[int], Run]) -> tuple[int, BaseException] | None:
    """Returns the first seed whose run fails, with the run's exception; None if no run fails."""
    for seed in seeds:
        run = make(seed)
        try:
            run.play()
        except RAISED as error:
            return seed, error
    return None

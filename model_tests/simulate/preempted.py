"""Actors with a point before every access of the code under test to what they share; a world of locks alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

from longpoll_simulation.line_tracing import Grain, LineTracing
from longpoll_simulation.strategies import FewSwitches
from longpoll_simulation.sync import SimulatedLock, SimulatedThread
from longpoll_simulation.world import World

STEPS_MAX: Final = 200_000
"""Points of a run; only one that turns in circles has so many."""
FEW_SHARE: Final = 0.7
"""How many runs have but a few switches; the others have one every few points."""


class Preemption:
    """One run. The same seed gives the same run."""

    def __init__(
        self, seed: int, files: Iterable[str], grain: Grain = "access", *, few_share: float = FEW_SHARE
    ) -> None:
        self.random = random.Random(seed)
        """For whatever else of the run is drawn."""
        self.world = World(FewSwitches(seed, few_share=few_share), steps_max=STEPS_MAX)
        LineTracing.of(self.world, files, grain)

    @property
    def switches(self) -> int:
        """How often another actor went on than the plain order has it."""
        return len(self.world.turns)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self.world)

    def run(self, targets: dict[str, Callable[[], None]]) -> None:
        """Run the targets, each as an actor, to their ends; raises what the first that failed raised."""

        def main() -> None:
            actors = [self.world.spawn(name, target) for name, target in targets.items()]
            for actor in actors:
                SimulatedThread(self.world, actor).join()

        self.world.run(main)

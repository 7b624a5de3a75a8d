"""Runs of the kit in virtual time: all threads are actors of one simulation, so no test waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Self, TypeVar

from hypothesis import Phase, settings
from model_tests.support.simulation.network import Network
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import RandomWalk

import longpoll
from longpoll_kit.example import Example
from longpoll_kit.history import History
from longpoll_kit.run import KitReport, Run
from longpoll_kit.subject import LongPollSubject
from longpoll_runtime import Runtime
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.real import RealRuntime
from longpoll_simulation.world import Strategy, World

FEW: Final = settings(max_examples=1, stateful_step_count=1, database=None, phases=(Phase.generate,))
SOME: Final = settings(FEW, max_examples=12, stateful_step_count=15)
SEED: Final = 14
Result = TypeVar("Result")
Make = Callable[[Runtime], LongPollSubject]


class NoPauses(HostPauseWatch):
    """The host pauses of a simulation, which has no pause unless a test adds one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing, because no monitor was started."""

    def wait_seen(self, moment_ns: int) -> None:
        """Do nothing, because every pause is seen at once."""


class VirtualExample(Example):
    """An example whose threads are greenlets, so a pause between two lines would pause all threads."""

    def preempt(self, queue: Any, payload: bytes, who: Any) -> str:
        """Switch at any point, as the simulation's strategy says."""
        return self.cross(queue, payload, rounds=4, gap_us=0) + f", as {who}"


def machine(make: Make, runtime: Runtime, watch: HostPauseWatch | None = None, **attributes: Any) -> Any:
    class Mine(longpoll.LongPollMachine):
        kind = VirtualExample

        @staticmethod
        def subject() -> LongPollSubject:
            return make(runtime)

        @classmethod
        def _new_run(cls, seed: int, history: History | None = None) -> Run:
            return Run(runtime, f"kit-{seed}", seed, history, watch=watch or NoPauses())

    for name, value in attributes.items():
        setattr(Mine, name, value)
    return Mine


def in_world(main: Callable[[Runtime], Result], strategy: Strategy | None = None) -> Result:
    world = World(strategy or Strategy(), steps_max=20_000_000)
    return world.run(lambda: main(SimulatedRuntime(Network(world), files=RealRuntime().files)))


def exercise(
    make: Make,
    chosen: settings = FEW,
    *,
    history: Callable[[Runtime], AbstractContextManager[History]] | None = None,
    watch: HostPauseWatch | None = None,
    seed: int | None = None,
    seconds: float | None = None,
    **attributes: Any,
) -> KitReport:
    """Return the kit's report on a service; with `seed` the threads are scheduled at random from this seed."""

    def main(runtime: Runtime) -> KitReport:
        mine = machine(make, runtime, watch, **attributes)
        with nullcontext() if history is None else history(runtime) as written:
            report: KitReport = mine.exercise(chosen, SEED, seconds=seconds, history=written)
        return report

    return in_world(main, None if seed is None else RandomWalk(seed))

"""A pool of threads with a bounded queue, switched between any two accesses of its code.

A seed chooses one or two threads with room for a few tasks, slow tasks, two or three threads that offer tasks, and the
stop. Each accepted task must either run once or be refused once as late; a rejected task does neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from attrs import define, field
from model_tests.simulate.preempted import Preemption

from longpoll_broker.hold import executors
from longpoll_broker.hold.executors import PoolExecutor
from longpoll_broker.io.channel import Outbox
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_simulation.network import Network
from longpoll_simulation.runtime import SimulatedRuntime

FILES: Final = (str(executors.__file__),)
LATE_MS: Final = 5
"""Maximum waiting time of a task."""
TAKES_S: Final = (0.0, 0.0, 0.002, 0.02)
"""Durations of tasks: the longest makes later tasks late."""
TASKS: Final = 3


@define(eq=False)
class Stage:
    """One run. Invariant: `ran` and `refused` count the outcomes of each pull."""

    seed: int
    preemption: Preemption = field(init=False)
    runtime: SimulatedRuntime = field(init=False)
    pool: PoolExecutor = field(init=False)
    taken: dict[str, bool] = field(factory=dict, init=False)
    """Whether the pool accepted each pull."""
    ran: Counter[str] = field(factory=Counter, init=False)
    refused: Counter[str] = field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self.preemption = Preemption(self.seed, FILES)
        self.runtime = SimulatedRuntime(Network(self.preemption.world), SimulatedFiles(Disk()))
        draw = self.preemption.random
        run: Any = self.run
        refuse: Any = self.refuse
        self.pool = PoolExecutor(self.runtime, run, refuse, draw.randint(1, 2), draw.choice((1, 2, 10)), LATE_MS)

    def run(self, pull: str, _cause: str, _outbox: Outbox) -> None:
        """Run a pull, which takes some time."""
        self.ran[pull] += 1
        self.runtime.sleep(self.preemption.random.choice(TAKES_S))

    def refuse(self, pull: str, _cause: str, _outbox: Outbox) -> None:
        self.refused[pull] += 1

    def offer(self, name: str) -> None:
        for number in range(TASKS):
            pull: Any = f"{name}-{number}"
            self.taken[pull] = self.pool.submit(pull, "woken", Outbox())
            self.runtime.sleep(self.preemption.random.choice(TAKES_S[1:3]))

    def play(self) -> None:
        """Run the actors, stop the pool and check the result; raises on a fault."""
        names = "abc"[: self.preemption.random.randint(2, 3)]
        actors: dict[str, Callable[[], None]] = {name: partial(self.offer, name) for name in names}

        def all_of_it() -> None:
            self.pool.start()
            threads = [self.runtime.spawn(name, target) for name, target in actors.items()]
            for thread in threads:
                thread.join()
            self.pool.stop()

        self.preemption.run({"owner": all_of_it})
        for pull, was_taken in self.taken.items():
            ends = self.ran[pull] + self.refused[pull]
            assert ends == was_taken, f"a pull that was {'taken' if was_taken else 'not taken'} has {ends} ends"

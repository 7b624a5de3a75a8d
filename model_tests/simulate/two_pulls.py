"""The smallest race: two pulls of one queue are held while a message arrives. One run has some dozens of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import define, field

from longpoll_broker.hold import hold_table as hold
from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import HELD, Pull
from longpoll_broker.io.channel import Outbox
from longpoll_broker.shared.filter.filters import tag_filter
from longpoll_simulation.line_tracing import Grain, LineTracing
from longpoll_simulation.lockstep import MemoryQueues
from longpoll_simulation.search import code_files
from longpoll_simulation.sync import SimulatedLock, SimulatedThread
from longpoll_simulation.world import Strategy, World
from longpoll_spec.policy import STRICT, Policy

KEY: Final = ("T", 0)
EVERYTHING: Final = tag_filter("*", None)
FILES: Final = tuple(
    path for path in code_files() if path.endswith(("hold_service.py", "hold_table.py", "notifier.py"))
)
assert str(hold.__file__) in FILES


@define(eq=False)
class TwoPulls:
    """One run. Invariant: `ran` has the released pulls."""

    world: World
    policy: Policy = STRICT
    queues: MemoryQueues = field(factory=MemoryQueues)
    ran: list[Pull] = field(factory=list)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self.world)

    def monotonic_ns(self) -> int:
        return self.world.now_ns

    def step(self, action: str) -> None:
        self.world.point(action)

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:
        self.ran.append(pull)
        return True

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Run pulls that one message woke: record them."""
        self.ran.extend(pulls)
        return ()

    def refuse(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        raise AssertionError(f"{pull} was refused")

    def play(self) -> None:
        """Hold two pulls and append one message; no pull may wait or run twice. Raises AssertionError."""
        runtime: Any = self
        service = HoldService(runtime, self.policy, self.queues, self, refuse=self.refuse, held_count_max=10)
        pulls = [Pull("c", number, "G", *KEY, 0, 32, 2, deadline_ms=1 << 50) for number in range(2)]

        def arrives() -> None:
            self.queues.append(KEY)
            service.notify(KEY, self.queues.make_visible(KEY), 0, Outbox())

        for pull in pulls:
            pull.filter = EVERYTHING

        def main() -> None:
            self.world.spawn("first", lambda: service.hold(pulls[0], Outbox()))
            message = self.world.spawn("message", arrives)
            service.hold(pulls[1], Outbox())
            for actor in (message, self.world.actors[1]):
                SimulatedThread(self.world, actor).join()

        self.world.run(main)
        service.assert_tidy()
        assert not [pull for pull in pulls if pull.phase is HELD], "a pull waits although there is a message for it"
        assert sorted(pull.opaque for pull in self.ran) == [0, 1], "a pull was run twice, or never"


def race(strategy: Strategy, policy: Policy = STRICT, grain: Grain | None = None) -> World:
    """Do one run with points at operations, or in the code too; returns the final state. Raises AssertionError."""
    world = World(strategy)
    if grain is not None:
        LineTracing.of(world, FILES, grain)
    TwoPulls(world, policy).play()
    return world

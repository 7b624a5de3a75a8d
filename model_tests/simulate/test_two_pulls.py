"""The smallest race: two pulls of one queue are held while a message arrives. One run has some dozens of points.

Under every strategy and granularity strict loses nothing, and a policy without recheck does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import pytest
from attrs import define, field
from model_tests.support.simulation.search import code_files
from model_tests.support.simulation.strategies import FewSwitches, Priorities, RandomWalk

from longpoll_broker.hold import hold_table as hold
from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import HELD, Pull
from longpoll_broker.io.channel import Outbox
from longpoll_broker.shared.filters import tag_filter
from longpoll_simulation.lockstep import MemoryQueues
from longpoll_simulation.sync import SimulatedLock, SimulatedThread
from longpoll_simulation.world import Grain, LineTracing, Strategy, World
from longpoll_spec.policy import STRICT, STRICT_CLONE, Policy

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


SEEDS: Final = range(150)
MANY: Final = 170_000
GRAINS: Final[tuple[Grain, ...]] = ("line", "access")
UNSAFE: Final = attrs.evolve(STRICT, name="unsafe", recheck_after_hold="none")
STRATEGIES: Final[dict[str, Callable[[int], Strategy]]] = {
    "walk": RandomWalk,
    "few": lambda seed: FewSwitches(seed, (15, 30)),
    "priorities": lambda seed: Priorities(seed, 3, 30),
}


def is_red(make: Callable[[int], Strategy], policy: Policy, grain: Grain | None = None) -> bool:
    """Whether some seed breaks an invariant."""
    for seed in SEEDS:
        try:
            race(make(seed), policy, grain)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_a_hold_needs_its_recheck(make: Callable[[int], Strategy]) -> None:
    """Every strategy finds the lost wakeup with points at operations only, and none finds a fault in strict."""
    assert is_red(make, UNSAFE)
    assert not is_red(make, STRICT)


@pytest.mark.parametrize("grain", ["line", "access"])
@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=["strict", "strict-clone"])
def test_from_line_to_line_nothing_is_lost(policy: Policy, grain: Grain) -> None:
    """Inside and outside of critical sections."""
    assert not is_red(lambda seed: FewSwitches(seed, (40, 120)), policy, grain)


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=["strict", "strict-clone"])
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_many_schedules_lose_nothing(make: Callable[[int], Strategy], policy: Policy) -> None:
    """A million in total, equally many per strategy and policy; one in ten at lines and accesses."""
    answered = [race(make(seed), policy) for seed in range(1_000, 1_000 + MANY)]
    for grain in GRAINS:
        answered += [race(FewSwitches(seed, (40, 120)), policy, grain) for seed in range(MANY // 20)]

    assert len(answered) == MANY + 2 * (MANY // 20)

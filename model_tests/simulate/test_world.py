"""The scheduler: its choices determine a run, time passes only if no actor can run, and a deadlock is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from model_tests.support.simulation import search
from model_tests.support.simulation.runtime import SimulatedThread
from model_tests.support.simulation.strategies import FewSwitches, Priorities, RandomWalk, Replay

from longpoll_simulation.sync import SimulatedCondition, SimulatedEvent, SimulatedLock
from longpoll_simulation.world import Grain, LineTracing, Strategy, StuckError, Turn, World

SEEDS: Final = range(200)
STRATEGIES: Final[dict[str, Callable[[int], Strategy]]] = {
    "walk": RandomWalk,
    "few": lambda seed: FewSwitches(seed, (12,)),
    "priorities": lambda seed: Priorities(seed, 3, 12),
}


def spawn_all(world: World, targets: dict[str, Callable[[], None]]) -> Callable[[], None]:
    def main() -> None:
        actors = [world.spawn(name, target) for name, target in targets.items()]
        for actor in actors:
            SimulatedThread(world, actor).join()

    return main


def assert_raised(flag: SimulatedEvent) -> None:
    assert flag.wait()


class Shared:
    def __init__(self) -> None:
        self.count = 0
        self.order: list[str] = []


def adding(world: World, shared: Shared, name: str, lock: SimulatedLock | None) -> Callable[[], None]:
    def once() -> None:
        seen = shared.count
        world.point("between")
        shared.count = seen + 1
        shared.order.append(name)

    def run() -> None:
        for _ in range(2):
            if lock is None:
                once()
            else:
                with lock:
                    once()

    return run


def added(strategy: Strategy, *, locked: bool) -> tuple[int, str, tuple[Turn, ...]]:
    world, shared = World(strategy), Shared()
    lock = SimulatedLock(world) if locked else None
    world.run(spawn_all(world, {name: adding(world, shared, name, lock) for name in "abc"}))
    return shared.count, "".join(shared.order), tuple(world.turns)


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_a_lock_prevents_lost_increments(make: Callable[[int], Strategy]) -> None:
    """With every strategy, some seed loses an increment without the lock, and no seed loses one with the lock."""
    assert all(added(make(seed), locked=True)[0] == 6 for seed in SEEDS)
    assert any(added(make(seed), locked=False)[0] < 6 for seed in SEEDS)


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_a_seed_determines_a_run_and_its_turns_replay_it(make: Callable[[int], Strategy]) -> None:
    """For every strategy, the recorded choices contain every difference from the default order."""
    for seed in range(40):
        run = added(make(seed), locked=False)
        assert added(make(seed), locked=False) == run
        assert added(Replay(run[2]), locked=False) == run
    assert len({added(make(seed), locked=True)[1] for seed in SEEDS}) > 5


def test_time_passes_only_if_no_actor_can_run() -> None:
    world = World(RandomWalk(1))
    woken: list[tuple[str, int]] = []

    def sleeping(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            world.wait([], "time", seconds)
            woken.append((name, (world.now_ns - begun_ns) // 1_000_000_000))

        return run

    begun_ns = world.now_ns
    world.run(spawn_all(world, {"day": sleeping("day", 86_400), "hour": sleeping("hour", 3600)}))

    assert woken == [("hour", 3600), ("day", 86_400)]


def test_a_deadlock_names_the_stuck_actors() -> None:
    """If all actors wait without a time limit, the error names the reason why each actor waits."""
    world = World(RandomWalk(1))

    with pytest.raises(StuckError, match="main waits for the end of reader; reader waits for a flag"):
        world.run(spawn_all(world, {"reader": lambda: assert_raised(SimulatedEvent(world))}))


@pytest.mark.parametrize("grain", ["operation", "line"])
def test_a_run_that_never_waits_is_ended(grain: str) -> None:
    """An actor with endless scheduling points, at operations or in its code, is stopped at the limit of the run."""
    world = World(RandomWalk(1), steps_max=500)
    if grain == "line":
        LineTracing.of(world, [__file__])

    def for_ever() -> None:
        while True:
            if grain == "operation":
                world.point("again")

    with pytest.raises(StuckError, match="no end after 500 steps"):
        world.run(for_ever)


def test_a_failure_ends_the_run_and_all_its_actors() -> None:
    world = World(Replay())
    ended: list[str] = []

    def waits() -> None:
        try:
            SimulatedEvent(world).wait()
        finally:
            ended.append("waits")

    def fails() -> None:
        raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        world.run(spawn_all(world, {"waits": waits, "fails": fails}))
    assert ended == ["waits"]


def test_an_early_notify_is_lost_and_detected() -> None:
    """If a waiter checks its condition outside the lock, some schedule never wakes it; inside, every one does."""

    def stuck(seed: int, *, looks_in_lock: bool) -> bool:
        world = World(RandomWalk(seed))
        condition, done = SimulatedCondition(world), Shared()

        def waits() -> None:
            if looks_in_lock:
                with condition:
                    while not done.count:
                        condition.wait()
                return
            while not done.count:
                with condition:
                    condition.wait()

        def tells() -> None:
            with condition:
                done.count = 1
                condition.notify()

        try:
            world.run(spawn_all(world, {"waits": waits, "tells": tells}))
        except StuckError:
            return True
        return False

    assert not any(stuck(seed, looks_in_lock=True) for seed in SEEDS)
    assert any(stuck(seed, looks_in_lock=False) for seed in SEEDS)


@pytest.mark.parametrize("grain", ["line", "access"])
def test_a_switch_may_come_between_a_read_and_a_write(grain: Grain) -> None:
    """`count += 1` on one line loses an increment only at the finer granularity. On two lines it does so at both."""

    def lost(seed: int, *, apart: bool) -> bool:
        world, shared = World(FewSwitches(seed, (10,))), Shared()
        LineTracing.of(world, [__file__], grain)

        def adds() -> None:
            if apart:
                seen = shared.count
                shared.count = seen + 1
            else:
                shared.count += 1

        world.run(spawn_all(world, {"a": adds, "b": adds}))
        return shared.count < 2

    assert any(lost(seed, apart=True) for seed in SEEDS)
    assert any(lost(seed, apart=False) for seed in SEEDS) == (grain == "access")


def test_the_release_of_a_lock_is_a_scheduling_point() -> None:
    """A value that an actor read under a lock may be outdated once the actor has released the lock."""

    def lost(seed: int) -> bool:
        world, shared = World(RandomWalk(seed)), Shared()
        lock = SimulatedLock(world)

        def adds() -> None:
            with lock:
                seen = shared.count
            shared.count = seen + 1

        world.run(spawn_all(world, {"a": adds, "b": adds}))
        return shared.count < 2

    assert any(lost(seed) for seed in SEEDS)


def test_a_failing_run_is_shrunk() -> None:
    """A random run that loses an increment shrinks to two switches: between a read and its write, and back."""
    seed = next(seed for seed in SEEDS if added(RandomWalk(seed), locked=False)[0] < 6)
    found = added(RandomWalk(seed), locked=False)[2]

    def fails(turns: object) -> tuple[Turn, ...] | None:
        count, _order, made = added(Replay(turns), locked=False)  # type: ignore[arg-type]
        return made if count < 6 else None

    short = search.shorten(found, fails)

    assert len(short) <= 2 < len(found)
    assert added(Replay(short), locked=False)[0] < 6

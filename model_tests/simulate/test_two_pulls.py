"""Two pulls and a message under every strategy and granularity: strict loses nothing, a policy without recheck does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import pytest
from model_tests.simulate.two_pulls import race

from longpoll_simulation.line_tracing import Grain
from longpoll_simulation.strategies import FewSwitches, Priorities, RandomWalk, WeightedWalk
from longpoll_simulation.world import Strategy
from longpoll_spec.policy import STRICT, STRICT_CLONE, Policy

SEEDS: Final = range(150)
MANY: Final = 125_000
GRAINS: Final[tuple[Grain, ...]] = ("line", "access")
UNSAFE: Final = attrs.evolve(STRICT, name="unsafe", recheck_after_hold="none")
STRATEGIES: Final[dict[str, Callable[[int], Strategy]]] = {
    "walk": RandomWalk,
    "few": lambda seed: FewSwitches(seed, (15, 30)),
    "priorities": lambda seed: Priorities(seed, 3, 30),
    "weighted": lambda seed: WeightedWalk(seed, {"main": 10, "first": 6, "message": 8}),
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

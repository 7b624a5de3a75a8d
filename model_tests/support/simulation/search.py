"""Runs one seed after another until a run fails, and shortens that run.

The runs are in `plan` and `run`, the command in `__main__`.

Source of the shortening: delta debugging (Zeller and Hildebrandt, IEEE TSE 2002), with halves, quarters and so on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeVar

from attrs import frozen
from model_tests.support.simulation.checker import PROMISES
from model_tests.support.simulation.plan import Grain, Plan, plan_of
from model_tests.support.simulation.run import Outcome, play
from model_tests.support.simulation.strategies import FewSwitches, Priorities, RandomWalk, Replay, WithPauses

from longpoll_broker import hold, io, rocketmq, send, shared, store, upkeep
from longpoll_simulation.world import Strategy, Turn
from longpoll_spec.policy import Policy, preset, with_knobs

T = TypeVar("T")
TRIES_MAX: Final = 2_000
"""Runs after which the shortest one found so far is accepted."""


def shorten(
    whole: Sequence[T], fails: Callable[[Sequence[T]], Sequence[T] | None], tries_max: int = TRIES_MAX
) -> list[T]:
    """A minimal set of parts that still fails: no single remaining part can be left out.

    `fails` runs with some of the parts, in order; it returns those that mattered if the run fails as before, otherwise
    None. After `tries_max` runs the result is the shortest found so far.
    """
    kept, parts, tries = list(whole), 2, 0
    while kept and tries < tries_max:
        size = max(len(kept) // parts, 1)
        for start in range(0, len(kept), size):
            tries += 1
            made = fails(kept[:start] + kept[start + size :])
            if made is not None and len(made) < len(kept):
                kept, parts = list(made), max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return kept


StrategyName = Literal["mixed", "walk", "few", "priorities", "plain"]
STRATEGIES: Final[tuple[StrategyName, ...]] = ("mixed", "walk", "few", "priorities", "plain")
LENGTHS: Final = (100, 1_000, 5_000)
"""The range of scheduling points for the few switches of a run."""
PAUSE_SHARE: Final = 0.4
"""The share of runs whose threads pause for a while."""
PAUSES_MAX: Final = 3
PAUSE_MS: Final = (3, 30)
DEPTH_MAX: Final = 4
SHORTENING_TRIES: Final = 400
"""The most runs for shortening one run."""


@frozen
class Settings:
    """The settings shared by all runs of a search."""

    policy_name: str = "strict"
    knobs: tuple[str, ...] = ()
    strategy: StrategyName = "mixed"
    grain: Grain = "operation"

    @property
    def policy(self) -> Policy:
        """The policy of the broker. Raises UnknownNameError and the like for an unknown name."""
        return with_knobs(preset(self.policy_name), self.knobs)


@frozen
class Failure:
    seed: int
    said: str
    kind: str
    turns: tuple[Turn, ...]
    found_turns: int
    """The number of its turns before it was shortened."""
    plan: Plan
    """The rest of the seed's plan."""


def strategy_of(name: StrategyName, seed: int) -> Strategy:
    """The strategy of a seed; `mixed` draws one of the others."""
    draw = random.Random(seed ^ 0x57A7)
    if name == "mixed":
        name = draw.choice(("walk", "few", "few", "priorities", "plain"))
    if name == "walk":
        return RandomWalk(seed)
    if name == "few":
        return FewSwitches(seed, LENGTHS)
    if name == "priorities":
        return Priorities(seed, draw.randint(1, DEPTH_MAX), draw.choice(LENGTHS))
    return Strategy()


def schedule_of(name: StrategyName, seed: int) -> Strategy:
    """The strategy of a seed with its pauses: most have none, because a paused thread's time excuses lateness."""
    strategy = strategy_of(name, seed)
    draw = random.Random(seed ^ 0x57A11)
    if draw.random() >= PAUSE_SHARE:
        return strategy
    return WithPauses(strategy, seed, draw.randint(1, PAUSES_MAX), draw.choice(LENGTHS), draw.choice(PAUSE_MS))


@cache
def code_files() -> tuple[str, ...]:
    """The files with scheduling points below operations: the broker's decisions, services and store."""
    found: list[str] = []
    for package in (hold, io, rocketmq, send, shared, store, upkeep):
        root = Path(str(package.__file__)).parent
        found += [str(path) for path in sorted(root.rglob("*.py"))]
    return tuple(found)


def one_run(settings: Settings, seed: int) -> Outcome:
    return _play(settings, plan_of(seed), schedule_of(settings.strategy, seed))


def search(
    settings: Settings,
    seeds: Iterable[int],
    told: Callable[[int, Outcome], bool] = lambda _seed, _outcome: True,
    *,
    promises: Sequence[str] = (),
) -> tuple[int, Outcome] | None:
    """The first seed whose run breaks a promise, and the result; None if none does.

    With `promises`, only these count, and errors that belong to no promise. `told` gets every other run; the search
    ends when it returns false.
    """
    for seed in seeds:
        outcome = one_run(settings, seed)
        if outcome.kind is not None and not (promises and outcome.kind in PROMISES and outcome.kind not in promises):
            return seed, outcome
        if not told(seed, outcome):
            return None
    return None


def explain(settings: Settings, seed: int, outcome: Outcome, *, tries_max: int = SHORTENING_TRIES) -> Failure:
    """Shorten a failed run, first its plan, then its turns."""
    assert outcome.failure is not None
    assert outcome.kind is not None
    whole = plan_of(seed)
    best: list[Outcome] = [outcome]

    def fails_without(left_out: Sequence[int]) -> bool:
        plan = whole.without(left_out)
        # With fewer actions the same turns seldom fit, so the strategy is also run again.
        for strategy in (Replay(best[0].turns), schedule_of(settings.strategy, seed), Strategy()):
            again = _play(settings, plan, strategy)
            if again.kind == outcome.kind:
                best[0] = again
                return True
        return False

    kept = shorten(
        range(whole.part_count),
        lambda parts: parts if fails_without(sorted(set(range(whole.part_count)) - set(parts))) else None,
        tries_max // 2,
    )
    left_out = tuple(sorted(set(range(whole.part_count)) - set(kept)))
    plan = whole.without(left_out)

    def fails(turns: Sequence[Turn]) -> Sequence[Turn] | None:
        again = replayed(settings, plan, turns)
        return again.turns if again.kind == outcome.kind else None

    turns = tuple(shorten(best[0].turns, fails, tries_max // 2))
    last = replayed(settings, plan, turns)
    return Failure(seed, last.failure or outcome.failure, outcome.kind, turns, len(outcome.turns), plan)


def replayed(settings: Settings, plan: Plan, turns: Sequence[Turn]) -> Outcome:
    """A run of a plan with these turns."""
    return _play(settings, plan, Replay(turns))


def _play(settings: Settings, plan: Plan, strategy: Strategy) -> Outcome:
    files = code_files() if settings.grain != "operation" else ()
    return play(plan, settings.policy, strategy, grain=settings.grain, files=files)

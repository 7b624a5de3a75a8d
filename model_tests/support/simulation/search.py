"""Runs one seed after another until a run fails, and shortens the failing run.

The runs are in `plan` and `run`, and the command is in `__main__`.

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
"""The number of runs after which the shortest failing run so far is the result."""


def shorten(
    whole: Sequence[T], fails: Callable[[Sequence[T]], Sequence[T] | None], tries_max: int = TRIES_MAX
) -> list[T]:
    """Returns a minimal list of parts that still fails, so that no single part can be left out.

    `fails` runs with some of the parts, in order. If the run fails as before, `fails` returns the parts that mattered;
    otherwise it returns None. After `tries_max` runs the result is the shortest list found so far.
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
"""Each run draws one of these numbers, and its few switches occur within as many first scheduling points."""
PAUSE_SHARE: Final = 0.4
"""The share of runs in which threads pause."""
PAUSES_MAX: Final = 3
PAUSE_MS: Final = (3, 30)
DEPTH_MAX: Final = 4
SHORTENING_TRIES: Final = 400
"""The maximum number of runs to shorten one failing run."""


@frozen
class Settings:
    """The settings shared by all runs of a search."""

    policy_name: str = "strict"
    knobs: tuple[str, ...] = ()
    strategy: StrategyName = "mixed"
    grain: Grain = "operation"

    @property
    def policy(self) -> Policy:
        """Returns the policy of the broker. Raises UnknownNameError for an unknown name of a preset or knob."""
        return with_knobs(preset(self.policy_name), self.knobs)


@frozen
class Failure:
    seed: int
    said: str
    kind: str
    turns: tuple[Turn, ...]
    found_turns: int
    """The number of the run's scheduling choices that differ from the default order, before the run was shortened."""
    plan: Plan
    """The seed's plan without the actions and faults that the failure does not need."""


def strategy_of(name: StrategyName, seed: int) -> Strategy:
    """Returns the strategy for a seed; `mixed` draws one of the other strategies."""
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
    """Returns the strategy for a seed, with pauses in some runs.

    Most runs have no pauses, because lateness during a pause does not count as a failure.
    """
    strategy = strategy_of(name, seed)
    draw = random.Random(seed ^ 0x57A11)
    if draw.random() >= PAUSE_SHARE:
        return strategy
    return WithPauses(strategy, seed, draw.randint(1, PAUSES_MAX), draw.choice(LENGTHS), draw.choice(PAUSE_MS))


@cache
def code_files() -> tuple[str, ...]:
    """Returns the files of the broker in which actors may be interrupted at lines or accesses."""
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
    """Returns the first seed whose run breaks a promise, with the run's outcome; None if no run does.

    If `promises` is given, other broken promises do not count, but errors that belong to no promise do. `told` is
    called after every other run, and the search ends when it returns false.
    """
    for seed in seeds:
        outcome = one_run(settings, seed)
        if outcome.kind is not None and not (promises and outcome.kind in PROMISES and outcome.kind not in promises):
            return seed, outcome
        if not told(seed, outcome):
            return None
    return None


def explain(settings: Settings, seed: int, outcome: Outcome, *, tries_max: int = SHORTENING_TRIES) -> Failure:
    """Shorten a failed run: first its plan, then its scheduling choices."""
    assert outcome.failure is not None
    assert outcome.kind is not None
    whole = plan_of(seed)
    best: list[Outcome] = [outcome]

    def fails_without(left_out: Sequence[int]) -> bool:
        plan = whole.without(left_out)
        # The recorded scheduling choices seldom fit a plan with fewer actions, so the seed's strategy is also tried.
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
    """Run a plan with the recorded scheduling choices `turns`."""
    return _play(settings, plan, Replay(turns))


def _play(settings: Settings, plan: Plan, strategy: Strategy) -> Outcome:
    files = code_files() if settings.grain != "operation" else ()
    return play(plan, settings.policy, strategy, grain=settings.grain, files=files)

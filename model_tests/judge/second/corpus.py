"""Chooses simulated brokers and their observers from a seed."""

from __future__ import annotations

import random
from typing import Any

from model_tests.judge.second.observer import Sight
from model_tests.judge.second.parts import Plan

ORDERLY: tuple[Plan, ...] = (
    Plan(0, commits=0, jumps=0),
    Plan(0),
    Plan(0, closes=0.05, retention=0.05),
    Plan(0, refusals=0.05, jumps=0.15),
    Plan(0, brokers=2, events=60),
    Plan(0, lives=2, kills=0.0),
    Plan(0, deletions=0.08),
    Plan(0, hidden=0.07, undecided=0.05),
)
"""Plans in which the broker loses nothing; the last plan has unknown values, including tags."""


def calm(seed: int, events: int) -> tuple[Plan, Sight]:
    chance = random.Random(f"{seed} calm")
    plan = chance.choice(ORDERLY)
    return plan.of(seed, events), Sight(inside=seed % 2 == 0)


def troubled(seed: int, events: int) -> tuple[Plan, Sight]:
    """Return a correct broker and its observer, with one random disturbance or with all disturbances.

    With a cut record, gaps or a clock that was set back, only the verdict `unknown` is possible, so these disturbances
    test for false positives. The other disturbances are deletions, restarts and the like.
    """
    chance = random.Random(f"{seed} troubled")
    share = chance.choice((0.1, 0.3, 0.6))

    def perhaps(*ways: Any) -> Any:
        return chance.choice(ways) if chance.random() < share else type(ways[0])()

    inside = chance.random() < 0.5
    plan = Plan(
        seed,
        events,
        brokers=1 + perhaps(1),
        lives=1 + perhaps(1, 2),
        kills=perhaps(0.6, 1.0),
        deletions=perhaps(0.1, 0.2),
        retention=perhaps(0.1),
        closes=perhaps(0.1),
        blocks=0.0 if inside else perhaps(0.1),
        jumps=perhaps(0.05, 0.2),
        refusals=perhaps(0.1),
        hidden=perhaps(0.07),
        undecided=perhaps(0.05),
        lossy_kills=perhaps(True),
        policy="" if chance.random() < share else "strict",
    )
    sight = Sight(
        inside=inside,
        tail_lost=perhaps(1, 12),
        holes=perhaps(1, 1, 3),
        steps=perhaps(1, 2),
        offset_is_wrong=perhaps(True),
        ends_early=perhaps(True),
    )
    return plan, sight

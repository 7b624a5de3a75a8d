"""Which worlds are looked at, and how they are seen: a function of a seed.

Leaves out what happens in them (`world`) and what is written down (`observer`).
"""

from __future__ import annotations

import random

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
)
"""What a broker goes through without anybody's losing anything."""


def calm(seed: int, events: int) -> tuple[Plan, Sight]:
    """A correct broker, wholly seen: from inside and from outside in turns."""
    chance = random.Random(f"{seed} calm")
    plan = chance.choice(ORDERLY)
    return plan.of(seed, events), Sight(inside=seed % 2 == 0)


def troubled(seed: int, events: int) -> tuple[Plan, Sight]:
    """A correct broker with everything that may befall it and its observer."""
    chance = random.Random(f"{seed} troubled")

    def seldom(most: float) -> float:
        return chance.choice((0.0, 0.0, most))

    inside = chance.random() < 0.5
    plan = Plan(
        seed,
        events,
        brokers=chance.choice((1, 1, 2)),
        lives=chance.choice((1, 2, 3)),
        deletions=seldom(0.1),
        retention=seldom(0.1),
        closes=seldom(0.1),
        blocks=0.0 if inside else seldom(0.1),
        jumps=seldom(0.2),
        refusals=seldom(0.1),
        lossy_kills=chance.random() < 0.3,
        policy=chance.choice(("strict", "")),
    )
    sight = Sight(
        inside=inside,
        tail_lost=chance.choice((0, 12)),
        holes=chance.choice((0, 0, 1, 3)),
        steps=chance.choice((0, 0, 1, 2)),
        offset_is_wrong=chance.random() < 0.5,
        ends_early=chance.random() < 0.2,
    )
    return plan, sight

"""Tries schedules of the hold service: all (`explore`), or random ones (`wander`). `lockstep` checks each step."""

from __future__ import annotations

import random
from collections import Counter

from attrs import define, field

from longpoll.broker_simulation.refinement.lockstep import Lockstep, Move, remembered, run
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, successors
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of


@define
class Explored:
    """The results of trying schedules."""

    places: int = 0
    moves: Counter[str] = field(factory=Counter)
    states: set[Packed] = field(factory=set)
    """The specification's states reached between two moves."""
    law: Counter[str] = field(factory=Counter)
    """The specification's actions that occurred."""
    lost: dict[str, tuple[Move, ...]] = field(factory=dict)
    """How a wakeup was lost -> the shortest schedule seen that does so."""
    late_ms: int = 0
    """The longest time that a pull was held past its deadline."""
    dropped: tuple[Move, ...] | None = None
    """The shortest schedule seen in which a full executor drops a pull."""

    def note(self, world: Lockstep, path: tuple[Move, ...]) -> None:
        """Record the losses in this state."""
        for way in world.ways_lost():
            if way not in self.lost or len(path) < len(self.lost[way]):
                self.lost[way] = path
        self.late_ms = max(self.late_ms, *map(world.late_ms, world.slots))
        if any(slot.dropped for slot in world.slots) and (self.dropped is None or len(path) < len(self.dropped)):
            self.dropped = path


def explore(policy: Policy, bounds: Bounds, *, rejects: bool = False, faults: bool = False) -> Explored:
    """Try every schedule; of two that lead to the same place only one continues.

    With `rejects` the executor may become full at any time. With `faults` the broker may stop and a notifier's check
    may throw.
    """
    model = specification_of(policy, bounds)
    law = remembered(successors(model))
    found = Explored()
    seen: set[tuple[object, ...]] = set()
    waiting: list[tuple[Move, ...]] = [()]
    while waiting:
        path = waiting.pop()
        with run(model, law, rejects=rejects, faults=faults) as world:
            for move in path:
                world.do(move)
            while (place := world.place()) not in seen:
                seen.add(place)
                found.states.add(world.state)
                found.note(world, path)
                moves = world.moves()
                if not moves:
                    break
                waiting += [(*path, move) for move in moves[1:]]
                found.moves.update(kind for kind, _number in moves)
                world.do(moves[0])
                path = (*path, moves[0])
            found.law.update(world.done)
    found.places = len(seen)
    return found


def wander(policy: Policy, bounds: Bounds, *, seed: int, runs: int, moves: int) -> Explored:
    """Try random schedules."""
    model = specification_of(policy, bounds)
    law = remembered(successors(model))
    draw = random.Random(seed)
    found = Explored()
    for _ in range(runs):
        path: tuple[Move, ...] = ()
        with run(model, law) as world:
            for _ in range(moves):
                choices = world.moves()
                if not choices:
                    break
                path = (*path, draw.choice(choices))
                world.do(path[-1])
                found.moves[path[-1][0]] += 1
                found.note(world, path)
            found.law.update(world.done)
    return found

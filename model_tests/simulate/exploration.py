"""Compares schedules of the hold service with the specification: all (`explore`) or random ones (`wander`).

`coverage_of` reports how many states the schedules reach under tiny bounds. A state that no schedule reaches has one of
the `REASONS`; a state without a reason is a gap in the schedules or the code.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.hold.hold_table import HELD
from longpoll_simulation.lockstep import KEY, Lockstep, Move, remembered, run
from longpoll_simulation.refinement import collected_errors
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, successors
from longpoll_spec.model import Model
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of
from longpoll_spec.state import DUE, IDLE, WALKING

NOTIFIERS: Final = ("dispatcher", "scanner")
REASONS: Final = {
    "in one": "the code traverses a bucket in place under one lock: the steps in between are not observable",
    "stopped": "a broker's stop waits for its notifiers to end; the specification's does not",
    "empty": "the code skips an empty bucket without a step; in the specification its traversal is due",
    "together": "the clock releases all due pulls at once, the specification one after another",
    "behind": "a state that only one of these leads to",
}
"""Maps the name of each reason to the explanation why no schedule reaches some states of the specification."""


def ways_lost(world: Lockstep) -> set[str]:
    """Return the actions (hold or keep) after which a pull waits for its deadline although a message is readable."""
    end = world.queues.visible_end(*KEY)
    held = [slot.pull for slot in world.slots if slot.pull is not None and slot.pull.phase is HELD]
    waiting = [pull for pull in held if pull.offset < end]
    if not waiting or not {kind for kind, _number in world.moves()} <= {"tick", "append", "next_pull"}:
        return set()
    return {world.held_by[pull] for pull in waiting}


@define
class Explored:
    places: int = 0
    moves: Counter[str] = field(factory=Counter)
    states: set[Packed] = field(factory=set)
    law: Counter[str] = field(factory=Counter)
    lost: dict[str, tuple[Move, ...]] = field(factory=dict)
    late_ms: int = 0
    """The longest time in ms that a pull was held past its deadline."""
    dropped: tuple[Move, ...] | None = None

    def note(self, world: Lockstep, path: tuple[Move, ...]) -> None:
        for way in ways_lost(world):
            if way not in self.lost or len(path) < len(self.lost[way]):
                self.lost[way] = path
        self.late_ms = max(self.late_ms, *map(world.late_ms, world.slots))
        if any(slot.dropped for slot in world.slots) and (self.dropped is None or len(path) < len(self.dropped)):
            self.dropped = path


def explore(policy: Policy, bounds: Bounds, *, rejects: bool = False, faults: bool = False) -> Explored:
    """Try every schedule. If two schedules reach the same state, only one of them continues.

    With `rejects` the executor may become full at any time. With `faults` the broker may stop, and the check of a
    notifier may raise an exception.
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


@frozen
class Coverage:
    policy: str
    states: int
    of: int
    unreached: Counter[str]
    """Maps each reason, or "" if the reason is unknown, to the number of states that no schedule reached."""


def coverage_of(policy: Policy, bounds: Bounds) -> Coverage:
    model = specification_of(policy, bounds)
    with collected_errors():
        seen = explore(policy, bounds, rejects=True, faults=True).states
    every = _graph(model, lambda _state: True)
    beyond = _graph(model, lambda state: why_not(model, state) is None)
    assert seen <= every, "the code reached a state that the specification never does"
    unreached = Counter(why_not(model, state) or ("" if state in beyond else "behind") for state in every - seen)
    return Coverage(policy.name, len(seen), len(every), unreached)


def why_not(model: Model, state: Packed) -> str | None:
    values = dict(zip((variable.name for variable in model.variables), state, strict=True))
    at = [values[name] for name in NOTIFIERS]
    if model.policy.take == "in_place" and WALKING in at:
        return "in one"
    if not values["running"] and any(place != IDLE for place in at):
        return "stopped"
    held = model.state.phases["held"]
    nobody = all(value != held for name, value in values.items() if name.startswith("phase_"))
    if model.policy.empty_shortcut and DUE in at and nobody:
        return "empty"
    return "together" if model.policy.expiry == "own_deadline" and _lets_go_of_one(model, values) else None


def _lets_go_of_one(model: Model, values: Mapping[str, int]) -> bool:
    """Whether one pull is still held and another is already queued after both deadlines have passed."""
    due = [
        name.removeprefix("deadline_") for name, value in values.items() if name.startswith("deadline_") and not value
    ]
    phases = {values[f"phase_{number}"] for number in due}
    return {model.state.phases["held"], model.state.phases["queued"]} <= phases


def _graph(model: Model, allowed: Callable[[Packed], bool]) -> set[Packed]:
    law = successors(model)
    found, edge = {model.initial}, [model.initial]
    while edge:
        for _index, after in law(edge.pop()):
            if after not in found and allowed(after):
                found.add(after)
                edge.append(after)
    return found

"""Schedules of the hold service next to the specification: all, random ones, or those of one run. See `lockstep`.

`follow` turns a counterexample of the specification into a schedule. The code has a coarser granularity, so one move
may take several steps of the run, or none. The search tries every schedule that stays on the run until one reaches its
end. Features without a counterpart here: more queues, tags, channels, commits, crashes, roles.

`coverage_of` reports how many states the schedules reach under tiny bounds. A state that none reaches has one of the
`REASONS`; a state without a reason is a gap in the schedules or the code.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from longpoll_simulation.lockstep import STEPS_MAX, Lockstep, Move, remembered, run
from longpoll_simulation.run import collected_errors
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, Successors, successors
from longpoll_spec.errors import SpecUserError
from longpoll_spec.model import Action, Model, Trace, TraceStep
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of
from longpoll_spec.state import DUE, IDLE, WALKING


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


SILENT_MAX: Final = 4
"""The most consecutive moves without a step of the specification: a thread starts, an executor becomes full."""


class NotReplayableError(SpecUserError):
    """A run that this world cannot follow; the text gives the reason."""


class NotASpecificationStepError(Exception):
    """The code under test took a step that the specification does not allow; the text describes it."""


@frozen
class Replayed:
    """How far a run could be followed."""

    moves: tuple[Move, ...]
    """The schedule, as far as it went."""
    steps: int
    """The number of the run's steps that it took."""
    of: int
    """The number of the run's steps."""
    told: tuple[str, ...]
    """Each move in words, with its steps of the specification."""

    @property
    def is_whole(self) -> bool:
        """Whether the code followed the whole run."""
        return self.steps == self.of


def refuse_unknown(model: Model) -> None:
    """Raise NotReplayableError for a model with features that the world lacks."""
    bounds = model.bounds
    unknown = [*bounds.aspects]
    if bounds.queues > 1 or bounds.tags > 1:
        unknown.append("several queues or tags")
    if unknown:
        raise NotReplayableError(
            f"this run uses {', '.join(unknown)}, but this simulation has only one plain queue; use a token from "
            "`longpoll check` without --aspect, --queues and --tags"
        )


def follow(trace: Trace) -> Replayed:
    """The schedule of the hold service that goes furthest along a run of its policy.

    Raises NotReplayableError, and NotASpecificationStepError.
    """
    refuse_unknown(trace.model)
    states = [step.state for step in trace.steps]
    law = remembered(successors(trace.model))
    try:
        with collected_errors():
            moves = _furthest(trace.model, law, states)
            return _told(trace, law, states, moves)
    except AssertionError as error:
        said = f"the code of {trace.model.policy.name} took a step that its specification does not allow: {error}"
        raise NotASpecificationStepError(said) from error


def _furthest(model: Model, law: Successors, states: Sequence[Packed]) -> tuple[Move, ...]:
    """Depth first, trying the moves with most steps first."""
    best: tuple[int, tuple[Move, ...]] = (0, ())
    seen: set[object] = set()
    waiting: list[tuple[int, int, tuple[Move, ...]]] = [(0, 0, ())]
    while waiting:
        done, silent, path = waiting.pop()
        if done > best[0]:
            best = (done, path)
        if done == len(states) - 1:
            return path
        found = []
        for move in _moves_after(model, law, path):
            with run(model, law, rejects=True, faults=True) as world:
                for each in (*path, move):
                    world.do(each)
                after = _place_on(states, done, world.state)
                key = (after, world.place(), world.full, world.throws)
                if after is None or key in seen or (after == done and silent == SILENT_MAX):
                    continue
                seen.add(key)
                found.append((after, silent + 1 if after == done else 0, (*path, move)))
        waiting += sorted(found, key=lambda one: one[0])
    return best[1]


def _moves_after(model: Model, law: Successors, path: Sequence[Move]) -> list[Move]:
    with run(model, law, rejects=True, faults=True) as world:
        for move in path:
            world.do(move)
        return world.moves()


def _place_on(states: Sequence[Packed], done: int, state: Packed) -> int | None:
    """The number of the run's steps taken when the specification is in this state; None if it has left the run."""
    for place in range(done, min(done + STEPS_MAX + 1, len(states))):
        if states[place] == state:
            return place
    return None


def _told(trace: Trace, law: Successors, states: Sequence[Packed], moves: Sequence[Move]) -> Replayed:
    """Replay a schedule and describe each move."""
    said: list[str] = []
    done = 0
    with run(trace.model, law, rejects=True, faults=True) as world:
        for move in moves:
            words = _words(world, move)
            world.do(move)
            before, done = done, _place_on(states, done, world.state) or 0
            made = [named(step.action) for step in trace.steps[before + 1 : done + 1] if step.action is not None]
            said.append(f"{words}: {', '.join(made)}" if made else words)
    return Replayed(tuple(moves), done, len(states) - 1, tuple(said))


def named(action: Action) -> str:
    """An action with its actor: `hold 0`."""
    return " ".join((action.name, *map(str, action.actors)))


def _words(world: Lockstep, move: Move) -> str:
    kind, number = move
    if kind in {"go", "throw"}:
        name, actor = list(world.actors.items())[number]
        return f"{name} goes on{f' from {actor.at}' if actor.at else ''}{' and throws' if kind == 'throw' else ''}"
    return {
        "fill": "the executor becomes full",
        "empty": "the executor has room again",
        "dispatch": "the dispatcher begins",
        "scan": "the scanner begins",
        "expire": "the clock of deadlines looks",
        "tick": "a tick passes",
        "append": "a message is appended",
        "stop": "the broker stops",
        "next_pull": f"consumer {number} pulls",
        "run": f"the executor runs consumer {number}'s pull",
    }[kind]


def under(policy: Policy, trace: Trace) -> tuple[Trace, Action | None]:
    """The longest prefix of a run that another policy allows, and the first action that it does not."""
    model = specification_of(policy, trace.model.bounds)
    law = successors(model)
    steps = [TraceStep(None, model.initial)]
    for step in trace.steps[1:]:
        wanted = step.action
        assert wanted is not None
        for index, after in law(steps[-1].state):
            action = model.actions[index]
            if (action.name, action.actors) == (wanted.name, wanted.actors):
                steps.append(TraceStep(action, after))
                break
        else:
            return Trace(model, tuple(steps), trace.property_name), wanted
    return Trace(model, tuple(steps), trace.property_name), None


NOTIFIERS: Final = ("dispatcher", "scanner")
REASONS: Final = {
    "in one": "the code traverses a bucket in place under one lock: the steps in between are not observable",
    "stopped": "a broker's stop waits for its notifiers to end; the specification's does not",
    "empty": "the code skips an empty bucket without a step; in the specification its traversal is due",
    "together": "the clock releases all due pulls at once, the specification one after another",
    "behind": "a state that only one of these leads to",
}
"""Why no schedule reaches a state of the specification."""


@frozen
class Coverage:
    """The states that the schedules of one policy reached."""

    policy: str
    states: int
    of: int
    unreached: Counter[str]
    """Reason -> number of states; an empty reason means unknown."""


def coverage_of(policy: Policy, bounds: Bounds) -> Coverage:
    """Try every schedule, with a full executor, a stop and throwing checks, and count."""
    model = specification_of(policy, bounds)
    with collected_errors():
        seen = explore(policy, bounds, rejects=True, faults=True).states
    every = _graph(model, lambda _state: True)
    beyond = _graph(model, lambda state: why_not(model, state) is None)
    assert seen <= every, "the code reached a state that the specification never does"
    unreached = Counter(why_not(model, state) or ("" if state in beyond else "behind") for state in every - seen)
    return Coverage(policy.name, len(seen), len(every), unreached)


def why_not(model: Model, state: Packed) -> str | None:
    """The reason why no schedule reaches a state; None if there is none."""
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
    """Whether of two due pulls one is still held and the other is queued."""
    due = [
        name.removeprefix("deadline_") for name, value in values.items() if name.startswith("deadline_") and not value
    ]
    phases = {values[f"phase_{number}"] for number in due}
    return {model.state.phases["held"], model.state.phases["queued"]} <= phases


def _graph(model: Model, allowed: Callable[[Packed], bool]) -> set[Packed]:
    """Every state that is reachable through allowed states only."""
    law = successors(model)
    found, edge = {model.initial}, [model.initial]
    while edge:
        for _index, after in law(edge.pop()):
            if after not in found and allowed(after):
                found.add(after)
                edge.append(after)
    return found

"""Makes the real hold service follow a run of the specification: turns a counterexample into a schedule.

The code has a coarser granularity than the specification, so one move may take several steps of the run, or none. The
search tries the schedules that stay on the run until it finds one that reaches the run's end.

The simulation has only one queue, and no tags, channels, commits, crashes or roles.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import frozen

from longpoll_simulation.lockstep import STEPS_MAX, Lockstep, Move, remembered, run
from longpoll_spec.engines.python import Packed, Successors, successors
from longpoll_spec.errors import SpecUserError
from longpoll_spec.model import Action, Model, Trace, TraceStep
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of

SILENT_MAX: Final = 4
"""Maximum consecutive moves without a step of the specification, such as the start of a thread or a full executor."""


class NotReplayableError(SpecUserError):
    """The simulation cannot follow this run; the text gives the reason."""


class NotASpecificationStepError(Exception):
    """The code under test took a step that the specification does not allow; the text describes it."""


@frozen
class Replayed:
    """How far the code could follow a run."""

    moves: tuple[Move, ...]
    """The moves of the schedule that were made."""
    steps: int
    """The number of steps of the run that the code took."""
    of: int
    """The number of all steps of the run."""
    told: tuple[str, ...]
    """The description of each move, with its steps of the specification."""

    @property
    def is_whole(self) -> bool:
        """Whether the code followed the whole run."""
        return self.steps == self.of


class ErrorCollector(logging.Handler):
    """A log handler that collects errors. Invariant: `said` has the errors in the order of logging."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect one record."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        self.said.append(f"{text}: {error!r}" if error is not None else text)


@contextmanager
def collected_errors() -> Iterator[ErrorCollector]:
    """Collect the errors of the broker's loggers in a `with` block, instead of handling them."""
    loud, log = ErrorCollector(), logging.getLogger("longpoll_broker")
    level, propagates, handlers = log.level, log.propagate, log.handlers
    log.handlers, log.propagate = [loud], False
    log.setLevel(logging.ERROR)
    try:
        yield loud
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)


def refuse_unknown(model: Model) -> None:
    """Raise NotReplayableError for a model with features that the simulation does not have."""
    bounds = model.bounds
    unknown = [*bounds.aspects]
    if bounds.queues > 1 or bounds.tags > 1:
        unknown.append("several queues or tags")
    if unknown:
        raise NotReplayableError(
            f"this run uses {', '.join(unknown)}, but this simulation has only one plain queue; use a token from "
            "`longpoll check` without --feature, --queues and --tags"
        )


def follow(trace: Trace) -> Replayed:
    """Return the schedule of the hold service that goes furthest along a run of its policy.

    Raises NotReplayableError if the simulation lacks a feature of the run, and NotASpecificationStepError if the code
    takes a step that the specification does not allow.
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
    """Return the moves that follow most of the run's states, found by a depth-first search."""
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
    """Return how many steps of the run lead to this state; None if none of the run's next states is this state."""
    for place in range(done, min(done + STEPS_MAX + 1, len(states))):
        if states[place] == state:
            return place
    return None


def _told(trace: Trace, law: Successors, states: Sequence[Packed], moves: Sequence[Move]) -> Replayed:
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
    """Return an action with its actors as text, such as `hold 0`."""
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


def under(policy: Policy, trace: Trace, without: Container[str] = ()) -> tuple[Trace, Action | None]:
    """Return the longest prefix of a run that another policy allows, and the first action that it does not allow.

    The run's actions in `without`, which the other policy does not have, are skipped.
    """
    model = specification_of(policy, trace.model.bounds)
    law = successors(model)
    steps = [TraceStep(None, model.initial)]
    for step in trace.steps[1:]:
        wanted = step.action
        assert wanted is not None
        if wanted.name in without:
            continue
        for index, after in law(steps[-1].state):
            action = model.actions[index]
            if (action.name, action.actors) == (wanted.name, wanted.actors):
                steps.append(TraceStep(action, after))
                break
        else:
            return Trace(model, tuple(steps), trace.property_name), wanted
    return Trace(model, tuple(steps), trace.property_name), None

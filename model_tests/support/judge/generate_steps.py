"""Generates histories of steps: random runs of the specification of any policy, with inexact times and one fault.

A fault is either a disabled step, or a step that leaves one variable unwritten. In the second case the run continues
until it takes a step that the correct run cannot take. A run is a function of its `StepLoad`. Black-box events: see
`generate`. Checks of step histories: see `conformance`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
from attrs import frozen
from model_tests.support.judge.generate import BROKER, SOURCE, START_NS, UNIX_OFFSET_NS, US

from longpoll_judge.step_reader import model_of
from longpoll_spec.engines.python import Packed, Successors, successors
from longpoll_spec.history import FORMAT_VERSION, Event, Law, Meta, Source
from longpoll_spec.model import Action, Model
from longpoll_spec.state.variables import of_queue

Fault: TypeAlias = Literal["", "disabled_step", "effect_left_out"]
FAULTS: Final[tuple[Fault, ...]] = ("disabled_step", "effect_left_out")
WEIGHTS: Final = {"append": 0.3, "tick": 0.5, "stop": 1e-9, "crash_and_recover": 0.05, "role_change": 0.05}
"""Relative probabilities of actions, by default 1. Equal weights would end runs early or fill them with appends."""
STEP_NS: Final = 10 * US
"""The time between two steps, in ns."""
SPREAD_NS: Final = 15 * US
"""The maximum error of an inexact time in each direction, in ns."""
ATTEMPTS: Final = 200
"""The maximum number of random runs until one of them shows the fault."""


@frozen
class StepLoad:
    law: Law
    policy: str = "strict"
    steps: int = 120
    overlapping: float = 0.3
    """The share of steps that are recorded with inexact times."""
    fault: Fault = ""
    seed: int = 1


@frozen
class Run:
    """A run of the specification as an observer records it, in random order."""

    events: tuple[Event, ...]
    wrong_at: int | None
    """The index of the first step that the correct run cannot take if times are exact; None without a fault."""


@frozen
class _Walk:
    model: Model
    step: Successors
    random: random.Random

    def enabled(self, state: Packed) -> dict[int, Packed]:
        return dict(self.step(state))

    def draw(self, state: Packed) -> tuple[int, Packed] | None:
        """Draw an enabled step; returns the action's index and the next state, or None if no step is enabled."""
        found = self.step(state)
        if not found:
            return None
        weights = [WEIGHTS.get(self.model.actions[index].name, 1.0) for index, _after in found]
        return self.random.choices(found, weights)[0]


def run_of(load: StepLoad) -> Run:
    model = model_of(load.policy, load.law)
    walk = _Walk(model, successors(model), random.Random(load.seed))
    for _attempt in range(ATTEMPTS):
        taken, wrong_at = _taken(walk, load)
        if (wrong_at is not None) == bool(load.fault):
            break
    else:
        raise AssertionError(f"no run showed {load.fault!r} in {ATTEMPTS} attempts")
    events = [_event(model, number, *step) for number, step in enumerate(taken)]
    seen = [_seen(each, walk.random, load.overlapping) for each in events]
    walk.random.shuffle(seen)
    return Run(tuple(seen), wrong_at)


def meta_of(load: StepLoad) -> Meta:
    source = Source(name=SOURCE, clock="monotonic", offset_ns=UNIX_OFFSET_NS)
    return Meta(format_version=FORMAT_VERSION, sources=[source], policy=load.policy, law=load.law)


def observed(load: StepLoad) -> Iterator[Event]:
    """Iterate over the whole history of a run: the observer's start, the steps, and the observer's end."""
    steps = sorted(run_of(load).events, key=lambda event: event.sequence)
    moments = (START_NS - STEP_NS, START_NS + (len(steps) + 1) * STEP_NS)
    ends = [
        Event(event=name, after_ns=moment_ns, before_ns=moment_ns, source=SOURCE, sequence=sequence, broker=BROKER)
        for name, moment_ns, sequence in zip(
            ("source_started", "source_stopped"), moments, (0, len(steps) + 1), strict=True
        )
    ]
    yield ends[0]
    yield from steps
    yield ends[1]


Taken: TypeAlias = tuple[Action, Packed]
"""An action and the state after it, as a broker with the fault computes them."""


def _taken(walk: _Walk, load: StepLoad) -> tuple[list[Taken], int | None]:
    """Returns a run, and the index of the first step that leaves the specification."""
    fault_at = walk.random.randrange(load.steps // 4, 3 * load.steps // 4) if load.fault else load.steps
    state: Packed = walk.model.initial
    true: Packed | None = state
    taken: list[Taken] = []
    wrong_at: int | None = None
    for number in range(load.steps):
        if number == fault_at and load.fault == "disabled_step":
            enabled = walk.enabled(state)
            index = walk.random.choice([each for each in range(len(walk.model.actions)) if each not in enabled])
            taken.append((walk.model.actions[index], state))
            wrong_at = number
            continue
        drawn = walk.draw(state)
        if drawn is None:
            break
        index, after = drawn
        right = None if true is None else walk.enabled(true).get(index)
        if number == fault_at:
            after = _with_one_left_out(walk, state, after)
        action = walk.model.actions[index]
        taken.append((action, after))
        if wrong_at is None and (
            right is None or _known(walk.model, action, right) != _known(walk.model, action, after)
        ):
            wrong_at, right = number, None
        state, true = after, right
    return taken, wrong_at


def _with_one_left_out(walk: _Walk, before: Packed, after: Packed) -> Packed:
    """Returns the state after a step that leaves one of its changed variables at the old value."""
    changed = [place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if not changed:
        return after
    place = walk.random.choice(changed)
    return (*after[:place], before[place], *after[place + 1 :])


def _known(model: Model, action: Action, after: Packed) -> dict[str, Any]:
    """Returns the event fields that describe the state after a step."""
    values = dict(zip((variable.name for variable in model.variables), after, strict=True))
    actors = [str(actor) for actor in action.actors]
    queue = next((int(actor[1:]) for actor in actors if actor[:1] == "q"), 0)
    match action.name:
        case "append":
            return {"queue": queue, "queue_offset": values[of_queue("log_end", queue, model.bounds)] - 1}
        case "make_visible":
            return {"queue": queue, "visible_end": values[of_queue("visible_end", queue, model.bounds)]}
        case "pull_read" | "run":
            return {"offset": values[f"offset_{actors[0]}"]}
        case _:
            return {}


def _event(model: Model, number: int, action: Action, after: Packed) -> Event:
    moment_ns = START_NS + number * STEP_NS
    return Event(
        event=action.name,
        after_ns=moment_ns,
        before_ns=moment_ns,
        source=SOURCE,
        sequence=number + 1,
        broker=BROKER,
        actors=",".join(map(str, action.actors)),
        **_known(model, action, after),
    )


def _seen(event: Event, draw: random.Random, overlapping: float) -> Event:
    """Returns the event as an observer records it, sometimes with an inexact time."""
    if draw.random() >= overlapping:
        return event
    early_ns, late_ns = draw.randrange(SPREAD_NS), draw.randrange(SPREAD_NS)
    return msgspec.structs.replace(event, after_ns=event.after_ns - early_ns, before_ns=event.before_ns + late_ns)

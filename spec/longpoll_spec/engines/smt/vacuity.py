"""Checks that the proofs in a configuration do not hold vacuously, by finding runs to situations that must occur.

A theorem about an action that never happens says nothing. So after each proof for any number of requests, random runs
must reach every `sometimes` property of the configuration; there is one such property for each action. Two requests are
enough for each situation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs
from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Verdict
from longpoll_spec.engines.packed.random_runs import random_runs
from longpoll_spec.engines.tokens import token_of
from longpoll_spec.model import Model, Property
from longpoll_spec.specification import properties_of
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import FALSE

Found: TypeAlias = Literal["reached", "not found"]
ModelOf: TypeAlias = Callable[[Bounds], Model]
REQUESTS: Final = 2
MESSAGES: Final = 2
STATES: Final = 100_000
"""The number of states at which exploring a configuration ends; most configurations with two features have fewer."""
NOTHING_WRONG: Final = frozenset({"append", "flush", "make_visible", "next_pull", "tick"})
"""The actions of a run without faults, in addition to the urgent ones, which differ between policies."""
TRIES: Final[tuple[tuple[bool, int, int], ...]] = (
    (True, 512, 40),
    (False, 512, 40),
    (True, 8_192, 40),
    (False, 16_384, 60),
    (True, 81_920, 80),
    (False, 40_960, 60),
)
"""(whether faults are excluded, number of random runs, steps of a run), tried until every situation is reached."""


@frozen
class Situation:
    """A situation that must occur, and whether it does."""

    name: str
    sentence: str
    found: Found
    token: str | None = None
    """The token of a run to the situation; None if it was not found."""


def seen_in(make: ModelOf, world: Bounds) -> tuple[Verdict, ...]:
    """The verdicts of exploring a configuration with two requests and one message, up to `STATES` states.

    Features that only restrict are off. With three queues, one request is enough.
    """
    bounds = attrs.evolve(_free(world), requests=REQUESTS if world.queues < 3 else 1, messages=1)
    model = make(bounds)
    return explore(model, properties_of(model), limit_states=STATES).verdicts


def _free(world: Bounds) -> Bounds:
    return attrs.evolve(world, aspects=world.aspects - set(SWITCHES))


def situations_of(make: ModelOf, world: Bounds, seen: Mapping[str, str] | None = None) -> tuple[Situation, ...]:
    """Every situation of a configuration, and whether it occurs. `make` returns the model for given bounds.

    A proof leaves open whether a feature that only restricts is on, so a run with such features on or off is enough.
    `seen` maps each situation that is known to occur to the token of a run.
    """
    stated: dict[str, Property] = {}
    tokens = dict(seen or {})
    for bounds in dict.fromkeys((_free(world), world)):
        model = make(attrs.evolve(bounds, requests=REQUESTS, messages=MESSAGES))
        sometimes = {item.name: item for item in properties_of(model) if item.kind == "sometimes"}
        stated = sometimes | stated
        tokens = dict(_runs(model, [item for name, item in sometimes.items() if name not in tokens])) | tokens
    return tuple(
        Situation(name, item.sentence, "reached" if name in tokens else "not found", tokens.get(name))
        for name, item in stated.items()
    )


def _runs(model: Model, sought: Sequence[Property]) -> Iterable[tuple[str, str]]:
    """Yield (situation, token of a run) for the situations that random runs reach; equal models give equal runs.

    Runs without faults reach the deepest states, so they come first.
    """
    left = list(sought)
    for seed, (quiet, runs, steps) in enumerate(TRIES):
        if left:
            where = _quiet(model) if quiet else model
            found = random_runs(where, left, seed=seed, once=True, runs=runs, steps=steps)
            yield from ((name, token_of(where, run, name)) for name, run in found.items())
            left = [item for item in left if item.name not in found]


def _quiet(model: Model) -> Model:
    """The model without faults and with one tag. The other actions stay as urgent as before."""
    state = model.state
    others = {*(tag.name for tag in state.tags[1:]), *(wish.name for wish in state.wishes[1:])}
    # A slave that does not notify reaches few situations, so it may become the master.
    quiet = NOTHING_WRONG | {"role_change"} if model.policy.slave == "reads_only" else NOTHING_WRONG
    kept = [each.urgent or (each.name in quiet and others.isdisjoint(map(str, each.actors))) for each in model.actions]
    pairs = zip(model.actions, kept, strict=True)
    return attrs.evolve(model, actions=tuple(each if keep else attrs.evolve(each, guard=FALSE) for each, keep in pairs))

"""Check that the proofs in a world do not hold vacuously: the situations that must occur in it.

A theorem about what never happens says nothing. So after each proof for any number of requests this searches for runs:
every action of the world must occur, and every `sometimes` property must be reached (`reached`). A situation that no
run shows goes to the solver, which tells whether the proved statements exclude it or it was only not found.

Two requests are used: enough for each situation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Verdict
from longpoll_spec.engines.packed.random_runs import random_runs
from longpoll_spec.engines.smt.inductive import prover_of
from longpoll_spec.engines.tokens import token_of
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.model import Model, Property
from longpoll_spec.specification import properties_of
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import FALSE

Found: TypeAlias = Literal["reached", "not found", "excluded"]
ModelOf: TypeAlias = Callable[[Bounds], Model]
REQUESTS: Final = 2
REQUESTS_EXCLUDED: Final = 3
"""The number of requests for which a situation is excluded: one more than a run has."""
MESSAGES: Final = 2
STATES: Final = 100_000
"""A world is explored up to this number of states, which most worlds with two features do not reach."""
NOTHING_WRONG: Final = frozenset({"append", "flush", "make_visible", "next_pull", "tick"})
"""The actions of a run without faults; in some policies more of them are urgent than in others."""
TRIES: Final[tuple[tuple[bool, Mapping[str, Any]], ...]] = (
    (True, {"runs": 512, "steps": 40}),
    (False, {"runs": 512, "steps": 40}),
    (True, {"runs": 8_192, "steps": 40}),
    (False, {"runs": 16_384, "steps": 60}),
    (True, {"limit_states": 2_000_000}),
    (False, {"runs": 40_960, "steps": 60}),
    (True, {"runs": 81_920, "steps": 80}),
)
"""(without faults, what to search), until every situation is reached: random runs, or all states up to a limit, which
is faster where a short run is improbable."""


@frozen
class Situation:
    """A situation that must occur, and whether it does."""

    name: str
    sentence: str
    found: Found
    token: str | None = None
    """A run that shows it."""


def seen_in(make: ModelOf, world: Bounds) -> tuple[Verdict, ...]:
    """What an exploration of the world shows: with two requests and one message, up to `STATES` states.

    The restrictions of the world are left out. With three queues one request is enough.
    """
    bounds = attrs.evolve(_free(world), requests=REQUESTS if world.queues < 3 else 1, messages=1)
    model = make(bounds)
    return explore(model, properties_of(model), limit_states=STATES).verdicts


def _free(world: Bounds) -> Bounds:
    return attrs.evolve(world, aspects=world.aspects - set(SWITCHES))


def situations_of(
    make: ModelOf, world: Bounds, proved: Iterable[str], timeout_s: float, seen: Mapping[str, str] | None = None
) -> tuple[Situation, ...]:
    """Every situation of a world; `make` gives the model under bounds, `proved` names what is true of all its states.

    A restriction of the world is a choice in a proof, so situations are checked with and without it. `seen` has a run
    for each situation that is known to occur.
    """
    free = _free(world)
    stated: dict[str, Property] = {}
    tokens = dict(seen or {})
    for bounds in dict.fromkeys((free, world)):
        model = make(attrs.evolve(bounds, requests=REQUESTS, messages=MESSAGES))
        sometimes = _sometimes(model)
        stated = sometimes | stated
        tokens = dict(_runs(model, [item for name, item in sometimes.items() if name not in tokens])) | tokens
    missing = [name for name in stated if name not in tokens]
    excluded = _excluded(make, (free, world), missing, frozenset(proved), timeout_s) if missing else set[str]()
    return tuple(
        Situation(name, item.sentence, _found(name, tokens, excluded), tokens.get(name))
        for name, item in stated.items()
    )


def _found(name: str, tokens: Mapping[str, str], excluded: set[str]) -> Found:
    return "reached" if name in tokens else "excluded" if name in excluded else "not found"


def _sometimes(model: Model) -> dict[str, Property]:
    return {item.name: item for item in properties_of(model) if item.kind == "sometimes"}


def _runs(model: Model, sought: Sequence[Property]) -> Iterable[tuple[str, str]]:
    """(situation, token of a run) for the situations that the tries reach; equal models give equal runs.

    Runs without faults get deepest, so they come first.
    """
    left = list(sought)
    for seed, (quiet, options) in enumerate(TRIES):
        if left:
            where = _quiet(model) if quiet else model
            if "runs" in options:
                runs = random_runs(where, left, seed=seed, once=True, **options)
                found = {name: token_of(where, run, name) for name, run in runs.items()}
            else:
                verdicts = explore(where, left, **options).verdicts
                found = {each.name: each.token for each in verdicts if each.token is not None}
            yield from found.items()
            left = [item for item in left if item.name not in found]


def _quiet(model: Model) -> Model:
    """The model without faults and with one tag, with the same urgency: its runs are runs of the model."""
    state = model.state
    others = {*(tag.name for tag in state.tags[1:]), *(wish.name for wish in state.wishes[1:])}
    kept = [
        each.urgent or (each.name in NOTHING_WRONG and others.isdisjoint(map(str, each.actors)))
        for each in model.actions
    ]
    pairs = zip(model.actions, kept, strict=True)
    return attrs.evolve(model, actions=tuple(each if keep else attrs.evolve(each, guard=FALSE) for each, keep in pairs))


def _excluded(
    make: ModelOf, worlds: Iterable[Bounds], names: Sequence[str], proved: frozenset[str], timeout_s: float
) -> set[str]:
    """The situations that no state satisfies together with the proved statements, for any parameters."""
    possible: set[str] = set()
    for bounds in dict.fromkeys(worlds):
        model = make(attrs.evolve(bounds, requests=REQUESTS_EXCLUDED, messages=None))
        known = [item for item in (*properties_of(model), *strengthening_of(model)) if item.name in proved]
        prover = prover_of(model, known, timeout_s, symmetric=False)
        prover.assume(known)
        here = _sometimes(model)
        possible |= {name for name in names if name in here and prover.state(~here[name].here).verdict != "proved"}
    return set(names) - possible

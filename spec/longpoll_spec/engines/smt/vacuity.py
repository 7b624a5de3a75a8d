"""What has to come about in the world of a proof, so that nothing in it is proved in vain.

A theorem about what never happens says nothing. So each proof for any number of requests is followed by a look for
runs: every action of its world happens, and so does everything that the law says must sometimes be (`reached`). A
situation that no run shows is put to the solver: it may be ruled out by what was proved, or only not have been found.

Leaves out numbers of requests: two are enough for each situation, and more would only hide that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs
from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.inductive import prover_of
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.model import Model, Property
from longpoll_spec.specification import properties_of
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import FALSE

Found: TypeAlias = Literal["reached", "not found", "excluded"]
ModelOf: TypeAlias = Callable[[Bounds], Model]
REQUESTS: Final = 2
REQUESTS_EXCLUDED: Final = 3
"""Requests for which a situation is ruled out: one more than a run has."""
MESSAGES: Final = 2
NOTHING_WRONG: Final = frozenset({"append", "flush", "make_visible", "next_pull", "tick"})
"""What happens of itself where nothing goes wrong; in some policies time waits for more of it than in others."""
TRIES: Final = (
    (True, 512, 40),
    (False, 512, 40),
    (True, 8_192, 40),
    (True, 32_768, 60),
    (False, 40_960, 60),
    (True, 81_920, 80),
)
"""(nothing goes wrong, random runs, steps of each), until every situation has been reached."""


@frozen
class Situation:
    """Something that has to come about, and whether it does."""

    name: str
    sentence: str
    found: Found
    token: str | None = None
    """A run that shows it."""


def situations_of(make: ModelOf, world: Bounds, proved: Iterable[str], timeout_s: float) -> tuple[Situation, ...]:
    """Every situation of a world; `make` gives its law under bounds, and `proved` names what is true of all its states.

    What restricts the world is a choice in a proof, so it is looked at without that, and with it.
    """
    free = attrs.evolve(world, aspects=world.aspects - set(SWITCHES))
    stated: dict[str, Property] = {}
    tokens: dict[str, str] = {}
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
    """(situation, token of a run that shows it) of those that random runs come to; equal models give equal runs.

    Those in which nothing goes wrong get deepest, so they come first.
    """
    left = list(sought)
    for seed, (quiet, runs, steps) in enumerate(TRIES):
        if left:
            tried = explore(
                _quiet(model) if quiet else model, left, engine="simulate", runs=runs, steps=steps, seed=seed
            )
            yield from ((each.name, each.token) for each in tried.verdicts if each.token is not None)
            done = {each.name for each in tried.verdicts if each.token is not None}
            left = [item for item in left if item.name not in done]


def _quiet(model: Model) -> Model:
    """The model in which nothing goes wrong, what time waits for left as it is: its runs are runs of the model."""
    kept = [
        each if each.urgent or each.name in NOTHING_WRONG else attrs.evolve(each, guard=FALSE) for each in model.actions
    ]
    return attrs.evolve(model, actions=tuple(kept))


def _excluded(
    make: ModelOf, worlds: Iterable[Bounds], names: Sequence[str], proved: frozenset[str], timeout_s: float
) -> set[str]:
    """The situations that no state has in which everything holds that was proved, whatever the parameters are."""
    possible: set[str] = set()
    for bounds in dict.fromkeys(worlds):
        model = make(attrs.evolve(bounds, requests=REQUESTS_EXCLUDED, messages=None))
        known = [item for item in (*properties_of(model), *strengthening_of(model)) if item.name in proved]
        prover = prover_of(model, known, timeout_s, symmetric=False)
        prover.assume(known)
        here = _sometimes(model)
        possible |= {name for name in names if name in here and prover.state(~here[name].here).verdict != "proved"}
    return set(names) - possible

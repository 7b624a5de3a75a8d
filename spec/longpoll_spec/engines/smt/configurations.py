"""The worlds of a proof for any number of requests, and the proof in each.

A feature that adds behaviour may also weaken a promise: less is promised of a truncated queue. So no single world
covers everything, and the theorem is proved in several. Purely restrictive features, such as a limit on held requests
or an executor that rejects only next to another request, are parameters that the proof leaves open
(`variables.SWITCHES`). No proof may hold vacuously: each world must show its `vacuity`.

The proof: `any_number`. The choice of worlds: `combinations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.smt.any_number import AnyProof, Found, ModelOf, prove_any, statements_of
from longpoll_spec.engines.smt.combinations import FEATURES, WORLDS, questions_of, world_with, worlds_of
from longpoll_spec.engines.smt.inductive import Answer, Record
from longpoll_spec.engines.smt.processes import in_processes
from longpoll_spec.engines.smt.proof import DEPTH_MAX, TIMEOUT_S, Report
from longpoll_spec.engines.smt.vacuity import Situation, situations_of
from longpoll_spec.errors import UnknownWorldError, not_known
from longpoll_spec.model import select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of


@frozen
class WorldProof:
    """The proof in one world, and the situations that occur in it."""

    name: str
    world: Bounds
    found: AnyProof
    situations: tuple[Situation, ...]

    @property
    def in_vain(self) -> tuple[Situation, ...]:
        """The required situations that were not observed."""
        return tuple(each for each in self.situations if each.found != "reached")

    @property
    def whole(self) -> Answer:
        """The proof's verdict; unknown if a required situation never occurs."""
        verdict = self.found.proof.whole
        return "unknown" if verdict == "proved" and self.in_vain else verdict


def chosen(names: Sequence[str], *, any_number: bool, changes: Mapping[str, Any]) -> Mapping[str, Bounds]:
    """The worlds of these names; with `changes` to a world's bounds, one world called `own`.

    Without names and changes: the plain one for a given number of requests; for any number none, which leaves the
    choice to `combinations`. Raises `UnknownWorldError`, also if several worlds are named where only one is possible.
    """
    named = {name: world_named(name) for name in names}
    if len(named) > 1 and (changes or not any_number):
        raise UnknownWorldError("name one world: only `--requests any` without changed bounds accepts several")
    if changes:
        begins = next(iter(named.values())) if named else WORLDS["whole" if any_number else "plain"]
        return {"own": attrs.evolve(begins, **changes)}
    return named or ({} if any_number else {"plain": WORLDS["plain"]})


def world_named(name: str) -> Bounds:
    """The world of a name, such as `whole`, or of its features, such as `crash+queues`; raises `UnknownWorldError`."""
    if name in WORLDS:
        return WORLDS[name]
    features = name.split("+")
    for each in features:
        if each not in FEATURES:
            raise UnknownWorldError(not_known("world", each, [*WORLDS, *FEATURES]))
    return world_with(features)


def prove_worlds(
    policy: Policy,
    *,
    worlds: Mapping[str, Bounds] | None = None,
    names: Iterable[str] = (),
    timeout_s: float = TIMEOUT_S,
    depth_max: int = DEPTH_MAX,
    report: Report | None = None,
    model_of: ModelOf | None = None,
    record: Record | None = None,
    processes: int = 1,
) -> list[WorldProof]:
    """As `any_number.prove_any`, in each of the worlds. A named property is proved wherever it is stated.

    By default the worlds are chosen so that every combination of three features of a question is covered. With several
    processes `record` cannot be used. Raises `UnknownPropertyError` for a property that no world states.
    """
    wanted = list(names)
    make = model_of or (lambda bounds: specification_of(policy, bounds))
    worlds = worlds or worlds_of(questions_of(make))
    stated = {name: statements_of(make, 1, world).stated for name, world in worlds.items()}
    select([item for each in stated.values() for item in each], wanted)
    seen: Found = {}

    def proved(name: str, report: Report | None) -> WorldProof:
        world = worlds[name]
        say = _in_world(name, report)
        found = prove_any(
            policy,
            world=world,
            names=[item.name for item in stated[name] if item.name in wanted],
            timeout_s=timeout_s,
            depth_max=depth_max,
            report=say,
            model_of=model_of,
            seen=seen,
            record=record,
        )
        if say is not None:
            say("what comes about")
        return WorldProof(name, world, found, situations_of(make, world, _kept(found), timeout_s))

    asked = [name for name in worlds if not wanted or any(item.name in wanted for item in stated[name])]
    if processes == 1:
        return [proved(name, report) for name in asked]
    # The dearest come first, so that no process is left alone with one at the end.
    dearest = sorted(asked, key=lambda name: (-worlds[name].queues, -len(worlds[name].aspects)))
    found = in_processes({name: partial(proved, name) for name in dearest}, processes, report or (lambda _text: None))
    return [found[name] for name in asked]


def worst(proofs: Sequence[WorldProof]) -> Answer:
    """The verdict over all worlds: refuted if refuted in one, proved only if proved in each."""
    found = {each.whole for each in proofs}
    return "refuted" if "refuted" in found else "unknown" if "unknown" in found else "proved"


def verdicts(proofs: Sequence[WorldProof]) -> Mapping[str, Answer]:
    """Property -> its worst verdict in the worlds that state it; unknown if a required situation never occurs."""
    worse: Mapping[Answer, int] = {"proved": 0, "unknown": 1, "refuted": 2}
    found: dict[str, Answer] = {}
    for each in proofs:
        for name in each.found.proof.needed:
            shown = each.found.proof.verdict(name)
            here: Answer = "unknown" if shown == "proved" and each.in_vain else shown
            if worse[here] >= worse[found.get(name, "proved")]:
                found[name] = here
    return found


def unstated(proofs: Sequence[WorldProof]) -> Mapping[str, Sequence[str]]:
    """World -> the properties that it does not state, or that hold vacuously there, although other worlds state them.

    Such a property is not proved in this world.
    """
    says_something = {name for each in proofs for name in _says(each)}
    every = list(dict.fromkeys(name for each in proofs for name in each.found.proof.needed))
    return {
        each.name: [
            name
            for name in every
            if name not in each.found.proof.needed or (name in says_something and name not in _says(each))
        ]
        for each in proofs
    }


def _says(found: WorldProof) -> set[str]:
    return set(found.found.proof.needed) - set(found.found.proof.by_construction)


def _in_world(name: str, report: Report | None) -> Report | None:
    return None if report is None else lambda text: report(f"{name}: {text}")


def _kept(found: AnyProof) -> frozenset[str]:
    proof = found.proof
    broken = {row.property_name for row in proof.obligations if row.verdict != "proved"}
    return frozenset(row.property_name for row in proof.obligations) - broken

"""Proves properties of a policy for a given number of requests, any number of messages, any timeout and scan period.

A property is proved if the first state satisfies it and every step preserves it (`inductive`), or if it follows from
inductive statements (`implies`). If a property is not proved, a run that breaks the property is searched for
(`bounded`), whose token replays in every engine. If no run that breaks the property is found, the property is unknown.
A counterexample to induction alone shows nothing about the broker, because its state need not be reachable.

For any number of requests see `any_number`. Counterexamples are searched for with one request and then with two. A
counterexample remains valid with more requests, because the additional requests may stay idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs
from attrs import define, field, frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.smt.counterexamples import Refutation, explored, refute
from longpoll_spec.engines.smt.inductive import (
    Answer,
    Counterexample,
    Induction,
    Outcome,
    Prover,
    Record,
    implied,
    induction,
    prover_of,
)
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.model import Model, Property, select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.terms import Bool

StepName: TypeAlias = Literal["initial", "inductive", "implies", "bounded"]
Report: TypeAlias = Callable[[str], None]
REQUESTS: Final = 8
TIMEOUT_S: Final = 10.0
"""The seconds allowed for one question to the solver, and for the search for a run that breaks one property."""
DEPTH_MAX: Final = 13
"""The number of steps of the longest run that is unrolled. The deepest known race of a policy takes 11 steps, and 12 in
strict-clone. With a lower `depth_max` nothing is explored, because exploring could find a longer run."""
REQUESTS_IN_RUNS: Final = 2
PLAIN: Final = Bounds("proof", messages=None)
"""The plain bounds of a proof: an unbounded log, one queue, one tag, no features."""


@frozen
class Obligation:
    """One proof obligation, and its result."""

    property_name: str
    step: StepName
    verdict: Answer
    seconds: float
    token: str | None = None
    """For a `bounded` obligation: the run that breaks the property."""
    depth: int | None = None
    """For a `bounded` obligation: the number of steps of the run in `token`, or of the longest runs tried."""
    counterexample: Counterexample | None = None


@frozen
class Proof:
    """The result of a proof. `stated` has the properties to prove, in the order of the specification."""

    model: Model
    stated: tuple[Property, ...]
    seconds: float
    obligations: tuple[Obligation, ...]
    given_up: Mapping[str, Outcome]
    """Maps a statement of the strengthening that is not inductive to its outcome. A proof that needs none of these
    statements is not affected."""

    def verdict(self, name: str) -> Answer:
        """The verdict on a property: proved if its last obligation is proved, and refuted only by an actual run."""
        last = [obligation for obligation in self.obligations if obligation.property_name == name][-1]
        if last.verdict == "proved":
            return "proved"
        return "refuted" if last.token is not None else "unknown"

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the properties to prove."""
        return tuple(item.name for item in self.stated)

    @property
    def by_construction(self) -> tuple[str, ...]:
        """The names of the properties that hold vacuously, because the model contains nothing that could break them."""
        return tuple(item.name for item in self.stated if item.by_construction)

    @property
    def whole(self) -> Answer:
        """The worst verdict of all properties: refuted is worse than unknown, which is worse than proved."""
        found = {self.verdict(name) for name in self.needed}
        return "refuted" if "refuted" in found else "unknown" if "unknown" in found else "proved"


@define
class _Case:
    """A proof in progress. Invariant: `rows` has every obligation that was tried, in order."""

    prover: Prover
    made: Induction
    rows: list[Obligation] = field(factory=list)

    def show(self, item: Property) -> bool:
        """Try to prove the property and add its obligations; returns whether it is proved."""
        if item in self.made.kept:
            self._inductive(item)
            return True
        outcome = implied(self.prover, item)
        if outcome.verdict == "proved" or item.closing:
            self._add(item, "implies", outcome)
        else:
            self._inductive(item)
        return outcome.verdict == "proved"

    def _inductive(self, item: Property) -> None:
        self._add(item, "initial", self.made.initial[item.name])
        if item.name in self.made.inductive:
            self._add(item, "inductive", self.made.inductive[item.name])

    def _add(self, item: Property, step: StepName, outcome: Outcome) -> None:
        found = outcome.counterexample
        self.rows.append(Obligation(item.name, step, outcome.verdict, outcome.seconds, counterexample=found))

    def add_run(self, name: str, refutation: Refutation) -> None:
        verdict: Answer = "unknown" if refutation.token is None else "refuted"
        self.rows.append(Obligation(name, "bounded", verdict, refutation.seconds, refutation.token, refutation.depth))


def prove(
    policy: Policy,
    *,
    requests: int = REQUESTS,
    world: Bounds = PLAIN,
    names: Iterable[str] = (),
    timeout_s: float = TIMEOUT_S,
    depth_max: int = DEPTH_MAX,
    report: Report | None = None,
    record: Record | None = None,
) -> Proof:
    """Prove the named `always` properties of a policy, by default all, or find runs that break them.

    `world` has the features and the numbers of queues and tags. `report` gets the current step of the proof as text,
    and `record` gets each question of the induction as SMT-LIB. Raises `UnknownPropertyError` for an unknown name, and
    `BoundsError` for bounds that cannot be explored.
    """
    model = specification_of(policy, attrs.evolve(world, requests=requests))
    return prove_model(model, names=names, timeout_s=timeout_s, depth_max=depth_max, report=report, record=record)


def prove_model(
    model: Model,
    *,
    names: Iterable[str] = (),
    timeout_s: float = TIMEOUT_S,
    depth_max: int = DEPTH_MAX,
    report: Report | None = None,
    strengthening: Callable[[Model], Sequence[Property]] = strengthening_of,
    smaller: Callable[[Bounds], Model] | None = None,
    record: Record | None = None,
) -> Proof:
    """Prove properties as `prove` does, for any model, such as a mutant, and any strengthening.

    `smaller` returns the same model with fewer requests, in which runs are searched for.
    """
    began = time.perf_counter()
    stated = [item for item in properties_of(model) if item.kind == "always"]
    needed = select(stated, names)
    helping = [*_inductive_of(model), *strengthening(model)]
    prover = prover_of(model, [*stated, *helping], timeout_s, record=record)
    candidates = [item for item in (*stated, *helping) if not item.closing]
    made = induction(prover, candidates, report)
    prover.assume(made.kept)
    case = _Case(prover, made)
    for item in helping:
        if item in made.kept:
            case.show(item)
    open_names = [item.name for item in needed if not case.show(item)]
    make = smaller or (lambda bounds: specification_of(model.policy, bounds))
    runs = _Runs(model.bounds, make, timeout_s, depth_max, report)
    for name, refutation in runs.search(model.bounds.requests, open_names, made).items():
        case.add_run(name, refutation)
    given_up = {item.name: _why(made, item) for item in helping if item not in made.kept}
    return Proof(model, needed, time.perf_counter() - began, tuple(case.rows), given_up)


def _inductive_of(model: Model) -> list[Property]:
    return [item for item in properties_of(model) if item.kind == "inductive" and not item.closing]


def _why(made: Induction, item: Property) -> Outcome:
    return made.inductive.get(item.name, made.initial[item.name])


@frozen
class _Runs:
    """Searches for runs that break properties, by exploring and then by unrolling with one request and with two."""

    world: Bounds
    model_of: Callable[[Bounds], Model]
    timeout_s: float
    depth_max: int
    report: Report | None

    def search(self, requests: int, names: Sequence[str], made: Induction) -> Mapping[str, Refutation]:
        found: dict[str, Refutation] = {}
        if self.depth_max >= DEPTH_MAX:
            few = min(requests, REQUESTS_IN_RUNS)
            found.update(explored(self.model_of, self.world, few, names, self.report))
        for count in range(1, min(requests, REQUESTS_IN_RUNS) + 1):
            left = [name for name in names if name not in found or found[name].token is None]
            if left:
                found.update(self._among(count, left, made))
        return {name: found[name] for name in names}

    def _among(self, requests: int, names: Sequence[str], made: Induction) -> Mapping[str, Refutation]:
        model = self.model_of(attrs.evolve(self.world, requests=requests))
        stated = properties_of(model)
        return refute(
            model,
            select(stated, names),
            depth_max=self.depth_max,
            timeout_s=self.timeout_s,
            lemmas=_again(model, stated, made),
            report=self.report,
        )


def _again(model: Model, stated: Sequence[Property], made: Induction) -> list[Bool]:
    kept = {item.name for item in made.kept}
    return [item.here for item in (*stated, *strengthening_of(model)) if item.name in kept]

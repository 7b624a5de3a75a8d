"""Proof for any number of requests: derive a cutoff from the specification, then prove the few numbers that matter.

Each question of a proof by induction asks whether a bad state exists: a state in which the assumed statements hold and
a step is enabled that breaks a statement. The question names at most two requests, the acting request and the request
that the statement is about, and refers to all others only by quantifiers (`quantifiers`). Suppose that a bad state
exists for some number of requests. If you remove every request that is neither named nor the witness of a quantifier,
the result is a bad state with fewer requests. If you duplicate a request that is not named, which is possible because
requests are not compared with each other, the result is a bad state with one request more. So it is enough to exclude
bad states at the cutoff, which is the number of named requests plus that of witnesses, and at the small numbers where a
question may name all requests. docs/decisions/0003-proofs.md explains why this is sound and which part of it is
checked.

A term that cannot be read in this way leaves the proof unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs
from attrs import define, field, frozen

from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, TIMEOUTS, Bounds
from longpoll_spec.engines.smt.counterexamples import explored
from longpoll_spec.engines.smt.inductive import Lemmas, Outcome, Prover, Record, implied, induction, parts_of, prover_of
from longpoll_spec.engines.smt.proof import (
    DEPTH_MAX,
    PLAIN,
    REQUESTS_IN_RUNS,
    TIMEOUT_S,
    Obligation,
    Proof,
    Report,
    StepName,
    prove_model,
)
from longpoll_spec.engines.smt.quantifiers import NotUniformError, Rests, Witness
from longpoll_spec.engines.symmetry import ShapesOf, is_representative, is_symmetric, slot_of, slots_of
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.model import Action, Model, Property, select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of, specification_of, stated_of
from longpoll_spec.terms import FALSE, TRUE, Bool, Effect, Term, after

SAMPLE: Final = 4
"""The number of requests of the model from which questions are read. With two named requests and two others, a term
about every other request differs from a term about one of them.
"""
CUTOFF_MAX: Final = 32
"""The greatest cutoff for which a proof is tried; the presets need at most 13."""
WORLD: Final = attrs.evolve(PLAIN, queues=2, tags=3, aspects=frozenset(ASPECTS) - {"lateness"})
"""The default configuration of a proof: two queues that share all threads, three tags, and every feature except the
counters of lateness, because a proof covers lateness by the properties in ticks."""
ModelOf = Callable[[Bounds], Model]
Found = dict[Bounds, dict[str, Obligation | None]]
"""Maps bounds and a property to the run that violates the property under these bounds, or None. The proofs in several
configurations share these runs."""
Outcomes = Mapping[tuple[str, StepName], Outcome]


@frozen
class Statements:
    """The model with a fixed number of requests, and the statements that are proved about it."""

    model: Model
    stated: tuple[Property, ...]
    helping: tuple[Property, ...]

    @property
    def candidates(self) -> list[Property]:
        """The statements about states. Statements about steps cannot be inductive."""
        return [item for item in (*self.stated, *self.helping) if not item.closing]

    @property
    def all(self) -> tuple[Property, ...]:
        """The properties to prove, and the statements that strengthen the induction."""
        return (*self.stated, *self.helping)


@define
class Readers:
    """Reads terms of several configurations and keeps the results, because configurations have most terms in common."""

    rests: dict[int, Rests] = field(factory=dict)
    shapes: ShapesOf = field(factory=dict)
    symmetric: set[int] = field(factory=set)
    """The ids of the `Statements` that were found symmetric. `kept` has them too, so that the ids stay unique."""
    kept: list[Statements] = field(factory=list)

    def rests_of(self, law: Statements) -> Rests:
        """The reader of terms for a model with as many requests as the model of `law`."""
        requests = law.model.bounds.requests
        return self.rests.setdefault(requests, Rests(requests))

    def check_symmetry(self, law: Statements) -> None:
        """Raise `NotUniformError` unless requests are interchangeable and queues are too."""
        if id(law) in self.symmetric:
            return
        if not is_symmetric(law.model, [item.term for item in law.all], self.shapes):
            raise NotUniformError("requests are not interchangeable")
        self.symmetric.add(id(law))
        self.kept.append(law)


@frozen
class AnyProof:
    """A proof for any number of requests.

    `proved_at` has the numbers of requests for which the solver was asked; the proofs for these numbers cover every
    number. `proved_at` is empty, with the reason in `why_not`, if the specification does not allow such a proof.
    """

    proof: Proof
    proved_at: tuple[int, ...]
    why_not: str | None = None

    @property
    def cutoff(self) -> int | None:
        """The greatest number in `proved_at`, which covers all greater ones; None without a proof."""
        return max(self.proved_at, default=None)


def statements_of(model_of: ModelOf, requests: int, world: Bounds = PLAIN) -> Statements:
    """The model for a number of requests, whose messages, timeout and scan period are open, with its statements."""
    model = model_of(attrs.evolve(world, requests=requests))
    stated = stated_of(model)
    helping = [item for item in stated if item.kind == "inductive" and not item.closing]
    always = tuple(item for item in stated if item.kind == "always")
    return Statements(model, always, (*helping, *strengthening_of(model)))


def prove_any(
    policy: Policy,
    *,
    world: Bounds = WORLD,
    names: Iterable[str] = (),
    timeout_s: float = TIMEOUT_S,
    depth_max: int = DEPTH_MAX,
    report: Report | None = None,
    model_of: ModelOf | None = None,
    seen: Found | None = None,
    broken: Mapping[str, Obligation] = MappingProxyType({}),
    record: Record | None = None,
    lemmas: Lemmas | None = None,
    readers: Readers | None = None,
) -> AnyProof:
    """Prove properties for any number of requests; see `proof.prove` for a given number.

    `model_of` makes the model, such as a mutant.

    Pass the same `seen` (explorations), `lemmas` (proved questions) and `readers` (terms that were read) for several
    configurations of a specification, so that the proofs share this work. `broken` maps violated properties to runs
    that violate them, so no proof of these properties is tried. `record` gets each question for each number of requests
    as SMT-LIB. Raises `UnknownPropertyError`.
    """
    began = time.perf_counter()
    make = model_of or (lambda bounds: specification_of(policy, bounds))
    sample = statements_of(make, SAMPLE, world)
    needed = select(sample.stated, names)
    limits: dict[str, Any] = {"timeout_s": timeout_s, "depth_max": depth_max, "report": report, "seen": seen}
    left = [item.name for item in needed if item.name not in broken]
    by_size: list[Outcomes] = []
    proved_at: tuple[int, ...] = ()
    why_not = None
    try:
        if left:
            shared: dict[str, Any] = {"lemmas": lemmas or Lemmas(), "readers": readers or Readers()}
            by_size, proved_at = _at_each(
                make, sample, left, timeout_s=timeout_s, report=report, record=record, **shared
            )
    except NotUniformError as error:
        why_not = str(error)
    rows = _joined(by_size)
    untried = [name for name in left if not _is_proved(rows, name)]
    rows += [broken[item.name] for item in needed if item.name in broken]
    rows += _runs(make, world, untried, **limits)
    shown = {row.property_name for row in rows}
    given_up = {item.name: Outcome("unknown") for item in (sample.helping if left else ()) if item.name not in shown}
    proof = Proof(sample.model, needed, time.perf_counter() - began, tuple(rows), given_up)
    return AnyProof(proof, proved_at, why_not)


def _at_each(
    make: ModelOf,
    sample: Statements,
    needed: Sequence[str],
    *,
    timeout_s: float,
    lemmas: Lemmas,
    readers: Readers,
    report: Report | None = None,
    record: Record | None = None,
) -> tuple[list[Outcomes], tuple[int, ...]]:
    """The outcomes for each number of requests that the proof needs, and these numbers.

    The proof is repeated until the same statements are inductive for each number. The model for the greatest number is
    compared with the smaller models.
    """
    say = report or (lambda _text: None)
    kept = {item.name for item in sample.candidates}
    sizes = {SAMPLE: sample}
    compared: set[int] = set()
    broken: dict[tuple[str, StepName], Outcome] = {}
    while True:
        say("how many requests are enough")
        numbers = numbers_of(sample, kept, readers)
        cutoff, found, before = numbers[-1], [], kept
        for requests in numbers:
            if requests not in sizes:
                sizes[requests] = statements_of(make, requests, sample.model.bounds)
        if not compared.issuperset(sizes):  # a second round usually needs the same numbers as the first
            compared = set(_compared(make, sizes, readers))
        for requests in numbers:
            say(f"{requests} of {cutoff} requests")
            outcomes, kept = _asked(sizes[requests], kept, needed, timeout_s=timeout_s, lemmas=lemmas, record=record)
            found.append(outcomes)
            for key, outcome in outcomes.items():
                if key[1] == "inductive" and outcome.verdict != "proved":
                    broken.setdefault(key, outcome)
        if kept == before:
            # A later round no longer asks about statements that an earlier round dropped, so add their outcomes.
            shown = {key: each for key, each in broken.items() if not _follows(found, key[0])}
            return [*found, *([shown] if shown else [])], numbers


def _follows(found: Iterable[Outcomes], name: str) -> bool:
    return all(outcomes[name, "implies"].verdict == "proved" for outcomes in found)


def _compared(make: ModelOf, sizes: Mapping[int, Statements], readers: Readers) -> Iterator[int]:
    """Compare the models for these numbers of requests with the greatest one; raises `NotUniformError`.

    In the smallest and the largest configuration, the models for all numbers up to the greatest are compared; in other
    configurations, only the models in the proof. A difference for another number would show in the smallest or largest
    configuration.
    """
    largest = sizes[max(sizes)]
    readers.check_symmetry(largest)
    world = attrs.evolve(largest.model.bounds, requests=PLAIN.requests)
    for requests in range(1, max(sizes)) if world in (PLAIN, WORLD) else sizes:
        if requests != max(sizes):
            compare(largest, sizes.get(requests) or statements_of(make, requests, world), readers)
        yield requests
    yield max(sizes)


def _asked(
    law: Statements,
    wanted: set[str],
    needed: Sequence[str],
    *,
    timeout_s: float,
    lemmas: Lemmas,
    record: Record | None = None,
) -> tuple[Outcomes, set[str]]:
    """The outcomes for one number of requests, and the names of the wanted statements that are inductive there."""
    # `_compared` has checked that the model is symmetric.
    prover: Prover = prover_of(law.model, law.all, timeout_s, symmetric=True, record=record, lemmas=lemmas)
    found = induction(prover, [item for item in law.candidates if item.name in wanted])
    kept = {item.name for item in found.kept}
    prover.assume(found.kept)
    rows: dict[tuple[str, StepName], Outcome] = {}
    for item in law.all:
        if item.name in kept:
            rows[item.name, "initial"] = found.initial[item.name]
            rows[item.name, "inductive"] = found.inductive[item.name]
        elif item.name in needed:
            rows[item.name, "implies"] = outcome = implied(prover, item)
            if outcome.verdict != "proved" and item.name in found.inductive:
                rows[item.name, "inductive"] = found.inductive[item.name]
    return rows, kept


def _joined(by_size: Sequence[Outcomes]) -> list[Obligation]:
    whole: dict[tuple[str, StepName], Outcome] = {}
    for outcomes in by_size:
        for key, outcome in outcomes.items():
            whole[key] = whole.get(key, Outcome()).also(outcome)
    return [
        Obligation(name, step, each.verdict, each.seconds, counterexample=each.counterexample)
        for (name, step), each in whole.items()
    ]


def _is_proved(rows: Sequence[Obligation], name: str) -> bool:
    mine = [row for row in rows if row.property_name == name]
    return bool(mine) and all(row.verdict == "proved" for row in mine)


def _runs(
    make: ModelOf,
    world: Bounds,
    names: Sequence[str],
    *,
    timeout_s: float,
    depth_max: int,
    report: Report | None,
    seen: Found | None = None,
) -> Iterator[Obligation]:
    """Yield for each property a run that breaks it, or `unknown` if no such run is found with two requests.

    Configurations with one feature are explored before the configuration with all, because their runs are shorter.
    After exploring, a solver unrolls runs of the plain configuration. If `depth_max` excludes exploring, the solver
    unrolls runs of all configurations.
    """
    found = {name: Obligation(name, "bounded", "unknown", 0.0) for name in names}
    places: Iterable[Bounds] = worlds_within(world)
    if depth_max >= DEPTH_MAX:
        found.update(_explored(make, world, names, report, {} if seen is None else seen))
        # With features, a solver can unroll only a few steps, so a property that exploring does not break stays open.
        places = [PLAIN]
    for smaller in places:
        model = make(attrs.evolve(smaller, requests=REQUESTS_IN_RUNS))
        stated = {item.name for item in properties_of(model)}
        left = [name for name in names if found[name].token is None and name in stated]
        if left:
            limits: dict[str, Any] = {"timeout_s": timeout_s, "depth_max": depth_max}
            small = prove_model(model, names=left, **limits, report=report, smaller=make)
            for name in left:
                last = [row for row in small.obligations if row.property_name == name][-1]
                unknown = Obligation(name, "bounded", "unknown", last.seconds)
                found[name] = last if last.step == "bounded" else unknown
    yield from (found[name] for name in names)


def _explored(
    make: ModelOf, world: Bounds, names: Sequence[str], report: Report | None, seen: Found
) -> Iterator[tuple[str, Obligation]]:
    """The violations that exploring finds, each in the first configuration of `worlds_within` that shows it."""
    left = list(names)
    for smaller in worlds_within(world) if left else ():
        known = seen.setdefault(smaller, {})
        new = [name for name in left if name not in known]
        runs = explored(make, smaller, REQUESTS_IN_RUNS, new, report) if new else {}
        for name in new:
            run = runs.get(name)
            known[name] = (
                None if run is None else Obligation(name, "bounded", "refuted", run.seconds, run.token, run.depth)
            )
        for name in list(left):
            found = known[name]
            if found is not None:
                left.remove(name)
                yield name, found


def worlds_within(world: Bounds) -> Iterator[Bounds]:
    """Yield the plain configuration, the configurations with one feature of `world`, and `world` itself."""
    yield PLAIN
    for each in (TIMEOUTS["timeout"], *EXPLORATIONS.values()):
        if each.aspects <= world.aspects and each.queues <= world.queues and each.tags <= world.tags:
            yield attrs.evolve(each, name=PLAIN.name, messages=None, hold_ticks=PLAIN.hold_ticks)
    if world != PLAIN:
        yield world


def compare(read: Statements, smaller: Statements, readers: Readers) -> None:
    """Check that `read`, restricted to the requests of `smaller`, equals `smaller`; raises `NotUniformError` if not.

    The larger model must be symmetric, which the caller checks; the smaller model is checked here. Because of symmetry
    it is enough to compare the first action of each kind, and the first variable of each kind in this action.
    """
    readers.check_symmetry(smaller)
    rests, fewer = readers.rests_of(read), smaller.model.bounds.requests
    dropped = frozenset(range(fewer, read.model.bounds.requests))

    def same(what: str, named: Iterable[int], term: Term, other: Term | None) -> None:
        if rests.but(*named).restricted(term, dropped) is not other:
            raise NotUniformError(f"{what} differs with {fewer} requests")

    actions = {each.label: each for each in read.model.actions if not dropped & set(each.actors)}
    others = {each.label: each for each in smaller.model.actions}
    if list(actions) != list(others):
        raise NotUniformError(f"the actions differ with {fewer} requests")
    first_ones = {label: action for label, action in actions.items() if is_representative(action)}
    for label, action in first_ones.items():
        for what, named, term, other in _said(action, others[label], fewer):
            same(what, named, term, other)
    if [item.name for item in read.all] != [item.name for item in smaller.all]:
        raise NotUniformError(f"the statements differ with {fewer} requests")
    for item, here in zip(read.all, smaller.all, strict=True):
        for what, named, term, other in _stated(item, here, first_ones):
            same(what, named, term, other)
    first = [(each.name, id(each.first)) for each in read.model.variables if not dropped & _slot(each.name)]
    if first != [(each.name, id(each.first)) for each in smaller.model.variables]:
        raise NotUniformError(f"the first state differs with {fewer} requests")


def _conditions(item: Property) -> Mapping[str, Bool]:
    found: dict[str, Bool] = {}
    for label, condition in item.closing:
        found[label] = found.get(label, FALSE) | condition
    return found


def _said(action: Action, other: Action, fewer: int) -> Iterator[tuple[str, tuple[int, ...], Term, Term | None]]:
    actors = tuple(_requests(action))
    # The acting requests, and the first of the remaining requests.
    firsts = frozenset(range(min(len(actors) + 1, fewer)))
    yield action.label, actors, action.guard, other.guard
    for name in dict.fromkeys((*action.effect, *other.effect)):
        if _slot(name) <= firsts:
            both = name in action.effect and name in other.effect
            mine, theirs = (action.effect[name], other.effect[name]) if both else (TRUE, None)
            yield f"{name} after {action.label}", (*actors, *_slot(name)), mine, theirs


def _stated(
    item: Property, other: Property, actions: Mapping[str, Action]
) -> Iterator[tuple[str, tuple[int, ...], Term, Term]]:
    yield item.name, (), item.here, other.here
    mine, theirs = _conditions(item), _conditions(other)
    for label in dict.fromkeys((*mine, *theirs)):
        if label in actions:
            # A property omits a condition that is never true, which may be so for one number of requests and not for
            # another.
            named = tuple(_requests(actions[label]))
            yield f"{item.name} at {label}", named, mine.get(label, FALSE), theirs.get(label, FALSE)


def numbers_of(read: Statements, kept: Iterable[str], readers: Readers) -> tuple[int, ...]:
    """The numbers of requests that prove a property for any number, in ascending order; the last is the cutoff.

    The cutoff is the greatest number of requests that a question needs: its named requests and the witnesses of its
    quantifiers. A bad state with fewer requests becomes one at the cutoff, if an unnamed request is duplicated. No
    request can be duplicated where a question names all of them, so the numbers at which this happens must be proved
    too.

    Raises `NotUniformError` if a question refers to the unnamed requests in another way than by quantifiers, or if the
    cutoff is above `CUTOFF_MAX`.
    """
    readers.check_symmetry(read)
    rests = readers.rests_of(read)
    assumed = [item.here for item in read.candidates if item.name in set(kept)]
    standing: dict[frozenset[int], set[Witness]] = {}
    cutoff = 1
    for named, helps, harms in _questions(read, kept):
        rest = rests.but(*named)
        if named not in standing:
            standing[named] = {found for each in assumed for found in rest.witnesses(each, 1)}
        witnesses = standing[named] | rest.witnesses(helps, 1) | rest.witnesses(harms, -1)
        # Keep at least one unnamed request, because otherwise a statement about every unnamed request would hold
        # vacuously.
        cutoff = max(cutoff, len(named) + max(1, len(witnesses)))
    if cutoff > CUTOFF_MAX:
        raise NotUniformError(f"{cutoff} requests would be needed, more than {CUTOFF_MAX}")
    all_named = max((len(named) for named in standing), default=0)
    return tuple(sorted({*range(1, all_named + 1), cutoff}))


def _questions(read: Statements, kept: Iterable[str]) -> Iterator[tuple[frozenset[int], Bool, Bool]]:
    """Yield (named requests, condition that is true in a bad state, condition that is false in it) per question."""
    inductive = set(kept)
    start: Effect = {variable.name: variable.first for variable in read.model.variables}
    by_label = {action.label: action for action in read.model.actions}
    for item in read.all:
        for part in parts_of(item.here):
            touching = (action for action in read.model.actions if not part.reads.isdisjoint(action.effect))
            for action in touching if item.name in inductive else ():
                if is_representative(action, part):
                    yield _named(action, part), action.guard, after(part, action.effect)
            if is_representative(_NOBODY, part):
                yield _named(_NOBODY, part), TRUE, part
                yield _named(_NOBODY, part), TRUE, after(part, start)
        for label, condition in item.closing:
            if is_representative(by_label[label]):
                yield _named(by_label[label], TRUE), by_label[label].guard & condition, FALSE


def _named(action: Action, part: Bool) -> frozenset[int]:
    slots = slots_of(part)
    return frozenset(_requests(action)) | (frozenset(slots) if len(slots) == 1 else frozenset())


def _requests(action: Action) -> list[int]:
    return [actor for actor in action.actors if isinstance(actor, int)]


def _slot(name: str) -> frozenset[int]:
    slot = slot_of(name)
    return frozenset() if slot is None else frozenset({slot})


_NOBODY: Final = Action("", (), "", TRUE, {}, urgent=False)

"""Proof for any number of requests: derive a cutoff from the specification, then prove it at the few sizes that matter.

Each question of a proof by induction asks for a state: some statements hold in it, a step is enabled, and the step
breaks a statement. The question names at most two requests, the acting one and the one that the statement is about, and
refers to the others only by quantifiers (`quantifiers`). Suppose such a state exists with some number of requests.
Remove every request that is neither named nor the witness of a quantifier: the result is such a state with fewer
requests. Or duplicate a request that is not named, which is possible because requests are not compared: the result has
one more. So it is enough to exclude such a state at the cutoff, named + witnesses, and at the small numbers where all
requests may be named. Why this is sound, and which part of it is checked: docs/decisions/0003-proofs.md.

Terms that cannot be read in this way leave the proof unknown.
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
"""The number of requests at which questions are read: two named ones, and two others to tell "every other" from "some".
"""
CUTOFF_MAX: Final = 32
"""A greater cutoff is not proved; the largest of a preset is 13."""
WORLD: Final = attrs.evolve(PLAIN, queues=2, tags=3, aspects=frozenset(ASPECTS) - {"lateness"})
"""The default bounds of a proof: two queues that share all threads, two tags, and every feature except the counters of
lateness. Properties in ticks replace those.
"""
ModelOf = Callable[[Bounds], Model]
Found = dict[Bounds, dict[str, Obligation | None]]
"""Bounds -> property -> the result of exploring them: a run that breaks it, or None. Shared between worlds."""
Outcomes = Mapping[tuple[str, StepName], Outcome]


@frozen
class Statements:
    """The model at one number of requests, with the statements of a proof."""

    model: Model
    stated: tuple[Property, ...]
    helping: tuple[Property, ...]

    @property
    def candidates(self) -> list[Property]:
        """The statements about states, which may be inductive."""
        return [item for item in (*self.stated, *self.helping) if not item.closing]

    @property
    def all(self) -> tuple[Property, ...]:
        """Properties and strengthening."""
        return (*self.stated, *self.helping)


@define
class Readers:
    """Reads the terms of several worlds, because these have most terms in common."""

    rests: dict[int, Rests] = field(factory=dict)
    shapes: ShapesOf = field(factory=dict)
    symmetric: set[int] = field(factory=set)
    """The identities of the symmetric statements; `kept` keeps them alive."""
    kept: list[Statements] = field(factory=list)

    def rests_of(self, law: Statements) -> Rests:
        """The reader of terms about this number of requests."""
        requests = law.model.bounds.requests
        return self.rests.setdefault(requests, Rests(requests))

    def check_symmetry(self, law: Statements) -> None:
        """Raise `NotUniformError` unless requests, and queues, are interchangeable."""
        if id(law) in self.symmetric:
            return
        if not is_symmetric(law.model, [item.term for item in law.all], self.shapes):
            raise NotUniformError("requests are not interchangeable")
        self.symmetric.add(id(law))
        self.kept.append(law)


@frozen
class AnyProof:
    """A proof for any number of requests. `proved_at` has the numbers of requests that are enough.

    It is empty, with the reason in `why_not`, if the specification does not allow such a proof.
    """

    proof: Proof
    proved_at: tuple[int, ...]
    why_not: str | None = None

    @property
    def cutoff(self) -> int | None:
        """The greatest of these numbers."""
        return max(self.proved_at, default=None)


def statements_of(model_of: ModelOf, requests: int, world: Bounds = PLAIN) -> Statements:
    """The model at a number of requests; its messages, timeout and scan period are open."""
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
    """As `smt.prove`, for any number of requests; `model_of` makes the model, such as a mutant.

    `seen` shares explorations of the same specification between worlds, `lemmas` proofs, `readers` what terms mean. A
    property in `broken` is violated by the run there, so no proof is tried. `record` gets each question at each number
    of requests as SMT-LIB. Raises `UnknownPropertyError`.
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
    """The outcomes at each needed number of requests, and these numbers.

    The same statements are inductive at each. The model at the greatest number is compared with the smaller ones.
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
        if not compared.issuperset(sizes):  # a second round usually needs the numbers of the first
            compared = set(_compared(make, sizes, readers))
        for requests in numbers:
            say(f"{requests} of {cutoff} requests")
            outcomes, kept = _asked(sizes[requests], kept, needed, timeout_s=timeout_s, lemmas=lemmas, record=record)
            found.append(outcomes)
            for key, outcome in outcomes.items():
                if key[1] == "inductive" and outcome.verdict != "proved":
                    broken.setdefault(key, outcome)
        if kept == before:
            # A later round no longer asks what an earlier one has dropped.
            shown = {key: each for key, each in broken.items() if not _follows(found, key[0])}
            return [*found, *([shown] if shown else [])], numbers


def _follows(found: Iterable[Outcomes], name: str) -> bool:
    return all(outcomes[name, "implies"].verdict == "proved" for outcomes in found)


def _compared(make: ModelOf, sizes: Mapping[int, Statements], readers: Readers) -> Iterator[int]:
    """Compare the models of these numbers of requests with the greatest one; raises `NotUniformError`.

    The smallest and the largest world compare the specification at every number, the others only where they prove. A
    difference at a number between would appear in one of those two.
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
    """The outcomes at one number of requests, and which of the wanted statements are inductive there."""
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
    """For each name a run that breaks it; unknown if two requests cannot break it.

    Smaller worlds, with one feature each, are tried before the whole one, because their runs are shorter. Each is
    explored. Then a solver unrolls runs of the plain world; if nothing could be explored, of all of them.
    """
    found = {name: Obligation(name, "bounded", "unknown", 0.0) for name in names}
    places: Iterable[Bounds] = worlds_within(world)
    if depth_max >= DEPTH_MAX:
        found.update(_explored(make, world, names, report, {} if seen is None else seen))
        # A solver unrolls few steps in a world with features, so what exploration does not find there stays open.
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
    """The violations found by exploration, each in the first of the smaller worlds that shows it."""
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
    """The plain world, the worlds with one feature of `world`, and `world`."""
    yield PLAIN
    for each in (TIMEOUTS["timeout"], *EXPLORATIONS.values()):
        if each.aspects <= world.aspects and each.queues <= world.queues and each.tags <= world.tags:
            yield attrs.evolve(each, name=PLAIN.name, messages=None, hold_ticks=PLAIN.hold_ticks)
    if world != PLAIN:
        yield world


def compare(read: Statements, smaller: Statements, readers: Readers) -> None:
    """Check that the model restricted to fewer requests is the model of fewer; raises `NotUniformError` otherwise.

    The larger model must be symmetric, which the caller checks. The smaller one is checked here. So of the actions, and
    of the variables that one writes, it is enough to compare the first of each kind.
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
    firsts = frozenset(range(min(len(actors) + 1, fewer)))  # the acting requests, and the first of the others
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
            # A condition that is never true is left out of a property, possibly in only one of the two.
            named = tuple(_requests(actions[label]))
            yield f"{item.name} at {label}", named, mine.get(label, FALSE), theirs.get(label, FALSE)


def numbers_of(read: Statements, kept: Iterable[str], readers: Readers) -> tuple[int, ...]:
    """The numbers of requests at which a proof is one for any number, in order; the last is the cutoff.

    The cutoff is the greatest number that a question needs: its named requests and the witnesses of its quantifiers.
    With fewer, an unnamed request can be duplicated up to the cutoff. If there is no unnamed one, the question may name
    all requests, so those numbers must be proved too.

    Raises `NotUniformError` if a question refers to the rest in another way, or needs more than `CUTOFF_MAX`.
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
        # Keep at least one unnamed request: a statement about each of the rest needs one to be about.
        cutoff = max(cutoff, len(named) + max(1, len(witnesses)))
    if cutoff > CUTOFF_MAX:
        raise NotUniformError(f"{cutoff} requests would be needed, more than {CUTOFF_MAX}")
    all_named = max((len(named) for named in standing), default=0)
    return tuple(sorted({*range(1, all_named + 1), cutoff}))


def _questions(read: Statements, kept: Iterable[str]) -> Iterator[tuple[frozenset[int], Bool, Bool]]:
    """Every question of the proof: (requests named, condition true in the state, condition false in it)."""
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

"""Proof for any number of requests: a cutoff, found in the text of the law, and the proof there and at the least.

Each question of a proof by induction asks for a state: some statements hold in it, a step is enabled, and the step
breaks a statement. The question names at most two requests, who acts and whom the statement is about, and speaks of
the rest by quantifiers only (`quantifiers`). If any number of requests has such a state, take away every request that
is neither named nor the witness of a quantifier: what is left is such a state of the law with fewer requests. Or give a
request that is not named a twin, for requests are not compared: that is one with more. So where neither the cutoff,
named + witnesses, has one, nor a number so small that all may be named, no number has. Why this is sound, and what of
it is checked: docs/decisions/0003-proofs.md.

Leaves out what cannot be read so: it is unknown, never proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from attrs import frozen

from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, TIMEOUTS, Bounds
from longpoll_spec.engines.analysis.symmetry import is_representative, is_symmetric, slot_of, slots_of
from longpoll_spec.engines.smt.counterexamples import explored
from longpoll_spec.engines.smt.inductive import Outcome, Prover, Record, implied, induction, parts_of, prover_of
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
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.model import Action, Model, Property, select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.terms import FALSE, TRUE, Bool, Effect, Term, after, variables_of

READ: Final = 12
"""Requests for which the law is read: two named ones leave enough to tell "every other" from "some others"."""
CUTOFF_MAX: Final = READ - 1
"""A greater cutoff is not proved: the law is compared with itself only for fewer requests than it is read at."""
WORLD: Final = attrs.evolve(PLAIN, queues=2, tags=2, aspects=frozenset(ASPECTS) - {"lateness"})
"""The world of a proof unless another is named: two queues that share all threads, two tags, and every aspect but the
counters of lateness, which take the place of what is stated of ticks."""
ModelOf = Callable[[Bounds], Model]
Found = dict[Bounds, dict[str, Obligation | None]]
"""Bounds -> property -> what exploring them says of it: a run that breaks it, or None. Worlds have many in common."""
Outcomes = Mapping[tuple[str, StepName], Outcome]
Made = dict[tuple[int, frozenset[str]], tuple[Outcomes, set[str]]]
"""(number of requests, statements that may be inductive) -> the outcomes there, and which statements are inductive."""


@frozen
class Statements:
    """The law at one number of requests, with what a proof is about."""

    model: Model
    stated: tuple[Property, ...]
    helping: tuple[Property, ...]

    @property
    def candidates(self) -> list[Property]:
        """What may be inductive: statements about states."""
        return [item for item in (*self.stated, *self.helping) if not item.closing]

    @property
    def all(self) -> tuple[Property, ...]:
        """Properties and strengthening."""
        return (*self.stated, *self.helping)


@frozen
class AnyProof:
    """A proof for any number. `proved_at` has the numbers of requests that are enough.

    It is empty, and `why_not` a reason, where the text does not allow it.
    """

    proof: Proof
    proved_at: tuple[int, ...]
    why_not: str | None = None

    @property
    def cutoff(self) -> int | None:
        """The greatest of these numbers."""
        return max(self.proved_at, default=None)


def statements_of(model_of: ModelOf, requests: int, world: Bounds = PLAIN) -> Statements:
    """The law at a number of requests; its messages, timeout and scan period are open."""
    model = model_of(attrs.evolve(world, requests=requests))
    stated = properties_of(model)
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
    record: Record | None = None,
) -> AnyProof:
    """As `smt.prove`, for any number of requests; `model_of` is for a law with a planted slip.

    `seen` keeps what was explored for the proof of the same law in another world. `record` gets each question at each
    number of requests as SMT-LIB. Raises `UnknownPropertyError`.
    """
    began = time.perf_counter()
    make = model_of or (lambda bounds: specification_of(policy, bounds))
    read = statements_of(make, READ, world)
    needed = select(read.stated, names)
    limits: dict[str, Any] = {"timeout_s": timeout_s, "depth_max": depth_max, "report": report, "seen": seen}
    # What two requests can break is broken for any number, and the rest need not wait for it.
    two, stated = statements_of(make, REQUESTS_IN_RUNS, world), [item.name for item in needed]
    made: Made = {}
    few = _joined([_at(two, {item.name for item in two.candidates}, stated, timeout_s, made=made, record=record)[0]])
    broken = list(_runs(make, world, [name for name in stated if not _is_proved(few, name)], **limits))
    left = [item.name for item in needed if item.name not in {row.property_name for row in broken if row.token}]
    by_size: list[Outcomes] = []
    proved_at: tuple[int, ...] = ()
    why_not = None
    try:
        by_size, proved_at = (
            _at_each(make, read, left, timeout_s, report, made=made, record=record) if left else ([], ())
        )
    except NotUniformError as error:
        why_not = str(error)
    rows = _joined(by_size)
    open_names = {name for name in (item.name for item in needed) if not _is_proved(rows, name)}
    rows += [row for row in broken if row.property_name in open_names]
    untried = open_names - {row.property_name for row in broken}
    rows += _runs(make, world, [item.name for item in needed if item.name in untried], **limits)
    shown = {row.property_name for row in rows}
    tried = read.helping if left else ()
    given_up = {item.name: Outcome("unknown") for item in tried if item.name not in shown}
    seconds = time.perf_counter() - began
    proof = Proof(read.model, needed, seconds, tuple(rows), given_up)
    return AnyProof(proof, proved_at, why_not)


def _at_each(
    make: ModelOf,
    read: Statements,
    needed: Sequence[str],
    timeout_s: float,
    report: Report | None,
    *,
    made: Made | None = None,
    record: Record | None = None,
) -> tuple[list[Outcomes], tuple[int, ...]]:
    """The outcomes at each number of requests that is needed, and these numbers.

    The same statements are inductive at each. The law is compared with itself there too.
    """
    say = report or (lambda _text: None)
    kept = {item.name for item in read.candidates}
    rests = Rests(READ)
    while True:
        say("how many requests are enough")
        numbers = numbers_of(read, kept, rests)
        cutoff, found, before = numbers[-1], [], kept
        # In the smallest world and in the largest one the text is compared at every number, in the others where it is
        # proved: what differs at a number between would differ in one of those two.
        every = attrs.evolve(read.model.bounds, requests=PLAIN.requests) in (PLAIN, WORLD)
        for requests in range(1, cutoff + 1) if every else numbers:
            smaller = statements_of(make, requests, read.model.bounds)
            compare(read, smaller, rests)
            if requests in numbers:
                say(f"{requests} of {cutoff} requests")
                outcomes, kept = _at(smaller, kept, needed, timeout_s, made=made, record=record)
                found.append(outcomes)
        if kept == before:
            return found, numbers


def _at(
    law: Statements,
    wanted: set[str],
    needed: Sequence[str],
    timeout_s: float,
    *,
    made: Made | None = None,
    record: Record | None = None,
) -> tuple[Outcomes, set[str]]:
    """The outcomes at one number of requests, and which of the wanted statements are inductive there.

    What `made` has is not asked again: with the same statements wanted the questions are the same.
    """
    key = law.model.bounds.requests, frozenset(wanted)
    before = {} if made is None else made
    if key not in before:
        before[key] = _asked(law, wanted, needed, timeout_s, record)
    rows, kept = before[key]
    # What is needed later is part of what was needed first.
    return {row: outcome for row, outcome in rows.items() if row[0] in kept or row[0] in needed}, kept


def _asked(
    law: Statements, wanted: set[str], needed: Sequence[str], timeout_s: float, record: Record | None
) -> tuple[Outcomes, set[str]]:
    # The law read is symmetric (`numbers_of`), and this is what is left of it with fewer requests (`compare`).
    prover: Prover = prover_of(law.model, law.all, timeout_s, symmetric=True, record=record)
    found = induction(prover, [item for item in law.candidates if item.name in wanted])
    kept = {item.name for item in found.kept}
    prover.assume(found.kept)
    rows: dict[tuple[str, StepName], Outcome] = {}
    for item in law.all:
        if item.name in kept:
            rows[item.name, "initial"] = found.initial[item.name]
            rows[item.name, "inductive"] = found.inductive[item.name]
        elif item.name in needed:
            rows[item.name, "implies"] = implied(prover, item)
    return rows, kept


def _joined(by_size: Sequence[Outcomes]) -> list[Obligation]:
    """One obligation for all numbers of requests: it is proved if it is at each."""
    whole: dict[tuple[str, StepName], Outcome] = {}
    for outcomes in by_size:
        for key, outcome in outcomes.items():
            whole[key] = whole.get(key, Outcome()).also(outcome)
    return [Obligation(name, step, outcome.verdict, outcome.seconds) for (name, step), outcome in whole.items()]


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
    """For each name the run that breaks it, or that none is known: what two requests cannot break is unknown here.

    A run is looked for where the least can happen besides: in a world with one aspect, before the whole. All of these
    are explored. A solver then unrolls runs of the plain world, or, where nothing was to be explored, of all of these.
    """
    found = {name: Obligation(name, "bounded", "unknown", 0.0) for name in names}
    places: Iterable[Bounds] = worlds_within(world)
    if depth_max >= DEPTH_MAX:
        found.update(_explored(make, world, names, report, {} if seen is None else seen))
        # A solver unrolls few steps of a world with features: what exploring does not find there is left open.
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
    """What exploring breaks, in the first of the smaller worlds in which it does."""
    left = list(names)
    for smaller in worlds_within(world):
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
    """The plain world, those with one of the aspects of `world`, and itself."""
    yield PLAIN
    for each in (TIMEOUTS["timeout"], *EXPLORATIONS.values()):
        if each.aspects <= world.aspects and each.queues <= world.queues and each.tags <= world.tags:
            yield attrs.evolve(each, name=PLAIN.name, messages=None, hold_ticks=PLAIN.hold_ticks)
    if world != PLAIN:
        yield world


def compare(read: Statements, smaller: Statements, rests: Rests) -> None:
    """Nothing if the law read is, with fewer requests, the law of fewer; raises `NotUniformError` where it is not."""
    fewer = smaller.model.bounds.requests
    dropped = frozenset(range(fewer, read.model.bounds.requests))

    def same(what: str, named: Iterable[int], term: Term, other: Term | None) -> None:
        if rests.but(*named).restricted(term, dropped) is not other:
            raise NotUniformError(f"{what} is another with {fewer} requests")

    actions = {each.label: each for each in read.model.actions if not dropped & set(each.actors)}
    others = {each.label: each for each in smaller.model.actions}
    if list(actions) != list(others):
        raise NotUniformError(f"there are other actions with {fewer} requests")
    for label, action in actions.items():
        for what, named, term, other in _said(action, others[label], dropped):
            same(what, named, term, other)
    if [item.name for item in read.all] != [item.name for item in smaller.all]:
        raise NotUniformError(f"there are other statements with {fewer} requests")
    for item, here in zip(read.all, smaller.all, strict=True):
        for what, named, term, other in _stated(item, here, actions):
            same(what, named, term, other)
    first = [(each.name, id(each.first)) for each in read.model.variables if not dropped & _slot(each.name)]
    if first != [(each.name, id(each.first)) for each in smaller.model.variables]:
        raise NotUniformError(f"the first state is another with {fewer} requests")


def _conditions(item: Property) -> Mapping[str, Bool]:
    """Under which condition each step breaks a property."""
    found: dict[str, Bool] = {}
    for label, condition in item.closing:
        found[label] = found.get(label, FALSE) | condition
    return found


def _said(
    action: Action, other: Action, dropped: frozenset[int]
) -> Iterator[tuple[str, tuple[int, ...], Term, Term | None]]:
    """Each term of an action with the requests it names, and what the other has in its place: None if nothing."""
    actors = tuple(_requests(action))
    yield action.label, actors, action.guard, other.guard
    for name in dict.fromkeys((*action.effect, *other.effect)):
        if not dropped & _slot(name):
            both = name in action.effect and name in other.effect
            mine, theirs = (action.effect[name], other.effect[name]) if both else (TRUE, None)
            yield f"{name} after {action.label}", (*actors, *_slot(name)), mine, theirs


def _stated(
    item: Property, other: Property, actions: Mapping[str, Action]
) -> Iterator[tuple[str, tuple[int, ...], Term, Term]]:
    """Each term of a statement with the requests it names, and what the other has in its place."""
    yield item.name, (), item.here, other.here
    mine, theirs = _conditions(item), _conditions(other)
    for label in dict.fromkeys((*mine, *theirs)):
        if label in actions:
            # A condition that is never true is left out of a property, and may be so of one of both.
            named = tuple(_requests(actions[label]))
            yield f"{item.name} at {label}", named, mine.get(label, FALSE), theirs.get(label, FALSE)


def numbers_of(read: Statements, kept: Iterable[str], rests: Rests) -> tuple[int, ...]:
    """The numbers of requests at which a proof is one for any number, in order; the last is the cutoff.

    The cutoff is the greatest number that a question needs: the requests it names and the witnesses of its quantifiers.
    With fewer a request that is not named can be doubled, up to the cutoff, where there is one: so what is left are the
    numbers at which a question may name them all.

    Raises `NotUniformError` if a question speaks of the rest otherwise, or needs more than `CUTOFF_MAX`.
    """
    if not is_symmetric(read.model, [item.term for item in read.all]):
        raise NotUniformError("requests are not interchangeable")
    assumed = [item.here for item in read.candidates if item.name in set(kept)]
    standing: dict[frozenset[int], set[Witness]] = {}
    cutoff = 1
    for named, helps, harms in _questions(read, kept):
        rest = rests.but(*named)
        if named not in standing:
            standing[named] = {found for each in assumed for found in rest.witnesses(each, 1)}
        witnesses = standing[named] | rest.witnesses(helps, 1) | rest.witnesses(harms, -1)
        # One of the rest stays in any case: what is said of each of them without naming it needs one to be said of.
        cutoff = max(cutoff, len(named) + max(1, len(witnesses)))
    if cutoff > CUTOFF_MAX:
        raise NotUniformError(f"{cutoff} requests would be needed, more than {CUTOFF_MAX}")
    all_named = max((len(named) for named in standing), default=0)
    return tuple(sorted({*range(1, all_named + 1), cutoff}))


def _questions(read: Statements, kept: Iterable[str]) -> Iterator[tuple[frozenset[int], Bool, Bool]]:
    """Every question of the proof: (requests named, what is true in the state asked for, what is false in it)."""
    inductive = set(kept)
    start: Effect = {variable.name: variable.first for variable in read.model.variables}
    by_label = {action.label: action for action in read.model.actions}
    for item in read.all:
        for part in parts_of(item.here):
            touching = (action for action in read.model.actions if set(action.effect) & variables_of(part))
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

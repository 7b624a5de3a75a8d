"""Proof by induction: it finds the statements that every step preserves, and proves what follows from them.

Each statement is a candidate at first. A candidate is dropped if the first state breaks it, or if a step breaks it from
a state in which all candidates hold. The state and the step are kept as a counterexample to induction; the state need
not be reachable. The candidates that were not dropped are tried again, until no more are dropped. The remaining
candidates are inductive together, so they hold in every reachable state (the algorithm Houdini of Flanagan and Leino).
Effects are substituted into the statement, so the solver needs only one copy of the variables.

For runs from the first state see `counterexamples`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import z3
from attrs import define, field, frozen

from longpoll_spec.engines.smt.terms import (
    Frame,
    check,
    frame_of,
    open_parameters,
    plausible,
    solver_of,
    state_in,
    value_in,
)
from longpoll_spec.engines.symmetry import is_representative, is_symmetric
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.terms import TRUE, Bool, after

Answer: TypeAlias = Literal["proved", "refuted", "unknown"]
Report: TypeAlias = Callable[[str], None]
Record: TypeAlias = Callable[[str], None]
"""Receives each question as SMT-LIB text that ends with `(check-sat)`; `unsat` means that the statement is proved."""
_ANSWERS: Final[Mapping[str, Answer]] = {"unsat": "proved", "sat": "refuted", "unknown": "unknown"}
_FROM_BEST: Final[tuple[Answer, ...]] = ("proved", "unknown", "refuted")


@frozen
class Counterexample:
    """A counterexample to induction: a state in which the assumed statements hold, and a step that breaks a statement.

    The state need not be reachable.
    """

    model: Model
    state: tuple[int, ...]
    parameters: Mapping[str, int]
    action: Action | None
    """The step that breaks the statement; None if the state itself breaks it."""


@frozen
class Outcome:
    """The result of one proof obligation; `seconds` is the time that the solver took."""

    verdict: Answer = "proved"
    seconds: float = 0.0
    counterexample: Counterexample | None = None

    def also(self, other: Outcome) -> Outcome:
        """The result of both obligations: the worse verdict, the first counterexample, and the total time."""
        worse = max(self, other, key=lambda outcome: _FROM_BEST.index(outcome.verdict))
        found = self.counterexample or other.counterexample
        return Outcome(worse.verdict, self.seconds + other.seconds, found)


@frozen
class Induction:
    """The result of an induction: the statements that are inductive together, and the outcome for each candidate."""

    kept: tuple[Property, ...]
    initial: Mapping[str, Outcome]
    inductive: Mapping[str, Outcome]
    """Maps a statement to its outcome; a dropped statement has the outcome of the round in which it was dropped."""


@define
class Lemmas:
    """Questions that are proved already, each with the assumptions that its proof used.

    Another model may ask the same question: equal terms are one object in all models. A proof is for all values of the
    open parameters. Invariant: `kept` has every term, so that ids stay unique.
    """

    proved: dict[tuple[int, tuple[str, ...]], list[frozenset[int]]] = field(factory=dict)
    kept: list[Bool] = field(factory=list)

    def follows(self, question: Bool, opened: tuple[str, ...], assumed: Container[int]) -> bool:
        """Whether the question is proved already by a proof whose assumptions are all in `assumed`."""
        known = self.proved.get((id(question), opened), ())
        return any(all(each in assumed for each in used) for used in known)

    def add(self, question: Bool, opened: tuple[str, ...], used: Sequence[Bool]) -> None:
        """Record that the question is proved from these assumptions."""
        self.kept += [question, *used]
        self.proved.setdefault((id(question), opened), []).append(frozenset(map(id, used)))


@define
class Prover:
    """Asks a z3 solver whether states and steps of a model keep properties, under assumed statements.

    Invariant: between questions, the solver's assertions are the parts of the assumed statements.
    """

    model: Model
    timeout_ms: int
    symmetric: bool
    frame: Frame
    record: Record | None = None
    lemmas: Lemmas = field(factory=Lemmas)
    parts: dict[int, Bool] = field(factory=dict)
    """Maps an id to a part of an assumed statement. Each part is asserted under its id, which the unsat core then
    names."""
    solver: Any = None

    def assume(self, statements: Sequence[Property]) -> None:
        """Assume these statements in every later question."""
        self.parts = {id(part): part for item in statements for part in parts_of(item.here) if part is not TRUE}
        self.solver = None

    def _solver(self) -> Any:
        """The z3 solver, created for the first question that needs it, because `lemmas` may answer all questions."""
        if self.solver is None:
            self.solver = solver_of()
            self.solver.set("timeout", self.timeout_ms)
            self.solver.add(*plausible(self.frame.parameters))
            for name, part in self.parts.items():
                self.solver.assert_and_track(self.frame.meaning(part), z3.Bool(str(name)))
        return self.solver

    def first_state(self, statement: Bool) -> Outcome:
        """Whether the first state satisfies the statement."""
        start = {variable.name: variable.first for variable in self.model.variables}
        self.assume(())
        return self._ask(after(statement, start), None)

    def state(self, statement: Bool) -> Outcome:
        """Whether every state that satisfies the assumptions satisfies the statement."""
        return self._all(self._ask(part, None) for part in parts_of(statement) if self._is_needed(None, part))

    def steps(self, statement: Bool, actions: Iterable[Action]) -> Outcome:
        """Whether every step from a state that satisfies the assumptions leads to one in which the statement holds."""
        return self._all(
            self._ask(action.guard.implies(after(part, action.effect)), action)
            for action in actions
            for part in parts_of(statement)
            if not part.reads.isdisjoint(action.effect) and self._is_needed(action, part)
        )

    def no_step(self, action: Action, condition: Bool) -> Outcome:
        """Whether the step is never enabled in a state that satisfies the assumptions and the condition."""
        return self._ask(~(action.guard & condition), action) if self._is_needed(action) else Outcome()

    def _is_needed(self, action: Action | None, part: Bool | None = None) -> bool:
        if not self.symmetric:
            return True
        return is_representative(action or _NOBODY, part)

    def _all(self, outcomes: Iterable[Outcome]) -> Outcome:
        whole = Outcome()
        for outcome in outcomes:
            whole = whole.also(outcome)
            if outcome.verdict != "proved":
                return whole
        return whole

    def _ask(self, statement: Bool, action: Action | None) -> Outcome:
        began = time.perf_counter()
        opened = tuple(self.frame.parameters)
        if self.record is None and (statement is TRUE or self.lemmas.follows(statement, opened, self.parts)):
            return Outcome()
        solver = self._solver()
        solver.push()
        solver.add(z3.Not(self.frame.meaning(statement)))
        said = check(solver)
        answer = _ANSWERS[said]
        if self.record is not None:
            self.record(self._smt_lib(statement, action, said))
        if answer == "proved":
            self.lemmas.add(statement, opened, [self.parts[int(str(each))] for each in solver.unsat_core()])
        found = self._counterexample(action) if answer == "refuted" else None
        solver.pop()
        return Outcome(answer, time.perf_counter() - began, found)

    def _smt_lib(self, statement: Bool, action: Action | None, said: str) -> str:
        """The question as SMT-LIB text, with the label of its step and z3's answer."""
        solver = z3.Solver()
        solver.add(*plausible(self.frame.parameters), *map(self.frame.meaning, self.parts.values()))
        solver.add(z3.Not(self.frame.meaning(statement)))
        text = solver.to_smt2().replace("(set-info :status unknown)", f"(set-info :status {said})")
        return f"; {'the state' if action is None else action.label}\n(set-logic QF_LIA)\n{text}"

    def _counterexample(self, action: Action | None) -> Counterexample:
        solution = self.solver.model()
        parameters = {name: value_in(solution, constant) for name, constant in self.frame.parameters.items()}
        return Counterexample(self.model, state_in(self.model, solution, self.frame), parameters, action)


_NOBODY: Final = Action("", (), "", TRUE, {}, urgent=False)


def prover_of(
    model: Model,
    properties: Iterable[Property],
    timeout_s: float,
    *,
    symmetric: bool | None = None,
    record: Record | None = None,
    lemmas: Lemmas | None = None,
) -> Prover:
    """A prover for a model whose timeout and scan period are open.

    `properties` are all properties that the prover will be asked about. Symmetry of requests is checked here unless the
    caller knows it already (`symmetric`). The prover reuses the proofs in `lemmas`, and adds its own.
    """
    frame = frame_of(model, parameters=open_parameters(model))
    if symmetric is None:
        symmetric = is_symmetric(model, (item.term for item in properties))
    return Prover(
        model, max(1, round(timeout_s * 1000)), symmetric, frame, record, Lemmas() if lemmas is None else lemmas
    )


def induction(prover: Prover, candidates: Sequence[Property], report: Report | None = None) -> Induction:
    """The largest subset of the candidates that is inductive. `report` gets each candidate's name in each round."""
    say = report or (lambda _text: None)
    initial = {item.name: prover.first_state(item.here) for item in candidates}
    left = [item for item in candidates if initial[item.name].verdict == "proved"]
    inductive: dict[str, Outcome] = {}
    while True:
        prover.assume(left)
        failed: set[str] = set()
        for item in left:
            say(item.name)
            inductive[item.name] = prover.steps(item.here, prover.model.actions)
            if inductive[item.name].verdict != "proved":
                failed.add(item.name)
        if not failed:
            return Induction(tuple(left), initial, inductive)
        left = [item for item in left if item.name not in failed]


def implied(prover: Prover, item: Property) -> Outcome:
    """Whether the property follows from the assumptions: in every state, and for every step that it forbids."""
    labels = {action.label: action for action in prover.model.actions}
    whole = prover.state(item.here)
    for label, condition in item.closing:
        if whole.verdict == "proved":
            whole = whole.also(prover.no_step(labels[label], condition))
    return whole


def parts_of(statement: Bool) -> tuple[Bool, ...]:
    """The conjuncts of a statement."""
    return statement.args if statement.op == "and" else (statement,)

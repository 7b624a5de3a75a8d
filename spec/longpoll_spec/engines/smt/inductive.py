"""Proof by induction: which statements every step preserves, and what follows from them.

Statements are candidates. A candidate is dropped if the first state breaks it, or if some step breaks it from a state
in which all other candidates hold. The state and step that show this are kept (a counterexample to induction, which
need not be reachable). The rest is tried again until nothing is dropped. The remaining candidates are inductive
together, so true of every reachable state (Flanagan and Leino's Houdini). Effects are substituted into the statement,
so one copy of the variables is enough.

Runs from the first state: see `counterexamples`.
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
"""Takes each question as SMT-LIB text that ends with `(check-sat)`: unsat means proved."""
_ANSWERS: Final[Mapping[str, Answer]] = {"unsat": "proved", "sat": "refuted", "unknown": "unknown"}
_FROM_BEST: Final[tuple[Answer, ...]] = ("proved", "unknown", "refuted")


@frozen
class Counterexample:
    """A state in which every assumed statement holds, and what is wrong after it. It need not be reachable."""

    model: Model
    state: tuple[int, ...]
    parameters: Mapping[str, int]
    action: Action | None
    """The step that breaks the statement; None if the state itself does."""


@frozen
class Outcome:
    """The result of one obligation."""

    verdict: Answer = "proved"
    seconds: float = 0.0
    counterexample: Counterexample | None = None

    def also(self, other: Outcome) -> Outcome:
        """The conjunction: the worse verdict, the first counterexample, the total time."""
        worse = max(self, other, key=lambda outcome: _FROM_BEST.index(outcome.verdict))
        found = self.counterexample or other.counterexample
        return Outcome(worse.verdict, self.seconds + other.seconds, found)


@frozen
class Induction:
    """The statements that are inductive together with their outcomes, and those that were dropped."""

    kept: tuple[Property, ...]
    initial: Mapping[str, Outcome]
    inductive: Mapping[str, Outcome]
    """For a dropped statement: why, in the round in which it was dropped."""


@define
class Lemmas:
    """Questions that were proved, each with the assumptions that its proof used. Another model may have the same ones.

    A question is a term, which is one object in all models. It is proved for all values of the open parameters.
    Invariant: `kept` keeps every term alive, so ids stay unique.
    """

    proved: dict[tuple[int, tuple[str, ...]], list[frozenset[int]]] = field(factory=dict)
    kept: list[Bool] = field(factory=list)

    def follows(self, question: Bool, opened: tuple[str, ...], assumed: Container[int]) -> bool:
        """Whether a proof of the question is known that needs no other assumptions than these."""
        known = self.proved.get((id(question), opened), ())
        return any(all(each in assumed for each in used) for used in known)

    def add(self, question: Bool, opened: tuple[str, ...], used: Sequence[Bool]) -> None:
        """Remember a proof of the question from these assumptions."""
        self.kept += [question, *used]
        self.proved.setdefault((id(question), opened), []).append(frozenset(map(id, used)))


@define
class Prover:
    """Queries one solver. Invariant: between two questions the solver's assertions are the parts of what is assumed."""

    model: Model
    timeout_ms: int
    symmetric: bool
    frame: Frame
    record: Record | None = None
    lemmas: Lemmas = field(factory=Lemmas)
    parts: dict[int, Bool] = field(factory=dict)
    """The parts of the assumed statements, by id; each is asserted under its id as a name."""
    solver: Any = None

    def assume(self, statements: Sequence[Property]) -> None:
        """Assume these statements in every later question."""
        self.parts = {id(part): part for item in statements for part in parts_of(item.here) if part is not TRUE}
        self.solver = None

    def _solver(self) -> Any:
        """The solver, made at the first question that needs it."""
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
        """Whether every step from a state that satisfies the assumptions leads to one that satisfies the statement."""
        return self._all(
            self._ask(action.guard.implies(after(part, action.effect)), action)
            for action in actions
            for part in parts_of(statement)
            if not part.reads.isdisjoint(action.effect) and self._is_needed(action, part)
        )

    def no_step(self, action: Action, condition: Bool) -> Outcome:
        """Whether the step is never enabled where the condition holds."""
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
        """The question as SMT-LIB, with its step and z3's answer."""
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
    """A prover for a model whose timeout and scan period are open. `properties` are all that it will be asked about.

    Symmetry of requests is checked here unless the caller already knows it. Proofs in `lemmas` are reused and added.
    """
    frame = frame_of(model, parameters=open_parameters(model))
    if symmetric is None:
        symmetric = is_symmetric(model, (item.term for item in properties))
    return Prover(
        model, max(1, round(timeout_s * 1000)), symmetric, frame, record, Lemmas() if lemmas is None else lemmas
    )


def induction(prover: Prover, candidates: Sequence[Property], report: Report | None = None) -> Induction:
    """The largest inductive subset of the candidates."""
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
    """Whether the property follows from the assumptions, in every state and for every step it mentions."""
    labels = {action.label: action for action in prover.model.actions}
    whole = prover.state(item.here)
    for label, condition in item.closing:
        if whole.verdict == "proved":
            whole = whole.also(prover.no_step(labels[label], condition))
    return whole


def parts_of(statement: Bool) -> tuple[Bool, ...]:
    """The conjuncts of this statement."""
    return statement.args if statement.op == "and" else (statement,)

"""Proof by induction: which statements every step preserves, and what follows from those.

Statements are candidates. One that the first state breaks, or that some step breaks from a state in which all the other
candidates hold, is given up with the state and step that show it (a counterexample to induction: it need not be
reachable), and the rest is tried again without it. What is left is inductive as a whole, so true of every reachable
state (Flanagan and Leino's Houdini). An effect is substituted into the statement, so one moment is enough.

Leaves out runs from the first state (`bounded`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import z3
from attrs import define, field, frozen

from longpoll_spec.engines.analysis.symmetry import is_representative, is_symmetric
from longpoll_spec.engines.smt.check import check
from longpoll_spec.engines.smt.terms import Frame, frame_of, open_parameters, plausible, solver_of, state_in, value_in
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.terms import TRUE, Bool, after, variables_of

Answer: TypeAlias = Literal["proved", "refuted", "unknown"]
Report: TypeAlias = Callable[[str], None]
Record: TypeAlias = Callable[[str], None]
"""Takes each question as SMT-LIB text that ends with `(check-sat)`: unsat is proved."""
_ANSWERS: Final[Mapping[str, Answer]] = {"unsat": "proved", "sat": "refuted", "unknown": "unknown"}
_FROM_BEST: Final[tuple[Answer, ...]] = ("proved", "unknown", "refuted")


@frozen
class Counterexample:
    """A state in which every statement in use holds, and what is then wrong. It need not be reachable."""

    state: tuple[int, ...]
    parameters: Mapping[str, int]
    action: Action | None
    """The step that breaks the statement; None where the state itself does."""


@frozen
class Outcome:
    """What came of one obligation."""

    verdict: Answer = "proved"
    seconds: float = 0.0
    counterexample: Counterexample | None = None

    def also(self, other: Outcome) -> Outcome:
        """Both together: the worse verdict, the first counterexample, the time of both."""
        worse = max(self, other, key=lambda outcome: _FROM_BEST.index(outcome.verdict))
        found = self.counterexample or other.counterexample
        return Outcome(worse.verdict, self.seconds + other.seconds, found)


@frozen
class Induction:
    """The statements that are inductive together, with what it took, and those that were given up."""

    kept: tuple[Property, ...]
    initial: Mapping[str, Outcome]
    inductive: Mapping[str, Outcome]
    """For a statement that was given up: why, in the round in which it was."""


@define
class Prover:
    """Asks one solver. Invariant: the solver's assertions are `assumed`, and nothing else between two questions."""

    model: Model
    timeout_ms: int
    symmetric: bool
    frame: Frame
    assumed: Sequence[Property] = ()
    record: Record | None = None
    solver: Any = field(factory=solver_of)

    def assume(self, statements: Sequence[Property]) -> None:
        """From now on every question is asked of states in which these statements hold."""
        self.assumed = statements
        self.solver = solver_of()
        self.solver.set("timeout", self.timeout_ms)
        self.solver.add(*plausible(self.frame.parameters))
        self.solver.add(*(self.frame.meaning(item.here) for item in statements))

    def first_state(self, statement: Bool) -> Outcome:
        """Whether the first state satisfies the statement."""
        start = {variable.name: variable.first for variable in self.model.variables}
        self.assume(())
        return self._ask(after(statement, start), None)

    def state(self, statement: Bool) -> Outcome:
        """Whether every state that is left satisfies the statement."""
        return self._all(self._ask(part, None) for part in parts_of(statement) if self._is_needed(None, part))

    def steps(self, statement: Bool, actions: Iterable[Action]) -> Outcome:
        """Whether every step from a state that is left leads to one that satisfies the statement."""
        return self._all(
            self._ask(action.guard.implies(after(part, action.effect)), action)
            for action in actions
            for part in parts_of(statement)
            if set(action.effect) & variables_of(part) and self._is_needed(action, part)
        )

    def no_step(self, action: Action, condition: Bool) -> Outcome:
        """Whether the step is never possible where the condition holds."""
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
        self.solver.push()
        self.solver.add(z3.Not(self.frame.meaning(statement)))
        said = check(self.solver)
        answer = _ANSWERS[said]
        if self.record is not None:
            step = "the state" if action is None else action.label
            self.record(f"; {step}\n(set-info :status {said})\n{self.solver.to_smt2()}")
        found = self._counterexample(action) if answer == "refuted" else None
        self.solver.pop()
        return Outcome(answer, time.perf_counter() - began, found)

    def _counterexample(self, action: Action | None) -> Counterexample:
        solution = self.solver.model()
        parameters = {name: value_in(solution, constant) for name, constant in self.frame.parameters.items()}
        return Counterexample(state_in(self.model, solution, self.frame), parameters, action)


_NOBODY: Final = Action("", (), "", TRUE, {}, urgent=False)


def prover_of(
    model: Model,
    properties: Iterable[Property],
    timeout_s: float,
    *,
    symmetric: bool | None = None,
    record: Record | None = None,
) -> Prover:
    """A prover for a model whose timeout and scan period are open. `properties` are all it will be asked about.

    Whether requests are interchangeable is looked for in the text unless the caller has seen it already.
    """
    frame = frame_of(model, parameters=open_parameters(model))
    if symmetric is None:
        symmetric = is_symmetric(model, (item.term for item in properties))
    return Prover(model, max(1, round(timeout_s * 1000)), symmetric, frame, record=record)


def induction(prover: Prover, candidates: Sequence[Property], report: Report | None = None) -> Induction:
    """The largest part of the candidates that is inductive."""
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
    """Whether the property follows from what the prover assumes: of every state, and of every step it speaks of."""
    labels = {action.label: action for action in prover.model.actions}
    whole = prover.state(item.here)
    for label, condition in item.closing:
        if whole.verdict == "proved":
            whole = whole.also(prover.no_step(labels[label], condition))
    return whole


def parts_of(statement: Bool) -> tuple[Bool, ...]:
    """The statements whose conjunction this is."""
    return statement.args if statement.op == "and" else (statement,)

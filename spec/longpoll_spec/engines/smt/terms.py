"""Translates terms to z3 expressions: to unbounded integers and truth values, in which a parameter is a z3 constant.

A `Frame` has a z3 constant for each variable at one step of a run. During a call, z3 would handle SIGINT itself: it
would abort and answer `unknown`, and Python would not see the signal. So `check` raises `KeyboardInterrupt` if z3
answers `unknown` because of SIGINT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import z3
from attrs import define, field

from longpoll_spec.model import Model
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import Effect, Int, Term, nodes

_MAKERS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": z3.Z3_mk_add,
    "sub": z3.Z3_mk_sub,
    "and": z3.Z3_mk_and,
    "or": z3.Z3_mk_or,
    "lt": z3.Z3_mk_lt,
    "le": z3.Z3_mk_le,
    "eq": z3.Z3_mk_eq,
    "not": z3.Z3_mk_not,
    "ite": z3.Z3_mk_ite,
}
_MANY: Final = frozenset({"add", "sub", "and", "or"})
"""The operators for which z3's C function takes an array of operands."""


def _applied(node: Term, operands: list[Any]) -> Any:
    """Apply a node's operator to z3 expressions, by z3's C functions.

    The operators of z3's Python classes check and convert their operands, which would take most of the time of a
    translation. Terms are typed, so these checks are not needed.
    """
    context = z3.main_ctx()
    refs = [each.as_ast() for each in operands]
    given = (len(refs), (z3.Ast * len(refs))(*refs)) if node.op in _MANY else tuple(refs)
    return (z3.ArithRef if isinstance(node, Int) else z3.BoolRef)(_MAKERS[node.op](context.ref(), *given), context)


@define(eq=False)
class Frame:
    """The variables at one step of a run. Invariant: `known` has each translated term, so that ids stay unique."""

    variables: Mapping[str, Any]
    """Maps the name of a variable to a z3 constant, or to a z3 value in the first state of a run."""
    parameters: Mapping[str, Any]
    """Maps the name of a parameter to a z3 constant. A missing parameter has the value from the model's bounds."""
    known: dict[int, tuple[Term, Any]] = field(factory=dict)

    def meaning(self, term: Term) -> Any:
        """The z3 expression of a term at this step."""
        for node in nodes(term, done=self.known):
            self.known[id(node)] = (node, self._meaning(node))
        return self.known[id(term)][1]

    def _meaning(self, node: Term) -> Any:
        match node.op:
            case "var":
                return self.variables[node.args[0]]
            case "const":
                return z3.IntVal(node.args[0])
            case "parameter":
                name, value = node.args
                return self.parameters.get(name, z3.IntVal(value))
            case "true" | "false":
                return z3.BoolVal(node.op == "true")
            case _:
                return _applied(node, [self.known[id(arg)][1] for arg in node.args])


def frame_of(model: Model, suffix: str = "", parameters: Mapping[str, Any] | None = None) -> Frame:
    """A frame for a model, in which each variable is a z3 constant with the variable's name and the suffix."""
    made = {
        variable.name: (z3.Bool if variable.truth else z3.Int)(variable.name + suffix) for variable in model.variables
    }
    return Frame(made, parameters or {})


def open_parameters(model: Model) -> dict[str, Any]:
    """A z3 constant for each parameter of the specification."""
    return {term.args[0]: z3.Int(term.args[0]) for term in model.state.parameters}


def plausible(parameters: Mapping[str, Any]) -> list[Any]:
    """The constraints on open parameters: hold time and scan period are at least one tick, and a switch is 0 or 1."""
    switches = {term.args[0] for term in SWITCHES.values()}
    known = [z3.And(constant >= 0, constant <= 1) for name, constant in parameters.items() if name in switches]
    return known + [constant >= 1 for name, constant in parameters.items() if name not in switches]


def becomes(model: Model, effect: Effect, before: Frame, after: Frame) -> list[Any]:
    """The constraints on the state after an effect. A variable that the effect does not assign keeps its value."""
    return [
        after.variables[variable.name] == before.meaning(effect.get(variable.name, variable.term))
        for variable in model.variables
    ]


def solver_of() -> Any:
    """A new solver that leaves Ctrl-C to Python; by default z3 handles it and answers `unknown`."""
    solver = z3.Solver()
    solver.set("ctrl_c", False)
    return solver


def value_in(solution: Any, constant: Any) -> int:
    """The value of a constant in a z3 solution; a truth value is 0 or 1. z3 chooses a value if any is possible."""
    value = solution.eval(constant, model_completion=True)
    return int(z3.is_true(value)) if z3.is_bool(value) else int(value.as_long())


def state_in(model: Model, solution: Any, frame: Frame) -> tuple[int, ...]:
    """The state that a z3 solution assigns to the variables of a frame."""
    return tuple(value_in(solution, frame.variables[variable.name]) for variable in model.variables)


INTERRUPTED: Final = "interrupted from keyboard"
"""The reason that z3 gives for an answer that Ctrl-C cut short (`Z3_solver_get_reason_unknown`)."""


def check(solver: Any) -> str:
    """z3's answer: `sat`, `unsat` or `unknown`. Raises `KeyboardInterrupt` if Ctrl-C made the answer unknown."""
    answer = str(solver.check())
    if answer == "unknown" and solver.reason_unknown() == INTERRUPTED:
        raise KeyboardInterrupt
    return answer

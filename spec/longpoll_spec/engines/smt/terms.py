"""Terms as z3 expressions: unbounded integers, truth values, and parameters that are open unless fixed.

One `Frame` has a z3 constant for each variable at one step. During a call z3 handles SIGINT itself: it aborts, answers
`unknown`, and Python does not see the signal. `check` reports Ctrl-C as Ctrl-C.
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
"""The operators to which z3 takes an array of operands."""


def _applied(node: Term, operands: list[Any]) -> Any:
    """The operator over z3 expressions. z3's own operators would check and convert them, which takes most of the time.

    The types need no check, because terms are typed.
    """
    context = z3.main_ctx()
    refs = [each.as_ast() for each in operands]
    given = (len(refs), (z3.Ast * len(refs))(*refs)) if node.op in _MANY else tuple(refs)
    return (z3.ArithRef if isinstance(node, Int) else z3.BoolRef)(_MAKERS[node.op](context.ref(), *given), context)


@define(eq=False)
class Frame:
    """The variables at one step. Invariant: `known` keeps each translated term alive, so its id is unique."""

    variables: Mapping[str, Any]
    """Variable name -> z3 constant (in the first state of a run, z3 value)."""
    parameters: Mapping[str, Any]
    """Parameter name -> z3 constant; a parameter that is missing keeps its value."""
    known: dict[int, tuple[Term, Any]] = field(factory=dict)

    def meaning(self, term: Term) -> Any:
        """The term's z3 expression at this step."""
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
    """The variables of a model at one step, each as a z3 constant named after it."""
    made = {
        variable.name: (z3.Bool if variable.truth else z3.Int)(variable.name + suffix) for variable in model.variables
    }
    return Frame(made, parameters or {})


def open_parameters(model: Model) -> dict[str, Any]:
    """A z3 constant for each parameter of the specification."""
    return {term.args[0]: z3.Int(term.args[0]) for term in model.state.parameters}


def plausible(parameters: Mapping[str, Any]) -> list[Any]:
    """The constraints on open parameters: hold time and scan period are at least one tick, a switch is on or off."""
    switches = {term.args[0] for term in SWITCHES.values()}
    known = [z3.And(constant >= 0, constant <= 1) for name, constant in parameters.items() if name in switches]
    return known + [constant >= 1 for name, constant in parameters.items() if name not in switches]


def becomes(model: Model, effect: Effect, before: Frame, after: Frame) -> list[Any]:
    """The constraints of an effect on the state after a step; a variable that it does not name keeps its value."""
    return [
        after.variables[variable.name] == before.meaning(effect.get(variable.name, variable.term))
        for variable in model.variables
    ]


def solver_of() -> Any:
    """A new solver that leaves Ctrl-C to Python; z3 would swallow it and answer unknown."""
    solver = z3.Solver()
    solver.set("ctrl_c", False)
    return solver


def value_in(solution: Any, constant: Any) -> int:
    """The value of a constant in a z3 solution; truth is 0 or 1, an unconstrained value is the least."""
    value = solution.eval(constant, model_completion=True)
    return int(z3.is_true(value)) if z3.is_bool(value) else int(value.as_long())


def state_in(model: Model, solution: Any, frame: Frame) -> tuple[int, ...]:
    """The state that a z3 solution gives to a frame."""
    return tuple(value_in(solution, frame.variables[variable.name]) for variable in model.variables)


INTERRUPTED: Final = "interrupted from keyboard"
"""z3's reason for an answer that Ctrl-C cut short (`Z3_solver_get_reason_unknown`)."""


def check(solver: Any) -> str:
    """`sat`, `unsat` or `unknown`; raises KeyboardInterrupt when it is unknown because of Ctrl-C."""
    answer = str(solver.check())
    if answer == "unknown" and solver.reason_unknown() == INTERRUPTED:
        raise KeyboardInterrupt
    return answer

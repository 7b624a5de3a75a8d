"""The z3 meaning of terms: integers without bounds, truth values, and parameters that are open unless they are fixed.

One `Frame` is one moment: it has a z3 constant for each variable. Leaves out asking the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import z3
from attrs import define, field

from longpoll_spec.model import Model
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import Effect, Term, nodes

_MEANINGS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "eq": lambda left, right: left == right,
    "and": z3.And,
    "or": z3.Or,
    "not": z3.Not,
    "ite": z3.If,
}


@define(eq=False)
class Frame:
    """The variables at one moment. Invariant: `known` has each translated term beside its meaning, so its id stays."""

    variables: Mapping[str, Any]
    """Variable name -> z3 constant (or, at the first moment of a run, z3 value)."""
    parameters: Mapping[str, Any]
    """Parameter name -> z3 constant; one that is not named here has its own value."""
    known: dict[int, tuple[Term, Any]] = field(factory=dict)

    def meaning(self, term: Term) -> Any:
        """The term's z3 expression at this moment."""
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
                return _MEANINGS[node.op](*(self.known[id(arg)][1] for arg in node.args))


def frame_of(model: Model, suffix: str = "", parameters: Mapping[str, Any] | None = None) -> Frame:
    """The variables of a model at one moment, each as a z3 constant named after it."""
    made = {
        variable.name: (z3.Bool if variable.truth else z3.Int)(variable.name + suffix) for variable in model.variables
    }
    return Frame(made, parameters or {})


def open_parameters(model: Model) -> dict[str, Any]:
    """A z3 constant for each parameter of the law."""
    return {term.args[0]: z3.Int(term.args[0]) for term in model.state.parameters}


def plausible(parameters: Mapping[str, Any]) -> list[Any]:
    """What is known of open parameters: a pull waits for a tick at least, as the scan does; a switch is on or off."""
    switches = {term.args[0] for term in SWITCHES.values()}
    known = [z3.And(constant >= 0, constant <= 1) for name, constant in parameters.items() if name in switches]
    return known + [constant >= 1 for name, constant in parameters.items() if name not in switches]


def becomes(model: Model, effect: Effect, before: Frame, after: Frame) -> list[Any]:
    """What an effect says of the moment after a step; a variable that it does not name keeps its value."""
    return [
        after.variables[variable.name] == before.meaning(effect.get(variable.name, variable.term))
        for variable in model.variables
    ]


def solver_of() -> Any:
    """A new solver, which leaves Ctrl-C to Python: z3 would swallow it and answer unknown."""
    solver = z3.Solver()
    solver.set("ctrl_c", False)
    return solver


def value_in(solution: Any, constant: Any) -> int:
    """The value that a z3 solution gives to a constant; truth is 0 or 1, and what does not matter is the least."""
    value = solution.eval(constant, model_completion=True)
    return int(z3.is_true(value)) if z3.is_bool(value) else int(value.as_long())


def state_in(model: Model, solution: Any, frame: Frame) -> tuple[int, ...]:
    """The state that a z3 solution gives to a moment."""
    return tuple(value_in(solution, frame.variables[variable.name]) for variable in model.variables)

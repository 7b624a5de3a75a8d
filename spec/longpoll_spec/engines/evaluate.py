"""The reference evaluator, which computes a term's value in one state and with which tests compare faster engines.

The evaluator also runs a model step by step, which turns the token of a counterexample back into a trace.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from longpoll_spec.model import Action, Model, Property, Trace, TraceStep
from longpoll_spec.terms import Term, nodes

Values = Mapping[str, int]

_MEANINGS: Final[Mapping[str, Callable[..., int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "ite": lambda condition, then, otherwise: then if condition else otherwise,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "and": lambda *parts: all(parts),
    "or": lambda *parts: any(parts),
    "not": operator.not_,
}


def evaluate(term: Term, values: Values) -> int:
    """The term's value under these values of the variables; a truth value is 0 or 1."""
    return _values_by_id([term], values)[id(term)]


def _values_by_id(terms: Iterable[Term], values: Values) -> dict[int, int]:
    known: dict[int, int] = {}
    for node in _in_order(*terms):
        known[id(node)] = _value(node, known, values)
    return known


@lru_cache(maxsize=1 << 10)
def _in_order(*terms: Term) -> Sequence[Term]:
    """The nodes of the terms, arguments first, cached because a run evaluates the same guards in each state."""
    return tuple(nodes(*terms))


def _value(node: Term, known: Mapping[int, int], values: Values) -> int:
    match node.op:
        case "var":
            return values[node.args[0]]
        case "const":
            return int(node.args[0])
        case "parameter":
            return int(node.args[1])
        case "true" | "false":
            return int(node.op == "true")
        case _:
            return int(_MEANINGS[node.op](*(known[id(arg)] for arg in node.args)))


def values_of(model: Model, state: Sequence[int]) -> dict[str, int]:
    """A state as a mapping from variable names to values."""
    return {variable.name: value for variable, value in zip(model.variables, state, strict=True)}


def is_enabled(model: Model, action: Action, state: Sequence[int]) -> bool:
    """Whether the action is enabled in the state."""
    return bool(evaluate(action.guard, values_of(model, state)))


def after_step(model: Model, action: Action, state: Sequence[int]) -> tuple[int, ...]:
    """The state after the action. The function asserts that the action leaves every variable within its range."""
    values = values_of(model, state)
    changed = {name: evaluate(term, values) for name, term in action.effect.items()}
    for variable in model.variables:
        value = changed.get(variable.name, variable.lower)
        above = variable.upper is not None and value > variable.upper
        assert value >= variable.lower and not above, f"{action.label} sets {variable.name} to {value}"  # noqa: PT018 - one fact
    return tuple(changed.get(variable.name, values[variable.name]) for variable in model.variables)


def enabled_actions(model: Model, state: Sequence[int]) -> list[Action]:
    """Every action that is enabled in the state, in the order of the specification."""
    known = _values_by_id((action.guard for action in model.actions), values_of(model, state))
    return [action for action in model.actions if known[id(action.guard)]]


def holds(model: Model, item: Property, state: Sequence[int]) -> bool:
    """Whether the property's term is true in the state."""
    return bool(evaluate(item.term, values_of(model, state)))


def trace_of(model: Model, actions: Sequence[Action], property_name: str = "") -> Trace:
    """The trace of a run from the first state; raises `ValueError` if an action is not enabled at its step."""
    steps = [TraceStep(None, model.initial)]
    for action in actions:
        state = steps[-1].state
        if not is_enabled(model, action, state):
            raise ValueError(f"step {len(steps)}: {action.label} is not enabled")
        steps.append(TraceStep(action, after_step(model, action, state)))
    return Trace(model, tuple(steps), property_name)

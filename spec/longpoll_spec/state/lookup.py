"""A variable by its name, or a constant if policy and bounds do not have it."""

from __future__ import annotations

from collections.abc import Mapping

from longpoll_spec.state.variables import Variable
from longpoll_spec.terms import FALSE, Bool, Int, const


def number(variables: Mapping[str, Variable], name: str, otherwise: int = 0) -> Int:
    """The integer variable of this name, or `otherwise` as a constant if it does not exist."""
    if name not in variables:
        return const(otherwise)
    made = variables[name].term
    assert isinstance(made, Int)
    return made


def fact(variables: Mapping[str, Variable], name: str) -> Bool:
    """The truth-valued variable of this name; false if it does not exist."""
    if name not in variables:
        return FALSE
    made = variables[name].term
    assert isinstance(made, Bool)
    return made

"""Hypothesis strategies for the specification: terms of a few variables, and reachable states.

Tests of terms and engines use them.
"""

from __future__ import annotations

import operator
from typing import Final

from hypothesis import strategies as st

from longpoll_spec import terms
from longpoll_spec.engines.evaluate import after_step, enabled_actions
from longpoll_spec.model import Action, Model
from longpoll_spec.terms import FALSE, TRUE, Bool, Int

INT_NAMES: Final = ("a", "b", "c")
BOOL_NAMES: Final = ("p", "q")
VALUE_MAX: Final = 3
"""The largest value of the integer variables, whose smallest value is 0."""

values: Final = st.fixed_dictionaries(
    {name: st.integers(0, VALUE_MAX) for name in INT_NAMES} | {name: st.integers(0, 1) for name in BOOL_NAMES}
)


def _int_leaves() -> st.SearchStrategy[Int]:
    return (
        st.sampled_from(INT_NAMES).map(terms.int_variable)
        | st.integers(-2, VALUE_MAX).map(terms.const)
        | st.integers(0, VALUE_MAX).map(lambda value: terms.parameter(f"k{value}", value))
    )


def _bool_leaves() -> st.SearchStrategy[Bool]:
    return st.sampled_from(BOOL_NAMES).map(terms.bool_variable) | st.sampled_from((TRUE, FALSE))


@st.composite
def ints(draw: st.DrawFn, depth: int = 3) -> Int:
    """Draws an integer term."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(_int_leaves())
    smaller = ints(depth - 1)
    left, right = draw(smaller), draw(smaller)
    match draw(st.sampled_from(("add", "sub", "ite"))):
        case "add":
            return left + right
        case "sub":
            return left - right
        case _:
            return terms.ite(draw(bools(depth - 1)), left, right)


@st.composite
def bools(draw: st.DrawFn, depth: int = 3) -> Bool:
    """Draws a Boolean term."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(_bool_leaves())
    numbers, smaller = ints(depth - 1), bools(depth - 1)
    made: Bool = draw(
        st.builds(operator.lt, numbers, numbers)
        | st.builds(operator.le, numbers, numbers)
        | st.builds(Int.is_, numbers, numbers)
        | st.lists(smaller, max_size=3).map(terms.all_of)
        | st.lists(smaller, max_size=3).map(terms.any_of)
        | smaller.map(operator.invert)
        | st.builds(terms.ite, smaller, smaller, smaller)
    )
    return made


@st.composite
def runs(draw: st.DrawFn, model: Model, length_max: int = 30) -> tuple[list[Action], tuple[int, ...]]:
    """Draws a run of the model; returns its actions and the final state."""
    state, taken = model.initial, list[Action]()
    for _ in range(draw(st.integers(0, length_max))):
        enabled = enabled_actions(model, state)
        if not enabled:
            break
        action = draw(st.sampled_from(enabled))
        taken.append(action)
        state = after_step(model, action, state)
    return taken, state

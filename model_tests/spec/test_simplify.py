from __future__ import annotations

from hypothesis import given

from longpoll_spec.engines.analysis.simplify import Simplifier
from longpoll_spec.engines.evaluate import evaluate
from longpoll_spec.terms import FALSE, TRUE, Bool, bool_variable, int_variable, ite
from longpoll_spec.testing.strategies import BOOL_NAMES, INT_NAMES, VALUE_MAX, bools, values

RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(INT_NAMES, (0, VALUE_MAX)),
    **dict.fromkeys(BOOL_NAMES, (0, 1)),
}


@given(term=bools(4), state=values)
def test_a_simplified_term_means_the_same(term: Bool, state: dict[str, int]) -> None:
    """Within the ranges no value changes."""
    assert evaluate(Simplifier(RANGES).simplify(term), state) == evaluate(term, state)


def test_what_a_step_adds_and_takes_away_cancels() -> None:
    """Sums cancel, choices between near sums are flags, and ranges decide the rest."""
    a, b, p = int_variable("a"), int_variable("b"), bool_variable("p")
    simplify = Simplifier(RANGES).simplify

    assert simplify((a - (b + 1)) - (a - b) < 0) is TRUE
    assert simplify(ite(p, a + 1, a) - a < 1) is ~p
    assert simplify(a + b < 0) is FALSE
    assert simplify(a <= VALUE_MAX) is TRUE
    assert simplify(a < b).op == "lt"

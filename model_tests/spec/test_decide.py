from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longpoll_spec.bounds import named
from longpoll_spec.engines.analysis import decide
from longpoll_spec.engines.analysis.decide import decided
from longpoll_spec.engines.analysis.intervals import ranges_of
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.terms import FALSE, TRUE, Bool, bool_variable, int_variable, ite, nodes
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.strategies import BOOL_NAMES, INT_NAMES, VALUE_MAX, bools, runs, values

RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(INT_NAMES, (0, VALUE_MAX)),
    **dict.fromkeys(BOOL_NAMES, (0, 1)),
}


@given(term=bools(3), guard=bools(2), state=values)
def test_a_decided_term_means_the_same_where_the_guard_holds(term: Bool, guard: Bool, state: dict[str, int]) -> None:
    """No value changes in a state that the guard allows."""
    assume(evaluate(guard, state))

    assert evaluate(decided(term, guard, RANGES), state) == evaluate(term, state)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict"))
@given(data=st.data())
def test_what_the_law_claims_of_a_step_stays_what_it_is(name: str, data: st.DataObject) -> None:
    """Every condition of every enabled step keeps its value in a state of the law."""
    policy = preset(name)
    model = law_of(policy, named("tiny", policy))
    _, state = data.draw(runs(model))
    here = values_of(model, state)
    actions = {action.label: action for action in model.actions if evaluate(action.guard, here)}
    claims = [(label, each) for item in properties_of(model) for label, each in item.closing if label in actions]
    if not claims:
        return
    label, condition = data.draw(st.sampled_from(claims))

    made = decided(condition, actions[label].guard, ranges_of(model))
    assert evaluate(made, here) == evaluate(condition, here)


def test_a_part_is_decided_by_its_cases_under_the_guard() -> None:
    """What no case allows goes, what every case allows goes too, and the guard rules cases out."""
    a, b, p = int_variable("a"), int_variable("b"), bool_variable("p")

    assert decided((a < b) & (b < a), TRUE, RANGES) is FALSE
    assert decided(p | ~(p & (a <= b)), TRUE, RANGES) is TRUE
    assert decided((a + 1 > 0) & (a < b), TRUE, RANGES) is (a < b)
    assert decided(ite(p, a, b).is_(3), (a < 3) & (b < 3), RANGES) is FALSE
    assert decided((a < b) & p, p, RANGES) is (a < b)


def test_too_many_cases_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part with more cases than the limit stays, its small parts are decided all the same."""
    a, b, c = (int_variable(name) for name in INT_NAMES)
    monkeypatch.setattr(decide, "CASES_MAX", (VALUE_MAX + 1) ** 2)

    wide = (a + b) < c + 1
    assert decided(wide & (a <= VALUE_MAX), TRUE, RANGES) is wide
    assert any(node is c for node in nodes(decided(wide, TRUE, RANGES)))

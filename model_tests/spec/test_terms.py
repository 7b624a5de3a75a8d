"""Terms: how they are built, simplified, decided and counted."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longpoll_spec.bounds import named
from longpoll_spec.engines.analysis import decide
from longpoll_spec.engines.analysis.decide import decided
from longpoll_spec.engines.analysis.intervals import ranges_of
from longpoll_spec.engines.analysis.simplify import Simplifier
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.terms import (
    FALSE,
    TRUE,
    Bool,
    Int,
    Term,
    all_of,
    any_of,
    bool_variable,
    const,
    int_variable,
    ite,
    nodes,
    substitute,
    variables_of,
)
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.strategies import BOOL_NAMES, INT_NAMES, VALUE_MAX, bools, ints, runs, values


def test_a_term_has_no_truth_value() -> None:
    term = int_variable("a") < 3

    with pytest.raises(TypeError, match="no truth value"):
        bool(term)
    with pytest.raises(TypeError, match="no truth value"):
        _ = term and TRUE
    with pytest.raises(TypeError, match="no truth value"):
        _ = not term


def test_terms_are_not_compared_with_equals() -> None:
    a = int_variable("a")

    with pytest.raises(TypeError, match="is_"):
        _ = a == 3
    with pytest.raises(TypeError, match="is_"):
        _ = a != 3
    with pytest.raises(TypeError, match="no truth value"):
        _ = 0 < a < 3


def test_branches_of_one_kind() -> None:
    with pytest.raises(TypeError, match="one of each"):
        ite(bool_variable("p"), TRUE, 1)  # type: ignore[call-overload]


def test_equal_terms_are_one_object() -> None:
    first = (int_variable("a") + 1 < int_variable("b")) & bool_variable("p")
    second = (int_variable("a") + 1 < int_variable("b")) & bool_variable("p")

    assert first is second


def test_constants_fold() -> None:
    a = int_variable("a")

    assert const(2) + 3 is const(5)
    assert all_of((a < 3, FALSE)) is FALSE
    assert any_of((a < 3, TRUE)) is TRUE
    assert ~~(a < 3) is (a < 3)
    assert ite(a < 3, 1, 2).is_(1) is (a < 3)


def test_nodes_come_arguments_first() -> None:
    term = (int_variable("a") + int_variable("b") < 3) & (int_variable("a") + int_variable("b") <= 5)
    order = [id(node) for node in nodes(term)]

    assert len(set(order)) == len(order)
    assert all(
        order.index(id(arg)) < order.index(id(node))
        for node in nodes(term)
        for arg in node.args
        if isinstance(arg, (Int, Bool))
    )


@given(term=bools(), state=values)
def test_negation_is_the_other_value(term: Bool, state: dict[str, int]) -> None:
    assert evaluate(~term, state) == 1 - evaluate(term, state)


@given(term=bools(), number=ints(), truth=bools(), state=values)
def test_substitution_is_evaluation_after_the_step(term: Bool, number: Int, truth: Bool, state: dict[str, int]) -> None:
    """A term with an effect put in has the value that the term has after the effect."""
    effect: dict[str, Term] = {"a": number, "p": truth}
    stepped = {**state, "a": evaluate(number, state), "p": evaluate(truth, state)}

    assert evaluate(substitute(term, effect), state) == evaluate(term, stepped)


@given(left=bools(), right=bools(), state=values)
def test_truth_equality_and_implication(left: Bool, right: Bool, state: dict[str, int]) -> None:
    a, b = evaluate(left, state), evaluate(right, state)

    assert evaluate(left.is_(right), state) == int(a == b)
    assert evaluate(left.implies(right), state) == int(not a or bool(b))


@given(term=bools())
def test_a_term_reads_only_its_variables(term: Bool) -> None:
    names = variables_of(term)
    low: dict[str, int] = dict.fromkeys((*INT_NAMES, *BOOL_NAMES), 0)
    high = {name: value if name in names else 1 for name, value in low.items()}

    assert evaluate(term, low) == evaluate(term, high)


@given(st.one_of(ints(), bools()))
def test_a_node_knows_what_it_reads(term: Term) -> None:
    """The names of the variables below it and no others, however it was put together; and it shares what it can."""
    for node in nodes(term):
        assert node.reads == {each.args[0] for each in nodes(node) if each.op == "var"}
        args = [arg for arg in node.args if isinstance(arg, Int | Bool)]
        assert len(args) != 1 or node.reads is args[0].reads
    assert variables_of(term) == term.reads


RANGES: dict[str, tuple[int, int]] = {**dict.fromkeys(INT_NAMES, (0, VALUE_MAX)), **dict.fromkeys(BOOL_NAMES, (0, 1))}


@given(term=bools(4), state=values)
def test_a_simplified_term_means_the_same(term: Bool, state: dict[str, int]) -> None:
    assert evaluate(Simplifier(RANGES).simplify(term), state) == evaluate(term, state)


def test_what_a_step_adds_and_takes_away_cancels() -> None:
    a, b, p = int_variable("a"), int_variable("b"), bool_variable("p")
    simplify = Simplifier(RANGES).simplify

    assert simplify((a - (b + 1)) - (a - b) < 0) is TRUE
    assert simplify(ite(p, a + 1, a) - a < 1) is ~p
    assert simplify(a + b < 0) is FALSE
    assert simplify(a <= VALUE_MAX) is TRUE
    assert simplify(a < b).op == "lt"


@given(term=bools(3), guard=bools(2), state=values)
def test_a_decided_term_means_the_same_where_the_guard_holds(term: Bool, guard: Bool, state: dict[str, int]) -> None:
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

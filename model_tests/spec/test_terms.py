from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_spec.engines.evaluate import evaluate
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
from longpoll_spec.testing.strategies import BOOL_NAMES, INT_NAMES, bools, ints, values


def test_a_term_has_no_truth_value() -> None:
    """`if`, `and`, `or` and `not` on a term raise while the law is built."""
    term = int_variable("a") < 3

    with pytest.raises(TypeError, match="no truth value"):
        bool(term)
    with pytest.raises(TypeError, match="no truth value"):
        _ = term and TRUE
    with pytest.raises(TypeError, match="no truth value"):
        _ = not term


def test_terms_are_not_compared_with_equals() -> None:
    """`==`, `!=` and chained comparison on terms raise while the law is built."""
    a = int_variable("a")

    with pytest.raises(TypeError, match="is_"):
        _ = a == 3
    with pytest.raises(TypeError, match="is_"):
        _ = a != 3
    with pytest.raises(TypeError, match="no truth value"):
        _ = 0 < a < 3


def test_branches_of_one_kind() -> None:
    """If-then-else over one integer and one truth value is refused."""
    with pytest.raises(TypeError, match="one of each"):
        ite(bool_variable("p"), TRUE, 1)  # type: ignore[call-overload]


def test_equal_terms_are_one_object() -> None:
    """Hash-consing: building the same term twice gives the same node."""
    first = (int_variable("a") + 1 < int_variable("b")) & bool_variable("p")
    second = (int_variable("a") + 1 < int_variable("b")) & bool_variable("p")

    assert first is second


def test_constants_fold() -> None:
    """What is known while the law is built does not reach an engine."""
    a = int_variable("a")

    assert const(2) + 3 is const(5)
    assert all_of((a < 3, FALSE)) is FALSE
    assert any_of((a < 3, TRUE)) is TRUE
    assert ~~(a < 3) is (a < 3)
    assert ite(a < 3, 1, 2).is_(1) is (a < 3)


def test_nodes_come_arguments_first() -> None:
    """Every node follows its arguments, and appears once."""
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
    """A term and its negation never agree."""
    assert evaluate(~term, state) == 1 - evaluate(term, state)


@given(term=bools(), number=ints(), truth=bools(), state=values)
def test_substitution_is_evaluation_after_the_step(term: Bool, number: Int, truth: Bool, state: dict[str, int]) -> None:
    """A term with an effect put in has the value that the term has after the effect."""
    effect: dict[str, Term] = {"a": number, "p": truth}
    stepped = {**state, "a": evaluate(number, state), "p": evaluate(truth, state)}

    assert evaluate(substitute(term, effect), state) == evaluate(term, stepped)


@given(left=bools(), right=bools(), state=values)
def test_truth_equality_and_implication(left: Bool, right: Bool, state: dict[str, int]) -> None:
    """`is_` on truth values and `implies` mean what they say."""
    a, b = evaluate(left, state), evaluate(right, state)

    assert evaluate(left.is_(right), state) == int(a == b)
    assert evaluate(left.implies(right), state) == int(not a or bool(b))


@given(term=bools())
def test_a_term_reads_only_its_variables(term: Bool) -> None:
    """Giving other variables other values changes nothing."""
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

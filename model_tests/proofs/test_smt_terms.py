"""z3 means by a term what plain evaluation means by it, and open parameters are really open."""

from __future__ import annotations

import z3
from hypothesis import given

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.evaluate import evaluate
from longpoll_spec.engines.smt.inductive import induction, prover_of
from longpoll_spec.engines.smt.terms import Frame
from longpoll_spec.law import law_of
from longpoll_spec.model import Property
from longpoll_spec.policy import preset
from longpoll_spec.terms import Bool, Int
from longpoll_spec.testing.strategies import BOOL_NAMES, bools, ints, values


def _frame(given_values: dict[str, int]) -> Frame:
    return Frame(
        {
            name: z3.BoolVal(bool(value)) if name in BOOL_NAMES else z3.IntVal(value)
            for name, value in given_values.items()
        },
        {},
    )


@given(term=ints(), at=values)
def test_an_integer_means_the_same(term: Int, at: dict[str, int]) -> None:
    """An integer term has one value in z3 and in plain evaluation."""
    meant = z3.simplify(_frame(at).meaning(term))

    assert isinstance(meant, z3.IntNumRef)
    assert meant.as_long() == evaluate(term, at)


@given(term=bools(), at=values)
def test_a_truth_means_the_same(term: Bool, at: dict[str, int]) -> None:
    """A truth-valued term has one value in z3 and in plain evaluation."""
    assert z3.is_true(z3.simplify(_frame(at).meaning(term))) == bool(evaluate(term, at))


def test_parameters_and_messages_are_open() -> None:
    """What is true only of the bounds at hand is not inductive: the timeout, the scan's period, the messages."""
    model = law_of(preset("strict"), Bounds("proof", requests=1, messages=None))
    state = model.state
    claims = {
        "one_tick": state.requests[0].deadline <= 1,
        "two_ticks": state.next_scan <= 2,
        "two_messages": state.log_end <= 2,
        "nothing_below_zero": state.log_end >= 0,
    }
    items = [Property(name, "inductive", name, term, here=term) for name, term in claims.items()]
    made = induction(prover_of(model, items, timeout_s=10), items)

    assert [item.name for item in made.kept] == ["nothing_below_zero"]
    assert made.initial["two_ticks"].verdict == "refuted"
    assert made.inductive["one_tick"].verdict == "refuted"

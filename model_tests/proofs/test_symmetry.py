"""Requests are seen to be interchangeable where they are, and only there."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.analysis.symmetry import Renaming, is_representative, is_symmetric, slots_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.terms import FALSE, TRUE, all_of, const, int_variable


def _model(name: str = "strict") -> Model:
    return law_of(preset(name), Bounds("proof", requests=3, messages=None))


@pytest.mark.parametrize("name", PRESETS)
def test_the_law_is_symmetric(name: str) -> None:
    """Every preset's actions and properties are the same after renaming requests."""
    model = _model(name)

    assert is_symmetric(model, [item.term for item in properties_of(model)])


@pytest.mark.parametrize(
    "slip",
    [lambda each: attrs.evolve(each, guard=FALSE), lambda each: attrs.evolve(each, effect={})],
    ids=["guard", "effect"],
)
def test_a_slip_in_one_instance_breaks_symmetry(slip: Callable[[Action], Action]) -> None:
    """One changed guard or effect of one instance is enough."""
    model = _model()
    changed = [slip(each) if each.label == "hold(2)" else each for each in model.actions]

    assert not is_symmetric(attrs.evolve(model, actions=tuple(changed)), [])


def test_a_statement_about_one_request_is_not_symmetric() -> None:
    """A statement that singles a request out is not the same after renaming."""
    model = _model()

    assert not is_symmetric(model, [model.state.requests[1].open])
    assert is_symmetric(model, [TRUE, model.state.running])


def test_the_first_choice_of_each_kind_represents() -> None:
    """Of all choices of an action's request and a statement's, only those in the order of naming are asked."""
    model = _model()
    by_label = {action.label: action for action in model.actions}
    open_of = [request.open for request in model.state.requests]

    assert is_representative(by_label["hold(0)"], open_of[0])
    assert is_representative(by_label["hold(0)"], open_of[1])
    assert not is_representative(by_label["hold(0)"], open_of[2])
    assert not is_representative(by_label["hold(1)"], open_of[0])
    assert is_representative(by_label["tick"], open_of[0])
    assert not is_representative(by_label["tick"], open_of[1])
    assert is_representative(by_label["notifier_throws(scanner,0)"])
    assert slots_of(open_of[0] & open_of[2]) == [0, 2]
    assert Renaming({1: 2}).name("offset_1") == "offset_2"
    assert Renaming({1: 2}).name("visible_end") == "visible_end"


def test_queues_are_seen_to_be_alike() -> None:
    """Several queues are interchangeable, in names and as numbers; a slip in what one queue's action does is seen."""
    policy = preset("strict")
    model = law_of(policy, Bounds("three", requests=2, messages=1, queues=3))
    slip = [
        attrs.evolve(each, effect={**each.effect, "queue_0": const(1)}) if each.label == "next_pull(0,q0)" else each
        for each in model.actions
    ]
    ordered = all_of(int_variable(f"queue_{slot}") < 2 for slot in range(2))

    assert is_symmetric(model, [])
    assert is_symmetric(model, [all_of(int_variable(f"queue_{slot}") < 3 for slot in range(2))])
    assert not is_symmetric(attrs.evolve(model, actions=tuple(slip)), [])
    assert not is_symmetric(model, [ordered])
    assert not is_symmetric(model, [int_variable("visible_end_q1") > 0])
    assert Renaming(queues={0: 2}).name("visible_end_q0") == "visible_end_q2"
    assert Renaming(queues={0: 2}).actor("q0") == "q2"
    assert Renaming(queues={0: 2}).actor("scanner") == "scanner"

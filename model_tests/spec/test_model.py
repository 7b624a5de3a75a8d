"""What was made of a law is found again for the same law, and for no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from longpoll_spec.bounds import named
from longpoll_spec.engines.packed.compile import Expand, expand_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model, Property, Said
from longpoll_spec.policy import STRICT, policy_named
from longpoll_spec.terms import TRUE, const


def small() -> Model:
    """A law, made anew."""
    return law_of(STRICT, named("tiny", STRICT))


def changed(model: Model, **changes: Any) -> Model:
    """The model with its first action changed."""
    first, *others = model.actions
    return attrs.evolve(model, actions=(attrs.evolve(first, **changes), *others))


def expanded(model: Model, properties: Sequence[Property]) -> Expand:
    """What expands its states."""
    return expand_of(model, layout_of(model), properties)


def test_the_same_law_is_known_again() -> None:
    """Made twice, by the same text: its properties and its code are made once."""
    first, second = small(), small()
    assert first is not second
    assert Said(first) == Said(second)
    assert properties_of(first) is properties_of(second)
    assert expanded(first, properties_of(first)) is expanded(second, properties_of(second))


@pytest.mark.parametrize("change", ["guard", "effect", "urgent", "policy", "bounds"])
def test_another_law_is_not_taken_for_it(change: str) -> None:
    """Any part of it may differ: one guard, one effect, who is waited for, the policy, the bounds."""
    model = small()
    first = model.actions[0]
    other = {
        "guard": changed(model, guard=TRUE),
        "effect": changed(model, effect={**first.effect, next(iter(first.effect)): const(0)}),
        "urgent": changed(model, urgent=not first.urgent),
        "policy": law_of(policy_named("strict-clone"), model.bounds),
        "bounds": law_of(STRICT, named("small", STRICT)),
    }[change]
    assert Said(model) != Said(other)
    assert properties_of(model) is not properties_of(other)


@pytest.mark.parametrize("part", ["here", "kind", "closing"])
def test_the_same_law_with_other_statements_has_other_code(part: str) -> None:
    """A search looks for what it is asked for, not for what somebody asked for before."""
    model = small()
    first, *others = properties_of(model)
    slips: dict[str, Any] = {"here": TRUE, "kind": "sometimes", "closing": ((model.actions[0].label, TRUE),)}
    asked = expanded(model, [first, *others])
    assert expanded(model, [attrs.evolve(first, **{part: slips[part]}), *others]) is not asked
    assert expanded(model, others) is not asked

"""What a proof calls inductive is true of every state that plain runs reach, and each statement says what it is."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_spec.bounds import named
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.smt.proof import prove
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, Policy, preset, with_knob
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.strategies import runs

POLICIES = (
    *PRESETS.values(),
    with_knob(preset("rocketmq-4.9"), "recheck_after_hold=in_lock"),
    with_knob(preset("strict-clone"), "on_throw=keep_rest"),
    with_knob(preset("strict-clone"), "heap_entry=one_shot"),
)


@cache
def _inductive(policy: Policy) -> frozenset[str]:
    """The statements that z3 has shown every step of the policy to keep."""
    obligations = prove(policy, requests=2, depth_max=0).obligations
    return frozenset(each.property_name for each in obligations if (each.step, each.verdict) == ("inductive", "proved"))


@pytest.mark.parametrize(
    "policy", quick_if(POLICIES, lambda policy: policy.name == "strict"), ids=lambda policy: policy.name
)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_what_is_inductive_is_true_of_every_run(policy: Policy, data: st.DataObject) -> None:
    """No run reaches a state that breaks a statement proved inductive for its policy."""
    model = law_of(policy, named("tiny", policy, messages=2))
    _actions, state = data.draw(runs(model))
    kept = [item for item in (*properties_of(model), *strengthening_of(model)) if item.name in _inductive(policy)]

    assert kept
    for item in kept:
        assert evaluate(item.here, values_of(model, state)), f"{policy.name}: {item.name}"

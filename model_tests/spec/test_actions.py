from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_spec.actions import FAMILIES
from longpoll_spec.bounds import named
from longpoll_spec.engines.evaluate import after_step, enabled_actions, trace_of
from longpoll_spec.law import law_of
from longpoll_spec.model import ACTION_NAMES, Model
from longpoll_spec.policy import PRESETS, STRICT, preset
from longpoll_spec.terms import variables_of
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.strategies import runs

MODELS = {name: law_of(policy, named("tiny", policy, messages=2)) for name, policy in PRESETS.items()}


def test_names_are_exactly_the_shared_ones() -> None:
    """The law's actions carry the names that step points and histories use, and no others."""
    assert {family.name for family in FAMILIES} == set(ACTION_NAMES)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_actions_speak_only_of_the_state(model: Model) -> None:
    """Guards read and effects write nothing but the model's variables, and labels are unique."""
    names = {variable.name for variable in model.variables}
    labels = [action.label for action in model.actions]

    assert len(set(labels)) == len(labels)
    for action in model.actions:
        assert variables_of(action.guard, *action.effect.values()) <= names
        assert set(action.effect) <= names
        assert action.effect


def test_time_waits_only_for_the_urgent() -> None:
    """Under maximal progress tick is enabled exactly where no urgent action is."""
    model = MODELS["strict"]
    start, pulling = model.initial, trace_of(model, list(model.named("next_pull"))[:1]).steps[-1].state

    assert "tick" in {action.name for action in enabled_actions(model, start)}
    assert "tick" not in {action.name for action in enabled_actions(model, pulling)}
    assert set(model.urgent).isdisjoint({"append", "next_pull", "tick", "stop", "executor_rejects", "notifier_throws"})


def test_a_step_that_is_not_enabled_is_refused() -> None:
    """A run that the guards forbid is not a trace."""
    model = law_of(STRICT, named("tiny", STRICT))

    with pytest.raises(ValueError, match="step 1: run\\(0\\) is not enabled"):
        trace_of(model, model.named("run")[:1])


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-pr7359"}))
@given(data=st.data())
def test_no_run_leaves_the_ranges(name: str, data: st.DataObject) -> None:
    """Guards disable at every bound: a step that would leave a range trips the assertion in `after_step`."""
    model = MODELS[name]
    _, state = data.draw(runs(model))

    for action in enabled_actions(model, state):
        assert len(after_step(model, action, state)) == len(model.variables)


def test_a_pull_goes_round() -> None:
    """The plain story: pull, miss, hold, message, wake, answer, and the consumer has moved on by one."""
    model = law_of(preset("rocketmq-4.9"), named("tiny", preset("rocketmq-4.9")))
    by_label = {action.label: action for action in model.actions}
    story = [
        "next_pull(0)",
        "pull_read(0)",
        "hold(0)",
        "append",
        "make_visible",
        "notify_start",
        "notify_each(0)",
        "notify_end",
        "run(0)",
    ]
    end = trace_of(model, [by_label[label] for label in story]).steps[-1].state
    values = {variable.name: variable.show(value) for variable, value in zip(model.variables, end, strict=True)}

    assert (values["phase_0"], values["offset_0"], values["open_0"], values["copies_0"]) == ("idle", "1", "no", "0")

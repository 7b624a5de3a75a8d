from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import tokens
from longpoll_spec.engines.tokens import LENGTH_MAX, PREFIX, parse, replay, token_of
from longpoll_spec.errors import TokenError
from longpoll_spec.law import law_of
from longpoll_spec.policy import PRESETS, preset, with_knob
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.strategies import runs

MODELS = {name: law_of(policy, named("tiny", policy)) for name, policy in PRESETS.items()}


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
@given(data=st.data())
def test_a_run_comes_back_from_its_token(name: str, data: st.DataObject) -> None:
    """A token is short and safe in a URL, and replays to the same actions and the same last state."""
    model = MODELS[name]
    taken, state = data.draw(runs(model))
    token = token_of(model, taken, "no_lost_wakeup")
    trace = replay(token)

    assert re.fullmatch(r"[A-Za-z0-9._~-]+", token)
    assert len(token) < 160
    assert [step.action.label for step in trace.steps[1:] if step.action] == [action.label for action in taken]
    assert (trace.steps[-1].state, trace.property_name) == (state, "no_lost_wakeup")
    assert trace.model.policy == model.policy


def test_a_token_names_its_knobs_and_bounds() -> None:
    """Knobs that were set by hand and every bound come back."""
    policy = with_knob(with_knob(preset("strict"), "expiry=scan"), "on_stop=silent")
    model = law_of(policy, Bounds("own", requests=3, messages=4, hold_ticks=5, scan_ticks=6))
    named_ = parse(token_of(model, []))

    assert (named_.policy.expiry, named_.policy.on_stop, named_.policy.take) == ("scan", "silent", "in_place")
    assert (named_.bounds.requests, named_.bounds.messages) == (3, 4)
    assert (named_.bounds.hold_ticks, named_.bounds.scan_ticks) == (5, 6)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict"))
@given(data=st.data())
def test_a_damaged_token_is_refused(name: str, data: st.DataObject) -> None:
    """One character changed, or the end cut off, is noticed."""
    taken, _ = data.draw(runs(MODELS[name]))
    token = token_of(MODELS[name], taken)
    at = data.draw(st.integers(len(PREFIX), len(token) - 2))
    other = data.draw(st.sampled_from("ABCxyz019-_!").filter(lambda char: char != token[at]))

    for damaged in (token[:at] + other + token[at + 1 :], token[:at]):
        with pytest.raises(TokenError):
            replay(damaged)


@pytest.mark.parametrize("text", ["", "lp1.", "lp0.abc", "hello", "lp1." + "A" * LENGTH_MAX, "lp1.é", "lp1.AAAA"])
def test_what_is_no_token_is_refused(text: str) -> None:
    """Anything else is refused in one line."""
    with pytest.raises(TokenError):
        replay(text)


def test_a_token_of_another_law_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token whose model had other variables or actions is not misread."""
    model = MODELS["strict"]
    monkeypatch.setattr(tokens, "fingerprint_of", lambda _: 12345)
    token = token_of(model, model.named("append"))
    monkeypatch.undo()

    with pytest.raises(TokenError, match="another version of the specification"):
        replay(token)


def test_a_run_that_the_law_forbids_is_refused() -> None:
    """A token whose actions are not enabled one after the other does not run."""
    model = MODELS["strict"]

    with pytest.raises(TokenError, match=r"step 1: run\(0\) is not enabled"):
        replay(token_of(model, model.named("run")[:1]))

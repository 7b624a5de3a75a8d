from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, holds, values_of
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import UnknownPropertyError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import select
from longpoll_spec.policy import PRESETS, Policy, preset, with_knob
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.strategies import runs

SHORTEST = {
    "lost_by_hold": "append next_pull pull_read make_visible notify_start hold",
    "lost_by_keep": "append tick tick next_pull pull_read hold scan_start scan_each make_visible notify_start scan_end",
    "queued_by_deadline": "next_pull pull_read hold tick tick",
    "answered_on_stop": "next_pull pull_read hold stop",
}
BROKEN_BY = {
    "recheck_after_hold=none": {"no_lost_wakeup", "lost_by_hold", "woken_within"},
    "recheck_after_hold=before_lock": {"no_lost_wakeup", "lost_by_hold", "woken_within"},
    "recheck_after_hold=in_lock": {"no_lost_wakeup", "lost_by_hold", "woken_within"},
    "expiry=scan": {"queued_by_deadline", "answered_by_deadline"},
    "notify=dispatcher_poll": {"woken_within"},
    "on_reject=drop": {"nothing_dropped", "dropped_by_reject"},
    "on_throw=drop_rest": {"nothing_dropped", "dropped_by_throw"},
    "on_throw=keep_rest": {"no_lost_wakeup", "lost_by_keep", "woken_within"},
    "on_stop=silent": {"answered_on_stop", "queued_by_deadline", "answered_by_deadline"},
}


def _violated(policy: Policy) -> set[str]:
    result = explore(law_of(policy, named("tiny", policy)))
    return {verdict.name for verdict in result.verdicts if verdict.verdict == "violated"}


@pytest.mark.parametrize(("name", "steps"), SHORTEST.items())
def test_the_shortest_counterexample_is_the_known_race(name: str, steps: str) -> None:
    """On rocketmq-4.9 each hazard's shortest counterexample is the race that upstream's users met."""
    policy = preset("rocketmq-4.9")
    token = explore(law_of(policy, named("tiny", policy))).verdict(name).token
    assert token is not None

    taken = [step.action.name for step in replay(token).steps if step.action is not None]
    assert sorted(taken) == sorted(steps.split())
    assert len(taken) == len(steps.split())


@pytest.mark.parametrize("base", ["strict", "strict-clone"])
@pytest.mark.parametrize(("setting", "broken"), BROKEN_BY.items())
def test_each_remedy_is_needed(base: str, setting: str, broken: set[str]) -> None:
    """Taking one remedy from a strict preset breaks exactly what it is there for."""
    assert _violated(with_knob(preset(base), setting)) == broken


def test_a_clone_needs_its_recheck() -> None:
    """Clone-and-clear without the recheck after the put-back loses by keep, and in place does not need it."""
    broken = {"no_lost_wakeup", "lost_by_keep", "woken_within"}

    assert _violated(with_knob(preset("strict-clone"), "recheck_after_keep=false")) == broken
    assert _violated(with_knob(preset("strict"), "take=clone_and_clear")) == broken
    assert _violated(preset("strict")) == set()


def test_a_spent_heap_entry_loses_its_deadline_in_free_time() -> None:
    """Maximal progress hides a one-shot entry whose request was taken; free time shows it."""
    free = with_knob(preset("strict-clone"), "tick=free")

    assert _violated(free) == set()
    assert _violated(with_knob(free, "heap_entry=one_shot")) == {"no_lost_deadline"}


def test_selecting_an_unknown_property_is_refused() -> None:
    """The error names the nearest property, and the command that lists them."""
    properties = properties_of(law_of(preset("strict"), named("tiny", preset("strict"))))

    assert [item.name for item in select(properties, ["answered_once"])] == ["answered_once"]
    with pytest.raises(UnknownPropertyError, match="did you mean 'no_lost_wakeup'"):
        select(properties, ["no_lost_wakup"])
    with pytest.raises(UnknownPropertyError, match="`longpoll properties` lists all"):
        select(properties, ["always_fast"])


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "rocketmq-pr7359"))
@settings(max_examples=15)
@given(data=st.data())
def test_the_term_says_what_here_and_closing_say(name: str, data: st.DataObject) -> None:
    """One statement about states, or one about the state and its next steps: the two forms of a property agree."""
    model = law_of(preset(name), named("tiny", preset(name)))
    guards = {action.label: action.guard for action in model.actions}
    _, state = data.draw(runs(model))
    values = values_of(model, state)

    for item in properties_of(model):
        breaks = any(evaluate(guards[label] & condition, values) for label, condition in item.closing)
        assert holds(model, item, state) == (bool(evaluate(item.here, values)) and not breaks), item.name

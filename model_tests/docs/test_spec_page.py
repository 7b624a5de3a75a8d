"""docs/spec.md is the law's own text: fresh, whole, and what it says of when things exist is so."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import ACTION_NAMES, Model
from longpoll_spec.moves import moves_of
from longpoll_spec.policy import PRESETS, Policy, knob_values, preset
from longpoll_spec.render import spec
from longpoll_spec.render.conditions import PLAIN, Condition, condition_of, features_of
from longpoll_spec.render.readable import bare, reader_of
from longpoll_spec.render.spec_actions import OPEN, model_of
from longpoll_spec.state import state_of
from longpoll_spec.terms import all_of, any_of, int_variable
from longpoll_spec.testing.cases import quick_if

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
ARROW = re.compile(r"^    (\w+) --> (\w+): (.+)$", re.MULTILINE)

policies = st.builds(
    Policy, name=st.just("any"), **{name: st.sampled_from(each) for name, each in knob_values().items()}
)
bounds = st.sampled_from((PLAIN, *EXPLORATIONS.values()))


@pytest.mark.long
def test_the_page_is_fresh() -> None:
    """The file is what the law says now; `python -m longpoll_spec.render.spec > docs/spec.md` writes it anew."""
    # In a process of its own: in which order a junction's parts are told depends on what was built before.
    told = subprocess.run(
        [sys.executable, "-m", "longpoll_spec.render.spec"], capture_output=True, text=True, check=True
    )
    assert PAGE.read_text("utf-8") == told.stdout


def test_the_page_leaves_no_action_and_no_knob_out() -> None:
    """Each stands on the page."""
    page = PAGE.read_text("utf-8")
    for name in ACTION_NAMES:
        assert f"\n### {name}\n" in page
    assert all(f"| `{knob}` |" in page for knob in knob_values())


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "rocketmq-lmq"))
def test_the_page_leaves_no_variable_and_no_property_out(name: str) -> None:
    """Those of each preset, whatever aspects are on."""
    page, policy = PAGE.read_text("utf-8"), preset(name)
    for size in (named("tiny", policy), *EXPLORATIONS.values()):
        model = law_of(policy, size)
        assert all(f"| `{item.name}` |" in page for item in properties_of(model))
        assert all(f"| `{spec._shown(each.name)}`" in page for each in model.variables)


def _rows_of_variables() -> dict[str, tuple[str, str]]:
    """Variable as shown -> (its values, its first value), as the file has them."""
    state = PAGE.read_text("utf-8").split("\n## State\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in state.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): (cells[2], cells[3]) for cells in rows}


def _wrong_firsts(rows: dict[str, tuple[str, str]]) -> set[str]:
    """Variables whose first value, in the first state of some preset in some world, is not what the rows say."""
    wrong = set()
    for policy in PRESETS.values():
        for size in (named("tiny", policy), *EXPLORATIONS.values()):
            model = law_of(policy, size)
            parameters = {"hold_ticks": size.hold_ticks, "scan_ticks": size.scan_ticks}
            for variable, value in zip(model.variables, model.initial, strict=True):
                values, first = rows[re.sub(r"_\d+$", "[r]", re.sub(r"_q\d+$", "", variable.name))]
                word = variable.labels[value] if variable.labels else ("no", "yes")[value] if variable.truth else value
                if str(parameters.get(first, first)) != str(word):
                    wrong.add(variable.name)
                if (variable.labels or variable.truth) and word not in values.split(", "):
                    wrong.add(variable.name)
    return wrong


def test_first_values_are_those_of_the_models_first_states() -> None:
    """What the page says of a variable's first value is what the first state of every model has."""
    rows = _rows_of_variables()

    assert {"announced", "wants[r]", "next_scan", "running"} <= set(rows)
    assert _wrong_firsts(rows) == set()


@pytest.mark.parametrize("name", PRESETS)
def test_the_diagram_shows_the_moves(name: str) -> None:
    """The arrows of a diagram are the moves of the text, none more and none less."""
    moves = set(moves_of(model_of(preset(name))))
    shown = {
        (action, before, after)
        for before, after, actions in ARROW.findall("\n".join(spec.diagram(moves_of(model_of(preset(name))))))
        for action in actions.split(", ")
    }

    assert shown == {(move.action, move.before, move.after) for move in moves}


VARIABLES = ("recheck_due_0", "armed_0", "phase_0")


@given(policies, bounds)
def test_a_variable_exists_when_the_page_says(policy: Policy, size: Bounds) -> None:
    """What was found by trying some policies is so in any."""
    there = {variable.name for variable in state_of(policy, size).variables}

    for name in VARIABLES:
        found = _when_there(name)
        assert found.holds(features_of(policy, size)) == (name in there), found.text


@cache
def _when_there(name: str) -> Condition:
    return condition_of(lambda policy, size: any(each.name == name for each in state_of(policy, size).variables))


def _has(policy: Policy, size: Bounds, name: str, *, urgent: bool = False) -> bool:
    return any(each.urgent or not urgent for each in model_of(policy, size).named(name))


@pytest.mark.parametrize("name", quick_if(ACTION_NAMES, lambda name: name == "expire"))
@settings(max_examples=15)
@given(policies, bounds)
def test_an_action_exists_and_is_urgent_when_the_page_says(name: str, policy: Policy, size: Bounds) -> None:
    """The same of actions, and of what time waits for."""
    features = features_of(policy, size)
    actions = list(actions_of(state_of(policy, size)))

    assert _when(name).holds(features) == any(each.name == name for each in actions)
    urgent = any(each.name == name and each.urgent for each in actions)
    assert _when(name, urgent=True).holds(features) == urgent


@cache
def _when(name: str, *, urgent: bool = False) -> Condition:
    return condition_of(lambda policy, size: _has(policy, size, name, urgent=urgent))


def test_conditions_have_words() -> None:
    """Always, never, one knob, two, and one or another."""

    def one(policy: Policy, _: Bounds) -> bool:
        return policy.expiry == "scan"

    def both(policy: Policy, _: Bounds) -> bool:
        return policy.expiry == "scan" and policy.on_stop == "answer"

    def either(policy: Policy, _: Bounds) -> bool:
        return policy.expiry == "scan" or policy.on_stop == "answer"

    assert condition_of(lambda _, __: True).text == "always"
    assert condition_of(lambda _, __: False).text == "never"
    assert condition_of(one).text == "where `expiry` is `scan`"
    assert condition_of(both).text == "where `expiry` is `scan` and `on_stop` is `answer`"
    assert condition_of(either).text in {
        "where `expiry` is `scan`, or where `on_stop` is `answer`",
        "where `on_stop` is `answer`, or where `expiry` is `scan`",
    }


def _model() -> Model:
    return model_of(preset("strict"), OPEN)


def test_what_is_said_of_both_requests_is_said_once() -> None:
    """A junction over both requests reads as every or some; one that treats them differently is written out."""
    model = _model()
    first, second = (int_variable(f"phase_{slot}") for slot in (0, 1))
    reader = reader_of(model)

    assert bare(reader.text(all_of((first.is_(0), second.is_(0))))) == "every q: phase[q] = idle"
    assert bare(reader.text(any_of((first.is_(0), second.is_(0))))) == "some q: phase[q] = idle"
    assert bare(reader.text(all_of((first.is_(0), second.is_(1))))) == "phase[r] = idle and phase[other] = pulling"

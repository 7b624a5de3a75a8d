"""The law as JANI: every expression means its term, and every name, sentence, place and slip is there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from longpoll.cli import main
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.render.export.jani import _Writer, jani_of
from longpoll_spec.render.story.terms_of_rocketmq import place_of
from longpoll_spec.terms import Term, int_variable, ite
from longpoll_spec.testing.models import model_named
from longpoll_spec.testing.slips import conjuncts
from longpoll_spec.testing.strategies import bools, ints
from longpoll_spec.testing.strategies import values as valuations
from longpoll_spec.testing.zoo import slips_by_label

CORE = {"∧", "∨", "¬", "ite", "=", "≠", "<", "≤", "+", "-"}  # noqa: RUF001 - JANI's signs
"""The operators that JANI has without optional features, as far as they are ours."""


def value(expression: Any, names: Mapping[str, int]) -> int:
    """What a JANI expression comes to."""
    match expression:
        case bool() | int():
            return int(expression)
        case str():
            return names[expression]
        case {"op": "¬", "exp": inner}:
            return int(not value(inner, names))
        case {"op": "ite", "if": condition, "then": then, "else": otherwise}:
            return value(then if value(condition, names) else otherwise, names)
    left, right = value(expression["left"], names), value(expression["right"], names)
    results = {
        "∧": left and right,
        "∨": left or right,  # noqa: RUF001 - JANI's sign
        "=": left == right,
        "≠": left != right,
        "<": left < right,
        "≤": left <= right,
        "+": left + right,
        "-": left - right,
    }
    return int(results[expression["op"]])


def _document(model: Model) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(jani_of(model, properties_of(model), slips_by_label(model)))
    return found


def _conjuncts(expression: Any) -> int:
    if not isinstance(expression, dict) or expression["op"] != "∧":
        return 1
    return _conjuncts(expression["left"]) + _conjuncts(expression["right"])


@given(st.one_of(ints(), bools()), valuations)
def test_an_expression_means_the_term(term: Term, values: dict[str, int]) -> None:
    """Written as JSON it has the term's value."""
    names = {**values, **{f"k{number}": number for number in range(32)}}

    assert value(_Writer({}).text(term), names) == evaluate(term, values)


def test_a_constant_is_a_word_where_its_variable_has_words() -> None:
    """Compared with it or assigned to it, and a number elsewhere."""
    phase = int_variable("phase_0")
    writer = _Writer({"phase_0": ("PHASE_IDLE", "PHASE_HELD")})

    assert writer.text(~phase.is_(1)) == {"op": "≠", "left": "phase_0", "right": "PHASE_HELD"}
    assert writer.value(ite(phase.is_(0), 1, phase), "phase_0")["then"] == "PHASE_HELD"  # type: ignore[index]
    assert writer.text(int_variable("offset_0").is_(1)) == {"op": "=", "left": "offset_0", "right": 1}


@pytest.mark.parametrize("policy", PRESETS)
def test_the_first_state_and_its_steps_are_the_laws(policy: str) -> None:
    """Types hold the first values, and each guard has the law's parts and is true where the law's is."""
    model = model_named(policy)
    document = _document(model)
    names = {each["name"]: each["value"] for each in document["constants"]}
    state = {each["name"]: value(each["initial-value"], names) for each in document["variables"]}

    assert tuple(state.values()) == model.initial
    assert list(state) == [each.name for each in model.variables]
    for action, edge in zip(model.actions, document["automata"][0]["edges"], strict=True):
        guard = edge["guard"]["exp"]
        assert edge["action"] == action.label
        assert _conjuncts(guard) == len(conjuncts(action))
        assert value(guard, names | state) == evaluate(action.guard, values_of(model, model.initial))


@pytest.mark.parametrize("policy", [*PRESETS, "strict-clone+on_throw=keep_rest", "strict+tick=free"])
def test_every_sentence_place_and_slip_is_told(policy: str) -> None:
    """Each variable, action and property has its comment, and no operator needs an optional feature."""
    model = model_named(policy)
    text = jani_of(model, properties_of(model), slips_by_label(model))
    document = json.loads(text)
    comments = {
        each["name"]: each["comment"] for key in ("variables", "actions", "properties") for each in document[key]
    }

    for variable in model.variables:
        assert comments[variable.name] == variable.sentence
    for item in properties_of(model):
        assert comments[item.name] == f"{item.kind}: {item.sentence}"
    for action in model.actions:
        assert action.sentence in comments[action.label]
        assert place_of(action) in comments[action.label]
        assert ("Time waits for it." in comments[action.label]) == action.urgent
        assert "Planted slips: " in comments[action.label]
    assert "forgets what its guard says of phase" in comments["hold(0)"]
    used = set(re.findall(r'"op": "([^"]+)"', text))
    assert {"∧", "¬", "ite", "filter", "Pmax", "F"} <= used <= CORE | {"filter", "initial", "Pmax", "F"}


def test_an_open_log_has_no_upper_end() -> None:
    """It can be run, if not explored."""
    model = law_of(preset("strict"), Bounds("open", requests=1, messages=None))
    types = {each["name"]: each["type"] for each in _document(model)["variables"]}

    assert types["log_end"] == {"kind": "bounded", "base": "int", "lower-bound": 0}
    assert types["running"] == "bool"


@pytest.mark.parametrize("bounds", EXPLORATIONS)
def test_the_command_writes_the_law_of_every_aspect(bounds: str, tmp_path: Path) -> None:
    """With slips in the comments, a line for each edge, and the numbers of JANI's version and ours."""
    words = ["export", "--to", "jani", "--bounds", bounds, "--json", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    model = law_of(preset("strict"), named(bounds, preset("strict")))

    assert done.exit_code == 0, done.output
    (path,) = map(Path, json.loads(done.output)["files"])
    text = path.read_text("utf-8")
    document = json.loads(text)
    assert text == jani_of(model, properties_of(model), slips_by_label(model))
    assert (document["jani-version"], document["metadata"]["version"], document["type"]) == (1, "1", "mdp")
    assert text.count('\n  {"location": "here", "action": ') == len(model.actions)

"""A trace in Apalache's format has its shape, and says what the law and the plain engine say."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate
from longpoll_spec.engines.tokens import replay
from longpoll_spec.law import law_of
from longpoll_spec.model import Trace
from longpoll_spec.policy import preset
from longpoll_spec.render.notation import parameters_of


@cache
def _tokens() -> dict[str, str]:
    """The shortest counterexamples of rocketmq-4.9, by property."""
    policy = preset("rocketmq-4.9")
    explored = explore(law_of(policy, named("tiny", policy)))
    return {verdict.name: verdict.token for verdict in explored.verdicts if verdict.token is not None}


def _value(value: Any) -> int:
    """An ITF value as the law's own; fails for what is neither a truth value nor a big integer."""
    if isinstance(value, bool):
        return int(value)
    assert list(value) == ["#bigint"]
    assert value["#bigint"] == str(int(value["#bigint"]))
    return int(value["#bigint"])


def _steps_that_do_not_run(made: dict[str, Any], trace: Trace) -> list[int]:
    """The numbers of the states to which the action that they name does not lead from the state before."""
    actions = {action.label: action for action in trace.model.actions}
    states = [{name: _value(state[name]) for name in made["vars"]} for state in made["states"]]
    wrong = []
    for number, (before, state) in enumerate(pairwise(states), start=1):
        action = actions[made["states"][number]["#meta"]["action"]]
        after = before | {name: int(evaluate(term, before)) for name, term in action.effect.items()}
        if not evaluate(action.guard, before) or after != state:
            wrong.append(number)
    return wrong


@pytest.mark.parametrize("name", ["lost_by_keep", "queued_by_deadline", "dropped_by_throw"])
def test_a_trace_has_the_shape_and_runs(name: str) -> None:
    """Every state has every variable and its number, the first the parameters too, and each step is one of the law."""
    token = _tokens()[name]
    done = CliRunner().invoke(main, ["explain", token, "--format", "itf"])
    made = json.loads(done.stdout)
    trace = replay(token)
    parameters = parameters_of(trace.model)

    assert done.exit_code == 0
    assert set(made) == {"#meta", "params", "vars", "states"}
    assert made["#meta"]["format"] == "ITF"
    assert made["#meta"]["source"] == token
    assert made["vars"] == [variable.name for variable in trace.model.variables]
    assert len(made["states"]) == trace.depth + 1
    for number, state in enumerate(made["states"]):
        assert set(state) == {"#meta", *made["vars"], *(() if number else made["params"])}
        assert state["#meta"]["index"] == number
        for variable in trace.model.variables:
            assert isinstance(state[variable.name], bool) is variable.truth
    assert {each: _value(made["states"][0][each]) for each in made["params"]} == parameters
    assert [_value(made["states"][0][each]) for each in made["vars"]] == list(trace.model.initial)
    assert _steps_that_do_not_run(made, trace) == []


def test_it_goes_to_a_file(tmp_path: Path) -> None:
    """The trace is written to a file as it is printed, one JSON object on one line."""
    token, target = _tokens()["lost_by_hold"], tmp_path / "race.itf.json"
    printed = CliRunner().invoke(main, ["explain", token, "--format", "itf"])
    written = CliRunner().invoke(main, ["explain", token, "--format", "itf", "--output", str(target)])

    assert written.exit_code == 0
    assert written.stdout == ""
    assert target.read_text("utf-8") == printed.stdout
    assert printed.stdout.count("\n") == 1

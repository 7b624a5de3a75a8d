"""The explorer's interpreter finds in every preset what our engines find, and reads and writes the same tokens."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet
from model_tests.peers.explorer_node import asked_of_node

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.engines.tokens import replay, token_of
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import policy_named, preset
from longpoll_spec.render.export.explorer.data import data_of
from longpoll_spec.render.export.explorer.page import part
from longpoll_spec.testing.explorer import law_data
from longpoll_spec.testing.models import model_named
from longpoll_spec.testing.slips import slips_of
from longpoll_spec.testing.zoo import named_slips

pytestmark = [
    pytest.mark.peers,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH: the explorer's interpreter is not tried"),
]
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
ENTRIES: Final = [entry for entry in pinned() if entry.bounds in {"tiny", "small"}]
SLIPS: Final = 12
"""Slips that our own engine explores beside the interpreter."""
SLIP_STATES: Final = 20_000
"""Both end at the next level past this: a slip may make the space endless."""
QUICK_STATES: Final = 500_000
"""A larger space takes the interpreter over 10 s."""


def _data(policy: str, bounds: str) -> str:
    model = model_named(policy, bounds)
    return data_of([(model, token_of(model, ()))])


def _case(entry: Entry) -> ParameterSet:
    slow = [pytest.mark.long] if entry.distinct_states > QUICK_STATES else []
    return pytest.param(entry, marks=slow, id=f"{entry.policy}-{entry.bounds}")


@pytest.mark.parametrize("entry", list(map(_case, ENTRIES)))
def test_counts_and_verdicts_are_the_pins(entry: Entry, tmp_path: Path) -> None:
    """States, transitions, depth, and of every property the length of a shortest run."""
    (found,) = asked_of_node(tmp_path, _data(entry.policy, entry.bounds), [{"law": 0}])

    assert (found["states"], found["transitions"], found["depth"]) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )
    assert found["whole"]
    assert found["runs"] == {**entry.violated, **entry.reached}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("this.value(node[1]) < this.value(node[2])", "this.value(node[1]) <= this.value(node[2])"),
        ("if (!this.value(node[at])) return 0", "if (!this.value(node[at])) return 1"),
        ("return urgent && this.law.waits", "return false"),
        ("case SUB: return this.value(node[1]) - this.value(node[2])", "case SUB: return this.value(node[1])"),
    ],
)
def test_an_interpreter_that_reads_an_operator_wrong_is_seen(right: str, wrong: str, tmp_path: Path) -> None:
    """Its counts are other ones, or there is no end."""
    script = part("law.js")
    assert script.count(right) == 1
    entry = next(each for each in ENTRIES if (each.policy, each.bounds) == ("strict", "tiny"))
    question = {"law": 0, "limit": 10 * entry.distinct_states}
    (found,) = asked_of_node(tmp_path, _data("strict", "tiny"), [question], script.replace(right, wrong))

    assert (found["states"], found["transitions"]) != (entry.distinct_states, entry.transitions)


def test_tokens_are_the_same_both_ways(tmp_path: Path) -> None:
    """What Python names is followed to the same state and named alike; each run that is found here replays there."""
    data = _data("rocketmq-4.9", "tiny")
    followed, explored = asked_of_node(tmp_path, data, [{"token": LOST}, {"law": 0}])

    assert followed["again"] == LOST
    assert followed["property"] == "lost_by_hold"
    assert tuple(followed["last"]) == replay(LOST).steps[-1].state
    for name, token in explored["tokens"].items():
        trace = replay(token)
        assert (trace.property_name, trace.depth) == (name, explored["runs"][name])
        assert token_of(trace.model, [step.action for step in trace.steps if step.action], name) == token


def test_tokens_of_knobs_and_aspects_are_the_same(tmp_path: Path) -> None:
    """With settings by hand, several queues and an aspect; numbers over 127 take two bytes."""
    policy = policy_named("strict+tick=free+recheck_after_hold=none")
    model = law_of(policy, named("tiny", policy, queues=2, aspects=["crash"]))
    token = token_of(model, ())
    (found,) = asked_of_node(tmp_path, data_of([(model, token)]), [{"token": token}])

    assert found["again"] == token
    assert tuple(found["last"]) == model.initial


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("lq", "not a token of this version"),
        (LOST[:-1], "damaged"),
        (f"{LOST[:-1]}x", "damaged"),
        (f"{LOST[:20]}A{LOST[21:]}", "damaged"),
        ("lp1.", "damaged"),
        ("lp1.<b>", "damaged"),
        (token_of(model_named("strict", "tiny"), ()), "this page has not the law of strict"),
        (token_of(model_named("rocketmq-4.9", "small"), ()), "under these bounds"),
    ],
)
def test_a_token_that_cannot_be_read_is_told_so(token: str, told: str, tmp_path: Path) -> None:
    """In a sentence, as the command line does."""
    (found,) = asked_of_node(tmp_path, _data("rocketmq-4.9", "tiny"), [{"token": token}])

    assert told in found["error"]


def test_a_run_that_the_law_does_not_take_is_refused(tmp_path: Path) -> None:
    """A token of steps that cannot follow each other names the step."""
    model = model_named("rocketmq-4.9", "tiny")
    hold = next(action for action in model.actions if action.name == "hold")
    (found,) = asked_of_node(tmp_path, _data("rocketmq-4.9", "tiny"), [{"token": token_of(model, [hold])}])

    assert found["error"] == f"step 1: {hold.label} cannot happen here"


def test_slips_break_here_what_they_break_there(tmp_path: Path) -> None:
    """States and verdicts of laws with a planted mistake are those of our own engine."""
    policy = preset("rocketmq-4.9")
    bounds_of = partial(named, "tiny")
    data = law_data(policy, bounds_of)
    told = [slip["what"] for slip in json.loads(data)["slips"]]
    every = len(told) // SLIPS
    chosen = list(range(0, len(told), every))
    answers = asked_of_node(tmp_path, data, [{"law": 0, "slip": at, "limit": SLIP_STATES} for at in chosen])
    bounds = bounds_of(policy)
    planted = [each for each in (*named_slips(policy, bounds), *slips_of(policy, bounds)) if each.is_in(policy, bounds)]

    assert len(planted) == len(told)
    caught = 0
    for at, found in zip(chosen, answers, strict=True):
        model = planted[at].planted(policy, bounds)
        ours = explore(model, properties_of(model), engine="python", limit_states=SLIP_STATES)
        assert found["whole"] == ours.complete
        assert (found["states"], found["transitions"]) == (ours.distinct_states, ours.transitions), told[at]
        assert found["runs"] == _runs(ours), told[at]
        caught += any(each.verdict == "violated" for each in ours.verdicts)
    assert caught


def _runs(found: Any) -> dict[str, int]:
    return {each.name: each.depth for each in found.verdicts if each.depth is not None}

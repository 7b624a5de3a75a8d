"""Coverage counts what runs exercise: no more, no less, and by the law's own words."""

from __future__ import annotations

import json
from functools import cache

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.coverage import coverage_of
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.tokens import replay, token_of
from longpoll_spec.law import law_of
from longpoll_spec.model import Model, Trace
from longpoll_spec.policy import preset
from longpoll_spec.testing.models import model_named


@cache
def _explored(policy: str) -> Exploration:
    return explore(law_of(preset(policy), named("tiny", preset(policy))), engine="python")


def _run(model: Model, *labels: str) -> Trace:
    actions = {action.label: action for action in model.actions}
    return trace_of(model, [actions[label] for label in labels])


def test_a_run_exercises_what_it_does() -> None:
    """A pull that misses and is held exercises three actions, three moves, and the places that it stands at."""
    (found,) = coverage_of([_run(model_named("strict"), "next_pull(1)", "pull_read(1)", "hold(1)")])

    assert found.part("actions").seen == {"next_pull", "pull_read", "hold"}
    assert found.part("moves").seen == {
        "idle --next_pull--> pulling",
        "pulling --pull_read--> missed",
        "missed --hold--> held",
    }
    assert {"phase idle", "phase pulling", "phase missed", "phase held"} <= found.part("places").seen
    assert "phase queued" in found.part("places").missing
    assert {"some_held", "hold_fires"} <= found.part("sometimes").seen
    assert "run_fires" in found.part("sometimes").missing


def test_nothing_is_exercised_by_an_empty_run() -> None:
    """A run of no step has no action and no move, and stands where everything begins."""
    (found,) = coverage_of([_run(model_named("strict"))])

    assert not found.part("actions").seen
    assert not found.part("moves").seen
    assert found.part("places").seen == {"phase idle", "dispatcher idle", "scanner idle"}


@pytest.mark.parametrize("policy", ["strict", "strict-clone", "rocketmq-4.9"])
def test_witnesses_of_all_that_must_be_reached_reach_it(policy: str) -> None:
    """The runs of an exploration together reach every `sometimes`; that is what their tokens say."""
    tokens = [verdict.token for verdict in _explored(policy).verdicts if verdict.token is not None]
    (found,) = coverage_of(map(replay, tokens))

    assert found.runs == len(tokens)
    assert found.part("sometimes").missing == ()
    assert set(found.part("actions").missing) < {action.name for action in model_named(policy).actions}


def test_laws_are_counted_apart() -> None:
    """Runs of two policies are two coverages, runs of one policy under two bounds are one."""
    strict, other = model_named("strict"), model_named("rocketmq-4.9")
    more = law_of(preset("strict"), named("small", preset("strict")))
    found = coverage_of([_run(strict, "append"), _run(other, "append"), _run(more, "append", "make_visible")])

    assert [(each.policy, each.runs) for each in found] == [("strict", 2), ("rocketmq-4.9", 1)]
    assert found[0].part("actions").seen == {"append", "make_visible"}


def _coverage(*words: str, read: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(main, ["coverage", *words], input=read)
    return done.exit_code, done.output


def test_the_command_counts_tokens_and_what_check_prints() -> None:
    """Tokens may be named, or read from the output of `check`; both give the same numbers."""
    model = model_named("strict")
    tokens = [token_of(model, model.named("append")), token_of(model, model.named("stop"))]
    code, named_ = _coverage(*tokens, "--json")
    _, read = _coverage("-", "--json", read=f"explain {tokens[0]}\n{{{tokens[1]}}}")

    assert code == 0
    assert json.loads(named_) == json.loads(read)
    assert json.loads(named_)["laws"][0]["actions"]["seen"] == ["append", "stop"]


def test_the_command_for_people_names_what_is_missing() -> None:
    """The table has a row for each part, with what is not seen."""
    model = model_named("strict")
    code, said = _coverage(token_of(model, model.named("append")))

    assert code == 0
    assert "strict, requests 2, messages 1, hold ticks 1, scan ticks 2: 1 run" in said
    assert "make_visible" in said
    assert "more" in said


@pytest.mark.parametrize(
    ("words", "read", "why"),
    [(("lp1.no",), "", "damaged"), (("-",), "nothing here", "standard input has no token"), ((), "", "Missing")],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], read: str, why: str) -> None:
    """A damaged token, and an input without any, is told in a line and exits 2."""
    code, said = _coverage(*words, read=read)

    assert code == 2
    assert why in said
    assert "Traceback" not in said

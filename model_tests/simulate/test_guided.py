"""A run of the law is a schedule of the real hold service: every counterexample of RocketMQ's policies is followed."""

from __future__ import annotations

from functools import cache
from typing import Final
from unittest import mock

import pytest
from click.testing import CliRunner

import longpoll
from longpoll.cli import main
from longpoll.simulated.beside_law.guided import NotFollowableError, OffTheLawError, follow, under
from longpoll_broker.core.hold import HoldTable
from longpoll_spec.engines.evaluate import holds
from longpoll_spec.engines.tokens import replay
from longpoll_spec.law import properties_of
from longpoll_spec.model import Trace
from longpoll_spec.policy import PRESETS, STRICT
from longpoll_spec.testing.cases import quick_if

ROCKETMQ: Final = sorted(name for name in PRESETS if name.startswith("rocketmq-"))
QUICK: Final = ("rocketmq-4.9",)


@cache
def broken(policy: str) -> dict[str, str]:
    """A token of every property of the plain world that a policy breaks."""
    found = longpoll.check(policy, bounds="small", engine="packed")
    return {each.name: each.token for each in found.verdicts if each.verdict == "violated" and each.token}


def trace_of(policy: str, name: str) -> Trace:
    """The counterexample of one property."""
    return replay(broken(policy)[name])


@pytest.mark.parametrize("policy", quick_if(ROCKETMQ, lambda policy: policy in QUICK))
def test_every_counterexample_is_a_schedule_of_the_code(policy: str) -> None:
    """Step by step, to its end: the real hold service comes where the law says that it can."""
    assert broken(policy)
    for name in broken(policy):
        followed = follow(trace_of(policy, name))
        assert followed.is_whole, f"{policy}, {name}: {followed.steps} of {followed.of}: {followed.told}"


@pytest.mark.parametrize("policy", quick_if(ROCKETMQ, lambda policy: policy in QUICK))
def test_strict_cannot_go_there(policy: str) -> None:
    """Action by action: strict's law or its code does not follow, or it follows and ends well."""
    for name in broken(policy):
        trace, cannot = under(STRICT, trace_of(policy, name))
        followed = follow(trace)
        promise = next(each for each in properties_of(trace.model) if each.name == name)
        ends_well = all(holds(trace.model, promise, step.state) for step in trace.steps)
        assert ends_well, f"{name}: strict follows up to {cannot}, {followed.steps} steps in code, and breaks it"


def test_planted_code_that_is_not_the_policys_cannot_follow() -> None:
    """A table that holds nothing: the code leaves the law, or the run."""
    trace = trace_of("rocketmq-4.9", "lost_by_hold")
    with mock.patch.object(HoldTable, "hold", return_value=False):
        try:
            followed = follow(trace)
        except OffTheLawError:
            return
    assert not followed.is_whole


def test_a_run_with_more_than_one_queue_is_refused() -> None:
    """A sentence that says what this world has not."""
    found = longpoll.check("rocketmq-4.9", bounds="tiny", aspects=["commits"], engine="packed")
    token = found.verdict("commit_never_regresses").token
    assert token is not None

    with pytest.raises(NotFollowableError, match="this run uses commits"):
        follow(replay(token))


def test_the_command_follows_a_token_of_the_law() -> None:
    """Exit code 0 with every move in words; under strict 3, and where it stops."""
    token = broken("rocketmq-4.9")["lost_by_keep"]
    done = CliRunner().invoke(main, ["replay", token])
    strict = CliRunner().invoke(main, ["replay", token, "--policy", "strict"])

    assert done.exit_code == 0, done.output
    assert "follows the run to its end" in done.stdout
    assert "notify_start" in done.stdout
    assert strict.exit_code == 3
    assert "of 11 steps" in strict.stdout

"""Each segment of the hold table's threads between two scheduling points is a step of the specification."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Final

import attrs
import pytest
from click.testing import CliRunner
from model_tests.simulate.exploration import REASONS, coverage_of, explore, wander, ways_lost
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll.cli import main
from longpoll_broker.hold import notifier
from longpoll_simulation.lockstep import run
from longpoll_simulation.refinement import NotReplayableError, follow, under
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.evaluate import holds
from longpoll_spec.engines.python import successors
from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import Trace
from longpoll_spec.policy import PRESETS, ROCKETMQ_4_9, ROCKETMQ_5, STRICT, STRICT_CLONE, Policy
from longpoll_spec.specification import properties_of, specification_of

TINIEST: Final = Bounds("tiniest", requests=1, messages=1, hold_ticks=2, scan_ticks=2)
TINY: Final = Bounds("tiny", requests=2, messages=1, hold_ticks=2, scan_ticks=2)
LARGER: Final = Bounds("larger", requests=3, messages=3, hold_ticks=2, scan_ticks=3)
SAFE: Final = [STRICT, STRICT_CLONE]
FAITHFUL: Final = [ROCKETMQ_4_9, ROCKETMQ_5]
BY_NAME: Final[Callable[[Policy], str]] = attrgetter("name")
SEED: Final = 11


@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_random_schedules_follow_the_specification(policy: Policy) -> None:
    """Each run has three pulls and three messages, which are enough for every kind of step to occur."""
    found = wander(policy, LARGER, seed=SEED, runs=20, moves=70)

    assert found.moves.total() > 1000
    own = {"hold", "pull_read", "run", "append", "make_visible", "notify_start", "scan_start", "next_pull", "tick"}
    assert own <= set(found.law), f"seed {SEED}: never came: {own - set(found.law)}"
    assert ("expire" in found.law) == (policy.expiry == "own_deadline")
    assert not (found.lost and policy in SAFE), f"seed {SEED}: {found.lost}"


@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_every_schedule_of_one_pull_follows_the_specification(policy: Policy) -> None:
    """Every schedule of one pull and one message is tried. Wakeups are lost only where the specification allows it."""
    found = explore(policy, TINIEST)

    assert found.places > 100
    assert set(found.lost) == (set() if policy in SAFE else {"by hold", "by keep"})
    assert found.late_ms == (0 if policy in SAFE else TINIEST.scan_ticks - 1)


@pytest.mark.long
@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_every_schedule_with_a_full_executor_follows_the_specification(policy: Policy) -> None:
    found = explore(policy, TINIEST, rejects=True)

    assert found.moves["fill"] > 100
    assert "executor_rejects" in found.law
    assert (found.dropped is not None) == (policy not in SAFE)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_every_schedule_of_two_pulls_follows_the_specification(policy: Policy) -> None:
    found = explore(policy, TINY)

    assert found.places > 1000
    assert set(found.lost) == (set() if policy in SAFE else {"by hold", "by keep"})


@pytest.fixture
def settles_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each group of woken pulls as a large herd, which is settled only after its pulls are handed out."""
    monkeypatch.setattr(notifier, "LARGE_HERD", 1)


@pytest.mark.usefixtures("settles_later")
def test_a_herd_that_settles_later_follows_the_specification() -> None:
    """Other steps may happen between a traversal in place and its end, and no wakeup is lost."""
    found = wander(STRICT, LARGER, seed=SEED, runs=25, moves=70)

    assert {"notify_start", "expire", "hold"} <= set(found.law)
    assert not found.lost


def test_a_schedule_can_be_replayed() -> None:
    """A recorded schedule in which RocketMQ 4.9 loses a wakeup by its put-back loses the wakeup again."""
    schedule = explore(ROCKETMQ_4_9, TINIEST).lost["by keep"]
    model = specification_of(ROCKETMQ_4_9, TINIEST)
    with run(model, successors(model)) as world:
        for move in schedule:
            assert ways_lost(world) == set()
            world.do(move)
        assert ways_lost(world) == {"by keep"}


def test_a_put_back_without_its_recheck_loses_a_wakeup() -> None:
    policy = attrs.evolve(STRICT_CLONE, recheck_after_keep=False)

    assert set(explore(policy, TINIEST).lost) == {"by keep"}


ONE: Final = Bounds("one", requests=1, messages=1, hold_ticks=2, scan_ticks=2)
TWO: Final = Bounds("two", requests=2, messages=1, hold_ticks=2, scan_ticks=2)
COUNTS: Final = {"strict": (147, 266), "strict-clone": (450, 665), "rocketmq-4.9": (310, 435), "rocketmq-5": (310, 435)}


@pytest.mark.parametrize(
    "policy", quick_if((STRICT, STRICT_CLONE, ROCKETMQ_4_9, ROCKETMQ_5), lambda policy: policy is STRICT), ids=BY_NAME
)
def test_every_state_is_reached_or_has_a_reason(policy: Policy) -> None:
    """The scope is one pull and one message, with an executor that fills, a stop, and filters that raise."""
    found = coverage_of(policy, ONE)

    assert (found.states, found.of) == COUNTS[policy.name]
    assert found.unreached[""] == 0
    assert found.states + found.unreached.total() == found.of
    assert set(found.unreached) <= {*REASONS, ""}


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_every_state_of_two_pulls_is_reached_or_has_a_reason(policy: Policy) -> None:
    found = coverage_of(policy, TWO)

    assert found.unreached[""] == 0
    assert found.states > 1000


ROCKETMQ: Final = sorted(name for name in PRESETS if name.startswith("rocketmq-"))
QUICK: Final = ("rocketmq-4.9",)


@cache
def broken(policy: str) -> dict[str, str]:
    found = longpoll.check(policy, bounds="small", engine="packed")
    return {each.name: each.token for each in found.verdicts if each.verdict == "violated" and each.token}


def trace_of(policy: str, name: str) -> Trace:
    return replay(broken(policy)[name])


@pytest.mark.parametrize("policy", quick_if(ROCKETMQ, lambda policy: policy in QUICK))
def test_every_counterexample_is_a_schedule_of_the_code(policy: str) -> None:
    assert broken(policy)
    for name in broken(policy):
        followed = follow(trace_of(policy, name))
        assert followed.is_whole, f"{policy}, {name}: {followed.steps} of {followed.of}: {followed.told}"


@pytest.mark.parametrize("policy", quick_if(ROCKETMQ, lambda policy: policy in QUICK))
def test_strict_cannot_follow_a_counterexample(policy: str) -> None:
    """Strict cannot follow another policy's counterexample to its end, or can follow it and keeps the property."""
    for name in broken(policy):
        trace, cannot = under(STRICT, trace_of(policy, name))
        followed = follow(trace)
        promise = next(each for each in properties_of(trace.model) if each.name == name)
        ends_well = all(holds(trace.model, promise, step.state) for step in trace.steps)
        assert ends_well, f"{name}: strict follows up to {cannot}, {followed.steps} steps in code, and breaks it"


def test_a_run_with_more_than_one_queue_is_refused() -> None:
    found = longpoll.check("rocketmq-4.9", bounds="tiny", aspects=["commits"], engine="packed")
    token = found.verdict("commit_never_regresses").token
    assert token is not None

    with pytest.raises(NotReplayableError, match="this run uses commits"):
        follow(replay(token))


def test_the_command_follows_a_token_of_the_specification() -> None:
    token = broken("rocketmq-4.9")["lost_by_keep"]
    done = CliRunner().invoke(main, ["explain", token, "--on", "code"])
    told = json.loads(CliRunner().invoke(main, ["explain", token, "--on", "code", "--json"]).stdout)

    assert done.exit_code == 0, done.output
    assert "follows the run to its end" in done.stdout
    assert "notify_start" in done.stdout
    assert set(told) == {"token", "on", "steps", "promised", "seen", "verdict"}
    assert (told["token"], told["on"], told["verdict"], len(told["steps"])) == (token, "code", "followed", 11)
    assert told["promised"][0].startswith("lost_by_keep: ")
    assert "\n".join(told["seen"]) in done.stdout

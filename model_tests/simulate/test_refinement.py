"""Whatever the schedule of the hold table's real threads, each of their segments is a step of the law.

Every schedule is tried where the world is tiny, and random ones where it is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

import attrs
import pytest

from longpoll.simulated.beside_law.explore import explore, wander
from longpoll.simulated.beside_law.world import run
from longpoll_broker.core import notifier
from longpoll_broker.core.hold import HoldTable
from longpoll_broker.testing.schedules.scheduled import ScheduledRuntime, Scheduler
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python.compile import successors
from longpoll_spec.law import law_of
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, STRICT_CLONE, Policy

TINIEST: Final = Bounds("tiniest", requests=1, messages=1, hold_ticks=2, scan_ticks=2)
TINY: Final = Bounds("tiny", requests=2, messages=1, hold_ticks=2, scan_ticks=2)
LARGER: Final = Bounds("larger", requests=3, messages=3, hold_ticks=2, scan_ticks=3)
SAFE: Final = [STRICT, STRICT_CLONE]
FAITHFUL: Final = [ROCKETMQ_4_9, ROCKETMQ_5]
BY_NAME: Final[Callable[[Policy], str]] = attrgetter("name")
SEED: Final = 11


@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_random_schedules_follow_the_law(policy: Policy) -> None:
    """Three pulls, three messages: whatever is drawn, each segment is a step of the law, and every kind of it comes."""
    found = wander(policy, LARGER, seed=SEED, runs=20, moves=70)

    assert found.moves.total() > 1000
    own = {"hold", "pull_read", "run", "append", "make_visible", "notify_start", "scan_start", "next_pull", "tick"}
    assert own <= set(found.law), f"seed {SEED}: never came: {own - set(found.law)}"
    assert ("expire" in found.law) == (policy.expiry == "own_deadline")
    assert not (found.lost and policy in SAFE), f"seed {SEED}: {found.lost}"


@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_every_schedule_of_one_pull_follows_the_law(policy: Policy) -> None:
    """One pull and one message, all of it; where the law says so a wakeup is lost, by both ways, and nowhere else."""
    found = explore(policy, TINIEST)

    assert found.places > 100
    assert set(found.lost) == (set() if policy in SAFE else {"by hold", "by keep"})
    assert found.late_ms == (0 if policy in SAFE else TINIEST.scan_ticks - 1)


@pytest.mark.long
@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_every_schedule_with_a_full_executor_follows_the_law(policy: Policy) -> None:
    """It may become full and be emptied at any time; where the law says so a pull is dropped, and nowhere else."""
    found = explore(policy, TINIEST, rejects=True)

    assert found.moves["fill"] > 100
    assert "executor_rejects" in found.law
    assert (found.dropped is not None) == (policy not in SAFE)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("policy", [*SAFE, *FAITHFUL], ids=BY_NAME)
def test_every_schedule_follows_the_law(policy: Policy) -> None:
    """Two pulls and one message, all of it."""
    found = explore(policy, TINY)

    assert found.places > 1000
    assert set(found.lost) == (set() if policy in SAFE else {"by hold", "by keep"})


@pytest.fixture
def settles_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a herd is, it is forgotten after it was handed out, as large ones are."""
    monkeypatch.setattr(notifier, "LARGE_HERD", 1)


@pytest.mark.usefixtures("settles_later")
def test_what_is_settled_later_follows_the_law_as_well() -> None:
    """Whatever comes between a walk in place and its end, the table is tidy, and nothing is left of it."""
    found = wander(STRICT, LARGER, seed=SEED, runs=25, moves=70)

    assert {"notify_start", "expire", "hold"} <= set(found.law)
    assert not found.lost


def test_a_schedule_plays_again() -> None:
    """The way in which 4.9 loses a wakeup by its put-back, as a list of moves, loses it again."""
    schedule = explore(ROCKETMQ_4_9, TINIEST).lost["by keep"]
    model = law_of(ROCKETMQ_4_9, TINIEST)
    with run(model, successors(model)) as world:
        for move in schedule:
            assert world.ways_lost() == set()
            world.do(move)
        assert world.ways_lost() == {"by keep"}


def red(policy: Policy) -> None:
    """Random schedules of a planted fault: one of them must leave the law."""
    wander(policy, LARGER, seed=SEED, runs=200, moves=80)


def test_planted_a_recheck_left_out_is_no_step_of_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law queues a pull that the code leaves held."""
    monkeypatch.setattr(HoldTable, "recheck", lambda _table, _pull: False)
    with pytest.raises(AssertionError, match="no step of the law"):
        red(STRICT)


def test_planted_a_put_back_without_its_recheck_loses_a_wakeup() -> None:
    """strict-clone without its recheck: the law of that policy allows it, and the loss is seen."""
    policy = attrs.evolve(STRICT_CLONE, recheck_after_keep=False)

    assert set(explore(policy, TINIEST).lost) == {"by keep"}


def test_a_lock_that_is_never_given_back_is_seen() -> None:
    """Who waits for it cannot go; the scheduler says so instead of hanging."""
    scheduler = Scheduler()
    runtime = ScheduledRuntime(scheduler)
    lock = runtime.lock()

    def takes() -> None:
        lock.acquire()
        runtime.step("hold")

    scheduler.spawn("first", takes)
    scheduler.spawn("second", takes)
    scheduler.go("first")
    scheduler.go("second")
    assert not scheduler.actors["second"].can_go
    lock.release()
    assert scheduler.actors["second"].can_go
    scheduler.close()

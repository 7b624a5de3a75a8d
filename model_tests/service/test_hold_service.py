"""The shared table with its policies' knobs, without sockets: a fake store, executor and clock."""

from __future__ import annotations

import threading

import attrs
import pytest

from longpoll_broker.core.filter import java_hash, tag_filter
from longpoll_broker.core.hold import Pull
from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.service.channel import Outbox
from longpoll_broker.service.hold_service import HoldService
from longpoll_broker.testing.memory_queues import MemoryQueues, Message
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy, RecheckAfterHold

KEY = ("T", 0)


class Bench:
    """A hold service over queues in memory, whose executor notes what it gets."""

    def __init__(
        self,
        policy: Policy,
        *,
        rejects: bool = False,
        held_count_max: int = 100,
        queue_held_count_max: int | None = None,
    ) -> None:
        self.now_ns = 0
        runtime = RealRuntime()
        runtime.monotonic_ns = lambda: self.now_ns
        self.queues = MemoryQueues()
        self.rejects = rejects
        self.ran: list[tuple[Pull, str]] = []
        self.refused: list[tuple[Pull, str]] = []
        self.outbox = Outbox()
        self.service = HoldService(
            runtime,
            policy,
            self.queues,
            self,
            refuse=self.refuse,
            held_count_max=held_count_max,
            queue_held_count_max=queue_held_count_max,
        )

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:
        """The executor."""
        if not self.rejects:
            self.ran.append((pull, cause))
        return not self.rejects

    def refuse(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        """The answer without a run."""
        self.refused.append((pull, cause))

    def hold(self, offset: int = 0, deadline_ms: int = 1000, *, tags: str = "*", queue_id: int = 0) -> Pull:
        """Hold a pull that has missed."""
        pull = Pull("c", 1, "G", "T", queue_id, offset, 32, 2, deadline_ms=deadline_ms)
        pull.filter = tag_filter(tags, None)
        self.service.hold(pull, self.outbox)
        self.service.assert_tidy()
        return pull

    def make_visible(self, tag: str = "") -> None:
        """A message becomes visible, and its notifier has not walked yet."""
        self.queues.append(KEY, Message(java_hash(tag) if tag else 0))
        self.queues.make_visible(KEY)

    def arrive(self, tag: str = "") -> None:
        """A message becomes visible and its notifier walks."""
        self.make_visible(tag)
        end = self.queues.visible_end(*KEY)
        self.service.notify(KEY, end, self.queues.messages[KEY][-1].tags_code, self.outbox)
        self.service.assert_tidy()


@pytest.mark.parametrize("variant", ["before_lock", "in_lock", "after_insert"])
def test_every_recheck_sees_what_is_visible_already(variant: RecheckAfterHold) -> None:
    """What became visible after the read is run at once."""
    bench = Bench(attrs.evolve(STRICT, recheck_after_hold=variant))
    bench.make_visible()
    pull = bench.hold()
    assert bench.ran == [(pull, "woken")]
    assert len(bench.service) == 0


def test_without_a_recheck_it_is_held() -> None:
    """As RocketMQ does; the test above can fail."""
    bench = Bench(attrs.evolve(STRICT, recheck_after_hold="none"))
    bench.make_visible()
    bench.hold()
    assert bench.ran == []
    assert len(bench.service) == 1


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=lambda policy: policy.name)
def test_a_rejected_pull_is_answered_busy(policy: Policy) -> None:
    """Under strict nothing that entered is dropped."""
    bench = Bench(policy, rejects=True)
    pull = bench.hold()
    bench.arrive()
    assert bench.refused == [(pull, "busy")]


def test_rocketmq_drops_a_rejected_pull() -> None:
    """Hazard (d)."""
    bench = Bench(ROCKETMQ_4_9, rejects=True)
    bench.hold()
    bench.arrive()
    assert (bench.refused, len(bench.service)) == ([], 0)


def test_the_clock_sleeps_until_the_earliest_deadline_and_is_told_of_an_earlier_one() -> None:
    """A hold on another thread wakes the clock only when its deadline comes first."""
    bench = Bench(STRICT)
    woken: list[int] = []
    bench.service.run_clock_on(Outbox(), lambda: woken.append(1))
    assert bench.service.wait_s() is None
    bench.hold(deadline_ms=500)
    assert bench.service.wait_s() == 0.5
    woken.clear()
    bench.hold(deadline_ms=700)
    assert woken == []
    bench.hold(deadline_ms=300)
    assert woken == [1]
    assert bench.service.wait_s() == 0.3


def test_at_a_deadline_exactly_the_late_ones_leave() -> None:
    """Not one millisecond before."""
    bench = Bench(STRICT)
    first, second = bench.hold(deadline_ms=300), bench.hold(deadline_ms=301)
    bench.service.wait_s()
    bench.now_ns = 299_999_999
    bench.service.run(bench.outbox)
    assert bench.ran == []
    bench.now_ns = 300_000_000
    bench.service.run(bench.outbox)
    assert bench.ran == [(first, "expired")]
    bench.service.wait_s()
    bench.now_ns = 301_000_000
    bench.service.run(bench.outbox)
    assert bench.ran[1:] == [(second, "expired")]


def test_the_limit_is_kept_and_room_comes_back() -> None:
    """Refused at the limit; held again once another has left."""
    bench = Bench(STRICT, held_count_max=2)
    bench.hold()
    bench.hold()
    third = bench.hold()
    assert bench.refused == [(third, "busy")]
    bench.arrive()
    assert len(bench.service) == 0
    bench.hold(offset=1)
    assert len(bench.service) == 1


def test_the_limit_of_one_queue_leaves_room_in_others() -> None:
    """A crowd at one queue is refused there, exactly at the limit, and nowhere else."""
    bench = Bench(STRICT, queue_held_count_max=2)
    bench.hold()
    bench.hold()
    third = bench.hold()
    assert bench.refused == [(third, "busy")]
    bench.hold(queue_id=1)
    assert len(bench.refused) == 1
    bench.arrive()
    bench.hold(offset=1)
    assert len(bench.service) == 2


def test_the_limit_is_exact_between_threads() -> None:
    """Eight threads that hold at once fill it to the last place and not beyond."""
    bench = Bench(STRICT, held_count_max=1000)
    start = threading.Barrier(8)

    def crowd(queue_id: int) -> None:
        start.wait()
        for _ in range(200):
            pull = Pull(queue_id, 1, "G", "T", queue_id, 0, 32, 2, deadline_ms=1000)
            pull.filter = tag_filter("*", None)
            bench.service.hold(pull, Outbox())

    threads = [threading.Thread(target=crowd, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.service.assert_tidy()
    assert len(bench.service) == 1000
    assert [cause for _pull, cause in bench.refused] == ["busy"] * 600


def test_a_recheck_passes_over_what_the_filter_does_not_want() -> None:
    """Another tag's message became visible meanwhile: the pull stays held, and wakes at the one it wants."""
    bench = Bench(STRICT)
    bench.make_visible("other")
    pull = bench.hold(tags="mine")
    assert (bench.ran, len(bench.service)) == ([], 1)
    assert pull.unmatched_end == 1
    bench.make_visible("mine")
    second = bench.hold(tags="mine")
    assert bench.ran == [(second, "woken")]


def test_after_the_stop_nothing_is_held() -> None:
    """What is held is answered, and what comes later as well."""
    bench = Bench(STRICT)
    held = bench.hold()
    bench.service.stop(bench.outbox)
    late = bench.hold()
    assert bench.refused == [(held, "stopped"), (late, "stopped")]
    assert len(bench.service) == 0

"""The shared hold table with the knobs of its policies, on a fake store, executor and clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import attrs
import pytest

from longpoll_broker.hold import hold_service, notifier
from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import HELD, QUEUED, HoldTable, Pull
from longpoll_broker.hold.notifier import LARGE_HERD
from longpoll_broker.io.channel import Outbox
from longpoll_broker.shared.filters import filter_of, tag_filter
from longpoll_protocol.properties import word_hash
from longpoll_runtime.real import RealRuntime
from longpoll_simulation.lockstep import MemoryQueues, Message
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.policy import (
    ROCKETMQ_4_9,
    ROCKETMQ_5,
    ROCKETMQ_LMQ,
    ROCKETMQ_PR7359,
    STRICT,
    STRICT_CLONE,
    HeapEntry,
    HoldLimit,
    Policy,
    RecheckAfterHold,
)

KEY = ("T", 0)
BY_NAME: Callable[[object], str] = lambda value: value.name if isinstance(value, Policy) else str(value)  # noqa: E731


class Bench:
    def __init__(
        self,
        policy: Policy,
        *,
        rejects: bool = False,
        held_count_max: int = 100,
        queue_held_count_max: int | None = None,
        shard_count: int = hold_service.SHARD_COUNT,
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
            shard_count=shard_count,
        )

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:
        if not self.rejects:
            self.ran.append((pull, cause))
        return not self.rejects

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        return [pull for pull in pulls if not self.submit(pull, "woken", outbox)]

    def refuse(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        self.refused.append((pull, cause))

    def hold(self, offset: int = 0, deadline_ms: int = 1000, *, tags: str = "*", queue_id: int = 0) -> Pull:
        pull = Pull("c", 1, "G", "T", queue_id, offset, 32, 2, deadline_ms=deadline_ms)
        pull.filter = tag_filter(tags, None)
        self.service.hold(pull, self.outbox)
        self.service.assert_tidy()
        return pull

    def on(self, action: str, act: Callable[[], object]) -> None:
        left = [act]

        def step(reached: str) -> None:
            if reached == action and left:
                left.pop()()

        self.service._runtime.step = step  # type: ignore[method-assign,assignment]

    def run_at(self, now_ms: float) -> list[tuple[Pull, str]]:
        self.service.wait_s()
        self.now_ns, before = int(now_ms * 1e6), len(self.ran)
        self.service.run(self.outbox)
        return self.ran[before:]

    def wakes_of_clock(self) -> list[float]:
        """Returns a list to which each later wake-up of the deadline thread adds the thread's next deadline in ms."""
        woken: list[float] = []
        self.service.run_clock_on(Outbox(), lambda: woken.append(self.service._clock_sleeps_until_ms))
        return woken

    def make_visible(self, tag: str = "") -> None:
        self.queues.append(KEY, Message(word_hash(tag) if tag else 0))
        self.queues.make_visible(KEY)

    def arrive(self, tag: str = "") -> None:
        self.make_visible(tag)
        end = self.queues.visible_end(*KEY)
        self.service.notify(KEY, end, self.queues.messages[KEY][-1].tags_code, self.outbox)
        self.service.assert_tidy()


def flushes_of_herd(count: int) -> list[tuple[int, int]]:
    """Let one message wake `count` pulls; returns, for each flush, how many pulls have run and how many have not."""
    bench = Bench(STRICT)
    flushes: list[tuple[int, int]] = []

    class Noting(Outbox):
        def flush(self) -> None:
            unsettled = sum(shard.table._unsettled for shard in bench.service._shards)
            flushes.append((len(bench.ran), unsettled))

    bench.outbox = Noting()
    pulls = [bench.hold() for _ in range(count)]
    bench.arrive()
    assert (bench.ran, len(bench.service)) == ([(pull, "woken") for pull in pulls], 0)
    return flushes


def test_the_first_of_a_large_herd_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first pull of a large herd is answered before the others run, and a small herd at the end of the pass."""
    assert flushes_of_herd(LARGE_HERD) == [(1, LARGE_HERD), (LARGE_HERD, LARGE_HERD)]
    assert flushes_of_herd(LARGE_HERD - 1) == []
    monkeypatch.setattr(notifier, "LARGE_HERD", 1000)
    assert flushes_of_herd(LARGE_HERD) == []


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("variant", ["before_lock", "in_lock", "after_insert", "none"])
def test_a_recheck_sees_visible_messages(variant: RecheckAfterHold, offset: int) -> None:
    """Without a recheck the pull is held, as in RocketMQ. A pull at the end of the queue is always held."""
    bench = Bench(attrs.evolve(STRICT, recheck_after_hold=variant))
    bench.make_visible()
    pull = bench.hold(offset=offset)
    is_held = variant == "none" or offset == 1
    assert (bench.ran, len(bench.service)) == ([] if is_held else [(pull, "woken")], is_held)


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=BY_NAME)
def test_a_rejected_pull_is_answered_busy(policy: Policy) -> None:
    bench = Bench(policy, rejects=True)
    pull = bench.hold()
    bench.arrive()
    assert (bench.refused, len(bench.service)) == ([] if policy is ROCKETMQ_4_9 else [(pull, "busy")], 0)


def test_a_deadline_added_during_the_search_wakes_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new deadline belongs to a shard whose deadlines the deadline thread has just read."""
    bench = Bench(STRICT)
    woken = bench.wakes_of_clock()
    bench.hold(deadline_ms=300)
    bench.hold(deadline_ms=900, queue_id=7)
    bench.run_at(300)
    woken.clear()
    looked_at = HoldTable.deadline_next_ms
    between = Pull("c", 1, "G", "T", 0, 0, 32, 2, deadline_ms=500)
    between.filter = tag_filter("*", None)

    def look(table: HoldTable) -> int | None:
        found = looked_at(table)
        if between.phase is not HELD:
            bench.service.hold(between, bench.outbox)
        return found

    monkeypatch.setattr(HoldTable, "deadline_next_ms", look)
    assert bench.service.wait_s() == pytest.approx(0.6)
    assert (between.phase, len(woken)) == (HELD, 1)
    assert bench.service.wait_s() == pytest.approx(0.2)


def test_deadlines_and_a_stop_release_held_pulls() -> None:
    bench = Bench(STRICT)
    first, second = bench.hold(deadline_ms=300), bench.hold(deadline_ms=301)
    assert (bench.run_at(299.999999), bench.run_at(300)) == ([], [(first, "expired")])
    assert bench.run_at(301) == [(second, "expired")]
    bench = Bench(STRICT)
    held = bench.hold()
    bench.service.stop(bench.outbox)
    late = bench.hold()
    assert (bench.refused, len(bench.service)) == ([(held, "stopped"), (late, "stopped")], 0)
    bench = Bench(STRICT)
    for queue_id, deadline_ms in enumerate((700, 300, 500, 900)):
        bench.hold(deadline_ms=deadline_ms, queue_id=queue_id)
    assert bench.service.wait_s() == 0.3
    bench = Bench(attrs.evolve(STRICT, hold_limit="none"), queue_held_count_max=1)
    assert [bench.hold().phase for _ in range(3)] == [HELD] * 3


@pytest.mark.parametrize("limit", ["held_count_max", "queue_held_count_max"])
def test_a_hold_limit_is_kept_and_room_is_released(limit: str) -> None:
    limits: dict[str, Any] = {limit: 2}
    bench = Bench(STRICT, **limits)
    third = [bench.hold() for _ in range(3)][2]
    assert bench.refused == [(third, "busy")]
    bench.hold(queue_id=1)
    is_refused = limit == "held_count_max"
    assert len(bench.refused) == 1 + is_refused
    bench.arrive()
    bench.hold(offset=1)
    assert len(bench.service) == 2 - is_refused


def test_a_recheck_runs_a_pull_whose_filter_matches_nothing() -> None:
    """The recheck runs a pull even if its filter matches no new message, because the answer moves the offset."""
    bench = Bench(STRICT)
    bench.make_visible("other")
    pull = bench.hold(tags="mine")
    assert bench.ran == [(pull, "woken")]


@pytest.mark.parametrize(
    ("tag", "rechecks", "is_woken", "unmatched_end"),
    [("mine", True, True, 0), ("other", True, False, 1), ("mine", False, False, 0)],
)
def test_the_recheck_after_a_put_back(tag: str, rechecks: bool, is_woken: bool, unmatched_end: int) -> None:
    """A message becomes visible while a scan has taken the pull out of the table."""
    bench = Bench(attrs.evolve(STRICT_CLONE, recheck_after_keep=rechecks))
    pull = bench.hold(tags="mine")
    bench.on("scan_end", lambda: bench.arrive(tag))
    bench.service.scan(bench.outbox)
    bench.service.assert_tidy()
    assert (bench.ran, len(bench.service)) == ([(pull, "woken")] if is_woken else [], not is_woken)
    if not is_woken:
        assert pull.unmatched_end == unmatched_end


def test_a_recheck_by_traversal_wakes_the_whole_bucket() -> None:
    """The recheck traverses and wakes the whole bucket, as pull request #7359 does."""
    bench = Bench(ROCKETMQ_PR7359)
    first = bench.hold()
    bench.make_visible()
    steps: list[str] = []
    bench.service._runtime.step = steps.append  # type: ignore[method-assign,assignment]
    second = bench.hold()
    assert bench.ran == [(first, "woken"), (second, "woken")]
    assert steps == ["hold", "recheck", "walk_start", "walk_each", "walk_each", "walk_end"]
    assert set(steps) <= set(ACTION_NAMES)


@pytest.mark.parametrize(("matters", "woken"), [(True, 0), (False, 1)])
def test_the_policy_decides_whether_tags_select_pulls(matters: bool, woken: int) -> None:
    bench = Bench(attrs.evolve(STRICT, notify_only_if_tag_matches=matters))
    bench.hold(tags="mine")
    bench.arrive("other")
    assert len(bench.ran) == woken


@pytest.mark.parametrize(("policy", "scanned"), [(STRICT, True), (ROCKETMQ_4_9, False)], ids=["strict", "4.9"])
def test_a_store_error_of_one_queue_during_a_scan(policy: Policy, scanned: bool) -> None:
    """Finding (l): on 4.9 a store error in one queue ends the scan's whole round."""
    bench = Bench(policy)
    for queue_id in range(20):
        bench.hold(queue_id=queue_id, deadline_ms=1)
    bench.now_ns = 2_000_000
    bench.queues.failing.add(("T", 7))
    with nullcontext() if scanned else pytest.raises(OSError, match="cannot be read"):
        bench.service.scan(bench.outbox)
    assert (len(bench.ran) == 19, bench.refused) == (scanned, [])


@pytest.mark.parametrize("is_orphaned", [True, False])
def test_an_orphaned_bucket_never_wakes_its_pull(is_orphaned: bool) -> None:
    """Finding (j): a bucket is removed after a pull has looked it up and before the pull is inserted."""
    bench = Bench(ROCKETMQ_LMQ)
    if is_orphaned:
        bench.on("hold", lambda: bench.service.scan(bench.outbox))
    pull = bench.hold()
    bench.arrive()
    bench.now_ns = 10**12
    bench.service.scan(bench.outbox)
    assert (bench.ran, pull.phase is HELD) == ([] if is_orphaned else [(pull, "woken")], is_orphaned)


@pytest.mark.parametrize(("policy", "left"), [(STRICT, 0), (ROCKETMQ_4_9, 1), (ROCKETMQ_LMQ, 1)], ids=BY_NAME)
def test_empty_buckets_are_kept_or_removed(policy: Policy, left: int) -> None:
    """Finding (i): RocketMQ keeps an empty bucket until a scan of light queues."""
    bench = Bench(policy)
    bench.hold()
    bench.arrive()
    tables = [shard.table for shard in bench.service._shards]
    assert sum(len(table.keys()) for table in tables) == left
    bench.service.scan(bench.outbox)
    assert sum(len(table.keys()) for table in tables) == (left if policy is ROCKETMQ_4_9 else 0)


@pytest.mark.parametrize(("limit", "held"), [("none", 4), ("at_read", 2), ("in_lock", 2)])
def test_when_the_hold_limit_is_checked(limit: HoldLimit, held: int) -> None:
    bench = Bench(attrs.evolve(STRICT, hold_limit=limit), held_count_max=2)
    for _ in range(4):
        bench.hold()
    assert (len(bench.service), len(bench.refused)) == (held, 4 - held)


@pytest.mark.parametrize(("limit", "held"), [("at_read", 2), ("in_lock", 1)])
def test_a_limit_checked_before_the_insert_is_exceeded(limit: HoldLimit, held: int) -> None:
    bench = Bench(attrs.evolve(STRICT, hold_limit=limit), held_count_max=1)
    bench.on("hold", bench.hold)
    bench.hold()
    assert len(bench.service) == held


@pytest.mark.parametrize(("policy", "cause"), [(STRICT, "stopped"), (ROCKETMQ_5, "woken"), (ROCKETMQ_4_9, None)])
def test_a_role_change_releases_all_pulls(policy: Policy, cause: str | None) -> None:
    bench = Bench(policy)
    pulls = {bench.hold(queue_id=number) for number in range(20)}
    bench.service.master_returned(bench.outbox)
    assert {*bench.ran, *bench.refused} == ({(pull, cause) for pull in pulls} if cause else set())
    assert len(bench.service) == (0 if cause else 20)


def test_5_ends_a_role_change_at_an_emptied_bucket() -> None:
    """Finding (m): if another thread has taken a bucket's pull, 5.x does not visit later buckets."""
    # A shard visits its buckets in the order of their creation.
    bench = Bench(ROCKETMQ_5, shard_count=1)
    first, second = bench.hold(queue_id=0), bench.hold(queue_id=1)
    bench.make_visible()
    bench.on("return_take", lambda: bench.service.notify(KEY, 1, None, bench.outbox))
    bench.service.master_returned(bench.outbox)
    assert bench.ran == [(first, "woken")]
    assert second.phase is HELD


def test_many_due_pulls_are_released_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` stops at its limit and is called again at once, so the I/O loop can serve clients in between."""
    monkeypatch.setattr(hold_service, "EXPIRED_COUNT", 3)
    bench = Bench(STRICT)
    for queue_id in range(40):
        bench.hold(deadline_ms=500, queue_id=queue_id // 10)
    turns = [bench.run_at(500)]
    while bench.service.wait_s() is not None:
        assert bench.service.wait_s() == 0
        turns.append(bench.run_at(500))
    assert [len(turn) for turn in turns] == [3] * 13 + [1]
    assert [cause for _pull, cause in bench.ran] == ["expired"] * 40


def turns_of(bench: Bench, begin: Callable[[], object]) -> list[int]:
    woken = bench.wakes_of_clock()
    begin()
    counts = [len(bench.ran)]
    while bench.service.has_more:
        assert woken
        bench.service.turn(bench.outbox)
        bench.service.assert_tidy()
        counts.append(len(bench.ran))
    return counts


@pytest.mark.parametrize(
    ("filters", "counts"),
    [
        # The cases are a herd, pulls with different tags, and pulls with expressions. A pull with an expression counts
        # twice.
        (["*"] * 10, [4, 8, 10]),
        ([f"t{number}" for number in range(10)] + ["a"], [0, 0, 1]),
        ([f"a = {number}" for number in range(6)], [0, 0, 1, 1]),
    ],
)
def test_an_arrival_compares_many_held_pulls_in_turns(
    filters: list[str], counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The I/O loop compares a limited number of pulls before it serves other work, and this changes no answer."""
    monkeypatch.setattr(notifier, "CHECKED_COUNT", 4)
    monkeypatch.setattr(notifier, "SQL_PART", 4)
    bench = Bench(STRICT)
    for number, text in enumerate(filters):
        pull = bench.hold()
        pull.filter = filter_of(text, "SQL92" if "=" in text else "TAG")
        pull.opaque = number
    bench.queues.append(KEY, Message(word_hash("a"), {"a": "5"}))
    end = bench.queues.make_visible(KEY)
    assert turns_of(bench, lambda: bench.service.notify(KEY, end, word_hash("a"), bench.outbox)) == counts
    is_herd = filters[0] == "*"
    assert [pull.opaque for pull, _cause in bench.ran] == (list(range(10)) if is_herd else [len(filters) - 1])
    assert len(bench.service) == len(filters) - len(bench.ran)


def test_pulls_may_come_and_go_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that left the bucket is not woken again, and a new pull rechecks the queue's end when it is held."""
    monkeypatch.setattr(notifier, "CHECKED_COUNT", 1)
    bench = Bench(STRICT)
    first, gone, late = (bench.hold(tags="a", deadline_ms=each) for each in (1000, 5, 1000))
    bench.wakes_of_clock()
    bench.arrive("a")
    assert bench.run_at(5) == [(gone, "expired")]
    came = bench.hold(1, tags="a")
    while bench.service.has_more:
        bench.service.turn(bench.outbox)
    assert bench.ran == [(first, "woken"), (gone, "expired"), (late, "woken")]
    assert came.phase is HELD


@pytest.mark.parametrize("has_loop", [True, False])
def test_work_for_later_turns_is_bounded(has_loop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many pulls are postponed, or if no I/O loop runs, an arrival compares all pulls at once."""
    monkeypatch.setattr(notifier, "CHECKED_COUNT", 1)
    monkeypatch.setattr(hold_service, "LATER_MAX", 2)
    bench = Bench(STRICT)
    if has_loop:
        bench.wakes_of_clock()
    for tag in "abc":
        bench.hold(tags=tag)
    waiting = []
    for tag in "xyc":
        bench.arrive(tag)
        waiting.append(len(bench.service._later))
    assert waiting == ([1, 2, 2] if has_loop else [0, 0, 0])
    assert len(bench.ran) == 1


def test_a_new_subscription_is_used_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A postponed pull that has left the table meanwhile is skipped, and a pull of another group keeps its filter."""
    monkeypatch.setattr(hold_service, "RESUBSCRIBED_COUNT", 4)
    bench, wanted = Bench(STRICT), tag_filter("b", None)
    pulls = [bench.hold(tags="a", deadline_ms=5 if number == 9 else 1000) for number in range(10)]
    for pull in pulls:
        pull.sys_flag = 2
    pulls[2].group = "other"
    bench.wakes_of_clock()
    bench.service.resubscribed("G", "T", lambda _pull: wanted, bench.outbox)
    changed = [sum(pull.filter is wanted for pull in pulls)]
    bench.run_at(5)
    while bench.service.has_more:
        bench.service.turn(bench.outbox)
        changed.append(sum(pull.filter is wanted for pull in pulls))
    assert changed == [3, 7, 8]
    bench.arrive("b")
    assert [pull for pull, cause in bench.ran if cause == "woken"] == [*pulls[:2], *pulls[3:9]]


def test_an_earlier_deadline_wakes_the_clock() -> None:
    """Another thread adds an earlier deadline while the deadline thread sleeps until a later one."""
    bench = Bench(STRICT)
    woken: list[int] = []
    clock_outbox = Outbox()
    bench.service.run_clock_on(clock_outbox, lambda: woken.append(1))
    assert bench.service.wait_s() is None
    bench.hold(deadline_ms=500)
    assert len(woken) == 1, "the clock sleeps without a deadline"
    assert bench.service.wait_s() == 0.5
    bench.hold(deadline_ms=800)
    bench.hold(deadline_ms=500)
    assert len(woken) == 1, "the clock checks in time"
    bench.hold(deadline_ms=200)
    assert len(woken) == 2, "the clock sleeps past a deadline"
    assert bench.service.wait_s() == 0.2
    bench.outbox = clock_outbox
    bench.hold(deadline_ms=100)
    assert len(woken) == 2, "a thread that is about to check the clock needs no wake-up"
    assert bench.service.wait_s() == 0.1
    bench.now_ns = 150_000_000
    bench.service.run(clock_outbox)
    assert [cause for _pull, cause in bench.ran] == ["expired"]


def test_a_filter_is_evaluated_on_the_arriving_message() -> None:
    bench = Bench(STRICT)
    pull = Pull("c", 1, "G", "T", 0, 0, 32, 2, deadline_ms=1000)
    pull.filter = filter_of("colour = 'red'", "SQL92")
    bench.service.hold(pull, bench.outbox)
    bench.queues.append(KEY, Message(0, {"colour": "blue"}))
    bench.queues.append(KEY, Message(0, {"colour": "red"}))
    for _ in range(2):
        end = bench.queues.make_visible(KEY)
        bench.service.notify(KEY, end, 0, bench.outbox)
        assert [each for each, _cause in bench.ran] == [pull] * (end - 1)


def test_a_herd_is_settled_even_if_its_answers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(STRICT)
    for _ in range(LARGE_HERD):
        bench.hold()

    def fails(*_words: object) -> Sequence[Pull]:
        raise OSError("no memory for an answer")

    monkeypatch.setattr(bench, "submit_herd", fails)
    with pytest.raises(OSError, match="no memory"):
        bench.arrive()
    bench.service.assert_tidy()


def put_back_past_its_deadline(bench: Bench, woken: list[float]) -> None:
    """A notifier takes a held pull, its deadline fires at 20 ms, and the notifier puts the pull back."""
    (shard,) = [each for each in bench.service._shards if len(each.table)]
    traversal = bench.service._new_traversal(shard, KEY, 0, None)
    traversal.start()
    bench.run_at(20)
    assert bench.service.wait_s() is None
    woken.clear()
    bench.service._look_at_each(hold_service.SCAN, shard, traversal, bench.outbox)
    bench.service._keep(hold_service.SCAN, shard, traversal, bench.outbox)


@pytest.mark.parametrize(("entry", "causes"), [("until_answered", ["expired"]), ("one_shot", [])])
def test_a_deadline_that_fires_while_the_pull_is_taken(entry: HeapEntry, causes: list[str]) -> None:
    """A table with one-shot deadlines loses a deadline that fires while a notifier has the pull."""
    bench = Bench(attrs.evolve(STRICT_CLONE, heap_entry=entry))
    woken = bench.wakes_of_clock()
    pull = bench.hold(deadline_ms=10)
    put_back_past_its_deadline(bench, woken)
    assert (pull.phase, len(woken)) == (HELD, 1)
    assert [cause for _pull, cause in bench.run_at(20)] == causes


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5], ids=BY_NAME)
def test_a_pull_answered_at_once_does_not_wake_the_clock(policy: Policy) -> None:
    bench = Bench(policy)
    woken = bench.wakes_of_clock()
    bench.make_visible()
    bench.hold()
    assert woken == []


@pytest.mark.parametrize(
    ("policy", "news"),
    [
        (attrs.evolve(STRICT, hold_limit="at_read"), False),
        (attrs.evolve(STRICT, recheck_after_hold="before_lock"), True),
        (attrs.evolve(STRICT, recheck_after_hold="in_lock"), True),
        (STRICT, False),
    ],
)
def test_a_pull_that_is_not_held_is_refused_or_run(policy: Policy, news: bool) -> None:
    """A pull that the full table cannot hold is refused, or runs at once, depending on the policy."""
    bench = Bench(policy, held_count_max=1 if news else 0)
    if news:
        bench.make_visible()
    assert bench.hold().phase is QUEUED
    assert len(bench.service) == 0


def test_a_large_herd_that_is_rejected_or_expired() -> None:
    bench = Bench(STRICT, rejects=True)
    pulls = [bench.hold() for _ in range(LARGE_HERD)]
    bench.arrive()
    assert bench.refused == [(pull, "busy") for pull in pulls]
    bench = Bench(STRICT)
    pulls = [bench.hold(deadline_ms=10 if number == 20 else 1000) for number in range(40)]
    bench.now_ns = 10_000_000
    bench.arrive()
    assert bench.ran == [(pull, "expired" if number == 20 else "woken") for number, pull in enumerate(pulls)]
    bench = Bench(STRICT_CLONE)
    bench.hold()
    bench.on("notify_each", lambda: bench.service.drop_channel("c"))  # type: ignore[arg-type] # as the pull's
    bench.arrive()
    assert (bench.ran, len(bench.service)) == ([], 0)


def test_the_parts_of_a_herd_grow() -> None:
    """The first pull of a herd runs alone, and each later part is twice as large."""
    bench = Bench(STRICT, held_count_max=1000)
    told: list[int | str] = []

    class Noting(Outbox):
        def flush(self) -> None:
            told.append("flush")

        def flush_busy(self) -> None:
            told.append("flush_busy")

    def submit_herd(pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        told.append(len(pulls))
        return []

    bench.submit_herd = submit_herd  # type: ignore[method-assign]
    bench.outbox = Noting()
    part = hold_service.HERD_PART
    parts = [1]
    while parts[-1] < hold_service.HERD_PART_MAX:
        parts.append(min(max(part, 2 * parts[-1]), hold_service.HERD_PART_MAX))
    for _ in range(sum(parts) + 5):
        bench.hold()
    bench.arrive()
    between = [each for count in (*parts[1:], 5) for each in (count, "flush_busy")]
    assert told == [1, "flush", *between, "flush"]
    assert len(parts) > 3


def test_shards_after_the_last_turn_are_not_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_service, "EXPIRED_COUNT", 1)
    for queue_id in range(hold_service.SHARD_COUNT):
        bench = Bench(STRICT)
        bench.hold(deadline_ms=5, queue_id=queue_id)
        steps: list[str] = []
        bench.service._runtime.step = steps.append  # type: ignore[method-assign,assignment]
        bench.run_at(5)
        assert steps == ["expire"] * (hold_service.shard_of("T", queue_id) + 1)


def test_every_shard_gets_its_turn_with_many_due_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_service, "EXPIRED_COUNT", 2)
    bench = Bench(STRICT)
    for queue_id in range(hold_service.SHARD_COUNT):
        for _number in range(4):
            bench.hold(queue_id=queue_id, deadline_ms=10)
    for _call in range(hold_service.SHARD_COUNT):
        bench.run_at(20)
    assert [pull.queue_id for pull, _cause in bench.ran].count(0) == 2
    assert {pull.queue_id for pull, _cause in bench.ran} == set(range(hold_service.SHARD_COUNT))

"""The hold table and its deadlines: single critical sections, and the invariants after each of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.hold.hold_table import ANSWERED, HELD, MISSED, QUEUED, TAKEN, Deadlines, HoldLimit, HoldTable, Pull

KEY = ("T", 0)


def missed(channel: str = "c1", offset: int = 0, deadline_ms: int = 100, topic: str = "T") -> Pull:
    return Pull(channel, 1, "G", topic, 0, offset, 32, 2, deadline_ms=deadline_ms, timeout_ms=deadline_ms, phase=MISSED)


def test_a_held_pull_leaves_nothing_behind() -> None:
    table = HoldTable()
    pull = missed()
    table.hold(pull)
    table.assert_tidy()
    assert table.has(KEY)
    assert table.take(KEY) == [pull]
    table.assert_tidy()
    assert table.queue_taken(pull)
    assert pull.phase is QUEUED
    table.assert_tidy()
    assert len(table) == 0
    assert table.deadline_next_ms() is None
    table = HoldTable()
    pulls = [missed(topic=topic) for topic in "ABC"]
    for pull in pulls:
        table.hold(pull)
    assert set(table.drain()) == set(pulls)
    table.assert_tidy()
    assert table.keys() == []


def test_a_recheck_takes_a_pull_once() -> None:
    """A recheck must not answer a pull that a notifier has already taken."""
    table = HoldTable()
    pull = missed()
    table.hold(pull)
    table.take(KEY)
    assert not table.recheck(pull)
    assert pull.phase is TAKEN
    table = HoldTable()
    pull = missed(offset=4)
    table.hold(pull)
    assert table.recheck(pull)
    assert not table.recheck(pull)
    table.assert_tidy()
    assert len(table) == 0


def test_a_deadline_that_fires_while_a_notifier_has_the_pull_stands_until_the_answer() -> None:
    """With `until_answered` the pull is due at once when it is put back; with `one_shot` its deadline is lost."""
    for one_shot, late in ((False, 1), (True, 0)):
        table = HoldTable(one_shot=one_shot)
        pull = missed(deadline_ms=10)
        table.hold(pull)
        taken = table.take(KEY)
        assert table.expire(10) == []
        assert pull.spent
        table.keep(taken)
        assert pull.spent is one_shot, "the entry of the re-armed pull has not fired"
        table.assert_tidy()
        assert len(table.expire(11)) == late


def test_deadlines_that_are_due() -> None:
    table = HoldTable()
    early, due, later = missed(deadline_ms=5), missed(deadline_ms=10), missed(deadline_ms=11)
    for pull in (later, due, early):
        table.hold(pull)
    assert (table.deadline_next_ms(), table.expire(10)) == (5, [early, due])
    table.assert_tidy()
    assert table.deadline_next_ms() == 11
    assert later.phase is HELD
    table = HoldTable(own_deadlines=False)
    table.hold(missed(deadline_ms=1))
    assert table.deadline_next_ms() is None
    assert table.expire(1_000) == []
    table.assert_tidy()
    deadlines = Deadlines[str]()
    for name, deadline_ms in (("a", 1), ("b", 2), ("c", 2), ("d", 2)):
        deadlines.add(name, deadline_ms)
    assert deadlines.pop_due(5, 2) == ["a", "b"]
    assert (list(deadlines), deadlines.next_ms()) == (["c", "d"], 2)


def test_a_closed_channel_leaves_nothing_even_if_a_notifier_has_its_pulls() -> None:
    """The notifier neither wakes pulls of a closed channel nor puts them back."""
    table = HoldTable()
    held, taken, other = missed("gone", topic="A"), missed("gone"), missed("stays")
    for pull in (held, taken, other):
        table.hold(pull)
    walked = table.take(KEY)
    assert (walked, set(table.drop_channel("gone"))) == ([taken, other], {held, taken})
    assert not table.queue_taken(taken)
    assert table.keep(walked) == [other]
    table.assert_tidy()
    assert taken.phase is ANSWERED
    assert len(table) == 1


def test_a_check_that_raises_affects_no_other_pull() -> None:
    """A pull whose check raises gets an error answer, and the notifier continues with the other pulls."""
    table = HoldTable()
    good, bad, quiet = missed(offset=0), missed(offset=1), missed(offset=2)
    for pull in (good, bad, quiet):
        table.hold(pull)

    def choose(pulls: Iterable[Pull]) -> tuple[list[Pull], list[Pull]]:
        assert list(pulls) == [good, bad, quiet]
        return [good], [bad]

    assert table.wake_in_place(KEY, choose) == ([good], [bad])
    table.settle([good, bad])
    table.assert_tidy()
    assert (good.bucket, bad.bucket) == (None, None)
    assert table.take(KEY) == [quiet]


def test_buckets_whose_pulls_are_all_woken() -> None:
    """An empty bucket fails `assert_tidy`, unless the policy keeps empty buckets as RocketMQ does."""
    for keeps_empty in (False, True):
        table = HoldTable(keeps_empty=keeps_empty)
        taken, woken = missed(offset=0), missed(offset=1)
        table.hold(taken)
        assert table.take(KEY) == [taken]
        table.hold(woken)
        assert table.wake_in_place(KEY, lambda pulls: (list(pulls), [])) == ([woken], [])
        table.settle([woken])
        assert (table.held(KEY), table.has(KEY), len(table)) == ([], False, 1)
        table.keep([taken])
        assert table.held(KEY) == [taken]
    for keeps_empty in (False, True):
        table = HoldTable(keeps_empty=keeps_empty)
        table.find_bucket(KEY)
        with pytest.raises(AssertionError) if not keeps_empty else nullcontext():
            table.assert_tidy()
    limit = HoldLimit(3)
    settle_late(HoldTable(hold_limit=limit))
    assert limit.used == 0


def settle_late(table: HoldTable) -> None:
    """Take pulls in place, then let a deadline pass, close a channel and add a pull before the pulls are settled."""
    woken, closes, late = missed("gone"), missed("gone", deadline_ms=200), missed("stays")
    for pull in (woken, closes, late):
        table.hold(pull)
    assert table.wake_in_place(KEY, lambda _pulls: ([woken], [])) == ([woken], [])
    assert woken.phase is QUEUED
    assert len(table) == 2
    table.assert_tidy(settled=False)
    assert table.expire(100) == [late]
    assert not woken.spent
    assert table.drop_channel("gone") == [closes]
    assert woken.phase is QUEUED
    again = missed("gone")
    table.hold(again)
    table.assert_tidy(settled=False)
    table.settle([woken])
    table.assert_tidy()
    assert table.wake_in_place(KEY, lambda pulls: (list(pulls), [])) == ([again], [])
    table.settle([again])
    table.assert_tidy()
    assert (len(table), table.keys(), table.deadline_next_ms()) == (0, [], None)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 7), st.integers(0, 5))
def test_due_pulls_can_be_taken_in_parts(armed: list[tuple[int, bool]], count_max: int, now_ms: int) -> None:
    """Limited calls give the same pulls as one call: earliest first, no pull twice, and no disarmed pull."""
    deadlines: list[Deadlines[int]] = [Deadlines(), Deadlines()]
    for each in deadlines:
        for item, (deadline_ms, _stays) in enumerate(armed):
            each.add(item, deadline_ms)
        for item, (deadline_ms, stays) in enumerate(armed):
            if not stays:
                each.remove(item, deadline_ms)
    parts = []
    while part := deadlines[0].pop_due(now_ms, count_max):
        parts.append(part)
    assert [item for part in parts for item in part] == deadlines[1].pop_due(now_ms)
    assert all(len(part) == count_max for part in parts[:-1])
    assert list(deadlines[0]) == list(deadlines[1])
    assert deadlines[0].next_ms() == deadlines[1].next_ms()


def test_stale_deadlines_do_not_pile_up() -> None:
    """A million pulls that are woken early leave a deadline heap of limited size in correct heap order."""
    deadlines: Deadlines[Pull] = Deadlines()
    pull = missed()
    for deadline_ms in range(50_000):
        deadlines.add(pull, deadline_ms)
        deadlines.remove(pull, deadline_ms)
    assert len(deadlines) == 0
    assert len(deadlines._heap) <= 1001
    assert deadlines.next_ms() is None
    numbers = Deadlines[int]()
    for deadline_ms in reversed(range(5_000)):
        numbers.add(deadline_ms, deadline_ms)
    left = [*range(0, 5_000, 5), 4_999]
    for deadline_ms in set(range(5_000)) - set(left):
        numbers.remove(deadline_ms, deadline_ms)
    assert (numbers.next_ms(), numbers.pop_due(1_000)) == (0, list(range(0, 1_001, 5)))
    assert numbers.pop_due(5_000) == [*range(1_005, 5_000, 5), 4_999]


def test_the_number_of_held_pulls_is_limited() -> None:
    """However a pull leaves the table, it no longer counts toward the limit; at the limit no pull is inserted."""
    limit = HoldLimit(3)
    tables = [HoldTable(hold_limit=limit), HoldTable(hold_limit=limit)]
    kept, woken, dropped = missed(), missed(), missed("gone")
    assert tables[0].hold(kept)
    assert tables[1].hold(woken)
    assert tables[0].hold(dropped)
    refused = missed()
    assert not tables[1].hold(refused)
    assert refused.phase is MISSED
    assert tables[1].recheck(woken)
    tables[0].drop_channel("gone")
    assert limit.used == len(tables[0]) == 1
    tables[0].keep(tables[0].take(KEY))
    assert (limit.used, tables[0].expire(100), limit.used) == (1, [kept], 0)
    guard = Noted([])
    limit = HoldLimit(3, guard)
    assert limit.take(2)
    limit.give(1)
    assert (limit.used, guard.enter_result) == (1, ["entered", "entered"])
    table = HoldTable(queue_limit=1)
    first = missed()
    assert table.hold(first)
    table.take(KEY)
    assert not table.hold(missed())
    assert table.hold(missed(topic="U"))
    table.keep([first])
    table.assert_tidy()


def test_long_subscriptions_are_counted() -> None:
    """A long subscription counts while its pull is held. A pull that the limit refused is not counted."""
    guard = Noted([])
    limit = HoldLimit(10, guard)
    limit.texts.size_max = 400  # One connection may use a quarter of the free quota.
    table = HoldTable(hold_limit=limit, channel_limit=10, queue_limit=1)
    first, second, large = (missed(channel, topic=topic) for channel, topic in (("a", "T"), ("b", "T"), ("c", "U")))
    first.subscription = second.subscription = "x" * 40
    large.subscription = "x" * 120
    assert table.hold(first)
    assert (limit.used, limit.texts.used, guard.enter_result) == (1, 40, ["entered", "entered"])
    assert not table.hold(large)
    assert (limit.used, limit.texts.used, large.phase) == (1, 40, MISSED)
    assert not table.hold(second)
    assert limit.texts.used == 40
    table.drain()
    assert limit.texts.used == 0


class Noted(nullcontext[list[str]]):
    def __enter__(self) -> list[str]:
        self.enter_result.append("entered")
        return self.enter_result


def test_draining_a_topic_keeps_the_pulls_of_other_topics() -> None:
    table = HoldTable()
    gone, stays = missed(), missed(topic="U")
    for pull in (gone, stays):
        table.hold(pull)
    assert table.drain("T") == [gone]
    assert stays.phase is HELD


DAY_MS = 24 * 60 * 60 * 1000


@pytest.mark.parametrize("now_ms", [0, 1 << 31, 1 << 32, 300 * DAY_MS], ids=["new", "31 bits", "32 bits", "300 days"])
def test_deadlines_keep_their_order_after_a_long_uptime(now_ms: int) -> None:
    """The monotonic clock counts from boot, and 31 bits of milliseconds are 25 days."""
    deadlines = Deadlines[str]()
    for name, wait_ms in (("c", 30_000), ("a", 1), ("b", 15_000)):
        deadlines.add(name, now_ms + wait_ms)
    assert (deadlines.next_ms(), deadlines.pop_due(now_ms + 20_000)) == (now_ms + 1, ["a", "b"])
    assert deadlines.next_ms() == now_ms + 30_000


@pytest.mark.parametrize(("armed", "kept"), [(1_020, 9), (1_021, 10)])
def test_stale_entries_are_removed_in_bulk(armed: int, kept: int) -> None:
    """The heap is cleaned when it has a thousand more entries than twice the number of armed entries."""
    deadlines = Deadlines[int]()
    for deadline_ms in range(armed):
        deadlines.add(deadline_ms, deadline_ms)
    sizes = []
    for deadline_ms in range(kept, armed):
        deadlines.remove(deadline_ms, deadline_ms)
        sizes.append(len(deadlines._heap))
    assert sizes == [armed] * (armed - kept - 1) + [kept]

"""A notifier's traversal of a bucket, for each policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_broker.hold import notifier
from longpoll_broker.hold.hold_table import HELD, MISSED, HoldTable, Pull
from longpoll_broker.hold.notifier import BucketTraversal, Wake
from longpoll_broker.shared.filters import SqlFilter, TagFilter, filter_of, tag_filter
from longpoll_broker.shared.sql92 import Lookup
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy

KEY = ("T", 0)


def held(table: HoldTable, offset: int, tags: str = "*", deadline_ms: int = 1000) -> Pull:
    pull = Pull("c", 1, "G", "T", 0, offset, 32, 2, deadline_ms=deadline_ms, phase=MISSED)
    pull.filter = tag_filter(tags, "TAG")
    table.hold(pull)
    return pull


def finish(walker: BucketTraversal, wakes: list[Wake]) -> None:
    """Traverse the bucket to its end, and append the wakes to `wakes` in order, including wakes before an exception."""
    walker.start()
    while walker.unseen:
        wake = walker.each()
        if wake is not None:
            walker.table.queue_taken(wake.pull)
            wakes.append(wake)
    walker.end()


def walk(
    policy: Policy,
    table: HoldTable,
    end: int,
    tags_code: int | None = None,
    *,
    now_ms: int = 0,
    properties: Callable[[], Lookup | None] = lambda: None,
) -> list[Wake]:
    walker = BucketTraversal(policy, table, KEY, end, tags_code, now_ms, lambda: end, properties)
    wakes: list[Wake] = []
    finish(walker, wakes)
    table.assert_tidy()
    return wakes


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_traversal_wakes_matching_pulls_and_keeps_the_others(policy: Policy) -> None:
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    waits, wants_other, beyond = held(table, 4), held(table, 4, "b"), held(table, 5)
    code = next(iter(tag_filter("a", "TAG").codes))
    assert walk(policy, table, 5, code) == [Wake(waits, "woken")]
    assert wants_other.phase is HELD
    assert beyond.phase is HELD


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_traversal_without_a_message_wakes_every_tag(policy: Policy) -> None:
    """A scan knows no tag, so it wakes the pulls of every tag, and the read of each pull applies its filter."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    pull = held(table, 4, "b")
    assert walk(policy, table, 5) == [Wake(pull, "woken")]


def test_a_traversal_answers_late_pulls() -> None:
    for policy in (ROCKETMQ_4_9, STRICT, STRICT_CLONE):
        table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
        held(table, 4, deadline_ms=10)
        assert [wake.cause for wake in walk(policy, table, 4, now_ms=9)] == []
        assert [wake.cause for wake in walk(policy, table, 4, now_ms=10)] == ["expired"]


def broken_walk(policy: Policy) -> tuple[HoldTable, list[Pull], list[Wake], bool]:
    """Traverse a bucket whose second pull's filter raises.

    Returns the table, the pulls, the wakes, and whether the traversal raised.
    """
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    pulls = [held(table, offset) for offset in (0, 1, 2)]

    class Broken:
        all_tags = False

        def matches(self, _code: int | None) -> bool:
            raise ValueError("a filter fails")

    pulls[1].filter = Broken()  # type: ignore[assignment]
    walker = BucketTraversal(policy, table, KEY, 3, 7, 0, lambda: 3)
    wakes: list[Wake] = []
    raised = False
    try:
        finish(walker, wakes)
    except ValueError:
        raised = True
    return table, pulls, wakes, raised


def test_a_filter_that_raises_loses_pulls_only_if_the_policy_allows_it() -> None:
    """drop_rest loses two pulls, keep_rest puts them back, and answer_and_go_on answers all three."""
    table, pulls, wakes, raised = broken_walk(ROCKETMQ_4_9)
    assert raised
    assert wakes == [Wake(pulls[0], "woken")]
    assert not table.has(KEY)
    keep_rest = attrs.evolve(STRICT_CLONE, on_throw="keep_rest")
    table, pulls, wakes, raised = broken_walk(keep_rest)
    assert not raised
    assert (wakes, [pull.phase for pull in pulls[1:]]) == ([Wake(pulls[0], "woken")], [HELD, HELD])
    for policy in (STRICT, STRICT_CLONE):
        table, pulls, wakes, raised = broken_walk(policy)
        assert not raised
        assert {wake.pull: wake.cause for wake in wakes} == {pulls[0]: "woken", pulls[1]: "thrown", pulls[2]: "woken"}
        assert not table.has(KEY)


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_an_arrival_wakes_by_its_properties(policy: Policy) -> None:
    """The traversal reads the message's properties once, and only if a pull has an SQL filter."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    pulls = [held(table, 4) for _ in range(4)]
    for pull, expression in zip(pulls, ("a > 3", "a > 5", "a IS NULL", "a = 4"), strict=True):
        pull.filter = filter_of(expression, "SQL92")
    read: list[int] = []

    def properties() -> Lookup:
        read.append(1)
        return {"a": "4"}.get

    def woken(tags_code: int | None, end: int = 5) -> list[Pull]:
        return [wake.pull for wake in walk(policy, table, end, tags_code, properties=properties)]

    assert (woken(0, end=4), read) == ([], [])
    assert woken(0) == [pulls[0], pulls[3]]
    assert read == [1]
    assert (woken(None), read) == ([pulls[1], pulls[2]], [1])


def test_a_filter_is_evaluated_once_for_all_its_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One evaluation of a long expression takes half a millisecond, so pulls with the same filter share it."""
    table, looked, original = HoldTable(), list[str](), SqlFilter.matches_properties
    pulls = [held(table, 4) for _ in range(20)]
    for number, pull in enumerate(pulls):
        pull.filter = filter_of("a > 3" if number % 2 else "a > 5", "SQL92")

    def look(wanted: SqlFilter, lookup: Lookup) -> bool:
        looked.append(wanted.expression)
        return original(wanted, lookup)

    monkeypatch.setattr(SqlFilter, "matches_properties", look)
    woken = walk(STRICT, table, 5, 0, properties=lambda: {"a": "4"}.get)
    assert ([wake.pull for wake in woken], sorted(looked)) == (pulls[1::2], ["a > 3", "a > 5"])


def test_pulls_that_any_message_wakes() -> None:
    """Any message wakes a pull without a filter, and an unreadable message wakes every pull."""
    table = HoldTable()
    pull = held(table, 4)
    pull.filter = filter_of("a > 3", "SQL92")
    assert walk(STRICT, table, 5, 0) == [Wake(pull, "woken")]
    table = HoldTable()
    pull = held(table, 4)
    pull.filter = None
    assert walk(STRICT, table, 5, 7) == [Wake(pull, "woken")]


Wanted = tuple[int, str, int]
WANTED: Final = st.tuples(st.integers(3, 5), st.sampled_from(["*", "a", "b", "broken"]), st.sampled_from([10, 1000]))


class Broken(TagFilter, frozen=True):
    def matches(self, tags_code: int | None) -> bool:
        raise ValueError(f"no filter for {tags_code}")


BROKEN: Final = Broken("a", "TAG", frozenset(), all_tags=False)


def chosen(wanted: Sequence[Wanted]) -> list[tuple[int, str | None]]:
    """Return the pulls that a traversal in place wakes for message `a` at offset 4, each with the cause of the wake."""
    table = HoldTable()
    pulls = [held(table, offset, tags, deadline_ms=deadline_ms) for offset, tags, deadline_ms in wanted]
    for pull, (_offset, tags, _deadline_ms) in zip(pulls, wanted, strict=True):
        if tags == "broken":
            pull.filter = BROKEN
    code = next(iter(tag_filter("a", "TAG").codes))
    walker = BucketTraversal(STRICT, table, KEY, 5, code, 10, lambda: 5)
    gone = walker.start()
    found: list[tuple[int, str | None]] = []
    while walker.unseen:
        herd = walker.herd(3)
        found += [(pulls.index(pull), None) for pull in herd]
        if not herd and (wake := walker.each()) is not None:
            found.append((pulls.index(wake.pull), wake.cause))
    walker.end()
    table.assert_tidy()
    assert sorted(number for number, _cause in found) == sorted(pulls.index(pull) for pull in gone)
    return found


def expected(one: Wanted) -> str | None:
    offset, tags, deadline_ms = one
    late = deadline_ms == 10
    if offset == 5:
        return "expired" if late else None
    if tags == "broken":
        return "thrown"
    return "expired" if late else "woken" if tags in {"*", "a"} else None


def check_choice(wanted: Sequence[Wanted]) -> None:
    """Assert that the traversal takes each pull that it would wake if alone, in order, with failed pulls last."""
    causes = [(number, expected(one)) for number, one in enumerate(wanted)]
    assert [(number, cause or "woken") for number, cause in chosen(wanted)] == [
        *((number, cause) for number, cause in causes if cause in {"woken", "expired"}),
        *((number, cause) for number, cause in causes if cause == "thrown"),
    ]


@given(st.lists(WANTED, max_size=12))
@example([(4, "*", 1000), (4, "*", 10), (4, "*", 1000)])
@example([(4, "*", 1000), (4, "b", 1000)])
def test_each_pull_of_a_herd_is_woken_as_if_it_were_alone(wanted: list[Wanted]) -> None:
    check_choice(wanted)


def test_a_large_herd_is_settled_at_its_end_and_a_small_one_at_once() -> None:
    for count, later in ((notifier.LARGE_HERD, True), (notifier.LARGE_HERD - 1, False)):
        table = HoldTable()
        pulls = [held(table, 4) for _ in range(count)]
        walker = BucketTraversal(STRICT, table, KEY, 5, None, 0, lambda: 5)
        assert walker.start() == pulls
        assert walker.unsettled is later
        table.assert_tidy(settled=not later)
        assert (walker.herd(3), walker.end()) == (pulls[:3], [])
        assert not walker.unsettled
        table.assert_tidy()


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_traversal_asks_the_store_again_for_pulls_beyond_the_known_end(policy: Policy) -> None:
    """The notifier asks the store again, because another message may be visible by now."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    asked: list[int] = []

    def read_visible_end() -> int:
        asked.append(6)
        return 6

    near, far = held(table, 4), held(table, 5)
    walker = BucketTraversal(policy, table, KEY, 5, None, 0, read_visible_end)
    assert walker.start() == [near, far]
    assert [walker.each(), walker.each()] == [Wake(near, "woken"), Wake(far, "woken")]
    assert asked == [6], "the store is not asked for a pull of the notified message"

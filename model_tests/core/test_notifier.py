"""A notifier's walk, policy by policy."""

from __future__ import annotations

import attrs
import pytest

from longpoll_broker.core.filter import tag_filter
from longpoll_broker.core.hold import HELD, MISSED, HoldTable, Pull
from longpoll_broker.core.notifier import Wake, Walk
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy

KEY = ("T", 0)


def held(table: HoldTable, offset: int, tags: str = "*", deadline_ms: int = 1000) -> Pull:
    """A held pull that wants these tags."""
    pull = Pull("c", 1, "G", "T", 0, offset, 32, 2, deadline_ms=deadline_ms, phase=MISSED)
    pull.filter = tag_filter(tags, "TAG")
    table.hold(pull)
    return pull


def walk(policy: Policy, table: HoldTable, end: int, tags_code: int | None = None, now_ms: int = 0) -> list[Wake]:
    """A whole walk; the wakes in order."""
    walker = Walk(policy, table, KEY, end, tags_code, now_ms, lambda: end)
    walker.start()
    wakes = []
    while walker.unseen:
        wake = walker.each()
        if wake is not None:
            table.queue_taken(wake.pull)
            wakes.append(wake)
    walker.end()
    table.assert_tidy()
    return wakes


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_walk_wakes_what_the_arrival_concerns_and_keeps_the_rest(policy: Policy) -> None:
    """By offset and by tag hash."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    waits, wants_other, beyond = held(table, 4), held(table, 4, "b"), held(table, 5)
    code = next(iter(tag_filter("a", "TAG").codes))
    assert walk(policy, table, 5, code) == [Wake(waits, "woken")]
    assert wants_other.phase is HELD
    assert beyond.phase is HELD


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_walk_without_a_message_wakes_every_tag(policy: Policy) -> None:
    """A scan knows no tag, so it lets the read decide."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    pull = held(table, 4, "b")
    assert walk(policy, table, 5) == [Wake(pull, "woken")]


def test_a_walk_lets_go_what_is_late() -> None:
    """A notifier that comes by notices a passed deadline, in every policy."""
    for policy in (ROCKETMQ_4_9, STRICT, STRICT_CLONE):
        table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
        held(table, 4, deadline_ms=10)
        assert [wake.cause for wake in walk(policy, table, 4, now_ms=9)] == []
        assert [wake.cause for wake in walk(policy, table, 4, now_ms=10)] == ["expired"]


def broken_walk(policy: Policy) -> tuple[HoldTable, list[Pull], list[Wake], bool]:
    """A walk whose second pull's filter raises: table, pulls, wakes, whether the walk itself raised."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    pulls = [held(table, offset) for offset in (0, 1, 2)]

    class Broken:
        def matches(self, _code: int | None) -> bool:
            raise ValueError("a filter fails")

    pulls[1].filter = Broken()  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
    walker = Walk(policy, table, KEY, 3, 7, 0, lambda: 3)
    walker.start()
    wakes = []
    raised = False
    try:
        while walker.unseen:
            wake = walker.each()
            if wake is not None:
                table.queue_taken(wake.pull)
                wakes.append(wake)
        walker.end()
    except ValueError:
        raised = True
    return table, pulls, wakes, raised


def test_a_filter_that_raises_loses_the_rest_only_where_the_policy_says_so() -> None:
    """drop_rest loses two pulls, keep_rest puts them back, answer_and_go_on answers all three."""
    table, pulls, wakes, raised = broken_walk(ROCKETMQ_4_9)
    assert raised
    assert wakes == [Wake(pulls[0], "woken")]
    assert not table.has(KEY)

    keep_rest = attrs.evolve(STRICT_CLONE, on_throw="keep_rest")
    table, pulls, wakes, raised = broken_walk(keep_rest)
    assert not raised
    assert wakes == [Wake(pulls[0], "woken")]
    assert [pull.phase for pull in pulls[1:]] == [HELD, HELD]

    for policy in (STRICT, STRICT_CLONE):
        table, pulls, wakes, raised = broken_walk(policy)
        assert not raised
        assert {wake.pull: wake.cause for wake in wakes} == {
            pulls[0]: "woken",
            pulls[1]: "thrown",
            pulls[2]: "woken",
        }
        assert not table.has(KEY)

"""A notifier's walk, policy by policy."""

from __future__ import annotations

import attrs
import pytest

from longpoll_broker.core.filter import filter_of, tag_filter
from longpoll_broker.core.hold import HELD, MISSED, HoldTable, Pull
from longpoll_broker.core.notifier import Wake, Walk
from longpoll_broker.core.sql92 import Lookup
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


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_an_arrival_wakes_by_its_properties(policy: Policy) -> None:
    """They are read once, for the first pull that needs them, and not for a pull that wants tags alone."""
    table = HoldTable(own_deadlines=policy.expiry == "own_deadline")
    pulls = [held(table, 4) for _ in range(4)]
    for pull, expression in zip(pulls, ("a > 3", "a > 5", "a IS NULL", "a = 4"), strict=True):
        pull.filter = filter_of(expression, "SQL92")
    read: list[int] = []

    def properties() -> Lookup:
        read.append(1)
        return {"a": "4"}.get

    def woken(tags_code: int | None, end: int = 5) -> list[Pull]:
        walker = Walk(policy, table, KEY, end, tags_code, 0, lambda: end, properties)
        walker.start()
        wakes = []
        while walker.unseen:
            wake = walker.each()
            if wake is not None:
                table.queue_taken(wake.pull)
                wakes.append(wake.pull)
        walker.end()
        table.assert_tidy()
        return wakes

    assert woken(0, end=4) == []
    assert read == []
    assert woken(0) == [pulls[0], pulls[3]]
    assert read == [1]
    assert woken(None) == [pulls[1], pulls[2]]
    assert read == [1]


def test_a_message_that_cannot_be_read_wakes() -> None:
    """The pull's own read decides then."""
    table = HoldTable()
    pull = held(table, 4)
    pull.filter = filter_of("a > 3", "SQL92")
    assert walk(STRICT, table, 5, 0) == [Wake(pull, "woken")]


@pytest.mark.parametrize("always", [True, False])
def test_a_walk_that_does_not_look_at_properties_is_seen(always: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it wakes every pull or none."""
    monkeypatch.setattr(Walk, "_has_properties", lambda _walk, _wanted: always)
    with pytest.raises(AssertionError):
        test_an_arrival_wakes_by_its_properties(STRICT)

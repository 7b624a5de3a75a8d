"""The checks of a pull in RocketMQ's order, and the answer for each status of a read."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from model_tests.support.present import present

from longpoll_broker.hold import pull as module
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import (
    Decision,
    Found,
    Miss,
    OffsetMoved,
    PullChecks,
    Refused,
    as_placed,
    check,
    code_of,
    decide,
    wants_visible,
)
from longpoll_broker.shared import filters
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.filters import TagFilter, tag_filter
from longpoll_broker.shared.subscription import Clients, subscription_of
from longpoll_broker.shared.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import TRAITS_5
from longpoll_broker.store.messages import ALL, ByProperties, GetResult, GetStatus, Matches
from longpoll_simulation.lockstep import MemoryQueues, Message


class OneRead:
    def __init__(self, status: GetStatus = GetStatus.FOUND) -> None:
        self.status = status
        self.matches: Callable[[int], bool] | None = None
        self.by_properties: ByProperties | None = None
        self.count = 0

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        self.matches, self.by_properties = matches
        self.count += 1
        return GetResult(self.status, offset + 1, 0, 9, [], [], 0, suggest_slave=False)


def checks() -> PullChecks:
    topics = Topics()
    topics.put(TopicConfig("T", 4, 4))
    return PullChecks(topics, Groups(), Clients())


def pull(**changes: object) -> Pull:
    made = Pull("c", 1, "G", "T", 0, 5, 32, 4, subscription="*")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def code(decision: Decision) -> int:
    return decision.code


def test_a_pull_that_passes_reads_once() -> None:
    store = OneRead()
    assert isinstance(decide(pull(), checks(), store), Found)
    assert (store.count, store.matches) == (1, None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"topic": "U"}, 17),
        ({"queue_id": 4}, 1),
        ({"queue_id": -1}, 1),
        ({"subscription": "||"}, 23),
        ({"expression_type": "SQL92", "subscription": "a > 1"}, 1),
        ({"expression_type": "tag", "subscription": "a"}, 1),
        ({"sys_flag": 0}, 24),
    ],
)
def test_a_failed_check_refuses_without_reading(changes: dict[str, object], expected: int) -> None:
    store = OneRead()
    decision = decide(pull(**changes), checks(), store)
    assert isinstance(decision, Refused)
    assert (decision.code, store.count) == (expected, 0)


def test_the_checks_and_statuses_are_rocketmqs() -> None:
    tables = PullChecks(Topics(), Groups(auto_create=False), Clients(), is_readable=False)
    broken = pull(topic="T", queue_id=9, sys_flag=0, sub_version=7)
    store = OneRead()
    assert code(decide(broken, tables, store)) == 16
    tables = attrs.evolve(tables, is_readable=True)
    assert code(decide(broken, tables, store)) == 26
    tables.groups.put(GroupConfig("G", consume_enable=False))
    assert code(decide(broken, tables, store)) == 16
    tables.groups.put(GroupConfig("G", consume_broadcast_enable=False))
    assert code(decide(broken, tables, store)) == 17
    tables.topics.put(TopicConfig("T", 4, 4, perm=2))
    assert code(decide(broken, tables, store)) == 16
    tables.topics.put(TopicConfig("T", 4, 4))
    assert code(decide(broken, tables, store)) == 1
    broken.queue_id = 3
    assert code(decide(broken, tables, store)) == 24
    beat(tables, "BROADCASTING", topic="other", version=6)
    assert code(decide(broken, tables, store)) == 16
    beat(tables, "CLUSTERING", topic="other", version=6)
    assert code(decide(broken, tables, store)) == 24
    beat(tables, "CLUSTERING", topic="T", version=6)
    assert code(decide(broken, tables, store)) == 25
    beat(tables, "CLUSTERING", topic="T", version=7)
    assert code(decide(broken, tables, store)) == 0
    for status in GetStatus:
        assert code_of(status, 0) in {0, 19, 20, 21}


def beat(tables: PullChecks, model: str, *, topic: str, version: int, expression: str = "*", kind: str = "TAG") -> None:
    tables.clients.heartbeat(
        "c",
        "id",
        "G",
        message_model=model,
        consume_type="CONSUME_PASSIVELY",
        subscriptions=[subscription_of(topic, expression, kind, version)],
    )


@pytest.mark.parametrize(
    ("status", "offset", "expected"),
    [
        (GetStatus.FOUND, 5, 0),
        (GetStatus.NO_MATCHED_MESSAGE, 5, 20),
        (GetStatus.MESSAGE_WAS_REMOVING, 5, 20),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 19),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 1, 21),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 19),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 5, 21),
        (GetStatus.OFFSET_FOUND_NULL, 5, 19),
        (GetStatus.OFFSET_OVERFLOW_ONE, 5, 19),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 5, 21),
        (GetStatus.OFFSET_TOO_SMALL, 5, 21),
    ],
)
def test_every_read_status_has_its_code(status: GetStatus, offset: int, expected: int) -> None:
    assert code_of(status, offset) == expected
    decision = decide(pull(offset=offset), checks(), OneRead(status))
    kinds = {0: Found, 19: Miss, 20: OffsetMoved, 21: OffsetMoved}
    assert type(decision) is kinds[expected]


@pytest.mark.parametrize("expression", ["a > 3", "a >"])
def test_sql_is_refused_while_the_broker_does_not_support_it(expression: str) -> None:
    store = OneRead()
    decision = decide(pull(expression_type="SQL92", subscription=expression), checks(), store)
    assert isinstance(decision, Refused)
    assert decision.code == 1
    assert decision.remark == "The broker does not support consumer to filter message by SQL92"


def test_tags_and_sql_choose_what_is_read() -> None:
    """SQL92 chooses messages by properties. An invalid expression matches everything; a too long one is refused."""
    tables = attrs.evolve(checks(), property_filter=True)
    store = OneRead()
    assert code(decide(pull(expression_type="SQL92", subscription="a > 3"), tables, store)) == 0
    assert store.matches is None
    assert store.by_properties is not None
    assert store.by_properties.matches_properties({"a": "4"}.get)
    assert not store.by_properties.matches_properties({"a": "3"}.get)
    assert code(decide(pull(expression_type="SQL92", subscription="a >"), tables, store)) == 0
    assert store.by_properties.matches_properties(dict[str, str]().get)
    refused = decide(pull(expression_type="SQL92", subscription="a" * 5000), tables, store)
    assert isinstance(refused, Refused)
    assert refused.code == 23
    assert "4096 characters" in refused.remark
    store = OneRead()
    decide(pull(subscription="a"), checks(), store)
    assert store.matches is not None
    assert [store.matches(code) for code in (*tag_filter("a", "TAG").codes, 0)] == [True, False]
    assert store.by_properties is None


def test_an_expression_of_a_refused_type_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(filters, "compile_expression", lambda expression, **_more: compiled.append(expression))
    assert code(decide(pull(expression_type="SQL92", subscription="refused > 3"), checks(), OneRead())) == 1
    assert compiled == []
    tables = attrs.evolve(checks(), property_filter=True)
    assert code(decide(pull(expression_type="SQL92", subscription="taken > 4"), tables, OneRead())) == 0
    assert compiled == ["taken > 4"]


def test_sql_of_a_heartbeat() -> None:
    """A pull gets FILTER_DATA_NOT_EXIST (27) until a valid filter replaces the invalid filter of the last heartbeat."""
    tables, store = checks(), OneRead()
    asks = pull(sys_flag=0, sub_version=1)
    beat(tables, "CLUSTERING", topic="T", version=1, expression="a >", kind="SQL92")
    assert code(decide(asks, tables, store)) == 27
    beat(tables, "CLUSTERING", topic="T", version=2, expression="a > 3", kind="SQL92")
    assert code(decide(asks, tables, store)) == 1
    tables = attrs.evolve(tables, property_filter=True)
    assert code(decide(asks, tables, store)) == 0
    assert store.by_properties is not None
    assert not store.by_properties.matches_properties({"a": "3"}.get)


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        (GetStatus.FOUND, True),
        (GetStatus.NO_MATCHED_MESSAGE, True),
        (GetStatus.MESSAGE_WAS_REMOVING, True),
        (GetStatus.OFFSET_OVERFLOW_ONE, False),
        (GetStatus.OFFSET_FOUND_NULL, False),
        (GetStatus.OFFSET_TOO_SMALL, False),
        (GetStatus.NO_MESSAGE_IN_QUEUE, False),
    ],
)
def test_a_negative_message_count_is_an_error_if_messages_are_available(status: GetStatus, refused: bool) -> None:
    """Without a message to return, 4.9.7 ignores the count and answers 19 or 21. 5.x reads a count below one as one."""
    store = OneRead(status)
    assert (code(decide(pull(count_max=-1), checks(), store)) == 1) is refused
    assert code(decide(pull(count_max=-1), attrs.evolve(checks(), traits=TRAITS_5), store)) != 1


def test_a_pull_may_ask_for_no_message() -> None:
    assert code(decide(pull(count_max=0), checks(), OneRead())) == 0


def test_the_length_of_a_subscription_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPRESSION_SIZE_MAX", 5)
    assert code(decide(pull(subscription="a||bb"), checks(), OneRead())) == 0
    refused = decide(pull(subscription="a||bbb"), checks(), OneRead())
    assert isinstance(refused, Refused)
    assert (refused.code, "5 characters" in refused.remark) == (23, True)
    assert code(decide(pull(subscription=None), checks(), OneRead())) == 0


def test_the_subscription_of_a_held_pull_is_not_parsed_again() -> None:
    held = pull(filter=tag_filter("a", "TAG"), subscription="||")
    assert check(held, checks()) is held.filter
    held.sys_flag = 0
    assert code(decide(held, checks(), OneRead())) == 24


def test_the_filter_of_a_group_may_be_older_than_its_subscription() -> None:
    """An empty expression updates only the subscription's version, so a pull gets FILTER_DATA_NOT_LATEST (28)."""
    tables = attrs.evolve(checks(), property_filter=True)
    beat(tables, "CLUSTERING", topic="T", version=1, expression="a > 3", kind="SQL92")
    beat(tables, "CLUSTERING", topic="T", version=2, expression="", kind="SQL92")
    assert code(decide(pull(sys_flag=0, sub_version=1), tables, OneRead())) == 0
    assert code(decide(pull(sys_flag=0, sub_version=2), tables, OneRead())) == 28


def test_with_a_filter_server_every_message_matches() -> None:
    """With `classFilterMode` every message matches."""
    tables = attrs.evolve(checks(), property_filter=True)
    beat(tables, "CLUSTERING", topic="T", version=1, expression="a > 3", kind="SQL92")
    group = present(tables.clients.group("G"))
    group.subscriptions["T"] = subscription_of("T", "a > 3", "SQL92", 1, class_filter=True)
    wanted = check(pull(sys_flag=0, sub_version=1), tables)
    assert isinstance(wanted, TagFilter)
    assert wanted.all_tags


def test_a_slave_corrects_no_offset() -> None:
    """A slave corrects no offset: it answers 20 where a master answers 21."""
    slave = attrs.evolve(checks(), role=BrokerRole("SLAVE", broker_id=1))
    too_small = decide(pull(), slave, OneRead(GetStatus.OFFSET_TOO_SMALL))
    assert isinstance(too_small, OffsetMoved)
    assert as_placed(too_small, checks()) is too_small
    assert as_placed(too_small, slave) == OffsetMoved(too_small.read, 20)
    found = decide(pull(), slave, OneRead())
    assert isinstance(found, Found)
    assert as_placed(found, slave) is found


def queues_of(tags: str) -> MemoryQueues:
    """Return queue 0 of topic T, with one visible message for each letter, which is the message's tag."""
    queues = MemoryQueues()
    for tag in tags:
        queues.append(("T", 0), Message(next(iter(tag_filter(tag, "TAG").codes))))
        queues.make_visible(("T", 0))
    return queues


@pytest.mark.parametrize(
    ("tags", "offset", "wants", "looked_to"),
    [
        ("", 0, False, 0),
        ("bba", 0, True, 0),
        ("bbb", 0, False, 3),
        ("abb", 1, False, 3),
        ("abb", 3, False, 0),
        ("abb", 4, False, 0),
    ],
)
def test_visible_messages_are_wanted_if_some_match(tags: str, offset: int, wants: bool, looked_to: int) -> None:
    waiting = pull(offset=offset, filter=tag_filter("a", "TAG"))
    queues = queues_of(tags)
    assert wants_visible(waiting, queues, len(tags)) is wants
    assert waiting.unmatched_end == looked_to


def test_the_next_check_begins_after_the_last_one() -> None:
    """A recheck reads only messages after those of the last check, and a read that makes no progress runs the pull."""
    for offset, wants in ((1, True), (2, False), (3, False)):
        store = OneRead()
        assert wants_visible(pull(offset=offset), store, 2) is wants
        assert store.count == 0
    asked: list[tuple[int, int]] = []

    class Noting(MemoryQueues):
        def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
            asked.append((offset, count_max))
            return super().get(topic, queue_id, offset, count_max, matches)

    waiting = pull(offset=0, filter=tag_filter("a", "TAG"))
    queues = Noting(queues_of("bbbba").messages)
    for visible_end, wants in ((2, False), (4, False), (5, True)):
        queues.visible["T", 0] = visible_end
        assert wants_visible(waiting, queues, visible_end) is wants
    assert asked == [(0, 1), (2, 1), (4, 1)]
    for status in GetStatus:
        if status is not GetStatus.NO_MATCHED_MESSAGE:
            assert wants_visible(pull(offset=0, filter=tag_filter("a", "TAG")), OneRead(status), 1)

    class Stuck(OneRead):
        def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, 0, 9, [], [], 0, suggest_slave=False)

    assert wants_visible(pull(offset=0, filter=tag_filter("a", "TAG")), Stuck(), 1)

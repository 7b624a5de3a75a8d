"""The checks of a pull in RocketMQ's order, and what each read status becomes."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from longpoll_broker.core.filter.filters import SqlFilter
from longpoll_broker.core.filter.sql92 import Lookup
from longpoll_broker.core.hold import Pull
from longpoll_broker.core.pull import Decision, Desk, Found, Miss, OffsetMoved, Refused, code_of, decide
from longpoll_broker.core.read import ALL, GetResult, GetStatus, Matches
from longpoll_broker.core.tables.subscription import Clients, subscription_of
from longpoll_broker.core.tables.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.core.traits import TRAITS_5


class OneRead:
    """A store that gives one answer and remembers what it was asked."""

    def __init__(self, status: GetStatus = GetStatus.FOUND) -> None:
        self.status = status
        self.matches: Callable[[int], bool] | None = None
        self.matches_properties: Callable[[Lookup], bool] | None = None
        self.count = 0

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """The answer."""
        self.matches, self.matches_properties = matches
        self.count += 1
        return GetResult(self.status, offset + 1, 0, 9, [], [], 0, suggest_slave=False)


def desk() -> Desk:
    """One topic with four readable queues, no groups yet."""
    topics = Topics()
    topics.put(TopicConfig("T", 4, 4))
    return Desk(topics, Groups(), Clients())


def pull(**changes: object) -> Pull:
    """A pull that passes every check."""
    made = Pull("c", 1, "G", "T", 0, 5, 32, 4, subscription="*")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def code(decision: Decision) -> int:
    """The response code of a decision."""
    return decision.code


def test_a_pull_that_passes_reads_once() -> None:
    """No filter is passed for a subscription to everything."""
    store = OneRead()
    assert isinstance(decide(pull(), desk(), store), Found)
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
    """Each refusal has RocketMQ's code."""
    store = OneRead()
    decision = decide(pull(**changes), desk(), store)
    assert isinstance(decision, Refused)
    assert (decision.code, store.count) == (expected, 0)


def test_the_checks_come_in_rocketmqs_order() -> None:
    """Repair one fault after the other: the code moves on through the list."""
    tables = Desk(Topics(), Groups(auto_create=False), Clients(), is_readable=False)
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


def beat(tables: Desk, model: str, *, topic: str, version: int, expression: str = "*", kind: str = "TAG") -> None:
    """One heartbeat of the group's one member."""
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
    """The table of facts 3.6, and the kind of decision it leads to."""
    assert code_of(status, offset) == expected
    decision = decide(pull(offset=offset), desk(), OneRead(status))
    kinds = {0: Found, 19: Miss, 20: OffsetMoved, 21: OffsetMoved}
    assert type(decision) is kinds[expected]


def test_every_status_of_the_store_is_known() -> None:
    """A new status must not end in an assertion while serving."""
    for status in GetStatus:
        assert code_of(status, 0) in {0, 19, 20, 21}


@pytest.mark.parametrize("expression", ["a > 3", "a >"])
def test_sql_is_refused_while_the_broker_does_not_support_it(expression: str) -> None:
    """With 1, whether it could be parsed or not."""
    store = OneRead()
    decision = decide(pull(expression_type="SQL92", subscription=expression), desk(), store)
    assert isinstance(decision, Refused)
    assert decision.code == 1
    assert decision.remark == "The broker does not support consumer to filter message by SQL92"


def test_sql_reads_by_properties() -> None:
    """And not by a tag's hash; an expression that cannot be parsed lets all through, an overlong one is refused."""
    tables = attrs.evolve(desk(), property_filter=True)
    store = OneRead()
    assert code(decide(pull(expression_type="SQL92", subscription="a > 3"), tables, store)) == 0
    assert store.matches is None
    assert store.matches_properties is not None
    assert store.matches_properties({"a": "4"}.get)
    assert not store.matches_properties({"a": "3"}.get)
    assert code(decide(pull(expression_type="SQL92", subscription="a >"), tables, store)) == 0
    assert store.matches_properties(dict[str, str]().get)
    refused = decide(pull(expression_type="SQL92", subscription="a" * 5000), tables, store)
    assert isinstance(refused, Refused)
    assert refused.code == 23
    assert "4096 characters" in refused.remark


def test_sql_of_a_heartbeat() -> None:
    """Its filter is used; a broken one is 27, before the broker's support is looked at; a newer good one heals it."""
    tables, store = desk(), OneRead()
    asks = pull(sys_flag=0, sub_version=1)
    beat(tables, "CLUSTERING", topic="T", version=1, expression="a >", kind="SQL92")
    assert code(decide(asks, tables, store)) == 27
    beat(tables, "CLUSTERING", topic="T", version=2, expression="a > 3", kind="SQL92")
    assert code(decide(asks, tables, store)) == 1
    tables = attrs.evolve(tables, property_filter=True)
    assert code(decide(asks, tables, store)) == 0
    assert store.matches_properties is not None
    assert not store.matches_properties({"a": "3"}.get)


def test_a_filter_that_lets_everything_through_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails on it."""
    monkeypatch.setattr(SqlFilter, "matches_properties", lambda _filter, _lookup: True)
    with pytest.raises(AssertionError):
        test_sql_reads_by_properties()


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
def test_less_than_no_message_is_an_error_where_there_is_something_to_read(status: GetStatus, refused: bool) -> None:
    """4.9.7 was seen to answer 19 and 21 as ever; 5.x reads one message."""
    store = OneRead(status)
    assert (code(decide(pull(count_max=-1), desk(), store)) == 1) is refused
    assert code(decide(pull(count_max=-1), attrs.evolve(desk(), traits=TRAITS_5), store)) != 1

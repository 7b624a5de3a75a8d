"""Topics, groups, members and subscriptions, and the answers of a slave in place of its master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from model_tests.support.present import present

from longpoll_broker.shared import subscription as subscriptions
from longpoll_broker.shared import topics as module
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.subscription import Clients, Subscription, subscription_of
from longpoll_broker.shared.topics import QUEUE_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.messages import GetStatus
from longpoll_protocol.names import DEFAULT_TOPIC, SYSTEM_TOPICS, UNIT_FLAG, UNIT_RETRY_FLAG, name_problem
from longpoll_protocol.properties import word_hash


@pytest.mark.parametrize("name", ["../x", "a/b", "a.b", "a@b", "", " ", "a b", "主题", "x" * 128, "a\x00", "a\n"])
def test_a_name_that_must_not_become_a_path_is_refused(name: str) -> None:
    """A name has letters, digits, `%`, `|`, `_` and `-`, and at most 127 of them, so it cannot become a path."""
    assert name_problem(name) is not None


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b", "x" * 127, "A-b_9"])
def test_rocketmqs_own_names_are_allowed(name: str) -> None:
    assert name_problem(name) is None


def test_a_send_creates_its_topic() -> None:
    """The topic gets the requested number of queues, at most as many as TBW102 has, and not TBW102's inherit flag."""
    topics = Topics(default_queue_count=8)
    topics.add_system_topics("broker-a", "DefaultCluster")
    for name, asked, count in (("A", 4, 4), ("B", 16, 8), ("C", -3, 0)):
        made = present(topics.make_for_send(name, DEFAULT_TOPIC, asked))
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (count, count, 6)
    assert topics.make_for_send("D", "A", 4) is None
    table = table_of("T", DEFAULT_TOPIC)
    assert table.make_for_send("T", DEFAULT_TOPIC, 4) == TopicConfig("T", 1, 1)
    assert not table.changed
    topics = Topics(auto_create=False)
    topics.add_system_topics("broker-a", "DefaultCluster")
    assert topics.make_for_send("A", DEFAULT_TOPIC, 4) is None
    assert Groups(auto_create=False).find("G") is None
    for unit, topics in ((False, table_of()), (True, table_of())):
        topics.add_system_topics("b", "c")
        for name, flag in (("mine", UNIT_FLAG), ("%RETRY%g", UNIT_RETRY_FLAG)):
            topic = present(topics.make_for_send(name, DEFAULT_TOPIC, 4, unit=unit))
            assert topic.topic_sys_flag == (flag if unit else 0)


def test_a_group_is_created_on_use() -> None:
    """A group's name has at most 255 characters, and 5.x refuses some names that 4.9 accepts."""
    groups = Groups()
    assert groups.find("g" * 255) is not None
    assert groups.find("g" * 256) is None
    strict, lax = Groups(validates=True), Groups()
    assert strict.find("no name") is None
    assert lax.find("no name") is not None
    for groups in (strict, lax):
        made = present(groups.find("good_name"))
        assert made.group_name == "good_name"


def test_only_a_new_topic_is_new() -> None:
    topics, new = Topics(), list[str]()
    topics.on_new = new.append
    for count in (1, 2):
        topics.put(TopicConfig("T", count, count))
    assert new == ["T"]


def test_topics_that_a_broker_has() -> None:
    topics = Topics()
    topics.add_system_topics("broker-a", "DefaultCluster")
    assert {topic.topic_name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm) for topic in topics} == {
        "TBW102": (8, 8, 7),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
    }
    assert all(topics.is_system(topic.topic_name) for topic in topics)
    assert topics.is_system("rmq_sys_anything")
    assert not topics.is_system("T")
    table = Topics(auto_create=False)
    table.put(TopicConfig(SYSTEM_TOPICS[0], 5, 5))
    (there,) = table
    table.add_system_topics("broker a", "C")
    assert table.by_name[there.topic_name] == there
    assert DEFAULT_TOPIC not in table.by_name
    assert ("broker a" in table.by_name, table.is_system("broker a"), table.is_system("C")) == (False, False, True)


def table_of(*names: str, light: bool = False) -> Topics:
    table = Topics(light=light)
    for name in names:
        table.put(TopicConfig(name, 1, 1))
    table.changed = False
    return table


@pytest.mark.parametrize(("perm", "is_readable"), [(6, True), (4, True), (2, False), (0, False)])
def test_a_topic_may_be_pulled_from_with_the_read_bit(perm: int, is_readable: bool) -> None:
    assert TopicConfig("T", perm=perm).is_readable is is_readable


def test_a_full_table_accepts_changes_but_no_new_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPIC_COUNT_MAX", 2)
    table = table_of("T")
    assert table.put(TopicConfig(DEFAULT_TOPIC, 8, 8, perm=7))
    table.changed = False
    assert not table.put(TopicConfig("U"))
    assert table.make_for_send("U", DEFAULT_TOPIC, 4) is None
    assert table.make_retry("%RETRY%U", 1) is None
    assert (table.changed, table.get("U")) == (False, None)
    assert table.put(TopicConfig("T", 2, 2))
    assert (table.changed, table.by_name["T"].read_queue_nums) == (True, 2)
    groups = Groups()
    assert [groups.find(name) is not None for name in ("G", "H", "I", "G")] == [True, True, False, True]


def test_tables_change_under_their_guard() -> None:
    counted: list[int] = []

    class Guard:
        def __enter__(self) -> None:
            self.before = table.version

        def __exit__(self, *_: object) -> None:
            counted.append(table.version - self.before)

    table = Topics(guard=Guard())
    table.put(TopicConfig("A"))
    table.put(TopicConfig("A", 3, 3))
    table.remove("A")
    assert sum(counted) == table.version == 3
    table = table_of("T")
    assert (table.remove("U"), table.changed) == (False, False)
    assert (table.remove("T"), table.changed, table.get("T")) == (True, True, None)
    table = Topics()
    quota = table.quota
    for name in "AB":
        table.put(TopicConfig(name))
    table.put(TopicConfig("B", 2, 2))
    assert quota.used == 2
    table.remove("A")
    assert quota.used == 1


def test_a_light_topic_or_group_is_not_stored() -> None:
    for name in ("%LMQ%a", "%LMQ%a b", "%LMQ%device.1"):
        assert table_of(light=True).get(name) == TopicConfig(name, 1, 1)
    for table, name in ((table_of(light=True), "a"), (table_of(), "%LMQ%a")):
        assert table.get(name) is None
    kept = table_of(light=True)
    kept.put(TopicConfig("%LMQ%a", 3, 3))
    assert kept.get("%LMQ%a") == TopicConfig("%LMQ%a", 3, 3)
    groups = Groups(auto_create=False, light=True)
    assert (groups.find("%LMQ%a"), groups.find("a"), groups.by_name) == (GroupConfig("%LMQ%a"), None, {})
    assert Groups(auto_create=False).find("%LMQ%a") is None


def test_retry_topics() -> None:
    table = table_of()
    assert table.make_for_send("%RETRY%G", "none", 4) == TopicConfig("%RETRY%G", 1, 1)
    assert table.get("%RETRY%G") == TopicConfig("%RETRY%G", 1, 1)
    table = table_of("%RETRY%G")
    assert table.make_retry("%RETRY%G", 9) == TopicConfig("%RETRY%G", 1, 1)
    assert table.make_retry("%RETRY%a b", 1) is None
    assert table.make_retry("%RETRY%H", QUEUE_COUNT_MAX + 1) is None
    assert table.make_retry("%RETRY%H", QUEUE_COUNT_MAX) == TopicConfig("%RETRY%H", QUEUE_COUNT_MAX, QUEUE_COUNT_MAX)


def beat(
    clients: Clients, channel: str, subscriptions: list[Subscription] | None, client_id: str = "", *, group: str = "G"
) -> bool:
    return clients.heartbeat(
        channel,
        client_id or f"id-{channel}",
        group,
        message_model="CLUSTERING",
        consume_type="CONSUME_PASSIVELY",
        subscriptions=subscriptions,
    )


def test_members_of_a_group() -> None:
    clients = Clients()
    first = [subscription_of("T", "a", "TAG", 1)]
    assert beat(clients, "c1", first)
    assert not beat(clients, "c1", first)
    assert beat(clients, "c2", first)
    assert not beat(clients, "c1", [subscription_of("T", "b", "TAG", 2)])
    group = present(clients.group("G"))
    assert group.subscriptions["T"].tags.expression == "b"
    assert beat(clients, "c1", [subscription_of("U", "*", "TAG", 3)])
    assert list(group.subscriptions) == ["U"]
    clients = Clients()
    beat(clients, "c1", [])
    beat(clients, "c2", [])
    assert clients.client_ids("G") == ["id-c1", "id-c2"]
    assert clients.unregister("c1", "G")
    assert not clients.unregister("c1", "G")
    assert clients.close("c2") == ["G"]
    assert clients.group("G") is None
    assert clients.close("c2") == []
    assert (clients.client_ids("G"), clients.channels("G")) == ([], [])
    clients = Clients()
    beat(clients, "c1", [], "me")
    beat(clients, "c2", [], "me")
    assert clients.client_ids("G") == ["me"]


@pytest.mark.parametrize("version", [4, 5])
def test_only_a_later_version_replaces_a_subscription(version: int) -> None:
    """Heartbeats of two members may overtake each other, so only a later version counts."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "new", "TAG", 5)])
    beat(clients, "c2", [subscription_of("T", "old", "TAG", version)])
    group = present(clients.group("G"))
    assert group.subscriptions["T"].tags.expression == "new"


def test_subscriptions_by_tags() -> None:
    """The hashes in a heartbeat replace those of the expression, and an invalid expression matches nothing."""
    assert not subscription_of("T", "||", "TAG", 1).tags.matches(1)
    for kind in ("TAG", ""):
        parsed = subscription_of("T", "a||b", kind, 1).tags
        assert parsed.codes == {word_hash("a"), word_hash("b")}
        assert subscription_of("T", "a", kind, 1, code_set=frozenset({7})).tags.codes == {7}
    assert subscription_of("T", "*", "TAG", 1, code_set=frozenset()).tags.all_tags
    assert subscription_of("T", "", "TAG", 1).tags.all_tags
    assert subscription_of("T", "a", "TAG", 1, code_set=frozenset(), class_filter=True).tags.all_tags
    by_sql = subscription_of("T", "a > 1", "SQL92", 1, class_filter=True)
    assert (by_sql.is_by_tag, by_sql.tags.all_tags, by_sql.class_filter) == (False, True, True)


def test_filters_of_a_subscription() -> None:
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "a > 1", "SQL92", 1), subscription_of("U", "a > 2", "SQL92", 1)])
    assert clients.filters.get("T", "G") is not None
    beat(clients, "c1", [subscription_of("T", "a > 1", "SQL92", 1)])
    assert clients.filters.get("U", "G") is None
    clients.close("c1")
    assert clients.filters.get("T", "G") is None
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "a > 1", "SQL92", 1)])
    known = present(clients.filters.get("T", "G"))
    beat(clients, "c1", [subscription_of("T", "a", "TAG", 2)])
    assert clients.filters.get("T", "G") is known


def test_heartbeats_change_a_group() -> None:
    """A heartbeat without subscriptions adds a member and keeps the group's subscriptions."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "a", "TAG", 1)])
    assert beat(clients, "c2", None)
    assert beat(clients, "c2", None) is False
    group = present(clients.group("G"))
    assert list(group.subscriptions) == ["T"]
    clients = Clients()
    clients.heartbeat(
        "c1",
        "id",
        "G",
        message_model="BROADCASTING",
        consume_type="CONSUME_ACTIVELY",
        subscriptions=None,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )
    group = present(clients.group("G"))
    assert (group.message_model, group.consume_type) == ("BROADCASTING", "CONSUME_ACTIVELY")
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"


def test_a_full_group_refuses_another_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MEMBER_COUNT_MAX", 2)
    clients = Clients()
    beat(clients, "c1", [])
    beat(clients, "c2", [])
    assert beat(clients, "c3", [subscription_of("T", "a", "TAG", 1)]) is False
    assert clients.channels("G") == ["c1", "c2"]
    assert beat(clients, "c2", [subscription_of("T", "a", "TAG", 1)])


def test_the_topics_and_subscriptions_of_a_group() -> None:
    clients = Clients()
    for lacks in (True, False):
        assert clients.note_fingerprint("G", 7, without_subscriptions=lacks) is lacks
    beat(clients, "c1", [])
    said = [clients.note_fingerprint("G", hashed, without_subscriptions=True) for hashed in (7, 7, 8, 8)]
    assert said == [False, False, True, False]
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "*", "TAG", 1)])
    beat(clients, "c2", [subscription_of("U", "*", "TAG", 1)], group="H")
    beat(clients, "c3", [subscription_of("T", "*", "TAG", 1), subscription_of("U", "*", "TAG", 1)], group="I")
    assert (clients.of_topic("T"), clients.of_topic("none")) == (["G", "I"], [])
    clients = Clients()
    for group in ("G", "H"):
        beat(clients, "c1", [], group=group)
    assert clients.unregister("c1", "G")
    assert clients._groups_of == {"c1": {"H"}}
    beat(clients, "c2", [], group="G")
    assert (clients.close("c1"), clients._groups_of) == (["H"], {"c2": {"G"}})


def test_an_encoded_list_of_members_is_kept_until_they_change() -> None:
    clients = Clients()
    beat(clients, "c1", [])
    group = present(clients.group("G"))
    changes: list[tuple[Callable[[], bool], bool]] = [
        (lambda: beat(clients, "c1", []), True),
        (lambda: beat(clients, "c1", [], "renamed"), False),
        (lambda: beat(clients, "c2", []), False),
        (lambda: clients.unregister("none", "G"), True),
        (lambda: clients.unregister("c2", "G"), False),
    ]
    for change, is_kept in changes:
        group.encoded_ids = b"as it was"
        change()
        assert (group.encoded_ids == b"as it was") == is_kept


GROUP = GroupConfig("G", broker_id=3, which_broker_when_consume_slowly=7)
ALL = (STRICT_TRAITS, TRAITS_4_9, TRAITS_5)
MASTER: dict[str, Any] = {}
READ: dict[str, Any] = {"slave_read": True}
SLAVE: dict[str, Any] = {"role": "SLAVE", "broker_id": 1}
LIVING: dict[str, Any] = {**SLAVE, **READ, "least_broker_id": 0}
ALONE: dict[str, Any] = {**SLAVE, **READ, "least_broker_id": 1}
CHECKS: dict[str, Any] = {**SLAVE, "offset_check_in_slave": True}
ROLES: list[tuple[dict[str, Any], tuple[Traits, ...], bool, int, GetStatus, tuple[int, int, int]]] = [
    (MASTER, ALL, True, 0, GetStatus.FOUND, (0, 10, 0)),
    (MASTER, ALL, True, 19, GetStatus.OFFSET_OVERFLOW_ONE, (19, 10, 0)),
    (MASTER, ALL, True, 20, GetStatus.NO_MATCHED_MESSAGE, (20, 10, 0)),
    (MASTER, ALL, True, 21, GetStatus.OFFSET_TOO_SMALL, (21, 10, 0)),
    # `slaveReadEnable` decides whether a slave is suggested, and the group's settings contain the id of that slave.
    (READ, ALL, True, 0, GetStatus.FOUND, (0, 10, 7)),
    (READ, ALL, False, 0, GetStatus.FOUND, (0, 10, 3)),
    # A slave may lag behind its master, so it answers 20 with the requested offset, unless `offsetCheckInSlave` is set.
    (SLAVE, ALL, False, 21, GetStatus.OFFSET_OVERFLOW_BADLY, (20, 99, 3)),
    (SLAVE, ALL, False, 20, GetStatus.NO_MATCHED_MESSAGE, (20, 10, 0)),
    (CHECKS, ALL, False, 21, GetStatus.OFFSET_OVERFLOW_BADLY, (21, 10, 0)),
    # The answer of a slave that must not be read suggests the master; 4.9 overwrites the answer's code 20 (upstream
    # issue #1828).
    (SLAVE, ALL, True, 0, GetStatus.FOUND, (0, 10, 0)),
    (SLAVE, ALL, True, 19, GetStatus.OFFSET_FOUND_NULL, (19, 99, 0)),
    (SLAVE, ALL, True, 20, GetStatus.OFFSET_FOUND_NULL, (20, 99, 0)),
    # Response codes that correct no offset are not changed.
    ({**SLAVE, **READ}, ALL, True, 20, GetStatus.NO_MATCHED_MESSAGE, (20, 10, 7)),
    ({**SLAVE, **READ}, ALL, True, 20, GetStatus.MESSAGE_WAS_REMOVING, (20, 10, 7)),
    # A slave of 5.x whose master is alive holds no pull: it answers 20 at once and suggests the master.
    (LIVING, (TRAITS_5,), False, 19, GetStatus.OFFSET_OVERFLOW_ONE, (20, 99, 0)),
    (LIVING, (TRAITS_5,), False, 0, GetStatus.FOUND, (0, 10, 0)),
    (LIVING, (TRAITS_5,), False, 20, GetStatus.NO_MATCHED_MESSAGE, (20, 10, 0)),
    (LIVING, (TRAITS_5,), False, 21, GetStatus.OFFSET_OVERFLOW_BADLY, (20, 99, 0)),
    (LIVING, (TRAITS_5,), True, 19, GetStatus.OFFSET_OVERFLOW_ONE, (19, 99, 7)),
    (LIVING, (TRAITS_4_9,), False, 19, GetStatus.OFFSET_OVERFLOW_ONE, (19, 99, 3)),
    (LIVING, (TRAITS_4_9,), False, 21, GetStatus.OFFSET_OVERFLOW_BADLY, (20, 99, 3)),
    (ALONE, (TRAITS_5,), False, 19, GetStatus.OFFSET_OVERFLOW_ONE, (19, 99, 3)),
]
"""(Role, policies, whether the reader is far behind, code of a lone master, status of the store, expected result).

The expected result is the code, the next offset after a read at 99 that found 10, and the suggested broker."""


@pytest.mark.parametrize(("options", "all_traits", "is_behind", "code", "status", "expected"), ROLES)
def test_what_a_role_answers(  # noqa: PLR0917 - a row of the table
    options: dict[str, Any],
    all_traits: tuple[Traits, ...],
    is_behind: bool,
    code: int,
    status: GetStatus,
    expected: tuple[int, int, int],
) -> None:
    role = BrokerRole(**options)
    assert role.is_plain is (options == MASTER)
    for traits in all_traits:
        found = role.code(code, status, traits, suggests_slave=is_behind), role.offset_next(99, 10, status)
        assert (*found, role.suggested_broker(GROUP, code, traits, suggests_slave=is_behind)) == expected


def test_a_group_that_a_broker_does_not_know_is_sent_to_the_first_slave() -> None:
    assert BrokerRole(slave_read=True).suggested_broker(None, 0, STRICT_TRAITS, suggests_slave=True) == 1

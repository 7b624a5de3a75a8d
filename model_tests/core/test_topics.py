"""Tables of topics and groups: names, automatic creation, removal and limits."""

from __future__ import annotations

import pytest

from longpoll_broker.shared import topics as module
from longpoll_broker.shared.topics import QUEUE_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics
from longpoll_protocol.names import DEFAULT_TOPIC, SYSTEM_TOPICS, UNIT_FLAG, UNIT_RETRY_FLAG, name_problem


@pytest.mark.parametrize("name", ["../x", "a/b", "a.b", "a@b", "", " ", "a b", "主题", "x" * 128, "a\x00", "a\n"])
def test_a_name_that_must_not_become_a_path_is_refused(name: str) -> None:
    """Only letters, digits, percent, bar, underscore and hyphen; at most 127 characters."""
    assert name_problem(name) is not None


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b", "x" * 127, "A-b_9"])
def test_rocketmqs_own_names_are_allowed(name: str) -> None:
    assert name_problem(name) is None


def test_a_send_makes_the_topic_from_the_default_topic() -> None:
    """With as many queues as the client asks for, at most as many as TBW102 has, and without the inherit bit."""
    topics = Topics(default_queue_count=8)
    topics.add_system_topics("broker-a", "DefaultCluster")
    for name, asked, count in (("A", 4, 4), ("B", 16, 8), ("C", -3, 0)):
        made = topics.make_for_send(name, DEFAULT_TOPIC, asked)
        assert made is not None
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (count, count, 6)
    assert topics.make_for_send("D", "A", 4) is None


def test_without_automatic_creation_nothing_is_made() -> None:
    topics = Topics(auto_create=False)
    topics.add_system_topics("broker-a", "DefaultCluster")
    assert topics.make_for_send("A", DEFAULT_TOPIC, 4) is None
    assert Groups(auto_create=False).find("G") is None


def test_a_group_name_without_end_is_not_made() -> None:
    """255 characters are the clients' own limit."""
    groups = Groups()
    assert groups.find("g" * 255) is not None
    assert groups.find("g" * 256) is None


def test_a_broker_has_the_topics_that_javas_have() -> None:
    """Read and write queues and permission, as 4.9.7 was seen to make them; others may not change or delete them."""
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


def table_of(*names: str, light: bool = False) -> Topics:
    """Topics with one queue each, which nobody has changed since."""
    table = Topics(light=light)
    for name in names:
        table.put(TopicConfig(name, 1, 1))
    table.changed = False
    return table


@pytest.mark.parametrize(("perm", "is_readable"), [(6, True), (4, True), (2, False), (0, False)])
def test_a_topic_may_be_pulled_from_with_the_read_bit(perm: int, is_readable: bool) -> None:
    assert TopicConfig("T", perm=perm).is_readable is is_readable


def test_what_is_removed_is_gone_and_what_is_not_there_changes_nothing() -> None:
    """A change is noted for whoever saves the table."""
    table = table_of("T")
    assert (table.remove("U"), table.changed) == (False, False)
    assert (table.remove("T"), table.changed, table.get("T")) == (True, True, None)


def test_a_full_table_takes_no_more_and_its_own_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of topics, in whatever way one is made, and of groups."""
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


def test_a_table_that_is_copied_is_counted_by_the_same_quota() -> None:
    table = Topics()
    quota = table.quota
    for name in "AB":
        table.put(TopicConfig(name))
    table.replace({name: TopicConfig(name) for name in "BC"})
    assert (table.quota is quota, quota.used) == (True, 2)
    table.remove("C")
    assert quota.used == 1


def test_each_change_is_counted_under_the_guard() -> None:
    """Two threads that count at once would else count one."""
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


def test_a_light_topic_or_group_is_there_without_being_kept() -> None:
    """Where they are switched on, with one queue and any name; one that is kept stays."""
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


def test_the_topics_that_every_broker_has_are_made_unless_they_are_there() -> None:
    """The default topic only where topics are made by sends, and of the broker's names only those that may be."""
    table = Topics(auto_create=False)
    table.put(TopicConfig(SYSTEM_TOPICS[0], 5, 5))
    (there,) = table
    table.add_system_topics("broker a", "C")
    assert table.by_name[there.topic_name] == there
    assert DEFAULT_TOPIC not in table.by_name
    assert ("broker a" in table.by_name, table.is_system("broker a"), table.is_system("C")) == (False, False, True)


def test_a_send_to_a_topic_that_is_there_changes_nothing() -> None:
    """Also to a light one, and one with other queues than are asked for."""
    table = table_of("T", DEFAULT_TOPIC)
    assert table.make_for_send("T", DEFAULT_TOPIC, 4) == TopicConfig("T", 1, 1)
    assert not table.changed


def test_a_retry_topic_is_made_by_the_first_send_to_it() -> None:
    """With one queue, and from no other topic."""
    table = table_of()
    assert table.make_for_send("%RETRY%G", "none", 4) == TopicConfig("%RETRY%G", 1, 1)
    assert table.get("%RETRY%G") == TopicConfig("%RETRY%G", 1, 1)


def test_a_retry_topic_is_made_once_and_only_with_a_name_and_a_count_that_may_be() -> None:
    """One that is there stays as it is."""
    table = table_of("%RETRY%G")
    assert table.make_retry("%RETRY%G", 9) == TopicConfig("%RETRY%G", 1, 1)
    assert table.make_retry("%RETRY%a b", 1) is None
    assert table.make_retry("%RETRY%H", QUEUE_COUNT_MAX + 1) is None
    assert table.make_retry("%RETRY%H", QUEUE_COUNT_MAX) == TopicConfig("%RETRY%H", QUEUE_COUNT_MAX, QUEUE_COUNT_MAX)


def test_the_topics_of_a_unit_say_so() -> None:
    """What a producer of a unit makes by its first send, and no other's."""
    made = {unit: table_of() for unit in (False, True)}
    for unit, topics in made.items():
        topics.add_system_topics("b", "c")
        for name, flag in (("mine", UNIT_FLAG), ("%RETRY%g", UNIT_RETRY_FLAG)):
            topic = topics.make_for_send(name, DEFAULT_TOPIC, 4, unit=unit)
            assert topic is not None
            assert topic.topic_sys_flag == (flag if unit else 0)


def test_a_group_is_made_with_a_name_that_may_be() -> None:
    """5.x refuses what 4.9 makes; a good name is made by both."""
    strict, lax = Groups(validates=True), Groups()
    assert strict.find("no name") is None
    assert lax.find("no name") is not None
    for groups in (strict, lax):
        made = groups.find("good_name")
        assert made is not None
        assert made.group_name == "good_name"

"""Topic names, automatic creation, and groups."""

from __future__ import annotations

import pytest

from longpoll_broker.core.tables.topics import Groups, TopicConfig, Topics
from longpoll_protocol.names import DEFAULT_TOPIC, name_problem


@pytest.mark.parametrize("name", ["../x", "a/b", "a.b", "a@b", "", " ", "a b", "主题", "x" * 128, "a\x00", "a\n"])
def test_a_name_that_must_not_become_a_path_is_refused(name: str) -> None:
    """Only letters, digits, percent, bar, underscore and hyphen; at most 127 characters."""
    assert name_problem(name) is not None


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b", "x" * 127, "A-b_9"])
def test_rocketmqs_own_names_are_allowed(name: str) -> None:
    """What 4.9.7 accepts."""
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
    """Neither topics nor groups."""
    topics = Topics(auto_create=False)
    topics.add_system_topics("broker-a", "DefaultCluster")
    assert topics.make_for_send("A", DEFAULT_TOPIC, 4) is None
    assert Groups(auto_create=False).find("G") is None


def test_a_change_is_noted_for_whoever_saves_the_table() -> None:
    """And a look is not."""
    topics = Topics()
    topics.get("A")
    assert not topics.changed
    topics.put(TopicConfig("A"))
    assert topics.changed


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

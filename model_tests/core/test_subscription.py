"""Members of groups and what they subscribe to."""

from __future__ import annotations

from longpoll_broker.core.tables.subscription import Clients, Subscription, subscription_of
from longpoll_protocol.tags import word_hash


def beat(clients: Clients, channel: str, subscriptions: list[Subscription], client_id: str = "") -> bool:
    """One heartbeat for group G."""
    return clients.heartbeat(
        channel,
        client_id or f"id-{channel}",
        "G",
        message_model="CLUSTERING",
        consume_type="CONSUME_PASSIVELY",
        subscriptions=subscriptions,
    )


def test_members_are_told_of_a_new_member_or_topic_and_of_nothing_else() -> None:
    """A repeated heartbeat changes nothing; a newer version alone is not told either, as in Java."""
    clients = Clients()
    first = [subscription_of("T", "a", "TAG", 1)]
    assert beat(clients, "c1", first)
    assert not beat(clients, "c1", first)
    assert beat(clients, "c2", first)
    assert not beat(clients, "c1", [subscription_of("T", "b", "TAG", 2)])
    group = clients.group("G")
    assert group is not None
    assert group.subscriptions["T"].tags.expression == "b"
    assert beat(clients, "c1", [subscription_of("U", "*", "TAG", 3)])
    assert list(group.subscriptions) == ["U"]


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    """Heartbeats of two members may cross."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "new", "TAG", 5)])
    beat(clients, "c2", [subscription_of("T", "old", "TAG", 4)])
    group = clients.group("G")
    assert group is not None
    assert group.subscriptions["T"].tags.expression == "new"


def test_a_group_goes_with_its_last_member() -> None:
    """By unregistering or by a closed channel."""
    clients = Clients()
    beat(clients, "c1", [])
    beat(clients, "c2", [])
    assert clients.client_ids("G") == ["id-c1", "id-c2"]
    assert clients.unregister("c1", "G")
    assert not clients.unregister("c1", "G")
    assert clients.close("c2") == ["G"]
    assert clients.group("G") is None
    assert clients.close("c2") == []


def test_two_channels_of_one_client_are_one_id() -> None:
    """A client that reconnects before its old channel is closed must not get two shares of the queues."""
    clients = Clients()
    beat(clients, "c1", [], "me")
    beat(clients, "c2", [], "me")
    assert clients.client_ids("G") == ["me"]


def test_a_subscription_that_cannot_be_parsed_matches_nothing() -> None:
    """A heartbeat has no error for it."""
    assert not subscription_of("T", "||", "TAG", 1).tags.matches(1)


def test_tags_are_parsed_or_believed() -> None:
    """The hashes that a heartbeat names count where they are given, with the two types that are read as tags."""
    for kind in ("TAG", ""):
        parsed = subscription_of("T", "a||b", kind, 1).tags
        assert parsed.codes == {word_hash("a"), word_hash("b")}
        assert subscription_of("T", "a", kind, 1, code_set=frozenset({7})).tags.codes == {7}
    assert subscription_of("T", "*", "TAG", 1, code_set=frozenset()).tags.all_tags
    assert subscription_of("T", "", "TAG", 1).tags.all_tags


def test_a_filter_server_lets_everything_through() -> None:
    """There is none any more, and the broker leaves the choice to it."""
    assert subscription_of("T", "a", "TAG", 1, code_set=frozenset(), class_filter=True).tags.all_tags
    by_sql = subscription_of("T", "a > 1", "SQL92", 1, class_filter=True)
    assert (by_sql.is_by_tag, by_sql.tags.all_tags, by_sql.class_filter) == (False, True, True)


def test_a_filter_is_registered_beside_its_subscription() -> None:
    """And goes with the topic, or with the group."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "a > 1", "SQL92", 1), subscription_of("U", "a > 2", "SQL92", 1)])
    assert clients.filters.get("T", "G") is not None
    beat(clients, "c1", [subscription_of("T", "a > 1", "SQL92", 1)])
    assert clients.filters.get("U", "G") is None
    clients.close("c1")
    assert clients.filters.get("T", "G") is None

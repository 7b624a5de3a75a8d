"""Members of groups and what they subscribe to."""

from __future__ import annotations

from longpoll_broker.core.filter import SqlFilter
from longpoll_broker.core.subscription import Clients, Subscription, subscription_of


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
    assert group.subscriptions["T"].filter.expression == "b"
    assert beat(clients, "c1", [subscription_of("U", "*", "TAG", 3)])
    assert list(group.subscriptions) == ["U"]


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    """Heartbeats of two members may cross."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "new", "TAG", 5)])
    beat(clients, "c2", [subscription_of("T", "old", "TAG", 4)])
    group = clients.group("G")
    assert group is not None
    assert group.subscriptions["T"].filter.expression == "new"


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
    assert not subscription_of("T", "||", "TAG", 1).filter.matches(1)


def test_an_sql_subscription_that_cannot_be_parsed_is_known_as_such() -> None:
    """So that its pulls can be refused with 27."""
    parsed, broken = (subscription_of("T", text, "SQL92", 1).filter for text in ("a > 1", "a >"))
    assert isinstance(parsed, SqlFilter)
    assert isinstance(broken, SqlFilter)
    assert parsed.condition is not None
    assert broken.condition is None

"""Members of groups and what they subscribe to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longpoll_broker.shared import subscription as subscriptions
from longpoll_broker.shared.subscription import Clients, Subscription, subscription_of
from longpoll_protocol.tags import word_hash


def beat(
    clients: Clients, channel: str, subscriptions: list[Subscription] | None, client_id: str = "", *, group: str = "G"
) -> bool:
    """One heartbeat for a group."""
    return clients.heartbeat(
        channel,
        client_id or f"id-{channel}",
        group,
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


@pytest.mark.parametrize("version", [4, 5])
def test_only_a_later_version_replaces_a_subscription(version: int) -> None:
    """Heartbeats of two members may cross."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "new", "TAG", 5)])
    beat(clients, "c2", [subscription_of("T", "old", "TAG", version)])
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
    assert (clients.client_ids("G"), clients.channels("G")) == ([], [])


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


def test_a_subscription_by_tag_has_no_filter_beside_it() -> None:
    """A pull of such a group is not told that a filter is missing or old."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "a > 1", "SQL92", 1)])
    known = clients.filters.get("T", "G")
    assert known is not None
    beat(clients, "c1", [subscription_of("T", "a", "TAG", 2)])
    assert clients.filters.get("T", "G") is known


def test_a_heartbeat_without_subscriptions_leaves_those_that_there_are() -> None:
    """It makes a member all the same, and says so once."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "a", "TAG", 1)])
    assert beat(clients, "c2", None)
    assert beat(clients, "c2", None) is False
    group = clients.group("G")
    assert group is not None
    assert list(group.subscriptions) == ["T"]


def test_how_a_group_consumes_is_what_its_last_heartbeat_said() -> None:
    """Also where it differs from what a group is at first."""
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
    group = clients.group("G")
    assert group is not None
    assert (group.message_model, group.consume_type) == ("BROADCASTING", "CONSUME_ACTIVELY")
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"


def test_a_full_group_takes_no_further_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told of one that was not taken; those who are members go on as before."""
    monkeypatch.setattr(subscriptions, "MEMBER_COUNT_MAX", 2)
    clients = Clients()
    beat(clients, "c1", [])
    beat(clients, "c2", [])
    assert beat(clients, "c3", [subscription_of("T", "a", "TAG", 1)]) is False
    assert clients.channels("G") == ["c1", "c2"]
    assert beat(clients, "c2", [subscription_of("T", "a", "TAG", 1)])


def test_a_channel_leaves_each_of_its_groups_once() -> None:
    """Those that it has left already are not told when it closes, and no closed channel is kept."""
    clients = Clients()
    for group in ("G", "H"):
        beat(clients, "c1", [], group=group)
    assert clients.unregister("c1", "G")
    assert clients._groups_of == {"c1": {"H"}}
    beat(clients, "c2", [], group="G")
    assert clients.close("c1") == ["H"]
    assert clients._groups_of == {"c2": {"G"}}


def test_a_hash_of_subscriptions_is_held_beside_the_last_one() -> None:
    """True only where another one is known; a group that is not there answers by what the heartbeat lacks."""
    clients = Clients()
    for lacks in (True, False):
        assert clients.note_fingerprint("G", 7, without_subscriptions=lacks) is lacks
    beat(clients, "c1", [])
    said = [clients.note_fingerprint("G", hashed, without_subscriptions=True) for hashed in (7, 7, 8, 8)]
    assert said == [False, False, True, False]


def test_groups_of_a_topic_are_those_that_want_it_now() -> None:
    """A group that wants another one is none of them."""
    clients = Clients()
    beat(clients, "c1", [subscription_of("T", "*", "TAG", 1)])
    beat(clients, "c2", [subscription_of("U", "*", "TAG", 1)], group="H")
    beat(clients, "c3", [subscription_of("T", "*", "TAG", 1), subscription_of("U", "*", "TAG", 1)], group="I")
    assert clients.of_topic("T") == ["G", "I"]
    assert clients.of_topic("none") == []


def test_an_encoded_list_of_members_is_good_until_they_change() -> None:
    """A heartbeat of the same member leaves it; another id on a channel, a new member and one that leaves do not."""
    clients = Clients()
    beat(clients, "c1", [])
    group = clients.group("G")
    assert group is not None
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

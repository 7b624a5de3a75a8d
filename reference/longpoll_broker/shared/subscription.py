"""Consumer groups from heartbeats: members' channels and subscriptions.

A member is removed when its channel closes, even if it sends no heartbeats. Notifications: see
`rocketmq.admin.client_processor`.

Source: `ConsumerManager.java`, `ConsumerGroupInfo.java`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.shared.filters import (
    SUBSCRIBE_ALL,
    TAG,
    ExpressionError,
    FilterTable,
    TagFilter,
    is_tag_type,
    tag_filter,
)
from longpoll_broker.shared.quota import Quota
from longpoll_protocol.sizes import MIB

BROADCASTING: Final = "BROADCASTING"
MEMBER_COUNT_MAX: Final = 100_000
"""Maximum pairs of a group and a member."""
SUBSCRIPTION_SIZE_MAX: Final = 128 * MIB
"""Maximum characters of all subscriptions."""
SUBSCRIPTION_UNIT: Final = 512
"""The size of an ordinary subscription in characters, for quotas."""
SUBSCRIPTION_COST: Final = 100
"""Characters that a subscription, and each of its tags, adds to the quota in addition to the text."""


@frozen
class Subscription:
    """A group's subscription to one topic."""

    topic: str
    tags: TagFilter
    """The tag filter, which matches every message if the expression has another type or a filter server filters."""
    sub_version: int
    class_filter: bool = False
    """`classFilterMode`: a filter server should filter the messages, but RocketMQ no longer has filter servers."""

    @property
    def is_by_tag(self) -> bool:
        """Whether the expression consists of tags; other expressions have a filter in `Clients.filters`."""
        return is_tag_type(self.tags.expression_type)


@define(slots=True, eq=False)
class Group:
    """One group that has live members."""

    name: str
    message_model: str = "CLUSTERING"
    consume_type: str = "CONSUME_PASSIVELY"
    members: dict[Hashable, str] = field(factory=dict)
    """The members' client ids, by channel."""
    subscriptions: dict[str, Subscription] = field(factory=dict)
    """The group's subscriptions, by topic."""
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    fingerprint: int | None = None
    """The hash of the group's subscriptions that a 5.x client sent last."""
    encoded_ids: bytes | None = None
    """The client ids as encoded in the answer to GET_CONSUMER_LIST_BY_GROUP (38); None after a change.

            The encoded ids are kept because each member of a large group requests them after each change."""


@define(slots=True, eq=False)
class Clients:
    """Every group with live members.

    Invariant: a group is in the table exactly while it has a member; `_groups_of` is the inverse of `Group.members`.
    """

    filters: FilterTable = field(factory=FilterTable)
    """The filters of subscriptions that are not by tag."""
    members_quota: Quota = field(factory=lambda: Quota("members of groups", MEMBER_COUNT_MAX), init=False)
    subscriptions_quota: Quota = field(
        factory=lambda: Quota("characters of subscriptions", SUBSCRIPTION_SIZE_MAX, SUBSCRIPTION_UNIT), init=False
    )
    _groups: dict[str, Group] = field(factory=dict, init=False)
    _groups_of: dict[Hashable, set[str]] = field(factory=dict, init=False)

    def group(self, name: str) -> Group | None:
        """Returns the group, if it has a live member."""
        return self._groups.get(name)

    def client_ids(self, name: str) -> list[str]:
        """Returns the members' distinct client ids."""
        group = self._groups.get(name)
        return list(dict.fromkeys(group.members.values())) if group else []

    def channels(self, name: str) -> list[Hashable]:
        """Returns the members' channels."""
        group = self._groups.get(name)
        return list(group.members) if group else []

    def of_topic(self, topic: str) -> list[str]:
        """Returns the groups with a live member that subscribe to a topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def heartbeat(
        self,
        channel: Hashable,
        client_id: str,
        name: str,
        *,
        message_model: str,
        consume_type: str,
        subscriptions: Iterable[Subscription] | None,
        consume_from_where: str = "CONSUME_FROM_LAST_OFFSET",
    ) -> bool:
        """Register a member; returns true if members or topics changed, so that the members must be notified.

        If `subscriptions` is None, the group keeps its subscriptions.
        """
        group = self._groups.get(name)
        changed = group is None or channel not in group.members
        if changed and not self.members_quota.take((channel, name), channel):
            return False
        if group is None:
            group = self._groups[name] = Group(name)
        group.message_model = message_model
        group.consume_type = consume_type
        group.consume_from_where = consume_from_where
        if group.members.get(channel) != client_id:
            group.encoded_ids = None
        group.members[channel] = client_id
        self._groups_of.setdefault(channel, set()).add(name)
        if subscriptions is None:
            return changed
        return self._subscribe(group, list(subscriptions), channel) or changed

    def note_fingerprint(self, name: str, fingerprint: int, *, without_subscriptions: bool) -> bool:
        """Record the hash of a member's subscriptions; returns whether the client must send subscriptions again.

        The client must do so if the group had a different hash, or if the group is unknown and the heartbeat had no
        subscriptions. For an unknown group nothing is recorded, because its first member sends the hash again.
        """
        group = self._groups.get(name)
        if group is None:
            return without_subscriptions
        known, group.fingerprint = group.fingerprint, fingerprint
        return known is not None and known != fingerprint

    def unregister(self, channel: Hashable, name: str) -> bool:
        """Remove a member from one group; returns false if the channel was not a member."""
        group = self._groups.get(name)
        if group is None or group.members.pop(channel, None) is None:
            return False
        group.encoded_ids = None
        self.members_quota.release((channel, name))
        if not group.members:
            del self._groups[name]
            for topic in group.subscriptions:
                self.subscriptions_quota.release((name, topic))
            self.filters.group_gone(name, group.subscriptions)
        names = self._groups_of[channel]
        names.discard(name)
        if not names:
            del self._groups_of[channel]
        return True

    def close(self, channel: Hashable, count_max: int | None = None) -> list[str]:
        """Remove a closed channel from at most `count_max` of its groups; returns the names of these groups."""
        names = list(islice(self._groups_of.get(channel, ()), count_max))
        return [name for name in names if self.unregister(channel, name)]

    def _subscribe(self, group: Group, wanted: list[Subscription], channel: Hashable) -> bool:
        """Apply newer subscriptions and drop topics that are not in `wanted`; returns whether the topics changed."""
        before = set(group.subscriptions)
        for subscription in wanted:
            key = (group.name, subscription.topic)
            tags = subscription.tags
            size = len(subscription.topic) + len(tags.expression) + SUBSCRIPTION_COST * (1 + len(tags.codes))
            if not self.subscriptions_quota.take(key, channel, size):
                continue
            known = group.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                group.subscriptions[subscription.topic] = subscription
            if not subscription.is_by_tag:
                self.filters.register(
                    subscription.topic,
                    group.name,
                    tags.expression,
                    tags.expression_type,
                    subscription.sub_version,
                    channel,
                )
        for topic in before - {subscription.topic for subscription in wanted}:
            del group.subscriptions[topic]
            self.subscriptions_quota.release((group.name, topic))
            self.filters.unsubscribed(topic, group.name)
        return before != set(group.subscriptions)


def subscription_of(
    topic: str,
    expression: str,
    expression_type: str,
    sub_version: int,
    *,
    code_set: frozenset[int] | None = None,
    class_filter: bool = False,
) -> Subscription:
    """Create a subscription from a heartbeat.

    Invalid tags match no message, because the answer to a heartbeat cannot report an error. `code_set` has the hashes
    in the heartbeat; if it is None, the expression is parsed.
    """
    if class_filter or not is_tag_type(expression_type):
        tags = TagFilter(expression, expression_type, frozenset(), all_tags=True)
    elif code_set is not None:
        tags = TagFilter(expression, TAG, code_set, all_tags=expression == SUBSCRIBE_ALL)
    else:
        try:
            tags = tag_filter(expression, TAG)
        except ExpressionError:
            tags = TagFilter(expression, TAG, frozenset(), all_tags=False)
    return Subscription(topic, tags, sub_version, class_filter)

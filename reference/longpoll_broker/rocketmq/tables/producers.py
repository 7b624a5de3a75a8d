"""The connections with producers of each group, for transaction checks and replies.

Not thread-safe; callers hold a lock. Used by `rocketmq.transactions.transaction_check`. Source: `ProducerManager.java`
4.9: `registerProducer`, `getAvailableChannel`, `findChannel`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_protocol.names import GROUP_SIZE_MAX

LOOKS_MAX: Final = 256
"""Maximum connections of a group that one search tries."""
PRODUCER_COUNT_MAX: Final = 100_000
"""Maximum pairs of a group and a connection; further ones are ignored."""


@define(slots=True, eq=False)
class Producers:
    """The producers. Invariant: `_groups`, `_groups_of` and `quota` have the same pairs, without empty entries.

    `_clients` and `_client_of` map between the connections of `_groups_of` and their last client ids.
    """

    quota: Quota = field(factory=lambda: Quota("producers", PRODUCER_COUNT_MAX), init=False)
    _groups: dict[str, OrderedDict[Hashable, None]] = field(factory=dict, init=False)
    _groups_of: dict[Hashable, set[str]] = field(factory=dict, init=False)
    _clients: dict[str, dict[Hashable, None]] = field(factory=dict, init=False)
    _client_of: dict[Hashable, str] = field(factory=dict, init=False)
    _named: dict[str, Hashable] = field(factory=dict, init=False)
    """The connections of `_groups_of` by their `str`; of two with the same name the later one."""

    def register(self, channel: Hashable, group: str, client_id: str) -> None:
        """Add a producer's connection to a group; ignored over the quota, or with a name that is too long."""
        members = self._groups.get(group, ())
        if channel in members:
            if self._client_of.get(channel) != client_id:
                self._note_client(channel, client_id)
            return
        if len(group) > GROUP_SIZE_MAX or not self.quota.take((channel, group), channel):
            return
        self._groups.setdefault(group, OrderedDict())[channel] = None
        self._named[str(channel)] = channel
        self._groups_of.setdefault(channel, set()).add(group)
        self._note_client(channel, client_id)

    def unregister(self, channel: Hashable, group: str) -> None:
        """Remove a producer's connection from a group."""
        members = self._groups.get(group)
        if members is None or channel not in members:
            return
        del members[channel]
        if not members:
            del self._groups[group]
        groups = self._groups_of[channel]
        groups.discard(group)
        if not groups:
            del self._groups_of[channel]
            if self._named.get(str(channel)) is channel:
                del self._named[str(channel)]
            self._forget_client(channel)
        self.quota.release((channel, group))

    def close(self, channel: Hashable, count_max: int | None = None) -> int:
        """Remove a closed connection from its groups, or `count_max` of them; returns their number."""
        groups = list(islice(self._groups_of.get(channel, ()), count_max))
        for group in groups:
            self.unregister(channel, group)
        return len(groups)

    def by_group(self) -> dict[str, list[Hashable]]:
        """Returns every group's connections."""
        return {group: list(members) for group, members in self._groups.items()}

    def channels(self, group: str) -> list[Hashable]:
        """Returns the group's connections."""
        return list(self._groups.get(group, ()))

    def find(self, client_id: str, may_get: Callable[[Hashable], bool] = lambda _channel: True) -> Hashable | None:
        """Returns the connection on which a client of this id last registered a producer, or None.

        Among connections of several accounts, only those with the first permitted account count: a reply (326) goes to
        a client id, and another account must not be able to redirect it.
        """
        found = None
        for channel in filter(may_get, self._clients.get(client_id, ())):
            if found is None or getattr(found, "account", "") == getattr(channel, "account", ""):
                found = channel
        return found

    def _note_client(self, channel: Hashable, client_id: str) -> None:
        self._forget_client(channel)
        self._client_of[channel] = client_id
        self._clients.setdefault(client_id, {})[channel] = None

    def _forget_client(self, channel: Hashable) -> None:
        known = self._client_of.pop(channel, None)
        if known is not None:
            del self._clients[known][channel]
            if not self._clients[known]:
                del self._clients[known]

    def pick(
        self, group: str, may_ask: Callable[[Hashable], bool] = lambda _channel: True, *, first: str = ""
    ) -> Hashable | None:
        """Returns one of the group's permitted connections, in turn, or None.

        The connection whose `str` is `first` takes precedence.
        """
        members = self._groups.get(group)
        if not members:
            return None
        channel = self._named.get(first)
        if channel in members and may_ask(channel):
            members.move_to_end(channel)
            return channel
        for _ in range(min(len(members), LOOKS_MAX)):
            channel = next(iter(members))
            members.move_to_end(channel)
            if may_ask(channel):
                return channel
        return None

"""Notifies the members of a changed group (40), so that they rebalance.

Each change is announced to every member, so many joins and leaves would cause members times changes notices. Each pass
immediately sends up to `NOTICES_MAX`, in Java's order. The other groups wait for later passes. More changes of a
waiting group cost nothing: one notice covers them all.

Changes of groups: see `shared.subscription`. Source: `DefaultConsumerIdsChangeListener.java` 4.9, which sends each
change to each member.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

from attrs import define, field

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.shared.subscription import Clients
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames import Command, encode
from longpoll_protocol.headers import NotifyConsumerIdsChangedRequestHeader
from longpoll_runtime import Lock

NOTICES_MAX: Final = 256
"""Maximum notices of one pass: usually one system call each, so 2 to 4 ms."""


@define(slots=True, eq=False)
class MemberNotifications:
    """The members to notify; callable from any loop's thread.

    Invariant: after a change, every member was notified, or the group is in `_waiting`, or the member is in `_round`,
    which has one group only.
    """

    clients: Clients
    lock: Lock
    """Protects `clients` and this object."""
    _left: int = field(factory=lambda: NOTICES_MAX, init=False)
    """Number of notices that may still be sent in this pass."""
    _waiting: dict[str, None] = field(factory=dict, init=False)
    """Changed groups whose round has not begun, oldest first."""
    _round: deque[Channel] = field(factory=deque, init=False)
    _round_parts: Parts = field(default=(), init=False)
    _opaques: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    @property
    def has_more(self) -> bool:
        """Whether members wait for a notice; approximate without the lock."""
        return bool(self._waiting or self._round)

    def changed(self, group: str, outbox: Outbox) -> None:
        """Notify every member of a group, including the one that changed it, now or in a later pass."""
        with self.lock:
            if group in self._waiting:
                return
            channels = self.clients.channels(group)
            if len(channels) > self._left:
                self._waiting[group] = None
                return
            self._left -= len(channels)
            parts = self._notice(group)
        for channel in channels:
            assert isinstance(channel, Channel)
            outbox.write(channel, parts)

    def turn(self, outbox: Outbox) -> None:
        """End a pass: continue with the waiting groups, within the limit."""
        if self._left == NOTICES_MAX and not self.has_more:
            return
        with self.lock:
            told = self._take(NOTICES_MAX)
            self._left = NOTICES_MAX
        for channel, parts in told:
            outbox.write(channel, parts)

    def _take(self, count: int) -> list[tuple[Channel, Parts]]:
        """Take the next members to notify, up to `count`, with their notices."""
        taken: list[tuple[Channel, Parts]] = []
        while len(taken) < count and (self._round or self._begin_round()):
            taken.append((self._round.popleft(), self._round_parts))
        return taken

    def _begin_round(self) -> bool:
        """Begin the round of the next group with members; returns False if none waits."""
        while self._waiting:
            group = next(iter(self._waiting))
            del self._waiting[group]
            self._round.extend(channel for channel in self.clients.channels(group) if isinstance(channel, Channel))
            self._round_parts = self._notice(group)
            if self._round:
                return True
        return False

    def _notice(self, group: str) -> Parts:
        """Create a notice for any number of members: it is one-way, so they can share its opaque."""
        return encode(
            Command(
                code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                opaque=next(self._opaques) & 0x7FFFFFFF,
                flag=CommandFlag.ONE_WAY.value,
                ext_fields=NotifyConsumerIdsChangedRequestHeader(consumer_group=group).encode(),
            )
        )

"""Tells the members of a group that it changed (40), so that they share its queues out anew.

A change is told to every member, so a crowd that comes and goes would have the broker write members times changes
notices. Up to `NOTICES_MAX` of a pass are written at once, in the order that Java has. Beyond that a group waits for
its round, which goes on in later passes; further changes of a group that waits cost nothing, for its members will be
told of all of them at once.

Leaves out when a group counts as changed (`shared.subscription`).
Source: `DefaultConsumerIdsChangeListener.java` 4.9, which tells each change to each member.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

from attrs import define, field

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.shared.subscription import Clients
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.headers import NotifyConsumerIdsChangedRequestHeader
from longpoll_runtime import Lock

NOTICES_MAX: Final = 256
"""Most notices of one pass: each is mostly a system call, so these take 2 to 4 ms."""


@define(slots=True, eq=False)
class MemberNotifications:
    """Who has to be told; callable from any loop's thread.

    Invariant: after a change every member of the group has been told of it, or the group is in `_waiting`, or the
    member is in `_round`, which is of one group only.
    """

    clients: Clients
    lock: Lock
    """Guards `clients`, and everything here."""
    _left: int = field(factory=lambda: NOTICES_MAX, init=False)
    """Notices that may still be written in this pass."""
    _waiting: dict[str, None] = field(factory=dict, init=False)
    """Groups that changed and whose round has not begun since, oldest first."""
    _round: deque[Channel] = field(factory=deque, init=False)
    _round_parts: Parts = field(default=(), init=False)
    _opaques: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    @property
    def has_more(self) -> bool:
        """Whether members wait to be told in a later pass; about right without the lock."""
        return bool(self._waiting or self._round)

    def changed(self, group: str, outbox: Outbox) -> None:
        """Tell every member of a group, also the one that changed it, now or in one of the next passes."""
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
        """End a pass: go on with the groups that wait, as far as one pass may."""
        if self._left == NOTICES_MAX and not self.has_more:
            return
        with self.lock:
            told = self._take(NOTICES_MAX)
            self._left = NOTICES_MAX
        for channel, parts in told:
            outbox.write(channel, parts)

    def _take(self, count: int) -> list[tuple[Channel, Parts]]:
        """Up to `count` members that are to be told next, and what."""
        taken: list[tuple[Channel, Parts]] = []
        while len(taken) < count and (self._round or self._begin_round()):
            taken.append((self._round.popleft(), self._round_parts))
        return taken

    def _begin_round(self) -> bool:
        """Begin the round of the next group that has members; False when none waits."""
        while self._waiting:
            group = next(iter(self._waiting))
            del self._waiting[group]
            self._round.extend(channel for channel in self.clients.channels(group) if isinstance(channel, Channel))
            self._round_parts = self._notice(group)
            if self._round:
                return True
        return False

    def _notice(self, group: str) -> Parts:
        """One notice, for any number of members: it is one-way, so its opaque need not be theirs alone."""
        return encode(
            Command(
                code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                opaque=next(self._opaques) & 0x7FFFFFFF,
                flag=CommandFlag.ONE_WAY.value,
                ext_fields=NotifyConsumerIdsChangedRequestHeader(consumer_group=group).encode(),
            )
        )

"""Limits the entries of a table, and those that one connection and one account may create.

The limits follow the free room, so that later clients always find some: an account may use as much as is still free, a
connection a quarter of that. A single greedy account gets half of a table, two get a third each. Without accounts, a
peer's address counts as its account.

Source: the dynamic thresholds of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
Switches", 1998.
"""

from __future__ import annotations

from collections.abc import Hashable, KeysView
from typing import Final

from attrs import define, field, frozen

CONNECTION_PART: Final = 4
"""A connection may use this part of the free room."""
SHARE_MIN: Final = 16
"""A connection and an account may always use this much, if there is room."""


@frozen
class _Entry:
    connection: Hashable
    account: Hashable
    size: int


@define(slots=True, eq=False)
class Quota:
    """The entries of one table, by key; callers hold the table's lock.

    Invariant: `used` is the sum of the sizes of `_entries`, and `_counts` has these sums by connection and account.
    """

    name: str
    """What the table contains, for metrics and docs."""
    size_max: int
    used: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    """Number of refusals."""
    _entries: dict[Hashable, _Entry] = field(factory=dict, init=False)
    _counts: dict[Hashable, int] = field(factory=dict, init=False)

    def take(self, key: Hashable, channel: Hashable = None, size: int = 1) -> bool:
        """Count an entry; returns false and changes nothing if the room is too small. A counted entry may grow.

        Without a channel only the table's limit applies.
        """
        known = self._entries.get(key)
        if known is not None and known.size >= size:
            return True
        more = size - (0 if known is None else known.size)
        free = self.size_max - self.used
        connection = None if channel is None else ("connection", getattr(channel, "number", channel))
        account = getattr(channel, "owner", None)
        account = None if account is None else ("account", account)
        for owner, part in ((connection, CONNECTION_PART), (account, 1)):
            if owner is not None and self._counts.get(owner, 0) + more > max(free // part, SHARE_MIN):
                self.refused += 1
                return False
        if more > free:
            self.refused += 1
            return False
        if known is not None:
            self.release(key)
        self._entries[key] = _Entry(connection, account, size)
        self._add(connection, account, size)
        return True

    @property
    def keys(self) -> KeysView[Hashable]:
        """The counted entries, a live view."""
        return self._entries.keys()

    def release(self, key: Hashable) -> None:
        """Remove an entry; ignores one that was not counted."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._add(entry.connection, entry.account, -entry.size)

    def _add(self, connection: Hashable, account: Hashable, size: int) -> None:
        self.used += size
        for owner in (connection, account):
            if owner is None:
                continue
            count = self._counts.get(owner, 0) + size
            if count > 0:
                self._counts[owner] = count
            else:
                self._counts.pop(owner, None)

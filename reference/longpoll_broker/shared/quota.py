"""How many entries a table may have, and how many of them one connection and one account may have made.

The shares follow how much is free, so that whoever comes later always finds room: an account may have as much as is
still free, a connection a quarter of that. One that asks without end so gets half of a table, two of them a third each.
Without accounts a peer's address counts as its account.

Leaves out the tables. Source: the dynamic thresholds of Choudhury and Hahne, "Dynamic Queue Length Thresholds for
Shared-Memory Packet Switches", 1998.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from attrs import define, field, frozen

CONNECTION_PART: Final = 4
"""A connection may have this part of what is free."""
SHARE_MIN: Final = 16
"""However little is free, a connection and an account may have as much as this, as long as there is any."""


@frozen
class _Entry:
    connection: Hashable
    account: Hashable
    size: int


@define(slots=True, eq=False)
class Quota:
    """The entries of one table, by their keys; threads that share it hold the table's lock.

    Invariant: `used` is the sum of the sizes of `_entries`, and `_counts` has these sums by connection and account.
    """

    name: str
    """What the table has, for metrics and docs."""
    size_max: int
    used: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    """How often there was no room."""
    _entries: dict[Hashable, _Entry] = field(factory=dict, init=False)
    _counts: dict[Hashable, int] = field(factory=dict, init=False)

    def take(self, key: Hashable, channel: Hashable = None, size: int = 1) -> bool:
        """Count an entry; false, and nothing done, when there is no room. One that is counted already may grow.

        Without a channel only the whole table is looked at.
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

    def release(self, key: Hashable) -> None:
        """An entry is gone; one that was never counted changes nothing."""
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

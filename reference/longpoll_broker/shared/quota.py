"""Limits the entries of a table, and those that one connection and one account may create.

The limits follow the free room, so that later clients always find some: an account may use as much as is still free,
and a connection a quarter of that. Without accounts, a peer's address counts as its account. All clients of a host
share a loopback address, so for these addresses only connections are limited, and a quarter of the table is left for
new ones.

A connection always has a minimum, even if its account has used up its share: `SHARE_MIN` ordinary entries, fewer when
little room is left, and at least one. The minima of an account's connections leave a quarter of the table to other
accounts.

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
"""The ordinary entries that a connection may always create while `FULL_PART` of the table is left for its account."""
ENTRY_COUNT: Final = 100_000
"""A table has room for this many ordinary entries, or for fewer."""
SMALL_TABLE: Final = 64
"""An ordinary entry is at most this part of a table."""
FULL_PART: Final = 8
"""Minima shrink when less than this part of a table is left."""
LARGE_TABLE: Final = 1_000
"""The minimum of a connection shrinks when less than one part in this number of the table is left."""
MINIMUM_PART: Final = 32
"""See `LARGE_TABLE`; it leaves room for the minima of dozens of connections."""
MINIMA_PART: Final = 3
"""An account may use this multiple of the free room, with the minima of its connections."""
LOOPBACK: Final = ("127.", "::1")
"""How loopback addresses begin, which all clients of a host share."""


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
    unit: int = 1
    """The least size of an ordinary entry; 0 in a table whose refusals no client notices."""
    used: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    """Number of entries that were refused."""
    _entries: dict[Hashable, _Entry] = field(factory=dict, init=False)
    _counts: dict[Hashable, int] = field(factory=dict, init=False)

    def take(self, key: Hashable, channel: Hashable = None, size: int = 1) -> bool:
        """Count an entry; returns false and changes nothing if the room is too small. A counted entry may grow.

        If `channel` is None, only the limit of the whole table applies.
        """
        known = self._entries.get(key)
        if known is not None and known.size >= size:
            return True
        more = size - (0 if known is None else known.size)
        free = self.size_max - self.used
        connection = None if channel is None else ("connection", getattr(channel, "number", channel))
        name = getattr(channel, "owner", None)
        account = None if name is None or name.startswith(LOOPBACK) else ("account", name)
        if more > free or not (connection is None or self._has_share(connection, account, more, free)):
            self.refused += 1
            return False
        if known is not None:
            self.release(key)
        self._entries[key] = _Entry(connection, account, size)
        self._add(connection, account, size)
        return True

    def _has_share(self, connection: Hashable, account: Hashable, more: int, free: int) -> bool:
        """Whether a connection and its account may use `more` of the free room."""
        wanted, in_all = self._counts.get(connection, 0) + more, self._counts.get(account, 0) + more
        share = free // CONNECTION_PART
        if account is None:
            share = min(share, (free - self.size_max // 4) // 2)
        if wanted <= share and (account is None or in_all <= free):
            return True
        room = free if account is None else (MINIMA_PART * free - in_all + more) // (MINIMA_PART + 1)
        unit = self.unit and max(min(self.unit, self.size_max // SMALL_TABLE), self.size_max // ENTRY_COUNT, 1)
        count = FULL_PART * SHARE_MIN * room // self.size_max
        if self.size_max >= LARGE_TABLE * unit > 0:
            # A connection that takes its minimum must leave most of the room for the next connections.
            count = min(count, room // (MINIMUM_PART * unit))
        return more <= room and wanted <= min(max(count, 1), SHARE_MIN) * unit

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

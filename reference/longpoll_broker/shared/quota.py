"""Limits the entries of a table, and the entries that one connection and one account may create.

The limits depend on the free room, so that later clients always find room: an account may use as much as is still free,
and a connection a quarter of that. Without accounts, a peer's address counts as its account. All clients of a host
share a loopback address, so for loopback addresses only connections are limited, and a quarter of the table is reserved
for new connections.

A connection always has a minimum, even if its account has used up its share: `SHARE_MIN` ordinary entries, fewer when
little room is left, and at least one. The minimums of an account's connections together leave a quarter of the table to
other accounts.

Source: the dynamic thresholds of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
Switches", 1998.
"""

from __future__ import annotations

from collections.abc import Hashable, KeysView
from typing import Final

from attrs import define, field, frozen

CONNECTION_PART: Final = 4
"""A connection may use a quarter of the free room."""
SHARE_MIN: Final = 16
"""Number of ordinary entries that a connection may create while at least an eighth of the table is free."""
ENTRY_COUNT: Final = 100_000
"""A table has room for at most this many ordinary entries."""
SMALL_TABLE: Final = 64
"""An ordinary entry is at most a 64th of a table."""
FULL_PART: Final = 8
"""A connection's minimum shrinks when less than an eighth of the table is free."""
LARGE_TABLE: Final = 1_000
"""A table with room for at least this many entries also limits a connection's minimum by `MINIMUM_PART`."""
MINIMUM_PART: Final = 32
"""A connection's minimum is at most a 32nd of the free room, which leaves room for dozens of connections."""
MINIMA_PART: Final = 3
"""An account may use at most this multiple of the free room, even if its connections use their minimums."""
LOOPBACK: Final = ("127.", "::1")
"""Prefixes of loopback addresses, which all clients of a host share."""


@frozen
class _Entry:
    connection: Hashable
    account: Hashable
    size: int


@define(slots=True, eq=False)
class Quota:
    """The sizes of one table's entries, by key; callers hold the table's lock.

    Invariant: `used` is the sum of the sizes of `_entries`; `_counts` has the sum for each connection and each account.
    """

    name: str
    """The kind of the table's entries, for metrics and docs."""
    size_max: int
    unit: int = 1
    """Minimum size of an ordinary entry; 0 in a table whose refusals no client notices."""
    used: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    _entries: dict[Hashable, _Entry] = field(factory=dict, init=False)
    _counts: dict[Hashable, int] = field(factory=dict, init=False)

    def take(self, key: Hashable, channel: Hashable = None, size: int = 1) -> bool:
        """Count an entry, or an entry's growth; returns false and changes nothing if there is not enough room.

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
            # A connection that uses its minimum must leave most of the room for the next connections.
            count = min(count, room // (MINIMUM_PART * unit))
        return more <= room and wanted <= min(max(count, 1), SHARE_MIN) * unit

    @property
    def keys(self) -> KeysView[Hashable]:
        """A live view of the keys of the counted entries."""
        return self._entries.keys()

    def release(self, key: Hashable) -> None:
        """Remove an entry; does nothing if the entry was not counted."""
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

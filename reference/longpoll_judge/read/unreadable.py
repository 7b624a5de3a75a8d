"""Unreadable data, in the form that every reader reports it. The readers: `ndjson`, `parquet`."""

from __future__ import annotations

import msgspec

from longpoll_spec.tables import with_table


@with_table
class Damage(msgspec.Struct, frozen=True, order=True):
    """Something in the files that could not be read: evidence that is missing."""

    file: str
    position: int
    """Byte offset of the line in the file, or number of the row; -1 for the file as a whole."""
    reason: str
    count: int = 1

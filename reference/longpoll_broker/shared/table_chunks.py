"""Parts of a table: encoding a large one in one call would keep every other connection, and every thread, waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

PART_COUNT: Final = 2_000
"""Entries of a part; encoding it takes some 2 ms."""


def chunks_of(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A table's rows in their order, in parts; a row that is a table itself counts with its entries."""
    part: dict[str, Any] = {}
    count = 0
    for name, row in table.items():
        part[name] = row
        count += 1 + len(row) if isinstance(row, dict) else 1
        if count >= PART_COUNT:
            yield part
            part, count = {}, 0
    if part:
        yield part

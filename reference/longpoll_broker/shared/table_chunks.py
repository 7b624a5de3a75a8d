"""Splits tables into parts, because encoding a large one at once would block every thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

PART_COUNT: Final = 2_000
"""Entries of a part; encoding it takes some 2 ms."""


def chunks_of(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over a table's rows in parts; a row that is a table counts its entries."""
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

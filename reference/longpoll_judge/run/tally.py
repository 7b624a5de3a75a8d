"""Adds up result rows as they come, so that no more is kept than a result can show.

Leaves out what the sums mean (`job`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.read.arrow import compute
from longpoll_judge.run.verdict import FINDING, LOOKED_AT_MAX, Found, Row, as_table

HIGHEST: Final = ("wake_max", "late_max")
"""Kinds of rows of which the highest counts; the counts of the others are added."""


@define
class Tally:
    """The sum of some result rows.

    Invariant: of each group of findings the earliest `LOOKED_AT_MAX` are kept, the others are counted as left out.
    """

    _counts: Counter[tuple[str, int, str]] = field(factory=Counter)
    _highest: dict[str, int] = field(factory=dict)
    _found: dict[str, list[Found]] = field(factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Add rows of `RESULT_SCHEMA`."""
        for kind, bucket, count, text in _summed(rows):
            if kind == FINDING:
                one = msgspec.json.decode(text, type=Found)
                self._found.setdefault(one.group, []).append(one)
            elif kind in HIGHEST:
                self._highest[kind] = max(self._highest.get(kind, 0), count)
            else:
                self._counts[kind, bucket, text] += count
        for group, found in self._found.items():
            if len(found) > LOOKED_AT_MAX:
                self._counts["left_out", 0, group] += len(found) - LOOKED_AT_MAX
                found.sort(key=attrgetter("order"))
                del found[LOOKED_AT_MAX:]

    def rows(self) -> pa.Table:
        """The sum, as rows again."""
        rows = [(kind, bucket, count, text) for (kind, bucket, text), count in self._counts.items()]
        rows += [(kind, 0, count, "") for kind, count in self._highest.items()]
        rows += [(FINDING, 0, 1, msgspec.json.encode(one).decode()) for found in self._found.values() for one in found]
        return as_table(rows)


def _summed(rows: pa.Table) -> Iterator[Row]:
    """The rows, those that are counted and equal added up first: most of them count latencies, queue by queue."""
    is_counted = compute.invert(compute.is_in(rows["kind"], value_set=pa.array([FINDING, *HIGHEST])))
    kept = rows.filter(compute.invert(is_counted))
    counted = rows.filter(is_counted).group_by(["kind", "bucket", "text"]).aggregate([("count", "sum")])
    for table, count in ((kept, "count"), (counted, "count_sum")):
        yield from zip(*(table[name].to_pylist() for name in ("kind", "bucket", count, "text")), strict=True)

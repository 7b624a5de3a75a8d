"""Adds up result rows as they come, so that memory is bounded by what a result can show (`pipeline`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.read.schema import compute
from longpoll_judge.run.queue_verdict import FINDING, LEFT_OUT, LOOKED_AT_MAX, Found, Row, as_table, is_violated

HIGHEST: Final = ("wake_max", "late_max")
"""Kinds of rows of which the highest counts; the counts of the others are added."""
FIRST_KEPT: Final = 10
"""How many of a group's first findings are kept in addition to the latest."""


@define
class Tally:
    """The sum of some result rows.

    Invariant: each group of findings keeps `LOOKED_AT_MAX`, and counts the others as left out. A tally keeps
    the earliest ones; a follower's keeps the latest and a few of the first.
    """

    keeps_latest: bool = False
    """Whether those that came last are kept."""
    untold: int = 0
    """Violations that were dropped before a judgement was requested."""

    _counts: Counter[tuple[str, int, str]] = field(factory=Counter)
    _highest: dict[str, int] = field(factory=dict)
    _found: dict[str, list[Found]] = field(factory=dict)
    _fresh: Counter[str] = field(factory=Counter)
    """By group, how many came since somebody looked."""

    def add(self, rows: pa.Table) -> None:
        """Add rows of `RESULT_SCHEMA`."""
        for kind, bucket, count, text in _summed(rows):
            if kind == FINDING:
                one = msgspec.json.decode(text, type=Found)
                self._found.setdefault(one.group, []).append(one)
                self._fresh[one.group] += 1
            elif kind in HIGHEST:
                self._highest[kind] = max(self._highest.get(kind, 0), count)
            else:
                self._counts[kind, bucket, text] += count
                self.untold += count if kind == LEFT_OUT and is_violated(text) else 0
        for group, found in self._found.items():
            if len(found) > LOOKED_AT_MAX:
                self._shorten(group, found)

    def _shorten(self, group: str, found: list[Found]) -> None:
        """Let go of what is too much of a group."""
        more = len(found) - LOOKED_AT_MAX
        self._counts[LEFT_OUT, 0, group] += more
        if not self.keeps_latest:
            found.sort(key=attrgetter("order"))
            del found[LOOKED_AT_MAX:]
            return
        first_fresh = len(found) - self._fresh[group]
        gone_fresh = max(FIRST_KEPT + more - max(first_fresh, FIRST_KEPT), 0)
        self._fresh[group] -= gone_fresh
        self.untold += gone_fresh if is_violated(group) else 0
        del found[FIRST_KEPT : FIRST_KEPT + more]

    def restore(self, rows: pa.Table) -> None:
        """Take what another `look` gave, into a sum of nothing."""
        self.add(rows)
        self.untold = 0
        self._fresh.clear()

    def look(self) -> pa.Table:
        """Return the sum as rows again; a follower reports all new findings."""
        self._fresh.clear()
        return self.rows()

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

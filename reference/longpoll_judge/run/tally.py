"""Adds up result rows, and keeps only as many findings as a result can list, which bounds the memory.

A judgement of the whole history lists the earliest findings of each queue, property and verdict. A follower lists new
findings first, then a few of the earliest, then the latest (`Picked`). New findings beyond the limit are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.contract.causes import finding_order, identified
from longpoll_judge.contract.result import Finding, Gap
from longpoll_judge.kernel.rows import FINDING, LEFT_OUT, Found, Row
from longpoll_judge.kernel.verdict import LOOKED_AT_MAX
from longpoll_judge.read.schema import compute

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@define(eq=False)
class Latest(Generic[Key, Value]):
    """The values found most recently. If a value is found again, its first form is kept.

    Invariant: each value was reported, is in `values`, or is counted in `left_out`.
    """

    values: dict[Key, Value] = field(factory=dict)
    left_out: int = 0
    """The number of values that were dropped before they were reported."""
    _fresh: set[Key] = field(factory=set)

    def put(self, key: Key, value: Value, most: int) -> None:
        """Keep a value, and drop the one that was found least recently if there are then more than `most` values."""
        if key not in self.values:
            self._fresh.add(key)
        self.values[key] = self.values.pop(key, value)
        while len(self.values) > most:
            oldest = next(iter(self.values))
            del self.values[oldest]
            self.left_out += oldest in self._fresh
            self._fresh.discard(oldest)

    def look(self) -> Iterable[Value]:
        """Return all values, and mark them as reported."""
        self._fresh.clear()
        return self.values.values()


FINDINGS_MAX: Final = 50
"""The maximum number of findings listed for one queue, property and verdict. Further findings are counted."""
HIGHEST: Final = ("wake_max", "late_max")
"""Kinds of rows that are combined by their maximum. The counts of other kinds are added."""
FIRST_KEPT: Final = 10
"""For each group, how many of the earliest findings are kept in addition to the latest ones."""


@define
class Tally:
    """The sum of some result rows. Invariant: each group keeps its `most` earliest findings; the rest is counted."""

    most: int = LOOKED_AT_MAX
    """The maximum number of findings that are kept for each group."""
    counts: Counter[tuple[str, int, str]] = field(factory=Counter)
    highest: dict[str, int] = field(factory=dict)
    found: dict[str, list[Found]] = field(factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Add rows of `RESULT_SCHEMA`."""
        for kind, bucket, count, text in _summed(rows):
            if kind == FINDING:
                one = msgspec.json.decode(text, type=Found)
                self.found.setdefault(one.group, []).append(one)
            elif kind in HIGHEST:
                self.highest[kind] = max(self.highest.get(kind, 0), count)
            else:
                self.counts[kind, bucket, text] += count
        for group, found in self.found.items():
            if len(found) > self.most:
                self.counts[LEFT_OUT, 0, group] += len(found) - self.most
                found.sort(key=attrgetter("order"))
                del found[self.most :]

    def merge(self, other: Tally) -> None:
        """Add the rows of another tally."""
        self.counts.update(other.counts)
        for kind, most in other.highest.items():
            self.highest[kind] = max(self.highest.get(kind, 0), most)
        for group, found in other.found.items():
            self.found.setdefault(group, []).extend(found)


def _summed(rows: pa.Table) -> Iterator[Row]:
    """Yield the rows; sum up rows that differ only in their counts, because most rows count latencies of one queue."""
    is_counted = compute.invert(compute.is_in(rows["kind"], value_set=pa.array([FINDING, *HIGHEST])))
    kept = rows.filter(compute.invert(is_counted))
    counted = rows.filter(is_counted).group_by(["kind", "bucket", "text"]).aggregate([("count", "sum")])
    for table, count in ((kept, "count"), (counted, "count_sum")):
        yield from zip(*(table[name].to_pylist() for name in ("kind", "bucket", count, "text")), strict=True)


NOT_TOLD: Final = (
    "findings came with more than can be told one by one: judging the whole history counts them, at the end"
)
"""The end of the text of the gap that reports how many findings are not listed."""
AT_THE_END: Final = "judging the whole history tells, at the end"
"""The end of the text of a gap about subjects that only the judgement of the whole history decides."""


@define(eq=False)
class Picked:
    """Selects the findings to list.

    Invariant: each certain finding that was ever known was listed, or is counted in `untold`.
    """

    seen: set[str] = field(factory=set)
    """The names of all findings of the last call. A finding that disappears does not appear again."""
    untold: int = 0

    def pick(self, findings: list[Finding]) -> tuple[list[Finding], int]:
        """Return the listed findings in order, each with its name, and the number of unlisted findings."""
        named = identified(sorted(findings, key=finding_order))
        groups: dict[tuple[object, ...], list[Finding]] = {}
        for finding in named:
            group = finding.property, finding.verdict, finding.topic, finding.queue
            groups.setdefault(group, []).append(finding)
        listed = {finding.id for group in groups.values() for finding in self._of_group(group)}
        rest = [finding for finding in named if finding.id not in listed]
        self.untold += sum(one.verdict == "violated" and one.id not in self.seen for one in rest)
        self.seen = {finding.id for finding in named}
        left_out = sum(1 + sum(each.count for each in finding.follows) for finding in rest)
        return [finding for finding in named if finding.id in listed], left_out

    def _of_group(self, group: Sequence[Finding]) -> Sequence[Finding]:
        if len(group) <= FINDINGS_MAX:
            return group
        fresh = [finding for finding in group if finding.id not in self.seen][FIRST_KEPT - FINDINGS_MAX :]
        chosen = {finding.id for finding in (*fresh, *group[:FIRST_KEPT])}
        others = [finding for finding in group if finding.id not in chosen]
        latest = {finding.id for finding in others[len(others) - (FINDINGS_MAX - len(chosen)) :]}
        return [finding for finding in group if finding.id in chosen or finding.id in latest]


def not_told(count: int) -> list[Gap]:
    """Return the gap that counts unlisted findings; an empty list if all were listed."""
    return [Gap("not judged", "", count, f"{count} {NOT_TOLD}")] if count else []


def left_to_the_end(counts: Mapping[str, int]) -> list[Gap]:
    """Return the gaps about subjects that only the judgement of the whole history decides, each with a count."""
    return [Gap("not judged", "", count, f"{what}: {AT_THE_END}") for what, count in counts.items() if count]


def what_is_left(gaps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the subjects that only the final judgement decides, with their counts, from the gaps of a result."""
    end = f": {AT_THE_END}"
    return {str(gap["why"]).removesuffix(end): gap["count"] for gap in gaps if str(gap["why"]).endswith(end)}

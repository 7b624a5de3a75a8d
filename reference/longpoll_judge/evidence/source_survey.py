"""Surveys one source: its numbers, its timestamps, its gaps and clocks that were set back.

In a gap of the record something may have happened that is not in it. Absence proves something only where the record is
whole. A rule that relies on absence asks here, and its finding is `unknown` if a gap lies in the time that matters.

`survey` merges the results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import Integers
from longpoll_judge.read.schema import INTEGER_LIMIT
from longpoll_spec.tables import with_table

Row = TypeVar("Row")
Part = TypeVar("Part", bound=msgspec.Struct)
Interval = tuple[int, int]
"""[first moment, last moment], nanoseconds of Unix time."""
_NEVER: Final = INTEGER_LIMIT
GAPS_MAX: Final = 1_000
"""Of more holes the closest are taken for one, so that a record in shreds costs no more than others."""


@frozen(eq=False)
class RecordGaps:
    """Intervals that neither touch nor overlap, in order of time."""

    starts: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Interval]:
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    def touch(self, first_ns: Integers, last_ns: Integers) -> NDArray[np.bool_]:
        """Which of the intervals [first, last] has a moment in a hole."""
        if not len(self):
            return np.zeros(len(first_ns), dtype=np.bool_)
        return self.begin_from(first_ns) <= last_ns

    def begin_from(self, moment_ns: Integers) -> Integers:
        """When the first hole begins of those that do not end before each moment; far in the future without one.

        From the moment until then the record is whole, and if that lies before the moment it is in a hole.
        """
        found: Integers = np.append(self.starts, _NEVER)[np.searchsorted(self.ends, moment_ns, side="left")]
        return found


def gaps_of(intervals: Iterable[Interval]) -> RecordGaps:
    """The union of some intervals."""
    joined: list[list[int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    together = np.array(joined, dtype=np.int64).reshape(-1, 2)
    if len(together) > GAPS_MAX:
        apart = together[1:, 0] - together[:-1, 1]
        kept = np.sort(np.argsort(apart, kind="stable")[-(GAPS_MAX - 1) :])
        together = np.column_stack((together[np.append(0, kept + 1), 0], together[np.append(kept, -1), 1]))
    return RecordGaps(together[:, 0].copy(), together[:, 1].copy())


def union(several: Iterable[RecordGaps]) -> RecordGaps:
    """All the holes of some records as one."""
    filled = [holes for holes in several if len(holes)]
    if len(filled) == 1:
        return filled[0]
    return gaps_of(chain.from_iterable(filled))


NO_GAPS: Final = gaps_of(())


MS: Final = 1_000_000
CLOCK_STEP_NS: Final = 1_000 * MS
"""An observer numbers events at most this long after they happen. If an event certainly lies further before one with a
lower number, the clock was set back."""
DISORDER_NS: Final = 50 * MS
"""How far a missing event may lie from its neighbours in sequence; further if the source shows such a distance."""


class Run(NamedTuple):
    """Sequence numbers first to last, both included, without a hole."""

    first: int
    last: int
    first_after_ns: int = 0
    """`after_ns` of the event that is the first by number."""
    last_before_ns: int = 0
    """`before_ns` of the last."""


class Span(NamedTuple):
    """A source's events in one run of one split."""

    first: int
    last: int
    """Sequence numbers."""
    after_min_ns: int
    after_max_ns: int
    before_min_ns: int
    before_max_ns: int
    earlier_ns: int = -INTEGER_LIMIT
    """The highest `after_ns` of what its split has of lower numbers."""


@with_table
class SourceSurvey(msgspec.Struct):
    """One source as one split, or all of them, show it."""

    runs: list[Run] = msgspec.field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    """The latest `after_ns`: the source was certainly watching until then."""
    stopped_ns: int | None = None
    """`after_ns` of its `source_stopped`."""
    lost_count: int = 0
    """How many events the source says it dropped."""
    losses: list[Interval] = msgspec.field(default_factory=list)
    """When these may have happened, as it says; and when events of an unknown name did, which may be any."""
    damaged: list[Interval] = msgspec.field(default_factory=list)
    """When events happened that lack a field that they need: nothing is concluded from them."""
    spans: list[Span] = msgspec.field(default_factory=list)
    """One of each run of each split."""
    holds: int = 0
    """How often a pull was held."""
    steps: int = 0
    """How often, within splits, the clock was set back."""
    step_ns: int = 0
    """By how much at most, as far as that is certain."""
    disorder_ns: int = 0
    """The longest that an event may have come before one with a lower number, within splits."""
    is_inverted: bool = False
    """Some event certainly lies before one with a lower number, within splits."""
    brokers: set[str] = msgspec.field(default_factory=set)
    """The brokers that its events name."""
    unnamed: list[Interval] = msgspec.field(default_factory=list)
    """When events of queues that name no broker happened, by split."""

    @property
    def names(self) -> set[str]:
        """The brokers, with an empty text if events name none."""
        return self.brokers | {""} if self.unnamed else self.brokers


def survey_source(
    sequence: Integers, after_ns: Integers, before_ns: Integers, last: Integers | None = None
) -> SourceSurvey:
    """The survey of a source's events in one split, in any order.

    Each event covers the numbers from `sequence` to `last`, or its own number if `last` is None.
    """
    # Inside a broker every moment is exact as a rule: what is known of one end of the intervals is of the other too.
    is_exact = np.array_equal(after_ns, before_ns)
    if (sequence[1:] < sequence[:-1]).any():
        order = _order(sequence)
        sequence, after_ns = sequence[order], after_ns[order]
        before_ns = after_ns if is_exact else before_ns[order]
        last = None if last is None else last[order]
    last = sequence if last is None else last
    # A repeated number begins a new run.
    breaks = np.flatnonzero(sequence[1:] - last[:-1] != 1) + 1
    starts, ends = np.append(0, breaks), np.append(breaks - 1, len(sequence) - 1)
    latest_ns = _highest_so_far(after_ns)
    seen = SourceSurvey(
        runs=_rows(Run, sequence[starts], last[ends], after_ns[starts], before_ns[ends]),
        first_ns=int(after_ns.min()),
        last_ns=int(latest_ns[-1]),
    )
    earlier_ns = np.append(-INTEGER_LIMIT, latest_ns[breaks - 1])
    moments = [by.reduceat(of, starts) for of in (after_ns, before_ns) for by in (np.minimum, np.maximum)]
    seen.spans = _rows(Span, sequence[starts], last[ends], *moments, earlier_ns)
    if len(sequence) > 1:
        back_ns = latest_ns[:-1] - before_ns[1:]
        back_max_ns = int(back_ns.max())
        if back_max_ns > CLOCK_STEP_NS:
            is_back = back_ns > CLOCK_STEP_NS
            seen.steps = int(np.count_nonzero(is_back & ~np.append(False, is_back[:-1])))
            seen.step_ns = back_max_ns
        seen.is_inverted = back_max_ns > 0
        late_max_ns = back_max_ns if is_exact else int((_highest_so_far(before_ns)[:-1] - after_ns[1:]).max())
        seen.disorder_ns = max(late_max_ns, 0)
    return seen


def _order(sequence: Integers) -> Integers:
    """The stable order of the numbers; where none is missing and none stands twice each number is its place."""
    place = sequence - sequence.min()
    if int(place.max()) == len(place) - 1:
        order = np.full(len(place), -1, dtype=np.int64)
        order[place] = np.arange(len(place))
        if order.min() >= 0:
            return order
    return np.argsort(sequence, kind="stable")


def _highest_so_far(values: Integers) -> Integers:
    """Of each place the highest value up to it; to see that values rise already costs a fraction of going through."""
    return np.maximum.accumulate(values) if (values[1:] < values[:-1]).any() else values


def whole_of(seen: SourceSurvey) -> SourceSurvey:
    """The survey of a source with the steps and the disorder from split to split added to those within splits."""
    ended = sorted(seen.spans, key=lambda span: span.last)
    latest_ns = list(accumulate((span.after_max_ns for span in ended), max))
    last_before_ns = list(accumulate((span.before_max_ns for span in ended), max))
    lasts = [span.last for span in ended]
    steps, step_ns, disorder_ns, is_inverted = seen.steps, seen.step_ns, seen.disorder_ns, seen.is_inverted
    is_back = False
    for span in sorted(seen.spans):
        before = bisect_left(lasts, span.first)
        if before > 0:
            back_ns = latest_ns[before - 1] - span.before_min_ns
            # Count only steps back between splits, because each split has counted its own.
            was_back, is_back = is_back, back_ns > CLOCK_STEP_NS
            steps += is_back and not was_back and span.earlier_ns - span.before_min_ns <= CLOCK_STEP_NS
            step_ns = max(step_ns, back_ns if back_ns > CLOCK_STEP_NS else 0)
            disorder_ns = max(disorder_ns, last_before_ns[before - 1] - span.after_min_ns)
            is_inverted |= back_ns > 0
    changes = {"steps": steps, "step_ns": step_ns, "disorder_ns": disorder_ns, "is_inverted": is_inverted}
    return msgspec.structs.replace(seen, **changes)


def _rows(kind: Callable[..., Row], *columns: Integers) -> list[Row]:
    """One of this kind for each row of the columns."""
    return [kind(*numbers) for numbers in zip(*(column.tolist() for column in columns), strict=True)]


LEAST: Final = frozenset({"first_ns", "min_least"})
MOST: Final = frozenset({"last", "last_ns", "stopped_ns", "step_ns", "disorder_ns", "min_most", "removed"})
"""Fields of which the least or the highest counts. Other numbers are added up, and whatever else is put together."""


def merged(parts: Sequence[Part]) -> Part:
    """One survey of several."""
    first = parts[0]
    return type(first)(
        **{name: _merged(name, [getattr(part, name) for part in parts]) for name in first.__struct_fields__}
    )


def _merged(name: str, values: list[Any]) -> Any:
    found: Any
    match values[0]:
        case dict():
            by_key: dict[Any, list[Any]] = {}
            for key, value in chain.from_iterable(one.items() for one in values):
                by_key.setdefault(key, []).append(value)
            found = {key: _merged(name, several) for key, several in by_key.items()}
        case msgspec.Struct():
            found = merged(values)
        case list():
            found = list(chain.from_iterable(values))
        case set():
            found = set().union(*values)
        case bool():
            found = any(values)
        case _ if name in MOST:
            found = max((value for value in values if value is not None), default=None)
        case _:
            found = min(values) if name in LEAST else sum(values)
    return found


@frozen
class SequenceFaults:
    """The faults of a source's sequence numbers."""

    missing_count: int
    first_missing: int
    repeated_count: int


def sequence_faults(runs: Iterable[Run]) -> SequenceFaults:
    """Compare the numbers seen with 0, 1, 2, ... up to the highest."""
    expected, missing, first_missing, repeated = 0, 0, -1, 0
    for first, last, *_moments in sorted(runs):
        if first > expected:
            missing += first - expected
            first_missing = expected if first_missing < 0 else first_missing
        repeated += max(0, min(last + 1, expected) - first)
        expected = max(expected, last + 1)
    return SequenceFaults(missing, first_missing, repeated)


def holes_in(seen: SourceSurvey, damaged: Iterable[Interval] = ()) -> Iterator[Interval]:
    """When a source may have missed something: as it says itself, as its numbers show, and after its end.

    So it may where an event is damaged: what it stood for is as good as not told.
    """
    slack_ns = seen.disorder_ns + DISORDER_NS
    for after_ns, before_ns in (*seen.losses, *damaged):
        yield after_ns - slack_ns, before_ns + slack_ns
    runs = sorted(seen.runs)
    if runs[0].first > 0:
        yield -INTEGER_LIMIT, runs[0].first_after_ns + slack_ns
    last = runs[0]
    for run in runs[1:]:
        if run.first > last.last + 1:
            yield last.last_before_ns - slack_ns, max(run.first_after_ns, last.last_before_ns) + slack_ns
        last = max(last, run, key=lambda one: one.last)
    if seen.stopped_ns is None:
        yield last.last_before_ns - slack_ns, INTEGER_LIMIT

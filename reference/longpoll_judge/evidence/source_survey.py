"""Surveys one source: its sequence numbers, its timestamps, its gaps, and whether its clock was set back.

In a gap of the record, events may be missing, so only outside of gaps the absence of an event shows that it did not
happen. If a rule depends on the absence of an event at a time that overlaps a gap, the finding is `unknown`.

`survey` merges the results of all sources.
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
"""[first, last] in nanoseconds of Unix time, both included."""
_NEVER: Final = INTEGER_LIMIT
GAPS_MAX: Final = 1_000
"""The maximum number of gaps of a source. If a source has more, its closest gaps are joined, so that they take no more
time to judge."""


@frozen(eq=False)
class RecordGaps:
    """Disjoint intervals that do not touch, in order of time."""

    starts: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Interval]:
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    def touch(self, first_ns: Integers, last_ns: Integers) -> NDArray[np.bool_]:
        """Returns which of the intervals [first, last] overlap a gap."""
        if not len(self):
            return np.zeros(len(first_ns), dtype=np.bool_)
        return self.begin_from(first_ns) <= last_ns

    def begin_from(self, moment_ns: Integers) -> Integers:
        """Returns, for each time, the start of the first gap that ends after this time, or a time far in the future.

        From the given time until the result, the record is complete. If the result is before the given time, the given
        time lies in a gap.
        """
        found: Integers = np.append(self.starts, _NEVER)[np.searchsorted(self.ends, moment_ns, side="left")]
        return found


def gaps_of(intervals: Iterable[Interval]) -> RecordGaps:
    """Joins overlapping intervals into gaps of a record, at most `GAPS_MAX`."""
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
    """Returns the union of the gaps of several records."""
    filled = [holes for holes in several if len(holes)]
    if len(filled) == 1:
        return filled[0]
    return gaps_of(chain.from_iterable(filled))


NO_GAPS: Final = gaps_of(())


MS: Final = 1_000_000
CLOCK_STEP_NS: Final = 1_000 * MS
"""An observer numbers an event at most this long (ns) after it happened. If an event certainly happened longer before
an event with a lower number, the clock was set back."""
DISORDER_NS: Final = 50 * MS
"""How far (ns) in time a missing event may lie from its neighbours in sequence. The limit is higher for a source whose
events are out of order by more."""


class Run(NamedTuple):
    """A range of consecutive sequence numbers, both ends included."""

    first: int
    last: int
    first_after_ns: int = 0
    """`after_ns` of the event with the first number."""
    last_before_ns: int = 0
    """`before_ns` of the event with the last number."""


class Span(NamedTuple):
    """The events of one source and split in one run of sequence numbers."""

    first: int
    last: int
    """The highest sequence number."""
    after_min_ns: int
    after_max_ns: int
    before_min_ns: int
    before_max_ns: int
    earlier_ns: int = -INTEGER_LIMIT
    """The highest `after_ns` of the split's events with lower numbers."""


@with_table
class SourceSurvey(msgspec.Struct):
    """The evidence about one source, from one split or from all splits together."""

    runs: list[Run] = msgspec.field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    """The latest `after_ns`; the source was certainly active until then."""
    stopped_ns: int | None = None
    """`after_ns` of the source's `source_stopped` event."""
    lost_count: int = 0
    """The number of events that the source reports as dropped."""
    losses: list[Interval] = msgspec.field(default_factory=list)
    """The intervals in which the source reports that events may have been dropped, and the times of events with an
    unknown name."""
    damaged: list[Interval] = msgspec.field(default_factory=list)
    """The times of events that lack a required field, so that no rule can use these events."""
    spans: list[Span] = msgspec.field(default_factory=list)
    """One span for each run of each split."""
    holds: int = 0
    """The number of pulls that were held."""
    steps: int = 0
    """How often the clock was set back within a split."""
    step_ns: int = 0
    """The largest certain step back of the clock within a split, in ns."""
    disorder_ns: int = 0
    """The longest time in ns by which an event happened before an event with a lower number within a split."""
    is_inverted: bool = False
    """Whether an event certainly happened before an event with a lower number within a split."""
    brokers: set[str] = msgspec.field(default_factory=set)
    """The brokers that the source's events name."""
    sent_to: set[str] = msgspec.field(default_factory=set)
    """The brokers that the source's acknowledgements name."""
    unnamed: list[Interval] = msgspec.field(default_factory=list)
    """For each split, the interval of the events about queues that do not name a broker."""

    @property
    def names(self) -> set[str]:
        """The brokers that the events name, plus an empty string if some events do not name a broker."""
        return self.brokers | {""} if self.unnamed else self.brokers


def survey_source(
    sequence: Integers, after_ns: Integers, before_ns: Integers, last: Integers | None = None
) -> SourceSurvey:
    """Survey a source's events in one split; the events may be in any order.

    Each event covers the numbers from `sequence` to `last`, or only its own number if `last` is None.
    """
    # Timestamps from inside a broker are usually exact. The two ends of an exact interval are equal, so compare only
    # one end.
    is_exact = np.array_equal(after_ns, before_ns)
    if (sequence[1:] < sequence[:-1]).any():
        order = _order(sequence)
        sequence, after_ns = sequence[order], after_ns[order]
        before_ns = after_ns if is_exact else before_ns[order]
        last = None if last is None else last[order]
    last = sequence if last is None else last
    # A repeated number begins a new run of numbers.
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
    """Returns the stable order of the numbers. If no number is missing or repeated, each number is its own position."""
    place = sequence - sequence.min()
    if int(place.max()) == len(place) - 1:
        order = np.full(len(place), -1, dtype=np.int64)
        order[place] = np.arange(len(place))
        if order.min() >= 0:
            return order
    return np.argsort(sequence, kind="stable")


def _highest_so_far(values: Integers) -> Integers:
    """Returns for each row the highest value up to this row.

    Checking first whether the values already ascend costs much less than accumulating the maximum.
    """
    return np.maximum.accumulate(values) if (values[1:] < values[:-1]).any() else values


def whole_of(seen: SourceSurvey) -> SourceSurvey:
    """Returns the survey of a source that also counts clock steps and disorder between splits."""
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
            # Count only steps back between splits, because steps within a split are already counted.
            was_back, is_back = is_back, back_ns > CLOCK_STEP_NS
            steps += is_back and not was_back and span.earlier_ns - span.before_min_ns <= CLOCK_STEP_NS
            step_ns = max(step_ns, back_ns if back_ns > CLOCK_STEP_NS else 0)
            disorder_ns = max(disorder_ns, last_before_ns[before - 1] - span.after_min_ns)
            is_inverted |= back_ns > 0
    changes = {"steps": steps, "step_ns": step_ns, "disorder_ns": disorder_ns, "is_inverted": is_inverted}
    return msgspec.structs.replace(seen, **changes)


def _rows(kind: Callable[..., Row], *columns: Integers) -> list[Row]:
    return [kind(*numbers) for numbers in zip(*(column.tolist() for column in columns), strict=True)]


LEAST: Final = frozenset({"first_ns", "min_least"})
MOST: Final = frozenset({"last", "last_ns", "stopped_ns", "step_ns", "disorder_ns", "min_most", "removed", "seen_ns"})
"""Fields that are merged by their maximum. Other numbers that are not in `LEAST` are added, and other values are
joined."""


def merged(parts: Sequence[Part]) -> Part:
    """Merge surveys of several splits into one."""
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
    """The faults in a source's sequence numbers."""

    missing_count: int
    first_missing: int
    repeated_count: int


def sequence_faults(runs: Iterable[Run]) -> SequenceFaults:
    """Compare the numbers of a source with 0, 1, 2, ... up to the highest."""
    expected, missing, first_missing, repeated = 0, 0, -1, 0
    for first, last, *_moments in sorted(runs):
        if first > expected:
            missing += first - expected
            first_missing = expected if first_missing < 0 else first_missing
        repeated += max(0, min(last + 1, expected) - first)
        expected = max(expected, last + 1)
    return SequenceFaults(missing, first_missing, repeated)


def holes_in(seen: SourceSurvey, damaged: Iterable[Interval] = ()) -> Iterator[Interval]:
    """Yields the intervals in which a source may have missed events: losses, missing numbers, and after its end.

    A damaged event counts as missed, because its content is unknown.
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

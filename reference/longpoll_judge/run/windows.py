"""Surveys input splits, cuts a large history into time windows, and summarises each queue's log outside them.

The survey reads a third of the columns. A window joins input splits in order of time. Its requests are judged with the
log of the window and its two neighbours. An `Outlook` summarises a queue's log outside of these, so a rule knows if
anything there could matter. Splits may overlap in time and logs may grow unevenly. Then fewer requests can be judged
within a window (`window_sweep`), and the others are judged with more of the log (`wide_pulls`). For a growing history,
`Outlooks` summarises what lies before the part in memory (`incremental.queue_judge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, evolve, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.batch import QueueName, queue_numbers
from longpoll_judge.columns.lookup import Booleans, Integers, are_of, order_by
from longpoll_judge.columns.queue_log import BEGINNING, NEVER, Gap, Outlook
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.evidence.survey import SURVEY_COLUMNS, Survey, survey_split
from longpoll_judge.read.schema import DEFAULTS, Damage, coded, has_column
from longpoll_judge.read.source import InputSplit, read_split
from longpoll_judge.run.queue_verdict import LOG_EVENTS
from longpoll_spec.tables import with_table

_LOG_COLUMNS: Final = (
    *("event", "after_ns", "before_ns", "source", "broker", "topic", "queue", "queue_offset", "visible_end"),
)
OVERVIEW_COLUMNS: Final = tuple(dict.fromkeys((*_LOG_COLUMNS, *SURVEY_COLUMNS)))
"""The columns that are read of a split before judging."""


@with_table
class LogSpan(msgspec.Struct, frozen=True, array_like=True):
    """One split's view of one queue's log through one source. Without values the least is `NEVER`, the highest -1."""

    broker: str
    topic: str
    queue: int
    source: str
    count: int
    append_count: int
    append_min: int
    append_max: int
    known_min: int
    """Offsets of appended and of acknowledged messages, without negative ones."""
    known_max: int
    acknowledged_max: int
    visible_min: int
    """Visible ends."""
    visible_max: int
    visible_early: int
    """The highest visible end reported before its last message was appended, as the split shows it."""
    after_min_ns: int
    after_max_ns: int
    before_min_ns: int
    before_max_ns: int
    rises: bool
    """In order of time every append takes the next offset, every acknowledgement and every visible end a higher one."""


Extent = tuple[int, int, int, int]
"""How many events a split has, the least and the highest `after_ns`, and a sum of the numbers that were looked at."""
_SUMMED: Final = ("after_ns", "queue_offset", "visible_end", "code")
"""Columns of numbers in which no two splits are alike; few, since they are added up twice."""
_WEIGHTS: Final = np.array([0x9E3779B97F4A7C15 * (2 * place + 1) % 2**64 for place in range(len(_SUMMED))], np.uint64)
"""Odd ones, so that what moves from one column to another shows."""


@with_table
class Overview(msgspec.Struct, frozen=True):
    """The summary of one split."""

    survey: Survey
    spans: list[LogSpan]
    first_ns: int
    """The least `after_ns`; `NEVER` of an empty split."""
    last_ns: int
    """The highest `after_ns`; `BEGINNING` of an empty split."""
    numbers_sum: int
    """Distinguishes these events from others with the same timestamps."""

    @property
    def extent(self) -> Extent:
        """How many events there are, from when to when, and what tells them from others."""
        return self.survey.event_count, self.first_ns, self.last_ns, self.numbers_sum


def overview_of(part: InputSplit) -> Overview:
    """Look over a split."""
    return overview_of_table(*read_split(part, OVERVIEW_COLUMNS))


def read_again(part: InputSplit, extent: Extent) -> pa.Table:
    """The events of a split that was looked over and had this extent, perhaps without columns that none of them uses.

    Raises `HistoryChangedError` where others are there now: what is known of the evidence would not hold of these.
    """
    table, _damages = read_split(part, sparse=True)
    if _extent(table) != extent:
        raise HistoryChangedError(f"{part.path} changed during the judgement; judge again")
    return table


def overview_of_table(table: pa.Table, damages: list[Damage]) -> Overview:
    """Look over the events of a split."""
    _count, first_ns, last_ns, numbers_sum = _extent(table)
    return Overview(survey_split(table, damages), log_spans(table), first_ns, last_ns, numbers_sum)


def _extent(table: pa.Table) -> Extent:
    after_ns = table["after_ns"].to_numpy()
    sums = np.array([_sum_of(table, name) for name in _SUMMED], np.uint64)
    return (
        len(table),
        int(after_ns.min(initial=NEVER)),
        int(after_ns.max(initial=BEGINNING)),
        int((sums * _WEIGHTS).sum()),
    )


def _sum_of(table: pa.Table, name: str) -> int:
    """The sum of a column of numbers, as of ones without a sign and of 64 bits."""
    if not has_column(table, name):
        return int(DEFAULTS[name]) * len(table) % 2**64
    return int(table[name].to_numpy().view(np.uint64).sum())


def log_spans(table: pa.Table) -> list[LogSpan]:
    """The numbers of every queue's log, apart for each source."""
    codes, names = coded(table, "event")
    is_log = are_of(codes, names, LOG_EVENTS)
    if not is_log.any():
        return []
    log = table.select(_LOG_COLUMNS).take(pa.array(np.flatnonzero(is_log)))
    queue, _rows = queue_numbers(log)
    sources, source_names = coded(log, "source")
    key = queue.astype(np.int64) * len(source_names) + sources
    codes, order = codes[is_log], order_by(key, log["after_ns"].to_numpy())
    if (order[1:] < order[:-1]).any():
        # Parts that are written here have a queue's events together and in order already.
        log, key, codes = log.take(pa.array(order)), key[order], codes[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    appended, acknowledged, moved, seen = (
        codes == (names.index(kind) if kind in names else -1)
        for kind in ("append", "message_acknowledged", "make_visible", "message_seen")
    )
    offset, end = log["queue_offset"].to_numpy(), log["visible_end"].to_numpy()
    is_known = (appended | acknowledged | seen) & (offset >= 0)
    after_ns, before_ns = log["after_ns"].to_numpy(), log["before_ns"].to_numpy()

    def least(values: Integers) -> list[int]:
        found: list[int] = np.minimum.reduceat(values, starts).tolist()
        return found

    def most(values: Integers) -> list[int]:
        found: list[int] = np.maximum.reduceat(values, starts).tolist()
        return found

    counts = np.diff(np.append(starts, len(key))).tolist()
    appends = np.add.reduceat(appended.astype(np.int64), starts).tolist()
    columns = (
        *(least(np.where(appended, offset, NEVER)), most(np.where(appended, offset, BEGINNING))),
        *(least(np.where(is_known, offset, NEVER)), most(np.where(is_known, offset, -1))),
        most(np.where(acknowledged, offset, -1)),
        *(least(np.where(moved, end, NEVER)), most(np.where(moved, end, BEGINNING))),
        most(np.where(_are_early(key, (after_ns, before_ns), appended, moved, (offset, end)), end, BEGINNING)),
        *(least(after_ns), most(after_ns), least(before_ns), most(before_ns)),
    )
    falls = (
        _falls(key, offset, appended, strictly=True)
        | _falls(key, offset, acknowledged, strictly=True)
        | _falls(key, offset, seen, strictly=False)
        | _falls(key, end, moved, strictly=False)
    )
    rises = np.add.reduceat(falls.astype(np.int64), starts) == 0
    firsts = log.select(["broker", "topic", "queue", "source"]).take(pa.array(starts)).to_pylist()
    return [
        msgspec.convert((*first.values(), count, append_count, *numbers), LogSpan)
        for first, count, append_count, *numbers in zip(firsts, counts, appends, *columns, rises.tolist(), strict=True)
    ]


def _are_early(
    key: Integers,
    moments: tuple[Integers, Integers],
    appended: Booleans,
    moved: Booleans,
    values: tuple[Integers, Integers],
) -> Booleans:
    """Which visible ends lie past what was appended by then, in rows of several logs.

    Args:
        key: Which log each row is of.
        moments: Its `after_ns` and `before_ns`.
        appended: Whether it is an append.
        moved: Whether it tells a visible end.
        values: The offsets and the visible ends.
    """
    (after_ns, before_ns), (offset, end) = moments, values
    # An append may have been done when it began, an end may have been told as late as it ended.
    for moment_ns in (after_ns, np.where(moved, before_ns, after_ns)):
        order = order_by(key, moment_ns) if moment_ns is after_ns else np.lexsort((moved, moment_ns, key))
        group, is_append = key[order], appended[order]
        last = np.maximum.accumulate(np.where(is_append, np.arange(len(order)), -1))
        has_any = (last >= 0) & (group[last] == group)
        reached = np.where(has_any, offset[order][last] + 1, BEGINNING)
        found = np.zeros(len(key), dtype=np.bool_)
        found[order] = moved[order] & (end[order] > reached)
        if not found.any():
            # In the order of what is told first, which is at hand, there is none as a rule.
            break
    return found


def _falls(key: Integers, values: Integers, rows: Booleans, *, strictly: bool) -> Booleans:
    """Which of the rows have a lower value than the one before of the same key; or the same, if they must rise."""
    places = np.flatnonzero(rows)
    rise = np.diff(values[places])
    falls = np.zeros(len(key), dtype=np.bool_)
    falls[places[1:]] = (np.diff(key[places]) == 0) & (rise < (1 if strictly else 0))
    return falls


WINDOW_EVENTS: Final = 200_000
"""Fewest events of a window, if the history has them: about one row group as it is written here."""
QUEUES: Final = 100
"""It has as many times more as there are more queues than this, each of which costs something by itself, ..."""
WIDENED_MAX: Final = 5
"""... or as several splits lie side by side in time; but at most this many times as many."""
REACH: Final = 1
"""WindowReader on each side that lend their logs."""


def windows_of(overviews: Sequence[Overview], window_events: int) -> list[list[int]]:
    """The numbers of the splits of each window, in order of time."""
    queues = len({(span.broker, span.topic, span.queue) for overview in overviews for span in overview.spans})
    times = min(max(queues / QUEUES, _depth(overviews)), WIDENED_MAX)
    wanted = round(window_events * times)
    windows: list[list[int]] = []
    events = wanted
    for number in sorted(range(len(overviews)), key=lambda number: (overviews[number].first_ns, number)):
        if events >= wanted:
            windows.append([])
            events = 0
        windows[-1].append(number)
        events += overviews[number].survey.event_count
    return windows


def _depth(overviews: Sequence[Overview]) -> int:
    """How many splits lie side by side in time, where most of them begin; several observers write so."""
    begins = np.sort([overview.first_ns for overview in overviews])
    ends = np.sort([max(overview.first_ns, overview.last_ns) for overview in overviews])
    depths = np.searchsorted(begins, begins, side="right") - np.searchsorted(ends, begins)
    return int(np.median(depths)) if len(depths) else 1


@define(eq=False)
class _QueueSpans:
    """The numbers of one queue by window."""

    known_min: Integers
    known_max: Integers
    acknowledged_max: Integers
    visible_max: Integers
    after_min_ns: Integers
    before_max_ns: Integers
    counts: Integers

    @property
    def is_white_box(self) -> bool:
        return bool((self.visible_max > BEGINNING).any())

    @property
    def ends(self) -> Integers:
        """The highest visible end that each window shows; 0 where it shows none."""
        return np.maximum(self.visible_max if self.is_white_box else self.acknowledged_max + 1, 0)


class WindowPlan:
    """The windows of a history and what each shows of every queue's log."""

    def __init__(self, overviews: Sequence[Overview], window_events: int = WINDOW_EVENTS) -> None:
        self.windows = windows_of(overviews, window_events)
        self.firsts_ns = np.array([overviews[numbers[0]].first_ns for numbers in self.windows], dtype=np.int64)
        """When each begins, ascending."""
        by_log: dict[tuple[QueueName, str], list[tuple[int, LogSpan]]] = {}
        for window, numbers in enumerate(self.windows):
            for number in numbers:
                for span in overviews[number].spans:
                    name = (span.broker, span.topic, span.queue)
                    by_log.setdefault((name, span.source), []).append((window, span))
        by_queue: dict[QueueName, list[tuple[int, LogSpan]]] = {}
        for (name, _source), spans in by_log.items():
            by_queue.setdefault(name, []).extend(spans)
        count = len(self.windows)
        self._queues = {name: _queue_spans(spans, count) for name, spans in by_queue.items()}
        self.doubtful = frozenset(name for (name, _source), spans in by_log.items() if not _is_even(spans, count, 1))
        """Queues whose log is not shown to be right by the numbers of the splits alone."""
        self.uneven = frozenset(
            name
            for (name, _source), spans in by_log.items()
            if name in self.doubtful and not _is_even(spans, count, 2 * REACH + 1)
        )
        """Queues whose log cannot be shown to be right by neighbours either: the whole log must be looked at."""

    @property
    def queues(self) -> Iterable[QueueName]:
        """Every queue of which any log is seen."""
        return self._queues

    def around(self, first: int, last: int, name: QueueName) -> Outlook:
        """A summary of a queue's log outside the windows from first to last and their neighbours."""
        return self._outlook(name, slice(0, max(first - REACH, 0)), slice(last + REACH + 1, None))

    def apart(self, read: tuple[int, int], asked: tuple[int, int], name: QueueName) -> Outlook:
        """A summary of a queue's log outside two runs of windows (first, last), each with its neighbours.

        Args:
            read: The earlier run, whose messages are read.
            asked: The later run, with the pulls and their answers.
            name: The queue.
        """
        outlook = self.around(*asked, name)
        seen = self._queues.get(name)
        between = slice(read[1] + REACH + 1, max(asked[0] - REACH, read[1] + REACH + 1))
        older = slice(0, max(read[0] - REACH, 0))
        if seen is None:
            return outlook
        before = self._outlook(name, older, slice(0, 0))
        if not seen.counts[between].any():
            # `around` is told of the earlier run as if it were not at hand.
            return evolve(
                outlook,
                first_before=before.first_before,
                floor=before.floor,
                end_before=before.end_before,
                ended_before_ns=before.ended_before_ns,
            )
        gap = Gap(
            reach=int(seen.known_min[between].min()),
            begins_ns=int(seen.after_min_ns[between].min()),
            ended_ns=max(int(seen.before_max_ns[between].max()), before.ended_before_ns),
            floor=max(before.floor, int(seen.known_max[between].max()) + 1, int(seen.ends[between].max())),
        )
        return evolve(
            outlook,
            first_before=min(before.first_before, gap.reach),
            floor=before.floor,
            end_before=max(before.end_before, int(seen.ends[between].max())),
            ended_before_ns=gap.ended_ns,
            gap=gap,
        )

    def window_of(self, name: QueueName, offsets: Integers) -> Integers:
        """The first window that shows each offset of a queue, or a higher one; the last one where none does."""
        seen = self._queues.get(name)
        if seen is None:
            return np.zeros_like(offsets)
        found = np.searchsorted(np.maximum.accumulate(seen.known_max), offsets)
        return np.minimum(found, len(self.windows) - 1)

    def beside(self, loaded: NDArray[np.bool_], name: QueueName) -> Outlook:
        """A summary of a queue's log outside some windows, if no omitted window can matter later."""
        return self._outlook(name, ~loaded, slice(0, 0))

    def _outlook(self, name: QueueName, before: slice | NDArray[np.bool_], after: slice) -> Outlook:
        seen = self._queues.get(name)
        if seen is None:
            return Outlook(is_white_box=False, first_known=NEVER)
        end_before = int(seen.ends[before].max(initial=0))
        last_before = int(seen.known_max[before].max(initial=-1))
        return Outlook(
            is_white_box=seen.is_white_box,
            first_known=int(seen.known_min.min(initial=NEVER)),
            first_before=int(seen.known_min[before].min(initial=NEVER)),
            floor=max(end_before, last_before + 1) if bool(seen.counts[before].any()) else BEGINNING,
            end_before=end_before,
            ended_before_ns=int(seen.before_max_ns[before].max(initial=BEGINNING)),
            reach=int(seen.known_min[after].min(initial=NEVER)),
            begins_after_ns=int(seen.after_min_ns[after].min(initial=NEVER)),
        )

    def needed(self, name: QueueName, offset_min: int, since_ns: int) -> NDArray[np.bool_]:
        """The windows whose log matters to requests from this offset and moment on."""
        seen = self._queues.get(name)
        if seen is None:
            return np.zeros(len(self.windows), dtype=np.bool_)
        highest = np.maximum(seen.ends - 1, seen.known_max)
        return (seen.counts > 0) & ((highest >= offset_min) | (seen.before_max_ns >= since_ns))

    def log_count(self, name: QueueName, windows: NDArray[np.bool_]) -> int:
        """How many log events of a queue some windows have."""
        seen = self._queues.get(name)
        return 0 if seen is None else int(seen.counts[windows].sum())


def _queue_spans(spans: Iterable[tuple[int, LogSpan]], count: int) -> _QueueSpans:
    return _QueueSpans(
        known_min=_extremes(spans, count, "known_min", NEVER, np.minimum),
        known_max=_extremes(spans, count, "known_max", -1, np.maximum),
        acknowledged_max=_extremes(spans, count, "acknowledged_max", -1, np.maximum),
        visible_max=_extremes(spans, count, "visible_max", BEGINNING, np.maximum),
        after_min_ns=_extremes(spans, count, "after_min_ns", NEVER, np.minimum),
        before_max_ns=_extremes(spans, count, "before_max_ns", BEGINNING, np.maximum),
        counts=_extremes(spans, count, "count", 0, np.add),
    )


def _extremes(spans: Iterable[tuple[int, LogSpan]], count: int, name: str, none: int, join: np.ufunc) -> Integers:
    """One number by window."""
    found = np.full(count, none, dtype=np.int64)
    places = np.array([window for window, _span in spans], dtype=np.int64)
    join.at(found, places, np.array([getattr(span, name) for _window, span in spans], dtype=np.int64))
    return found


def _is_even(spans: Sequence[tuple[int, LogSpan]], count: int, apart: int) -> bool:
    """Whether no two events of a log that lie `apart` of the `count` windows apart can contradict each other.

    One apart means any two: then the events of each split must be in order, and each window be one split.
    """
    if apart == 1 and (not all(span.rises for _window, span in spans) or len({at for at, _span in spans}) < len(spans)):
        return False
    number = {
        name: _extremes(spans, count, name, none, join)
        for names, none, join in (
            (("append_min", "known_min", "visible_min", "before_min_ns"), NEVER, np.minimum),
            (("append_max", "known_max", "visible_max", "visible_early", "after_max_ns"), BEGINNING, np.maximum),
            (("append_count",), 0, np.add),
        )
        for name in names
    }
    appended = int(number["append_count"].sum())
    if appended and appended != int(number["append_max"].max()) - int(number["append_min"].min()) + 1:
        return False
    if apart == 1 and appended and _is_shown_early(number):
        return False
    return all(
        bool((np.maximum.accumulate(number[high])[:-apart] <= number[low][apart:] - strictly).all())
        for high, low, strictly in (
            ("append_max", "append_min", 1),
            ("known_max", "known_min", 1),
            ("visible_max", "visible_min", 0),
            ("after_max_ns", "before_min_ns", 0),
        )
    )


def _is_shown_early(number: Mapping[str, Integers]) -> bool:
    """Whether a window shows an end of a log before its last message was appended there, or in an earlier window."""
    reached = np.append(BEGINNING, np.maximum.accumulate(number["append_max"])[:-1]) + 1
    # What lies below the first append was there before the record began.
    return bool((number["visible_early"] > np.maximum(reached, number["append_min"].min())).any())


Log = tuple[str, str, int, str]
"""Broker, topic, queue and source."""
_JOINS: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (min, ("append_min", "known_min", "visible_min", "after_min_ns", "before_min_ns")),
    (
        max,
        (
            *("append_max", "known_max", "acknowledged_max", "visible_max", "visible_early"),
            *("after_max_ns", "before_max_ns"),
        ),
    ),
)


@frozen(eq=False)
class Outlooks:
    """Summaries of each queue's log outside the window."""

    before: dict[QueueName, list[LogSpan]]
    whole: dict[QueueName, list[LogSpan]]
    settled_ns: int

    def __call__(self, name: QueueName) -> Outlook:
        """The outlook of one queue."""
        before, whole = self.before.get(name, []), self.whole.get(name, [])
        is_white_box = any(span.visible_max > BEGINNING for span in whole)
        end = max((span.visible_max if is_white_box else span.acknowledged_max + 1 for span in before), default=0)
        known = max((span.known_max for span in before), default=-1)
        return Outlook(
            is_white_box=is_white_box,
            first_known=min((span.known_min for span in whole), default=NEVER),
            first_before=min((span.known_min for span in before), default=NEVER),
            floor=max(end, known + 1, 0) if before else BEGINNING,
            end_before=max(end, 0),
            ended_before_ns=max((span.before_max_ns for span in before), default=BEGINNING),
            begins_after_ns=self.settled_ns,
        )


def by_queue(spans: Mapping[Log, LogSpan]) -> dict[QueueName, list[LogSpan]]:
    """The numbers of all sources of each queue."""
    found: dict[QueueName, list[LogSpan]] = {}
    for log, span in spans.items():
        found.setdefault(log[:3], []).append(span)
    return found


def follows(one: LogSpan, other: LogSpan) -> bool:
    """Whether no two events of a log, of which the one is in the one span, can contradict each other."""
    return (
        one.append_max < other.append_min
        and one.known_max < other.known_min
        and one.visible_max <= other.visible_min
        and one.after_max_ns <= other.before_min_ns
    )


def together(one: LogSpan, other: LogSpan) -> LogSpan:
    """The numbers of both; the other came later."""
    least, most = ({name: join(getattr(one, name), getattr(other, name)) for name in names} for join, names in _JOINS)
    return msgspec.structs.replace(
        one,
        count=one.count + other.count,
        append_count=one.append_count + other.append_count,
        rises=one.rises and other.rises and follows(one, other),
        **least,
        **most,
    )


def are_shown_early(spans: Mapping[Log, LogSpan], known: Mapping[Log, LogSpan]) -> set[QueueName]:
    """Queues of which a piece may show an end before its last message was appended, given what came before it."""
    found: set[QueueName] = set()
    for log, span in spans.items():
        before = known.get(log, span)
        first = min(before.append_min, span.append_min)
        reached = known[log].append_max + 1 if log in known else BEGINNING
        if first < NEVER and span.visible_early > max(reached, first):
            found.add(log[:3])
    return found

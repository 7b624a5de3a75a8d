"""Cuts a large history into time windows, and summarises each queue's log outside them.

A window joins input splits in order of time. Its requests are judged with the log of the window and its two neighbours.
An `Outlook` summarises a queue's log outside of these, so a rule knows whether anything there could matter. Splits may
overlap in time and logs may grow unevenly. Then fewer requests can be judged within a window (`window_pulls`), and the
others are judged with more of the log (`wide_pulls`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from attrs import define, evolve
from numpy.typing import NDArray

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.lookup import Integers
from longpoll_judge.columns.queue_log import BEGINNING, NEVER, Gap, Outlook
from longpoll_judge.run.overview import LogSpan, Overview

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

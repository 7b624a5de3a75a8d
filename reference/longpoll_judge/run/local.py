"""Judges in this process, without Spark: the same rules over Arrow tables.

A small history is judged in one piece. A larger one is read twice: first to see where its sources and logs begin and
end, then window by window to judge it. The rules: `window_sweep`, `wide_pulls`, `queue_verdict`. The sum: `pipeline`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.batch import joined
from longpoll_judge.columns.keys import NO_KEYS, Keys, open_keys, request_keys
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read import source
from longpoll_judge.read.growing_history import checksum_before
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import InputSplit, is_cheap, kind_of, read_split
from longpoll_judge.run.queue_verdict import judge_table, queue_rows
from longpoll_judge.run.wide_pulls import COMMITS, SENDS, Outcome, RuleTask, judge_rest, watching
from longpoll_judge.run.window_sweep import Spill, Swept, WindowReader, open_spill, sweep
from longpoll_judge.run.windows import (
    OVERVIEW_COLUMNS,
    WINDOW_EVENTS,
    Overview,
    WindowPlan,
    overview_of_table,
    read_again,
)
from longpoll_spec.history import NDJSON_SUFFIX


@define
class LocalReading:
    """A history that is looked over once, and judged then."""

    _splits: Sequence[InputSplit]
    _engine: LocalEngine
    _spill: Spill
    _kept: Spill | None
    """State that outlives this reading."""
    _overviews: list[Overview] = field(factory=list)
    _suspects: defaultdict[str, tuple[Any, ...]] = field(factory=lambda: defaultdict(tuple))
    """By rule what is known of its suspects; empty for nothing."""
    _marks: list[int] = field(factory=list)
    """Of each split what tells that it is what was kept of it; made before the split is read."""

    def surveys(self) -> Iterator[Survey]:
        """See `pipeline.Reading.surveys`."""
        self._marks = [self._mark(part) for part in self._splits]
        known = [self._known(number) for number in range(len(self._splits))]
        looked_over = self._read_ahead([part for part, seen in zip(self._splits, known, strict=True) if seen is None])
        for number, (part, seen) in enumerate(zip(self._splits, known, strict=True)):
            overview = seen
            if overview is None:
                table, overview = next(looked_over)
                if self._kept and stays(part) and not is_cheap(part):
                    self._kept.put(part, table, overview, self._marks[number])
                elif not is_cheap(part):
                    self._spill.put(part, table, overview)
            self._overviews.append(overview)
            yield overview.survey

    def _mark(self, part: InputSplit) -> int:
        """A part may be replaced by another one, whose splits lie where its own did."""
        return checksum_before(part.path, part.end, part.start) if self._kept and stays(part) else 0

    def _known(self, number: int) -> Overview | None:
        """The result of an earlier reading of a split that has not changed."""
        return self._kept.overview(self._splits[number], self._marks[number]) if self._kept else None

    def _read_ahead(self, splits: Sequence[InputSplit]) -> Iterator[tuple[pa.Table, Overview]]:
        """Every split in order; no more than a few are read before they are asked for."""
        if len(splits) <= 1:
            yield from map(_look_over, splits)
            return
        waiting: deque[Future[tuple[pa.Table, Overview]]] = deque()
        with ThreadPoolExecutor(self._engine.threads) as pool:
            for part in splits:
                waiting.append(pool.submit(_look_over, part))
                if len(waiting) > self._engine.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def tables(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """See `pipeline.Reading.tables`; of all splits unless some are named."""
        for number in range(len(self._splits)) if numbers is None else numbers:
            yield number, fill(self._read(number))

    def outcomes(self, tasks: Sequence[RuleTask], context: Context) -> list[Outcome]:
        """See `pipeline.Reading.outcomes`."""
        whole = list(range(len(self._splits)))
        return [
            rule(partial(self.tables, numbers), context, *(self._suspects[name] if numbers == whole else ()))
            for name, rule, numbers in tasks
        ]

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `pipeline.Reading.verdicts`; a split is looked at for suspects when it is read, not read again."""
        plan = WindowPlan(self._overviews, self._engine.window_events)
        surveys = [overview.survey for overview in self._overviews]
        rules = {SENDS} if any(one.observers.acknowledged or one.observers.sends for one in surveys) else set[str]()
        rules |= {COMMITS} if any(one.offset_queries or one.offset_updates for one in surveys) else set()
        # Of two answers the first one counts, in the order of the splits; the windows are in the order of time.
        order = [number for window in plan.windows for number in window]
        if not _are_in_order([(number, surveys[number].sources) for number in order]):
            rules = set()
        with watching(context, rules) as watches:

            def read(number: int) -> pa.Table:
                table = self._read(number)
                if number in unread:
                    unread.remove(number)
                    filled = fill(table)
                    for watch in watches.values():
                        watch.see(filled)
                return table

            unread = set(range(len(self._splits)) if watches else ())
            windows = WindowReader(plan, read, unplaced)
            if len(plan.windows) <= 1:
                rows = judge_table(windows.placed(windows.events(0) if plan.windows else joined([])), context)
            else:
                rows = judge_windows(windows, context)
            if not unread:
                self._suspects |= {name: (watch.finish(),) for name, watch in watches.items()}
        return rows

    def _read(self, number: int) -> pa.Table:
        part = self._splits[number]
        table = self._spill.get(part)
        if table is None and self._kept:
            table = self._kept.get(part, self._marks[number])
        if table is not None:
            return table
        return read_again(part, self._overviews[number].extent)


def _are_in_order(splits: Iterable[tuple[int, Iterable[str]]]) -> bool:
    """Whether the splits of each source, given by number with their sources, are in order."""
    last: dict[str, int] = {}
    for number, sources in splits:
        if any(last.get(source, -1) > number for source in sources):
            return False
        last |= dict.fromkeys(sources, number)
    return True


def stays(part: InputSplit) -> bool:
    """Whether more events would come as another split: the last one of a part that grows ends elsewhere each time."""
    return kind_of(part.path) != NDJSON_SUFFIX or part.end - part.start == source.SPLIT_BYTES


def _look_over(part: InputSplit) -> tuple[pa.Table, Overview]:
    table, damages = read_split(part, OVERVIEW_COLUMNS if is_cheap(part) else None)
    return table, overview_of_table(table, damages)


def judge_windows(windows: WindowReader, context: Context) -> pa.Table:
    """Judge a history window by window; all rows that `verdict.judge_table` would give, added up in part."""
    swept, held = _sweep(windows, context, NO_KEYS)
    if len(held):
        swept, _held = _sweep(windows, context, held)
    rest = judge_rest(windows, swept.rest, windows.plan.uneven | swept.faulty, context)
    return pa.concat_tables([swept.rows, rest, queue_rows(windows.plan.queues)])


def _sweep(windows: WindowReader, context: Context, held: Keys) -> tuple[Swept, Keys]:
    """Sweep all windows; also the keys of requests whose events were judged apart from each other."""
    with open_keys() as file:
        swept = sweep(windows, (0, len(windows.plan.windows)), context, held, file.put)
        rest = np.unique(request_keys(swept.rest, np.arange(len(swept.rest))))
        return swept, file.repeated(rest)


@frozen
class LocalEngine:
    """Judges window by window in this process."""

    threads: int = 2
    window_events: int = WINDOW_EVENTS
    kept: Spill | None = None
    """Takes splits that stay as they are, so that they are read once however often a growing history is judged."""

    @contextmanager
    def read(self, splits: Sequence[InputSplit]) -> Iterator[LocalReading]:
        """See `pipeline.Engine.read`."""
        keep_freed_memory()
        with open_spill() as spill:
            yield LocalReading(splits, self, spill, self.kept)

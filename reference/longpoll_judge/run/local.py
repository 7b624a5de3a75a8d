"""The engine without Spark: the same verdict code over Arrow tables in this process.

A small history is judged in one piece; a larger one is read twice, first to see where its sources and logs begin and
end, then stretch by stretch to be judged. Leaves out what is judged (`home`, `rest`, `verdict`) and how results are
added up (`job`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.exchange import joined
from longpoll_judge.columns.keys import NO_KEYS, Keys, open_keys, request_keys
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read import source
from longpoll_judge.read.checksum import checksum_before
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import Slice, is_cheap, kind_of, read_slice
from longpoll_judge.run.overview import OVERVIEW_COLUMNS, Overview, overview_of_table, read_again
from longpoll_judge.run.plan import STRETCH_EVENTS, Plan
from longpoll_judge.run.rest import Outcome, Rule, judge_rest
from longpoll_judge.run.spill import Spill, open_spill
from longpoll_judge.run.sweep import Stretches, Swept, sweep
from longpoll_judge.run.verdict import judge_table, queue_rows
from longpoll_spec.history import NDJSON_SUFFIX


@define
class LocalReading:
    """A history that is looked over once, and judged then."""

    _slices: Sequence[Slice]
    _engine: LocalEngine
    _spill: Spill
    _kept: Spill | None
    """What outlives this reading."""
    _overviews: list[Overview] = field(factory=list)
    _marks: list[int] = field(factory=list)
    """Of each slice what tells that it is what was kept of it; made before the slice is read."""

    def surveys(self) -> Iterator[Survey]:
        """See `job.Reading.surveys`."""
        self._marks = [self._mark(part) for part in self._slices]
        known = [self._known(number) for number in range(len(self._slices))]
        looked_over = self._read_ahead([part for part, seen in zip(self._slices, known, strict=True) if seen is None])
        for number, (part, seen) in enumerate(zip(self._slices, known, strict=True)):
            overview = seen
            if overview is None:
                table, overview = next(looked_over)
                if self._kept and stays(part) and not is_cheap(part):
                    self._kept.put(part, table, overview, self._marks[number])
                elif not is_cheap(part):
                    self._spill.put(part, table, overview)
            self._overviews.append(overview)
            yield overview.survey

    def _mark(self, part: Slice) -> int:
        """A part may be replaced by another one, whose slices lie where its own did."""
        return checksum_before(part.path, part.end, part.start) if self._kept and stays(part) else 0

    def _known(self, number: int) -> Overview | None:
        """What an earlier reading saw of a slice that has not changed."""
        return self._kept.overview(self._slices[number], self._marks[number]) if self._kept else None

    def _read_ahead(self, slices: Sequence[Slice]) -> Iterator[tuple[pa.Table, Overview]]:
        """Every slice in order; no more than a few are read before they are asked for."""
        if len(slices) <= 1:
            yield from map(_look_over, slices)
            return
        waiting: deque[Future[tuple[pa.Table, Overview]]] = deque()
        with ThreadPoolExecutor(self._engine.threads) as pool:
            for part in slices:
                waiting.append(pool.submit(_look_over, part))
                if len(waiting) > self._engine.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """See `job.Reading.tables`."""
        for number in range(len(self._slices)):
            yield number, fill(self._read(number))

    def outcomes(self, rules: Sequence[Rule], context: Context) -> list[Outcome]:
        """See `job.Reading.outcomes`."""
        return [rule(self.tables, context) for rule in rules]

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `job.Reading.verdicts`."""
        plan = Plan(self._overviews, self._engine.stretch_events)
        stretches = Stretches(plan, self._read, unplaced)
        if len(plan.stretches) <= 1:
            return judge_table(stretches.placed(stretches.events(0) if plan.stretches else joined([])), context)
        return judge_stretches(stretches, context)

    def _read(self, number: int) -> pa.Table:
        part = self._slices[number]
        table = self._spill.get(part)
        if table is None and self._kept:
            table = self._kept.get(part, self._marks[number])
        if table is not None:
            return table
        return read_again(part, self._overviews[number].extent)


def stays(part: Slice) -> bool:
    """Whether more events would come as another slice: the last one of a part that grows ends elsewhere each time."""
    return kind_of(part.path) != NDJSON_SUFFIX or part.end - part.start == source.SLICE_BYTES


def _look_over(part: Slice) -> tuple[pa.Table, Overview]:
    table, damages = read_slice(part, OVERVIEW_COLUMNS if is_cheap(part) else None)
    return table, overview_of_table(table, damages)


def judge_stretches(stretches: Stretches, context: Context) -> pa.Table:
    """Judge a history stretch by stretch; all rows that `verdict.judge_table` would give, added up in part."""
    swept, held = _sweep(stretches, context, NO_KEYS)
    if len(held):
        swept, _held = _sweep(stretches, context, held)
    rest = judge_rest(stretches, swept.rest, stretches.plan.uneven | swept.faulty, context)
    return pa.concat_tables([swept.rows, rest, queue_rows(stretches.plan.queues)])


def _sweep(stretches: Stretches, context: Context, held: Keys) -> tuple[Swept, Keys]:
    """Sweep all stretches; also the keys of requests whose events were judged apart from each other."""
    with open_keys() as file:
        swept = sweep(stretches, (0, len(stretches.plan.stretches)), context, held, file.put)
        rest = np.unique(request_keys(swept.rest, np.arange(len(swept.rest))))
        return swept, file.repeated(rest)


@frozen
class LocalEngine:
    """Judges stretch by stretch in this process."""

    threads: int = 2
    stretch_events: int = STRETCH_EVENTS
    kept: Spill | None = None
    """Takes slices that stay as they are, so that they are read once however often a growing history is judged."""

    @contextmanager
    def read(self, slices: Sequence[Slice]) -> Iterator[LocalReading]:
        """See `job.Engine.read`."""
        keep_freed_memory()
        with open_spill() as spill:
            yield LocalReading(slices, self, spill, self.kept)

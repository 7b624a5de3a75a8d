"""The engine without Spark: the same verdict code over Arrow tables in this process.

A history of up to `MEMORY_EVENTS` events is held in memory; the pieces of a larger one wait on disk, and buckets of
queues are judged one after the other. Leaves out what is judged (`verdict`) and how results are added up (`job`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.exchange import SHARDS, joined, unit_count
from longpoll_judge.placing import place_answers
from longpoll_judge.schema import EVENT_SCHEMA, fill
from longpoll_judge.source import Slice, read_slice
from longpoll_judge.spill import Spill, open_spill
from longpoll_judge.survey import Context, Survey, survey_slice
from longpoll_judge.verdict import RESULT_SCHEMA, judge_shared, judge_table

MEMORY_EVENTS: Final = 4_000_000
"""Most events that are held in memory at once."""
UNIT_EVENTS: Final = 2_000_000
"""About so many requests of one bucket are judged at once."""


def read_and_survey(part: Slice) -> tuple[pa.Table, Survey]:
    """The events of a slice, and their survey."""
    table, damages = read_slice(part)
    return table, survey_slice(table, damages)


@define
class LocalReading:
    """A history read once, in a few threads (Arrow's reader works outside the interpreter's lock).

    Invariant: once `_is_spilling`, `_tables` is empty.
    """

    _slices: Sequence[Slice]
    _engine: LocalEngine
    _spill: Spill
    _tables: list[pa.Table] = field(factory=list)
    """The events of every slice that was surveyed."""
    _events: int = field(default=0)
    _is_spilling: bool = field(default=False)

    def surveys(self) -> Iterator[Survey]:
        """See `job.Reading.surveys`."""
        for table, survey in self._read_ahead():
            self._keep(table)
            yield survey

    def _read_ahead(self) -> Iterator[tuple[pa.Table, Survey]]:
        """Every slice in order; no more than a few are read before they are asked for."""
        waiting: deque[Future[tuple[pa.Table, Survey]]] = deque()
        with ThreadPoolExecutor(self._engine.threads) as pool:
            for part in self._slices:
                waiting.append(pool.submit(read_and_survey, part))
                if len(waiting) > self._engine.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _keep(self, table: pa.Table) -> None:
        self._events += len(table)
        self._tables.append(table)
        if self._is_spilling or self._events > self._engine.memory_events:
            self._is_spilling = True
            for waiting in self._tables:
                self._spill.put(waiting)
            self._tables.clear()

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `job.Reading.verdicts`."""
        if not self._is_spilling:
            table = pa.concat_tables([EVENT_SCHEMA.empty_table(), *self._tables])
            self._tables.clear()
            return judge_table(place_answers(table) if unplaced else table, context)
        if unplaced:
            with open_spill() as placed:
                _place_all(self._spill, placed)
                return self._judge(placed, context)
        return self._judge(self._spill, context)

    def _judge(self, spill: Spill, context: Context) -> pa.Table:
        judged = [RESULT_SCHEMA.empty_table()]
        for bucket, events in spill.buckets().items():
            units = unit_count(events, self._engine.unit_events)
            shares = (spill.requests(bucket, unit, units) for unit in range(units))
            judged.append(judge_shared(spill.log(bucket), shares, context))
        return pa.concat_tables(judged)


def _place_all(spill: Spill, placed: Spill) -> None:
    """Give answers that name no queue those of their requests: both have the same share."""
    for bucket in spill.buckets():
        placed.put(spill.log(bucket))
    for unit in range(SHARDS):
        placed.put(place_answers(fill(joined(spill.requests(bucket, unit, SHARDS) for bucket in spill.buckets()))))


@frozen
class LocalEngine:
    """Judges queue by queue in this process."""

    threads: int = field(default=2)
    memory_events: int = field(default=MEMORY_EVENTS)
    unit_events: int = field(default=UNIT_EVENTS)

    @contextmanager
    def read(self, slices: Sequence[Slice]) -> Iterator[LocalReading]:
        """See `job.Engine.read`."""
        with open_spill() as spill:
            yield LocalReading(slices, self, spill)

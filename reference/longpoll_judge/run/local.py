"""Judges a history in this process, without Spark. A history of at most one window is judged at once.

A larger history is read once: its splits are surveyed, and its events are written to buckets of whole queues on disk.
Each bucket is judged separately, and a bucket that is too large is cut into parts by time. `pipeline` adds up the
results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.memory import give_back_memory, keep_freed_memory
from longpoll_judge.columns.tables import QueueName, joined, queue_names, queue_numbers
from longpoll_judge.evidence.survey import Context, Survey, survey_split
from longpoll_judge.kernel.verdict import judge_window
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import InputSplit, is_cheap, read_ahead, read_split
from longpoll_judge.run.bucket_files import Buckets, open_buckets
from longpoll_judge.run.buckets import WINDOW_EVENTS
from longpoll_judge.run.splits import Extent, extent_of, read_again


@define
class LocalReading:
    """Surveys a history once, and then judges it."""

    _splits: Sequence[InputSplit]
    _engine: LocalEngine
    _stack: ExitStack
    _extents: list[Extent] = field(factory=list)
    _weights: dict[QueueName, int] = field(factory=dict)
    _buckets: Buckets | None = None
    _kept: dict[int, pa.Table] = field(factory=dict)
    """The splits that are kept in memory, by number. A history of one window is kept as a whole."""

    @property
    def _count(self) -> int:
        return sum(extent[0] for extent in self._extents)

    def surveys(self) -> Iterator[Survey]:
        """See `pipeline.Reading.surveys`."""
        threads = self._engine.threads
        for number, (_part, (table, survey)) in enumerate(read_ahead(self._splits, _look_over, threads, threads)):
            self._extents.append(extent_of(table))
            self._kept[number] = table
            _count_queues(table, self._weights)
            if self._buckets is None and self._count > self._engine.window_events:
                # Estimate the events of each queue by assuming that the unread splits are like the splits read so far.
                window = self._engine.window_events
                most = window * len(self._kept) // len(self._splits)
                self._buckets = self._stack.enter_context(open_buckets(self._weights, most, window))
            if self._buckets is not None:
                for kept in self._kept.values():
                    self._buckets.put(kept)
                self._kept.clear()
            yield survey

    def tables(self) -> Iterator[pa.Table]:
        """See `pipeline.Reading.tables`."""
        return map(fill, self._tables())

    def _tables(self) -> Iterator[pa.Table]:
        for number, part in enumerate(self._splits):
            table = self._kept.pop(number, None)
            yield read_again(part, self._extents[number]) if table is None else table

    def verdicts(self, context: Context) -> Iterator[pa.Table]:
        """See `pipeline.Reading.verdicts`."""
        if self._buckets is not None:
            yield from self._buckets.verdicts(context)
        else:
            give_back_memory()
            yield judge_window(joined(self._tables()), context)


def _count_queues(table: pa.Table, counts: dict[QueueName, int]) -> None:
    numbers, rows = queue_numbers(table)
    for name, count in zip(queue_names(table, rows), np.bincount(numbers).tolist(), strict=True):
        counts[name] = counts.get(name, 0) + count


def _look_over(part: InputSplit) -> tuple[pa.Table, Survey]:
    table, damages = read_split(part, sparse=is_cheap(part))
    return table, survey_split(table, damages)


@frozen
class LocalEngine:
    """An engine that judges windows one after the other in this process."""

    threads: int = 2
    window_events: int = WINDOW_EVENTS

    @contextmanager
    def read(self, splits: Sequence[InputSplit]) -> Iterator[LocalReading]:
        """See `pipeline.Engine.read`."""
        keep_freed_memory()
        with ExitStack() as stack:
            yield LocalReading(splits, self, stack)

"""The engine without Spark: the same verdict code over Arrow tables in this process.

It holds the whole history in memory. Leaves out what is judged (`verdict`) and how results are added up (`job`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.arrow import compute
from longpoll_judge.schema import EVENT_SCHEMA
from longpoll_judge.source import Slice, read_slice
from longpoll_judge.survey import Context, Survey, survey_slice
from longpoll_judge.verdict import GROUP_KEY, RESULT_SCHEMA, judge_queue

JUDGED_EVENTS: Final = ("request_received", "answer_sent", "message_acknowledged", "append", "make_visible", "hold")
"""The events that a queue's verdict reads; the others serve the survey, or later properties."""


def read_and_survey(part: Slice) -> tuple[pa.Table, Survey]:
    """Those events of a slice that a queue's verdict reads, and the survey of all of them."""
    table, damages = read_slice(part)
    survey = survey_slice(table, damages)
    return table.filter(compute.is_in(table["event"], pa.array(JUDGED_EVENTS))), survey


@define
class LocalReading:
    """A history read once, in a few threads (Arrow's reader works outside the interpreter's lock)."""

    _slices: Sequence[Slice]
    _threads: int
    _tables: list[pa.Table] = field(factory=list)
    """The judged events of every slice that was surveyed."""

    def surveys(self) -> Iterator[Survey]:
        """See `job.Reading.surveys`."""
        with ThreadPoolExecutor(self._threads) as pool:
            for table, survey in pool.map(read_and_survey, self._slices):
                self._tables.append(table)
                yield survey

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `job.Reading.verdicts`."""
        table = pa.concat_tables([EVENT_SCHEMA.empty_table(), *self._tables])
        self._tables.clear()
        if unplaced:
            table = place_answers(table)
        judged = (judge_queue(group, context) for group in groups(table))
        return pa.concat_tables([RESULT_SCHEMA.empty_table(), *judged])


@frozen
class LocalEngine:
    """Judges queue by queue in this process."""

    threads: int = field(default=2)

    @contextmanager
    def read(self, slices: Sequence[Slice]) -> Iterator[LocalReading]:
        """See `job.Engine.read`."""
        yield LocalReading(slices, self.threads)


def place_answers(table: pa.Table) -> pa.Table:
    """Give answers that name no queue the broker, topic and queue of their request."""
    names = ["source", "request", *GROUP_KEY]
    received = compute.equal(table["event"], "request_received")
    requests = table.select(names).filter(compute.and_(received, compute.greater_equal(table["queue"], 0)))
    requests = requests.group_by(names[:2]).aggregate([(name, "min") for name in GROUP_KEY])
    is_unplaced = compute.and_(compute.equal(table["event"], "answer_sent"), compute.less(table["queue"], 0))
    answers = table.filter(is_unplaced)
    keys = answers.select(names[:2]).append_column("place", pa.array(np.arange(len(answers))))
    found = keys.join(requests, names[:2], join_type="left outer").sort_by("place")
    for name in GROUP_KEY:
        column = compute.coalesce(found[f"{name}_min"], answers[name])
        answers = answers.set_column(answers.schema.get_field_index(name), EVENT_SCHEMA.field(name), column)
    return pa.concat_tables([table.filter(compute.invert(is_unplaced)), answers])


def groups(table: pa.Table) -> Iterator[pa.Table]:
    """The events of each (broker, topic, queue)."""
    if not len(table):
        return
    codes = np.zeros(len(table), dtype=np.int64)
    for name in GROUP_KEY:
        encoded = table[name].combine_chunks().dictionary_encode()
        _distinct, codes = np.unique(codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
        yield table.take(pa.array(order[start:end]))

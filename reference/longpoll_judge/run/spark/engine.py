"""The engine on Spark: workers look over slices and sweep runs of stretches, and read the parts themselves.

No event is shuffled: what travels are a few numbers a slice, result rows, what a run leaves, and eight bytes a
request. Leaves out what is judged (`sweep`, `rest`) and the session (`session`). Parts must lie where every worker and
the driver can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from longpoll_judge.columns.exchange import decode, encode, joined
from longpoll_judge.columns.keys import NO_KEYS, RANGE_KEYS, Keys, ranges_of, repeated, request_keys
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import Slice
from longpoll_judge.run.overview import Overview, overview_of, read_again
from longpoll_judge.run.plan import STRETCH_EVENTS, Plan
from longpoll_judge.run.rest import judge_rest
from longpoll_judge.run.spark.cluster import Running, failures_told, open_cluster, with_settings
from longpoll_judge.run.spark.session import unclosed_sockets_ignored
from longpoll_judge.run.spark.travel import Batches, Work, travelling
from longpoll_judge.run.sweep import Stretches, sweep
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.verdict import queue_rows

_SHUFFLE_PARTITIONS_MIN: Final = 16
TASK_SLICES: Final = 16
"""About the number of slices that one task looks over, or stretches that it sweeps: a task has a cost of its own."""
ROWS: Final = -1
REST: Final = -2
FAULTY: Final = -3
"""What a row of a swept run is, where it is no range of keys: result rows, events, names of queues."""
_COLUMNS: Final = "kind bigint, content binary"
_SCHEMA: Final = pa.schema([("kind", pa.int64()), ("content", pa.binary())])


def _row(kind: int, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([kind], pa.int64()), pa.array([content], pa.binary())], schema=_SCHEMA)


def _looker(slices: Sequence[Slice]) -> Work:
    """What a worker does with the numbers of its slices: it gives an overview of each."""

    def look(batches: Batches) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _row(number, msgspec.msgpack.encode(overview_of(slices[number])))

    return look


def _sweeper(stretches: Stretches, runs: Sequence[tuple[int, int]], context: Context, held: Keys, ranges: int) -> Work:
    """What a worker does with the numbers of its runs."""

    def sweep_all(batches: Batches) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                groups: list[Keys] = []
                swept = sweep(stretches, runs[number], context, held, groups.append)
                yield _row(ROWS, encode_rows(swept.rows))
                yield _row(REST, encode(swept.rest))
                yield _row(FAULTY, msgspec.msgpack.encode(sorted(swept.faulty)))
                for place, keys in enumerate(ranges_of(np.sort(np.concatenate([NO_KEYS, *groups])), ranges)):
                    yield _row(place, keys.tobytes())

    return sweep_all


def encode_rows(rows: pa.Table) -> bytes:
    """Result rows as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@define
class SparkReading:
    """A history that is looked over once, and swept then."""

    _running: Running
    _parallel: int
    _slices: Sequence[Slice]
    _stretch_events: int
    _overviews: list[Overview] = field(factory=list)

    def surveys(self) -> Iterator[Survey]:
        """See `job.Reading.surveys`."""
        count = len(self._slices)
        found = self._map(count, min(count, max(count // TASK_SLICES, self._parallel)), _looker(self._slices))
        with unclosed_sockets_ignored():
            rows = found.toArrow()
        for row in np.argsort(rows["kind"].to_numpy()).tolist():
            content = rows["content"][row].as_buffer()
            self._overviews.append(msgspec.msgpack.decode(content, type=Overview))
            yield self._overviews[-1].survey

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """See `job.Reading.tables`; they are read by the driver."""
        for number, part in enumerate(self._slices):
            yield number, fill(read_again(part, self._overviews[number].extent))

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `job.Reading.verdicts`."""
        plan = Plan(self._overviews, self._stretch_events)
        slices, extents = self._slices, [overview.extent for overview in self._overviews]
        stretches = Stretches(plan, lambda number: read_again(slices[number], extents[number]), unplaced)
        if not plan.stretches:
            return queue_rows([])
        tally, rest, faulty, held = self._sweep(stretches, context, NO_KEYS)
        if len(held):
            tally, rest, faulty, _held = self._sweep(stretches, context, held)
        tally.add(judge_rest(stretches, rest, plan.uneven | faulty, context))
        tally.add(queue_rows(plan.queues))
        return tally.rows()

    def _sweep(
        self, stretches: Stretches, context: Context, held: Keys
    ) -> tuple[Tally, pa.Table, frozenset[tuple[str, str, int]], Keys]:
        """Sweep all stretches; also the keys of requests whose events were judged apart from each other."""
        runs = runs_of(len(stretches.plan.stretches), self._parallel)
        ranges = max(1, sum(overview.survey.event_count for overview in self._overviews) // (2 * RANGE_KEYS))
        swept = self._map(len(runs), len(runs), _sweeper(stretches, runs, context, held, ranges))
        if ranges > 1:
            swept = swept.persist(StorageLevel.MEMORY_AND_DISK)
        tally, rest, faulty, groups = Tally(), [], set(), []
        with unclosed_sockets_ignored():
            told = (swept.filter("kind < 0") if ranges > 1 else swept).toArrow()
        for kind, content in zip(told["kind"].to_pylist(), told["content"], strict=True):
            if kind == ROWS:
                tally.add(decode(content.as_buffer()))
            elif kind == REST:
                rest.append(decode(content.as_buffer()))
            elif kind >= 0:
                groups.append(np.frombuffer(content.as_buffer(), dtype=np.uint64))
            else:
                faulty |= {tuple(name) for name in msgspec.msgpack.decode(content.as_buffer())}
        left = joined(rest)
        keys = np.unique(request_keys(left, np.arange(len(left))))
        if ranges == 1:
            return tally, left, frozenset(faulty), repeated([*groups, keys])
        again = self._repeated(swept, keys, ranges)
        swept.unpersist()  # not after a failure: Spark may be busy or gone then, and ends with its session anyway
        return tally, left, frozenset(faulty), again

    def _repeated(self, swept: DataFrame, others: Keys, ranges: int) -> Keys:
        """The keys that two runs have told, or that are among the others too."""
        other_ranges = ranges_of(others, ranges)

        def find(rows: pa.Table) -> pa.Table:
            groups = [np.frombuffer(content.as_buffer(), dtype=np.uint64) for content in rows["content"]]
            found = repeated([*groups, other_ranges[rows["kind"][0].as_py()]])
            return pa.table({"key": pa.array(found.view(np.int64))})

        work = find if self._running.is_here else travelling(find)
        with unclosed_sockets_ignored():
            keys = swept.filter("kind >= 0").groupBy("kind").applyInArrow(work, "key bigint").toArrow()
        return np.asarray(keys["key"].to_numpy(), dtype=np.int64).view(np.uint64)

    def _map(self, count: int, partitions: int, work: Work) -> DataFrame:
        """The rows that workers give for the numbers from 0 to count."""
        numbers = self._running.session.range(0, count, 1, max(partitions, 1))
        return numbers.mapInArrow(work if self._running.is_here else travelling(work), _COLUMNS)


def runs_of(stretches: int, parallel: int) -> list[tuple[int, int]]:
    """The stretches as runs of about equal length, a multiple of `parallel` of them if there are enough."""
    wanted = -(-max(stretches // TASK_SLICES, 1) // parallel) * parallel
    borders = np.linspace(0, stretches, min(wanted, stretches) + 1).astype(int).tolist()
    return list(pairwise(borders))


@frozen
class SparkEngine:
    """Looks over slices and sweeps stretches as Spark jobs."""

    running: Running
    parallel: int
    """How many tasks run at once."""
    stretch_events: int = STRETCH_EVENTS

    @property
    def session(self) -> SparkSession:
        """The session on which the jobs run."""
        return self.running.session

    @contextmanager
    def read(self, slices: Sequence[Slice]) -> Iterator[SparkReading]:
        """See `job.Engine.read`; a failure is told where it happens, so that who follows may judge again."""
        with failures_told():
            yield SparkReading(self.running, self.parallel, slices, self.stretch_events)


@contextmanager
def open_engine(
    master: str | None = None, conf: Mapping[str, str] | None = None, session: SparkSession | None = None
) -> Iterator[SparkEngine]:
    """An engine on a session of its own, or on another; see `cluster.open_cluster`."""
    with open_cluster(master, conf, session) as running:
        parallel = running.parallel
        partitions = {"spark.sql.shuffle.partitions": str(max(_SHUFFLE_PARTITIONS_MIN, 4 * parallel))}
        with with_settings(running.session, partitions), failures_told():
            yield SparkEngine(running, parallel)

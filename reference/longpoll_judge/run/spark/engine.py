"""The engine on Spark: four named stages, whose tasks read the parts of the history themselves.

| stage | a row in | rows out | exchange |
| --- | --- | --- | --- |
| look over splits | a split | its events, moments and overview | none |
| judge pulls | a window: some windows of time | result rows, requests that are left, keys of requests | none |
| compare requests | the keys | those that two windows have | by range of keys |
| judge sends, ends and commits | a rule | its outcome | none |

No event passes through the JVM: an exchange of whole events costs some four microseconds of processor time each, and
to judge one less than one. What is judged: `window_sweep`, `wide_pulls`. The session: `session`. Parts must lie where
every worker and the driver can read them.
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
from longpoll_judge.read.arrow import compute
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import InputSplit
from longpoll_judge.run.overview import Extent, Overview, overview_of, read_again
from longpoll_judge.run.queue_verdict import RESULT_SCHEMA, queue_rows
from longpoll_judge.run.spark.cluster import Running, failures_told, open_cluster, stage, with_settings
from longpoll_judge.run.spark.code_archive import Batches, Work, travelling
from longpoll_judge.run.spark.session import unclosed_sockets_ignored
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.wide_pulls import Outcome, Rule, judge_rest
from longpoll_judge.run.window_sweep import WindowReader, sweep
from longpoll_judge.run.windows import WINDOW_EVENTS, WindowPlan

_SHUFFLE_PARTITIONS_MIN: Final = 16
TASK_SPLITS: Final = 16
"""About the number of splits that one task looks over, or windows that it sweeps: a task has a cost of its own."""
LEFT: Final = "left"
FAULTY: Final = "faulty"
KEYS: Final = "keys"
"""Kinds of rows of a window besides those of `RESULT_SCHEMA`: events of requests that are left, the names of queues
whose log may be at fault, and keys of requests; `bucket` is the range that these are of."""
PACKED: Final = pa.schema([*RESULT_SCHEMA, ("content", pa.binary())])
SPLITS: Final = pa.schema(
    [
        ("split", pa.int64()),
        ("events", pa.int64()),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("overview", pa.binary()),
    ]
)
OUTCOMES: Final = pa.schema([("rule", pa.int64()), ("findings", pa.int64()), ("outcome", pa.binary())])
_SQL_TYPES: Final = {pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary"}


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {_SQL_TYPES[column.type]}" for column in schema)


def _each(batches: Batches) -> Iterator[int]:
    """The numbers that a task was given."""
    keep_freed_memory()
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _looker(splits: Sequence[InputSplit]) -> Work:
    """What a task does with the numbers of its splits: it gives an overview of each."""

    def look(batches: Batches) -> Iterator[pa.RecordBatch]:
        for number in _each(batches):
            overview = overview_of(splits[number])
            count, first_ns, last_ns, _sum = overview.extent
            row = [number, count, first_ns, last_ns, msgspec.msgpack.encode(overview)]
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=SPLITS)

    return look


def _sweeper(windows: WindowReader, runs: Sequence[tuple[int, int]], context: Context, held: Keys, ranges: int) -> Work:
    """What a task does with the numbers of its windows."""

    def packed(kind: str, bucket: int, content: bytes) -> pa.RecordBatch:
        row = [[kind], [bucket], [1], [""], [content]]
        return pa.RecordBatch.from_arrays(
            [pa.array(value, column.type) for value, column in zip(row, PACKED, strict=True)], schema=PACKED
        )

    def sweep_all(batches: Batches) -> Iterator[pa.RecordBatch]:
        for number in _each(batches):
            groups: list[Keys] = []
            swept = sweep(windows, runs[number], context, held, groups.append)
            nothing = pa.nulls(len(swept.rows), pa.binary())
            yield from swept.rows.append_column("content", nothing).cast(PACKED).to_batches()
            yield packed(LEFT, 0, encode(swept.rest))
            yield packed(FAULTY, 0, msgspec.msgpack.encode(sorted(swept.faulty)))
            for place, keys in enumerate(ranges_of(np.sort(np.concatenate([NO_KEYS, *groups])), ranges)):
                yield packed(KEYS, place, keys.tobytes())

    return sweep_all


def _ruler(splits: Sequence[InputSplit], extents: Sequence[Extent], rules: Sequence[Rule], context: Context) -> Work:
    """What a task does with the numbers of its rules."""

    def tables() -> Iterator[tuple[int, pa.Table]]:
        for number, part in enumerate(splits):
            yield number, fill(read_again(part, extents[number]))

    def judge(batches: Batches) -> Iterator[pa.RecordBatch]:
        for number in _each(batches):
            outcome = rules[number](tables, context)
            row = [number, len(outcome.findings), msgspec.msgpack.encode(outcome)]
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=OUTCOMES)

    return judge


@define
class SparkReading:
    """A history that is looked over once, and swept then."""

    _running: Running
    _parallel: int
    _splits: Sequence[InputSplit]
    _window_events: int
    _overviews: list[Overview] = field(factory=list)

    def surveys(self) -> Iterator[Survey]:
        """See `pipeline.Reading.surveys`."""
        with stage(self._running, f"look over {len(self._splits)} splits"), unclosed_sockets_ignored():
            rows = self.looked_over().toArrow()
        for row in np.argsort(rows["split"].to_numpy()).tolist():
            content = rows["overview"][row].as_buffer()
            self._overviews.append(msgspec.msgpack.decode(content, type=Overview))
            yield self._overviews[-1].survey

    def looked_over(self) -> DataFrame:
        """A row a split, of `SPLITS`."""
        count = len(self._splits)
        tasks = min(count, max(count // TASK_SPLITS, self._parallel))
        return self._map("split", count, tasks, _looker(self._splits), SPLITS)

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """See `pipeline.Reading.tables`; they are read by the driver."""
        for number, part in enumerate(self._splits):
            yield number, fill(read_again(part, self._overviews[number].extent))

    def outcomes(self, rules: Sequence[Rule], context: Context) -> list[Outcome]:
        """See `pipeline.Reading.outcomes`; each rule is a task."""
        extents = [overview.extent for overview in self._overviews]
        found = self._map("rule", len(rules), len(rules), _ruler(self._splits, extents, rules, context), OUTCOMES)
        with stage(self._running, "judge sends, ends and commits"), unclosed_sockets_ignored():
            rows = found.toArrow().sort_by("rule")
        return [msgspec.msgpack.decode(outcome.as_buffer(), type=Outcome) for outcome in rows["outcome"]]

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `pipeline.Reading.verdicts`."""
        plan = WindowPlan(self._overviews, self._window_events)
        splits, extents = self._splits, [overview.extent for overview in self._overviews]
        windows = WindowReader(plan, lambda number: read_again(splits[number], extents[number]), unplaced)
        if not plan.windows:
            return queue_rows([])
        tally, rest, faulty, held = self._sweep(windows, context, NO_KEYS)
        if len(held):
            tally, rest, faulty, _held = self._sweep(windows, context, held)
        tally.add(judge_rest(windows, rest, plan.uneven | faulty, context))
        tally.add(queue_rows(plan.queues))
        return tally.rows()

    def _sweep(
        self, windows: WindowReader, context: Context, held: Keys
    ) -> tuple[Tally, pa.Table, frozenset[tuple[str, str, int]], Keys]:
        """Sweep all windows; also the keys of requests whose events were judged apart from each other."""
        runs = runs_of(len(windows.plan.windows), self._parallel)
        ranges = max(1, sum(overview.survey.event_count for overview in self._overviews) // (2 * RANGE_KEYS))
        swept = self._map("window", len(runs), len(runs), _sweeper(windows, runs, context, held, ranges), PACKED)
        if ranges > 1:
            swept = swept.persist(StorageLevel.MEMORY_AND_DISK)
        tally, rest, faulty, groups = Tally(), [], set(), []
        with stage(self._running, f"judge pulls in {len(runs)} windows"), unclosed_sockets_ignored():
            told = (swept.filter(f"kind <> '{KEYS}'") if ranges > 1 else swept).toArrow()
        is_packed = compute.is_valid(told["content"])
        tally.add(told.filter(compute.invert(is_packed)).select(RESULT_SCHEMA.names))
        packed = told.filter(is_packed)
        for kind, content in zip(packed["kind"].to_pylist(), packed["content"], strict=True):
            if kind == LEFT:
                rest.append(decode(content.as_buffer()))
            elif kind == KEYS:
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
            found = repeated([*groups, other_ranges[rows["bucket"][0].as_py()]])
            return pa.table({"key": pa.array(found.view(np.int64))})

        work = find if self._running.is_here else travelling(find)
        shared = swept.filter(f"kind = '{KEYS}'").groupBy("bucket").applyInArrow(work, "key bigint")
        with stage(self._running, "compare requests of windows"), unclosed_sockets_ignored():
            keys = shared.toArrow()
        return np.asarray(keys["key"].to_numpy(), dtype=np.int64).view(np.uint64)

    def _map(self, name: str, count: int, partitions: int, work: Work, schema: pa.Schema) -> DataFrame:
        """The rows that tasks give for the numbers from 0 to count, which the plan calls by this name."""
        numbers = self._running.session.range(0, count, 1, max(partitions, 1)).withColumnRenamed("id", name)
        return numbers.mapInArrow(work if self._running.is_here else travelling(work), _ddl(schema))


def runs_of(windows: int, parallel: int) -> list[tuple[int, int]]:
    """The windows as runs of about equal length, a multiple of `parallel` of them if there are enough."""
    wanted = -(-max(windows // TASK_SPLITS, 1) // parallel) * parallel
    borders = np.linspace(0, windows, min(wanted, windows) + 1).astype(int).tolist()
    return list(pairwise(borders))


@frozen
class SparkEngine:
    """Looks over splits and sweeps windows as Spark jobs."""

    running: Running
    parallel: int
    """How many tasks run at once."""
    window_events: int = WINDOW_EVENTS

    @property
    def session(self) -> SparkSession:
        """The session on which the jobs run."""
        return self.running.session

    @contextmanager
    def read(self, splits: Sequence[InputSplit]) -> Iterator[SparkReading]:
        """See `pipeline.Engine.read`; a failure is told where it happens, so that who follows may judge again."""
        with failures_told():
            yield SparkReading(self.running, self.parallel, splits, self.window_events)


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

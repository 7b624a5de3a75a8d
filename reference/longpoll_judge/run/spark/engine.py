"""Judges on Spark: a pipeline of named stages from scans of the history to rows of findings and counts.

| stage | scan | then | exchange |
| --- | --- | --- | --- |
| survey splits | `longpoll-splits`: statistics of each input split | | none |
| judge pulls | `longpoll-events`: requests and logs | judge groups of queues, window by window | by queue group |
| compare requests | rows of the stage before, persisted | requests that two groups judged | by key of request |
| judge sends, ends and commits | a row for each rule and part | each reads the splits itself | none |

Both scans are Python data sources whose executors read the parts. Spark 4.0 cannot tell such a source which columns a
query uses, so the caller names them in the schema. They work on workers that have none of our packages
(`code_archive`), unlike those for users (`read.data_sources`).

What is judged: `queue_groups`, `wide_pulls`, `rules`. The session: `session`. Parts must lie where every worker and
the driver can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from longpoll_judge.columns.keys import NO_KEYS, Keys
from longpoll_judge.columns.lookup import are_of
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import LISTS, NAMES, PLAIN_SCHEMA, coded, compute, fill, has_column
from longpoll_judge.read.source import InputSplit
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.queue_verdict import LOG_EVENTS, queue_rows
from longpoll_judge.run.spark.code_archive import Batches, Function, Work, travelling
from longpoll_judge.run.spark.queue_groups import (
    FAULTY,
    JUDGED_KEY,
    LEFT,
    LEFT_KEY,
    PULL_COLUMNS,
    SWEPT,
    QueueGroups,
    faulty_queues,
    group_judge,
    left_events,
    queue_groups,
)
from longpoll_judge.run.spark.session import (
    Running,
    failures_told,
    open_cluster,
    stage,
    unclosed_sockets_ignored,
    with_settings,
)
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.wide_pulls import Outcome, RuleTask, judge_rest
from longpoll_judge.run.window_sweep import WindowReader
from longpoll_judge.run.windows import WINDOW_EVENTS, Extent, Overview, WindowPlan, overview_of, read_again

SPLITS: Final = pa.schema(
    [
        ("split", pa.int64()),
        ("events", pa.int64()),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("overview", pa.binary()),
    ]
)
"""The statistics of a split: `overview` is an `Overview` as MessagePack."""
_SQL_TYPES: Final = {pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean"}
BATCH_EVENTS: Final = 20_000
"""Rows of an Arrow batch: some MB."""
_registering: Final = Lock()

Read = Callable[[bytes], Iterator[pa.RecordBatch]]


def ddl_of(schema: pa.Schema) -> str:
    """The schema as Spark writes it."""
    return ", ".join(f"`{column.name}` {sql_type(column.type)}" for column in schema)


def sql_type(kind: pa.DataType) -> str:
    """A type of `PLAIN_SCHEMA` or of a result as Spark writes it."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{column.name}`: {sql_type(column.type)}' for column in kind)}>"
    return _SQL_TYPES.get(kind, "array<bigint>")


def scan(session: SparkSession, source: str, schema: pa.Schema, parts: Sequence[bytes], read: Read) -> DataFrame:
    """The rows that `read` gives of each of the parts, a Spark partition each; Spark shows the name of the source."""
    ddl = ddl_of(schema)

    class EventReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(part) for part in parts]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield from read(partition.value)

    class EventSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def schema(self) -> str:
            return ddl

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
            return EventReader()

    with _registering:  # the name stands for another history after the next registration
        session.dataSource.register(EventSource)
        return session.read.format(source).load()


def read_statistics(part: bytes) -> Iterator[pa.RecordBatch]:
    """A row of `SPLITS` for each of some numbered splits."""
    keep_freed_memory()
    for number, split in msgspec.msgpack.decode(part, type=list[tuple[int, InputSplit]]):
        overview = overview_of(split)
        count, first_ns, last_ns, _sum = overview.extent
        row = [number, count, first_ns, last_ns, msgspec.msgpack.encode(overview)]
        yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=SPLITS)


def event_schema(columns: Sequence[str]) -> pa.Schema:
    """Events with these columns, and the number of the window that each is in."""
    return pa.schema([*(PLAIN_SCHEMA.field(name) for name in columns), ("window", pa.int64())])


def event_reader(columns: Sequence[str]) -> Read:
    """Reads the events of requests and logs; see `event_schema`. A column is null where it has its default in a batch.

    A part is a list of (window, split, extent). The reader raises `HistoryChangedError` where a split has other events
    than when it was surveyed.
    """

    def read(part: bytes) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for window, split, extent in msgspec.msgpack.decode(part, type=list[tuple[int, InputSplit, Extent]]):
            table = read_again(split, extent)
            codes, names = coded(table, "event")
            is_judged = are_of(codes, names, (*REQUEST_EVENTS, *LOG_EVENTS))
            if not is_judged.all():
                table = table.filter(pa.array(is_judged))
            values = [_plain(table, name) for name in columns]
            values.append(pa.repeat(pa.scalar(window, pa.int64()), len(table)))
            yield from pa.table(values, schema=event_schema(columns)).to_batches(BATCH_EVENTS)

    return read


def _plain(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column as Spark has it, all null where no event has a value."""
    kind = PLAIN_SCHEMA.field(name).type
    if not has_column(table, name):
        return pa.nulls(len(table), kind)
    column = table[name]
    if name in NAMES and all(chunk.dictionary.to_pylist() == [""] for chunk in column.chunks):
        return pa.nulls(len(table), kind)
    if name in LISTS and len(table) and not compute.max(compute.list_value_length(column)).as_py():
        return pa.nulls(len(table), kind)
    return column.cast(kind)


_SHUFFLE_PARTITIONS_MIN: Final = 16
TASK_SPLITS: Final = 16
"""About the number of splits that one task reads: a task has a cost of its own."""
OUTCOMES: Final = pa.schema(
    [("task", pa.int64()), ("rule", pa.string()), ("findings", pa.int64()), ("outcome", pa.binary())]
)


def _ruler(
    splits: Sequence[InputSplit], extents: Sequence[Extent], tasks: Sequence[RuleTask], context: Context
) -> Work:
    """The work of a Spark task on the numbers of its rule tasks."""

    def tables(numbers: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
        for number in numbers:
            yield number, fill(read_again(splits[number], extents[number]))

    def judge(batches: Batches) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for task in (task for batch in batches for task in batch.column(0).to_pylist()):
            name, rule, numbers = tasks[task]
            outcome = rule(partial(tables, numbers), context)
            row = [task, name, len(outcome.findings), msgspec.msgpack.encode(outcome)]
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=OUTCOMES)

    return judge


@define
class SparkReading:
    """A history whose splits are surveyed first, and whose events are judged then."""

    _running: Running
    _parallel: int
    _splits: Sequence[InputSplit]
    _window_events: int
    _overviews: list[Overview] = field(factory=list)

    def surveys(self) -> Iterator[Survey]:
        """See `pipeline.Reading.surveys`."""
        with stage(self._running, f"survey {len(self._splits)} splits"), unclosed_sockets_ignored():
            rows = self.statistics().toArrow()
        for row in np.argsort(rows["split"].to_numpy()).tolist():
            content = rows["overview"][row].as_buffer()
            self._overviews.append(msgspec.msgpack.decode(content, type=Overview))
            yield self._overviews[-1].survey

    def statistics(self) -> DataFrame:
        """A row of `SPLITS` for each split."""
        parts = self._parts(list(enumerate(self._splits)))
        return scan(self._running.session, "longpoll-splits", SPLITS, parts, self._shipped(read_statistics))

    def events(self, plan: WindowPlan) -> DataFrame:
        """The events of requests and logs with the columns `PULL_COLUMNS`, and the window that each is in."""
        window = {number: window for window, numbers in enumerate(plan.windows) for number in numbers}
        read = [(window[number], part, self._overviews[number].extent) for number, part in enumerate(self._splits)]
        schema, reader = event_schema(PULL_COLUMNS), self._shipped(event_reader(PULL_COLUMNS))
        return scan(self._running.session, "longpoll-events", schema, self._parts(read), reader)

    def judged(
        self,
        plan: WindowPlan,
        context: Context,
        held: Keys = NO_KEYS,
        *,
        unplaced: bool,
        groups: QueueGroups | None = None,
    ) -> DataFrame:
        """Rows of `SWEPT`: what comes of all pulls but those with a key in `held`."""
        groups = groups or queue_groups(plan, self._parallel, unplaced=unplaced)
        work = self._shipped(group_judge(groups, plan, context, held, unplaced=unplaced))
        return groups.keyed(self.events(plan)).mapInArrow(work, ddl_of(SWEPT))

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """See `pipeline.Reading.tables`; the driver reads them."""
        for number, part in enumerate(self._splits):
            yield number, fill(read_again(part, self._overviews[number].extent))

    def outcomes(self, tasks: Sequence[RuleTask], context: Context) -> list[Outcome]:
        """See `pipeline.Reading.outcomes`; each is a Spark task."""
        extents = [overview.extent for overview in self._overviews]
        work = self._shipped(_ruler(self._splits, extents, tasks, context))
        numbers = self._running.session.range(0, len(tasks), 1, max(len(tasks), 1)).withColumnRenamed("id", "task")
        with stage(self._running, "judge sends, ends and commits"), unclosed_sockets_ignored():
            rows = numbers.mapInArrow(work, ddl_of(OUTCOMES)).toArrow().sort_by("task")
        return [msgspec.msgpack.decode(outcome.as_buffer(), type=Outcome) for outcome in rows["outcome"]]

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `pipeline.Reading.verdicts`."""
        plan = WindowPlan(self._overviews, self._window_events)
        if not plan.windows:
            return queue_rows([])
        rows, again = self._swept(plan, context, NO_KEYS, unplaced=unplaced)
        if len(again):
            rows, _again = self._swept(plan, context, again, unplaced=unplaced)
        kind = rows["kind"]
        tally = Tally()
        tally.add(rows.filter(compute.invert(compute.is_in(kind, value_set=pa.array([LEFT, FAULTY])))))
        left = left_events(rows.filter(compute.equal(kind, LEFT)))
        faulty = plan.uneven | faulty_queues(rows.filter(compute.equal(kind, FAULTY)))
        splits, extents = self._splits, [overview.extent for overview in self._overviews]
        windows = WindowReader(plan, lambda number: read_again(splits[number], extents[number]), unplaced)
        tally.add(judge_rest(windows, left, faulty, context))
        tally.add(queue_rows(plan.queues))
        return tally.rows()

    def _swept(self, plan: WindowPlan, context: Context, held: Keys, *, unplaced: bool) -> tuple[pa.Table, Keys]:
        """The rows of all groups without keys; and the keys of requests whose events two groups have judged or left."""
        swept = self.judged(plan, context, held, unplaced=unplaced).persist(StorageLevel.MEMORY_AND_DISK)
        with stage(self._running, f"judge pulls in {len(plan.windows)} windows"), unclosed_sockets_ignored():
            rows = swept.where(f"kind NOT IN ('{JUDGED_KEY}', '{LEFT_KEY}')").toArrow()
        with stage(self._running, "compare requests of queue groups"), unclosed_sockets_ignored():
            keys = repeated_keys(swept).toArrow()
        swept.unpersist()  # not after a failure: Spark may be busy or gone then, and ends with its session anyway
        return rows, np.asarray(keys["key"].to_numpy(), dtype=np.int64).view(np.uint64)

    def _parts(self, numbered: Sequence[object]) -> list[bytes]:
        """Some splits of each task."""
        count = len(numbered)
        tasks = max(min(count, max(count // TASK_SPLITS, self._parallel)), 1)
        borders = np.linspace(0, count, tasks + 1).astype(int).tolist()
        return [msgspec.msgpack.encode(numbered[start:end]) for start, end in pairwise(borders)]

    def _shipped(self, work: Function) -> Function:
        """The work, with our packages where the workers may have none."""
        return work if self._running.is_here else travelling(work)


def repeated_keys(swept: DataFrame) -> DataFrame:
    """The keys of requests that were judged twice, or judged and left."""
    keys = swept.where(f"kind IN ('{JUDGED_KEY}', '{LEFT_KEY}')")
    judged = keys.selectExpr(
        "key", f"IF(kind = '{JUDGED_KEY}', 1L, 0L) AS judged", f"IF(kind = '{LEFT_KEY}', 1, 0) AS is_left"
    )
    counted = judged.groupBy("key").agg({"judged": "sum", "is_left": "max"})
    return counted.where("`sum(judged)` > 0 AND `sum(judged)` + `max(is_left)` > 1").select("key")


@frozen
class SparkEngine:
    """Surveys splits and judges events as Spark jobs."""

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
        """See `pipeline.Engine.read`; a failure is raised here, so that a follower may judge again."""
        with failures_told():
            yield SparkReading(self.running, self.parallel, splits, self.window_events)


@contextmanager
def open_engine(
    master: str | None = None, conf: Mapping[str, str] | None = None, session: SparkSession | None = None
) -> Iterator[SparkEngine]:
    """An engine on a new session or an existing one; see `session.open_cluster`."""
    with open_cluster(master, conf, session) as running:
        parallel = running.parallel
        partitions = {"spark.sql.shuffle.partitions": str(max(_SHUFFLE_PARTITIONS_MIN, 4 * parallel))}
        with with_settings(running.session, partitions), failures_told():
            yield SparkEngine(running, parallel)

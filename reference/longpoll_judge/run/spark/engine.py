"""Judges on Spark: the events cross by bucket of queues, packed as columns, and the kernel judges each bucket.

| stage | scan | then | exchange |
| --- | --- | --- | --- |
| survey splits | `longpoll-splits`: statistics of each input split | | none |
| compare requests | `longpoll-events`: a row for each split and bucket | requests of several buckets | by key |
| judge buckets | the same rows, and events of such requests | the kernel | by bucket |

A row of `longpoll-events` holds the events of one split and bucket as a compressed Arrow stream, in which each text is
kept once: a row for each event costs the Java process several times what judging it costs. Both scans are Python data
sources whose executors read the parts. They work on workers that have none of our packages (`code_archive`), unlike
those for users (`read.data_sources`). What is judged: `kernel`, `run.buckets`. The session: `session`. Parts must lie
where every worker and the driver can read them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from pyspark import StorageLevel, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from longpoll_judge.columns.keys import ranges_of
from longpoll_judge.columns.lookup import distinct
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.columns.tables import decode, encode, joined
from longpoll_judge.evidence.survey import Context, OwnProperty, Survey, survey_split
from longpoll_judge.kernel.rows import RESULT_SCHEMA
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import InputSplit, read_split
from longpoll_judge.run.buckets import (
    SHARED,
    WINDOW_EVENTS,
    are_in,
    in_buckets,
    judge_bucket,
    keys_of,
    shared_by,
    visitors_of,
)
from longpoll_judge.run.spark.code_archive import Batches, Function, Work, travelling
from longpoll_judge.run.spark.session import (
    Running,
    failures_told,
    open_cluster,
    stage,
    with_settings,
)
from longpoll_judge.run.splits import Extent, extent_of, read_again

SPLITS: Final = pa.schema([("split", pa.int64()), ("events", pa.int64()), ("survey", pa.binary())])
"""The statistics of a split: `survey` is its extent and a `Survey` as MessagePack."""
EVENTS: Final = pa.schema(
    [("kind", pa.string()), ("place", pa.int64()), ("events", pa.int64()), ("content", pa.binary())]
)
"""Packed events, of kind `events` by bucket; or keys of requests and their buckets, of kind `keys` by range of keys."""
_SQL_TYPES: Final = {pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean"}
_registering: Final = Lock()
Read = Callable[[bytes], Iterator[pa.RecordBatch]]


def ddl_of(schema: pa.Schema) -> str:
    """The schema as Spark writes it."""
    return ", ".join(f"`{column.name}` {sql_type(column.type)}" for column in schema)


def sql_type(kind: pa.DataType) -> str:
    """A type of `PLAIN_SCHEMA` or of a result as Spark writes it."""
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

    with _registering:  # the next registration gives this name to another history
        session.dataSource.register(EventSource)
        return session.read.format(source).load()


def row_of(schema: pa.Schema, *values: object) -> pa.RecordBatch:
    """One row."""
    columns = [pa.array([value], column.type) for value, column in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read_statistics(part: bytes) -> Iterator[pa.RecordBatch]:
    """A row of `SPLITS` for each of some numbered splits."""
    keep_freed_memory()
    for number, split in msgspec.msgpack.decode(part, type=list[tuple[int, InputSplit]]):
        table, damages = read_split(split)
        told = extent_of(table), survey_split(fill(table), damages)
        yield row_of(SPLITS, number, len(table), msgspec.msgpack.encode(told))


def event_reader(buckets: int) -> Read:
    """Reads rows of `EVENTS`, of parts that are lists of (split, extent).

    The reader raises `HistoryChangedError` where a split has other events than when it was surveyed.
    """

    def read(part: bytes) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for split, extent in msgspec.msgpack.decode(part, type=list[tuple[InputSplit, Extent]]):
            for bucket, events, is_own in in_buckets(read_again(split, extent), buckets):
                yield row_of(EVENTS, "events", bucket, len(events), encode(events))
                for place, keys in enumerate(ranges_of(distinct(keys_of(events)), buckets) if is_own else ()):
                    told = pa.table([keys.view(np.int64), np.full(len(keys), bucket)], SHARED)
                    yield row_of(EVENTS, "keys", place, len(keys), _packed(told))

    return read


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _contents(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """The place and the content of each row of `EVENTS`."""
    for batch in batches:
        for place, content in zip(batch.column("place").to_pylist(), batch.column("content"), strict=True):
            yield place, decode(content.as_buffer())


def find_shared(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Of keys that come in several buckets, each with each of them."""
    told = [table for _place, table in _contents(batches)]
    yield from shared_by(pa.concat_tables([SHARED.empty_table(), *told])).to_batches()


def _by_bucket(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """The buckets, all of whose rows are in one partition, with their events."""
    keep_freed_memory()
    waiting: dict[int, list[pa.Table]] = {}
    for bucket, table in _contents(batches):
        waiting.setdefault(bucket, []).append(table)
    for bucket in sorted(waiting):
        yield bucket, joined(waiting.pop(bucket))


def find_visitors(buckets: int, shared: pa.Table) -> Work:
    """Finds the events that other buckets need, too: rows of `EVENTS` for each of these."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        for bucket, table in _by_bucket(batches):
            # Some events of other buckets are here, which must not come back to their own.
            own = table.filter(pa.array(are_in(fill(table), bucket, buckets)))
            for other, events in visitors_of(own, bucket, shared):
                yield row_of(EVENTS, "events", other, len(events), encode(events))

    return work


def bucket_judge(buckets: int, context: Context) -> Work:
    """Judges buckets; gives rows of `RESULT_SCHEMA`."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        for bucket, table in _by_bucket(batches):
            yield from judge_bucket(table, bucket, buckets, context).to_batches()

    return work


def _travel_by_value(own: OwnProperty) -> None:
    """Let a property of the caller go to workers as it is: its module need not be there."""
    module = sys.modules.get(getattr(own, "__module__", ""))
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


TASK_SPLITS: Final = 16
"""About the number of splits that one task reads: each task has its own cost."""
BUCKETS: Final = 3
"""Buckets for each task that runs at once, so that tasks end at about the same time."""


@define
class SparkReading:
    """A history whose splits are surveyed first, and whose events are judged then."""

    _running: Running
    _parallel: int
    _splits: Sequence[InputSplit]
    _window_events: int
    _extents: list[Extent] = field(factory=list)

    def surveys(self) -> Iterator[Survey]:
        """See `pipeline.Reading.surveys`."""
        with stage(self._running, f"survey {len(self._splits)} splits"):
            rows = self.statistics().toArrow()
        for row in np.argsort(rows["split"].to_numpy()).tolist():
            extent, survey = msgspec.msgpack.decode(rows["survey"][row].as_buffer(), type=tuple[Extent, Survey])
            self._extents.append(extent)
            yield survey

    def statistics(self) -> DataFrame:
        """A row of `SPLITS` for each split."""
        parts = self._parts(list(enumerate(self._splits)))
        return scan(self._running.session, "longpoll-splits", SPLITS, parts, self._shipped(read_statistics))

    @property
    def buckets(self) -> int:
        """How many buckets the queues are put into."""
        events = sum(extent[0] for extent in self._extents)
        return max(BUCKETS * self._parallel, -(-events // self._window_events))

    def events(self) -> DataFrame:
        """Rows of `EVENTS`."""
        read = list(zip(self._splits, self._extents, strict=True))
        reader = self._shipped(event_reader(self.buckets))
        return scan(self._running.session, "longpoll-events", EVENTS, self._parts(read), reader)

    def tables(self) -> Iterator[pa.Table]:
        """See `pipeline.Reading.tables`; the driver reads them."""
        for part, extent in zip(self._splits, self._extents, strict=True):
            yield fill(read_again(part, extent))

    def verdicts(self, context: Context) -> Iterator[pa.Table]:
        """See `pipeline.Reading.verdicts`."""
        if not self._splits:
            return
        rows = self.events().persist(StorageLevel.MEMORY_AND_DISK)
        events = rows.where("kind = 'events'")
        with stage(self._running, "compare requests"):
            keys = rows.where("kind = 'keys'").repartition("place")
            shared = keys.mapInArrow(self._shipped(find_shared), ddl_of(SHARED)).toArrow()
        if len(shared):
            visitors = events.repartition("place").mapInArrow(
                self._shipped(find_visitors(self.buckets, shared)), ddl_of(EVENTS)
            )
            events = events.union(visitors)
        for own in context.own:
            _travel_by_value(own)
        work = self._shipped(bucket_judge(self.buckets, context))
        with stage(self._running, f"judge {self.buckets} buckets"):
            yield events.repartition("place").mapInArrow(work, ddl_of(RESULT_SCHEMA)).toArrow()
        rows.unpersist()  # not after a failure: Spark may be busy or gone then, and ends with its session anyway

    def _parts(self, numbered: Sequence[object]) -> list[bytes]:
        """Some splits of each task."""
        count = len(numbered)
        tasks = max(min(count, max(count // TASK_SPLITS, self._parallel)), 1)
        borders = np.linspace(0, count, tasks + 1).astype(int).tolist()
        return [msgspec.msgpack.encode(numbered[start:end]) for start, end in pairwise(borders)]

    def _shipped(self, work: Function) -> Function:
        """The work, with our packages where the workers may have none."""
        return work if self._running.is_here else travelling(work)


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
        partitions = {"spark.sql.shuffle.partitions": str(BUCKETS * parallel)}
        with with_settings(running.session, partitions), failures_told():
            yield SparkEngine(running, parallel)

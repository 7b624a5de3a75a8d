"""Judges on Spark: events are exchanged by bucket of queues, packed as columns, and the kernel judges each bucket.

| stage | scan | exchange | then |
| --- | --- | --- | --- |
| survey splits | `longpoll-splits`: statistics and hashed requests | by range of hashes | requests of several queues |
| judge buckets | `longpoll-events`: a row for each split and bucket | by bucket | the kernel |

If requests or messages have events in several buckets, their events are exchanged twice: a second exchange brings them
to the other buckets.

A row of `longpoll-events` holds the events of one split and bucket as a compressed Arrow stream, in which each text is
stored once, because one row for each event would cost the Java process several times as much as judging the events.
Both scans are Python data sources whose executors read the parts. The scans work on workers that have none of our
packages (`code_archive`), unlike the data source for users (`read.data_sources`). `run.buckets` defines the buckets,
`session` opens the session. Every worker and the driver must be able to read the parts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from operator import itemgetter
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from pyspark import StorageLevel, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from longpoll_judge.columns.keys import KEY_BITS, NO_KEYS, PLACE_BITS, Keys, ranges_of, shared
from longpoll_judge.columns.lookup import Integers
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.columns.tables import Codec, decode, encode, joined, queue_names, queue_numbers
from longpoll_judge.evidence.survey import Context, OwnProperty, Survey, survey_split
from longpoll_judge.kernel.rows import RESULT_SCHEMA
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import InputSplit, is_cheap, read_split
from longpoll_judge.run.buckets import (
    WINDOW_EVENTS,
    are_in,
    connection_ends,
    in_buckets,
    judge_bucket,
    placed_keys,
    slot_of,
    visitors_of,
)
from longpoll_judge.run.parts import (
    PartWindow,
    Piece,
    borders_of,
    open_parts,
    read_pieces,
    sample_of,
    write_piece,
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

ROWS: Final = pa.schema([("kind", pa.string()), ("place", pa.int64()), ("content", pa.binary())])
"""A row of a scan.

The kinds are: `survey` (the extent of the split `place` and its `Survey` as MessagePack), `keys` (hashed requests in
the range `place`), `ends` (the ends of connections), `events` (the events of the bucket `place`), `part` (a part of a
bucket that was cut), and `rows` (the results of a bucket that was not cut)."""
_registering: Final = Lock()
Read = Callable[[bytes], Iterator[pa.RecordBatch]]


def scan(session: SparkSession, source: str, parts: Sequence[bytes], read: Read) -> DataFrame:
    """Returns a DataFrame of the rows that `read` yields for each part; each part is a partition.

    Spark shows `source` as the name of the scan.
    """

    class EventReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(part) for part in parts]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield from read(partition.value)

    class EventSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def schema(self) -> StructType:
            return from_arrow_schema(ROWS)

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
            return EventReader()

    with _registering:  # Registering a data source replaces any other of the same name.
        session.dataSource.register(EventSource)
        return session.read.format(source).load()


def row_of(*values: object, schema: pa.Schema = ROWS) -> pa.RecordBatch:
    """Returns a batch with one row."""
    columns = [pa.array([value], column.type) for value, column in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def statistics_reader(ranges: int) -> Read:
    """Returns a reader of the statistics of numbered splits, and of the keys of their requests in `ranges` ranges."""

    def read(part: bytes) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for number, split in msgspec.msgpack.decode(part, type=list[tuple[int, InputSplit]]):
            table, damages = read_split(split, sparse=is_cheap(split))
            told = extent_of(table), survey_split(table, damages), _largest(table)
            yield row_of("survey", number, msgspec.msgpack.encode(told))
            for place, keys in enumerate(ranges_of(placed_keys(table, slot_of), ranges)):
                yield row_of("keys", place, keys.tobytes())
            yield row_of("ends", -1, encode(connection_ends(table)))

    return read


def _largest(table: pa.Table) -> dict[int, int]:
    numbers, rows = queue_numbers(table)
    counts = np.bincount(numbers, minlength=len(rows))
    largest = np.argsort(-counts, kind="stable")[:LARGEST]
    names = queue_names(table, rows[largest])
    found = Counter[int]()
    for name, count in zip(names, counts[largest].tolist(), strict=True):
        found[slot_of(name)] += count
    return found


def event_reader(buckets: int) -> Read:
    """Returns a reader of events by bucket. The input of each task is a list of pairs (split, extent).

    The reader raises `HistoryChangedError` if a split has changed since it was surveyed.
    """

    def read(part: bytes) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for split, extent in msgspec.msgpack.decode(part, type=list[tuple[InputSplit, Extent]]):
            for bucket, events, _is_own in in_buckets(read_again(split, extent), buckets):
                if len(events):
                    yield row_of("events", bucket, encode(events, CODEC))

    return read


def _rows(batches: Batches) -> Iterator[tuple[str, int, pa.Buffer]]:
    for batch in batches:
        kinds, places = (batch.column(name).to_pylist() for name in ("kind", "place"))
        contents = (content.as_buffer() for content in batch.column("content"))
        yield from zip(kinds, places, contents, strict=True)


def compare(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Pass on the surveys, and merge the other rows of several splits into one row for each kind."""
    keys, ends = list[Keys](), list[pa.Table]()
    for kind, place, content in _rows(batches):
        if kind == "survey":
            yield row_of(kind, place, content.to_pybytes())
        elif kind == "keys":
            keys.append(np.frombuffer(content, dtype=np.uint64))
        else:
            ends.append(decode(content))
    yield row_of("keys", 0, shared(keys).tobytes())
    if ends:
        yield row_of("ends", -1, encode(connection_ends(joined(ends), is_whole=True)))


def _by_bucket(batches: Batches) -> Iterator[tuple[int, Iterator[pa.Table]]]:
    """Yields each bucket with its events; all rows of a bucket are in one partition.

    The events wait in their compressed form, which takes a fifth of the memory, until it is their bucket's turn.
    """
    keep_freed_memory()
    waiting: dict[int, list[bytes]] = {}
    for _kind, bucket, content in _rows(batches):
        waiting.setdefault(bucket, []).append(content.to_pybytes())
    for bucket in sorted(waiting):
        yield bucket, map(decode, waiting.pop(bucket))


def find_visitors(buckets: int, several: Keys, hot: set[int]) -> Work:
    """Returns a function that yields a bucket's events that other buckets need too, as rows for these buckets."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        for bucket, tables in _by_bucket(batches):
            # Search a hot bucket piece by piece, because it is too large for one window.
            for table in tables if bucket in hot else [joined(tables)]:
                # The bucket also has copied events of other buckets, which must not be copied back.
                own = table.filter(pa.array(are_in(fill(table), bucket, buckets)))
                for other, events in visitors_of(own, bucket, several):
                    yield row_of("events", other, encode(events, CODEC))

    return work


def bucket_judge(buckets: int, context: Context, ends: bytes) -> Work:
    """Returns a function that judges buckets, with the ends of all connections; it yields rows of `RESULT_SCHEMA`."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        for bucket, tables in _by_bucket(batches):
            are_own = partial(are_in, bucket=bucket, buckets=buckets)
            yield from judge_bucket(tables, decode(ends), context, are_own).to_batches()

    return work


def bucket_cutter(buckets: int, hot: set[int], most: int, context: Context, ends: bytes) -> Work:
    """Returns a function that cuts the buckets in `hot` into parts by time, in a file, and judges the other buckets."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        pieces: dict[int, list[Piece]] = {}
        samples: dict[int, list[Integers]] = {}
        waiting: dict[int, list[bytes]] = {}
        with TemporaryFile(prefix="longpoll-judge-") as file:
            for _kind, bucket, content in _rows(batches):
                if bucket in hot:
                    events = decode(content)
                    pieces.setdefault(bucket, []).append(write_piece(file, events))
                    samples.setdefault(bucket, []).append(sample_of(events, most))
                else:
                    waiting.setdefault(bucket, []).append(content.to_pybytes())
            for bucket in sorted(waiting):
                are_own = partial(are_in, bucket=bucket, buckets=buckets)
                rows = judge_bucket(map(decode, waiting.pop(bucket)), decode(ends), context, are_own)
                yield row_of("rows", bucket, msgspec.msgpack.encode(rows.to_pydict()))
            for bucket in sorted(pieces):
                are_own = partial(are_in, bucket=bucket, buckets=buckets)
                with open_parts(borders_of(samples[bucket], most), are_own) as parts:
                    for table in read_pieces(file, pieces[bucket]):
                        parts.put(table)
                    for number, part in enumerate(parts.windows(decode(ends), context)):
                        told = bucket, part.since_ns, part.until_ns, encode(part.table, CODEC)
                        yield row_of("part", bucket + number * buckets, msgspec.msgpack.encode(told))

    return work


def part_judge(buckets: int, context: Context) -> Work:
    """Returns a function that judges parts of buckets and passes on the results of uncut buckets (`RESULT_SCHEMA`)."""

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for kind, _place, content in _rows(batches):
            if kind == "rows":
                yield from pa.table(msgspec.msgpack.decode(content), RESULT_SCHEMA).to_batches()
                continue
            bucket, since_ns, until_ns, events = msgspec.msgpack.decode(content, type=tuple[int, int, int, bytes])
            are_own = partial(are_in, bucket=bucket, buckets=buckets)
            yield from PartWindow(decode(events), since_ns, until_ns).judge(context, are_own).to_batches()

    return work


def _travel_by_value(own: OwnProperty) -> None:
    """Let a user property be pickled by value, because the workers may not have its module."""
    module = sys.modules.get(getattr(own, "__module__", ""))
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


LARGEST: Final = 200
"""How many of a split's largest queues are counted, because one of them may be too large for a window."""
TASK_SPLITS: Final = 16
"""The approximate number of splits per task, because each task has a fixed cost."""
BATCH_ROWS: Final = 8
CODEC: Final[Codec] = "lz4"
"""The compression of events between workers. Without it, the Java process needs twice the memory and more time."""
BUCKETS: Final = 3
"""The number of buckets for each concurrent task, which is above 1 so that all tasks end at about the same time."""
PARTITION_BUCKETS: Final = 8
"""The average number of buckets in a partition of a large history. A worker keeps a partition's events in memory."""


@define
class SparkReading:
    """A history whose splits are surveyed first and whose events are judged afterwards."""

    _running: Running
    _parallel: int
    _splits: Sequence[InputSplit]
    _window_events: int
    _extents: list[Extent] = field(factory=list)
    _largest: Counter[int] = field(factory=Counter)
    """For each slot (hash of a queue), the number of events in the splits in which the queue is among the largest."""
    _several: Keys = field(factory=NO_KEYS.copy)
    """Keys of requests and messages with events in several queues, each with the slot (hash) of a queue."""
    _ends: bytes = b""

    def surveys(self) -> Iterator[Survey]:
        """See `pipeline.Reading.surveys`."""
        ranges = BUCKETS * self._parallel
        parts = self._parts(list(enumerate(self._splits)))
        rows = scan(self._running.session, "longpoll-splits", parts, self._shipped(statistics_reader(ranges)))
        compared = rows.repartition("place").mapInArrow(self._shipped(compare), from_arrow_schema(ROWS))
        with stage(self._running, f"survey {len(self._splits)} splits"):
            told = sorted(_rows(compared.toArrow().to_batches()), key=itemgetter(0, 1))
        for kind, _place, content in told:
            if kind == "survey":
                extent, survey, largest = msgspec.msgpack.decode(content, type=tuple[Extent, Survey, dict[int, int]])
                self._extents.append(extent)
                self._largest.update(largest)
                yield survey
            elif kind == "keys":
                self._several = np.append(self._several, np.frombuffer(content, dtype=np.uint64))
            else:
                self._ends = content.to_pybytes()

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        events = sum(extent[0] for extent in self._extents)
        return max(BUCKETS * self._parallel, -(-events // self._window_events))

    def events(self) -> DataFrame:
        """Returns the events, with one row for each split and bucket."""
        read = list(zip(self._splits, self._extents, strict=True))
        reader = self._shipped(event_reader(self.buckets))
        return scan(self._running.session, "longpoll-events", self._parts(read), reader)

    def tables(self) -> Iterator[pa.Table]:
        """See `pipeline.Reading.tables`; the driver reads the events."""
        for part, extent in zip(self._splits, self._extents, strict=True):
            yield fill(read_again(part, extent))

    def verdicts(self, context: Context) -> Iterator[pa.Table]:
        """See `pipeline.Reading.verdicts`."""
        if not self._splits:
            return
        buckets, events = self.buckets, self.events()
        several = shared([np.sort(self._several & KEY_BITS | (self._several & PLACE_BITS) % np.uint64(buckets))])
        most = self._window_events
        # A user's property needs whole queues, and a pop is judged with all events of its messages, so do not cut
        # buckets.
        is_whole = context.own or context.asks_pops
        hot = {slot % buckets for slot, count in self._largest.items() if count > 2 * most and not is_whole}
        if len(several):
            # Keep them on disk, because Java's heap has room for only a small part of a large history.
            events = events.persist(StorageLevel.DISK_ONLY)
            work = self._shipped(find_visitors(buckets, several, hot))
            # In a large history, some requests have equal hashes by chance, so `several` may name only a few buckets.
            hosts = events.where(events.place.isin(np.unique(several & PLACE_BITS).tolist()))
            visitors = self._exchanged(hosts).mapInArrow(work, from_arrow_schema(ROWS))
        for own in context.own:
            _travel_by_value(own)
        every = self._exchanged(events.union(visitors) if len(several) else events)
        work = bucket_judge(buckets, context, self._ends)
        if hot:
            cutter = self._shipped(bucket_cutter(buckets, hot, most, context, self._ends))
            every = self._exchanged(every.mapInArrow(cutter, from_arrow_schema(ROWS)))
            work = part_judge(buckets, context)
        with stage(self._running, f"judge {buckets} buckets"):
            yield every.mapInArrow(self._shipped(work), from_arrow_schema(RESULT_SCHEMA)).toArrow()
        # Do this only after success, because after a failure Spark may be busy or gone, and the data ends with the
        # session anyway.
        events.unpersist()

    def _exchanged(self, rows: DataFrame) -> DataFrame:
        """Bring the rows of each place together. Spark itself chooses the number of partitions for few buckets."""
        partitions = -(-self.buckets // PARTITION_BUCKETS)
        if partitions <= BUCKETS * self._parallel:
            return rows.repartition("place")
        return rows.repartition(partitions, "place")

    def _parts(self, numbered: Sequence[object]) -> list[bytes]:
        """Encode the input of each task, which is some of the splits."""
        count = len(numbered)
        tasks = max(min(count, max(count // TASK_SPLITS, self._parallel)), 1)
        borders = np.linspace(0, count, tasks + 1).astype(int).tolist()
        return [msgspec.msgpack.encode(numbered[start:end]) for start, end in pairwise(borders)]

    def _shipped(self, work: Function) -> Function:
        """Returns the function, packed with our packages if the workers may lack them."""
        return work if self._running.is_here else travelling(work)


JAVA: Final = {
    # The JVM only moves bytes here, so its quick compiler is fast enough and needs a tenth of the compilation time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@frozen
class SparkEngine:
    """Surveys splits and judges events as Spark jobs."""

    running: Running
    parallel: int
    """The number of tasks that run concurrently."""
    window_events: int = WINDOW_EVENTS

    @property
    def session(self) -> SparkSession:
        """The session on which the jobs run."""
        return self.running.session

    @contextmanager
    def read(self, splits: Sequence[InputSplit]) -> Iterator[SparkReading]:
        """See `pipeline.Engine.read`. Errors of Spark are raised here, so that a follower may judge again."""
        with failures_told():
            yield SparkReading(self.running, self.parallel, splits, self.window_events)


@contextmanager
def open_engine(
    master: str | None = None, conf: Mapping[str, str] | None = None, session: SparkSession | None = None
) -> Iterator[SparkEngine]:
    """An engine on a new session or an existing one; see `session.open_cluster`."""
    with open_cluster(master, conf, session, JAVA) as running:
        parallel = running.parallel
        # Limit the rows in a batch, because a row holds up to several MB of events and Spark keeps a whole batch in
        # memory.
        settings = {"spark.sql.shuffle.partitions": str(BUCKETS * parallel)}
        settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = str(BATCH_ROWS)
        with with_settings(running.session, settings), failures_told():
            yield SparkEngine(running, parallel)

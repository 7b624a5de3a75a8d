"""Judges a growing history as one Structured Streaming query, which continues from its checkpoint after a restart.

| step | what |
| --- | --- |
| scan `longpoll-new-events` | new input splits: a row for each split and bucket, with its events as columns |
| exchange | by bucket |
| `applyInPandasWithState` | a `Sliding` for each bucket, in Spark's state store |
| `foreachBatch` | the results of all buckets so far, for the follower |

Each row has the survey of its whole split, so all buckets know the same sources, gaps and clocks. A batch is committed
only after its result was reported, so no finding is lost. The workers need the package `longpoll`.
"""

from __future__ import annotations

import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import attrs
import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from longpoll_judge.columns.keys import request_keys, shared
from longpoll_judge.columns.tables import compacted, decode, encode, joined, taken
from longpoll_judge.contract.result import Finding
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.evidence.survey import Survey, merge, survey_split
from longpoll_judge.kernel.gathered import rows_where
from longpoll_judge.read.data_sources import HistoryStream, Offset
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import History, InputSplit, find, read_split
from longpoll_judge.run.buckets import (
    are_in,
    bucket_of,
    connection_ends,
    each_once,
    in_buckets,
    placed_keys,
    visitors_of,
)
from longpoll_judge.run.sliding import CHECKPOINT, Limits, Sliding, SoFar
from longpoll_judge.run.spark.engine import SparkEngine, row_of
from longpoll_judge.run.spark.session import FAULT_CHARACTERS_MAX, fault_of, with_settings
from longpoll_judge.run.tally import Tally

SOURCE: Final = "longpoll-new-events"
DIRECTORIES: Final = "directories"
"""The option of the scan with the paths, as a JSON list."""
GROUPS: Final = 8
"""The number of buckets."""
NEW_EVENTS: Final = pa.schema(
    [
        ("queue_group", pa.int64()),
        ("part", pa.string()),
        ("until", pa.int64()),
        *((name, pa.binary()) for name in ("events", "survey", "history")),
    ]
)
"""A row of the scan. `until` is the end of the read part, and `history` a pickled `History` without splits."""
OUTCOMES: Final = pa.schema(
    [("queue_group", pa.int64()), ("part", pa.string()), ("until", pa.int64()), ("so_far", pa.binary())]
)
"""A row of the result for each read part, with a pickled `SoFar` of the bucket."""
TRIGGER: Final = "500 milliseconds"
LOOK_S: Final = 0.2
"""The interval in seconds at which a waiting batch checks whether the follower still exists."""
BEGUN_MAX: Final = 20
"""The maximum number of successive queries that ended without a result because no worker started in ten seconds."""
_WORKER: Final = "Python worker"
"""A part of Spark's error message if a worker did not start or died. A new query is started only after an error with
this text."""
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": str(GROUPS),
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


class NewEvents(HistoryStream):
    """The new events in some directories, as a row for each bucket."""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the new splits, each with the facts about its history."""
        history = find(self._growth.paths)
        known = pickle.dumps(attrs.evolve(history, splits=[], damages=[]))
        return [InputPartition((part, known)) for part in self.between(history, start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the events of a split, as a row of `NEW_EVENTS` for each bucket."""
        part, known = cast("tuple[InputSplit, bytes]", partition.value)
        table, damages = read_split(part)
        survey = msgspec.msgpack.encode(survey_split(fill(table), damages))
        for bucket, events in _in_groups(fill(table)):
            content = encode(compacted(events, 1))
            yield row_of(bucket, part.path, part.end, content, survey, known, schema=NEW_EVENTS)


def _in_groups(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yields each bucket's number and its events.

    An answer whose request is in another split goes to every bucket to which it may belong.
    """
    asked = request_keys(table, np.flatnonzero(rows_where(table, "request_received")))
    answers = np.flatnonzero(rows_where(table, "answer_sent"))
    strays = taken(table, answers[~np.isin(request_keys(table, answers), asked)])
    strays = joined([strays, connection_ends(table, is_whole=True)])
    several = shared([placed_keys(table, partial(bucket_of, buckets=GROUPS))])
    own: dict[int, list[pa.Table]] = {bucket: [] for bucket in range(GROUPS)}
    for bucket, events, is_own in in_buckets(table, GROUPS):
        own[bucket].append(events)
        for other, visitors in visitors_of(events, bucket, several) if is_own else ():
            own[other].append(visitors)
    for bucket, tables in own.items():
        are_own = partial(are_in, bucket=bucket, buckets=GROUPS)
        guests = strays.filter(pa.array(~are_own(strays)))
        yield bucket, each_once(fill(joined([*tables, guests])), are_own)


class NewEventSource(DataSource):
    """The data source of the scan: `readStream.format(SOURCE)`, with the option `DIRECTORIES`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return SOURCE

    def schema(self) -> StructType:
        """The columns of a row."""
        return from_arrow_schema(NEW_EVENTS)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """A reader of the new events."""
        return NewEvents(msgspec.json.decode(self.options[DIRECTORIES], type=list[str]))


def judge_group(
    group: int, content: bytes | None, rows: Sequence[Mapping[str, Any]], limits: Limits
) -> tuple[bytes, SoFar]:
    """Judge the new rows of a bucket; return its new state, and the results so far.

    Args:
        group: The number of the bucket.
        content: The state of the bucket; None at first.
        rows: Rows of `NEW_EVENTS`, in any order.
        limits: The thresholds for a new state.
    """
    sliding = Sliding(limits.wake_ms, limits.late_ms) if content is None else pickle.loads(content)  # noqa: S301 - own bytes
    history: History = pickle.loads(rows[0]["history"])  # noqa: S301 - the driver's own bytes
    surveys = [msgspec.msgpack.decode(row["survey"], type=Survey) for row in rows]
    events = joined(decode(row["events"]) for row in rows)
    sliding.add(events, merge(surveys), history, partial(are_in, bucket=group, buckets=GROUPS))
    so_far = SoFar.of(sliding)
    return pickle.dumps(sliding), so_far


def _grouped(limits: Limits) -> Callable[..., Iterator[Any]]:
    """The function of `applyInPandasWithState`."""

    def judge(key: tuple[int], frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        rows = [row for frame in frames for row in frame.to_dict("records")]
        content = bytes(state.get[0]) if state.exists else None
        content, so_far = judge_group(int(key[0]), content, rows, limits)
        state.update((content,))
        columns = [[int(key[0])] * len(rows), *([row[name] for row in rows] for name in ("part", "until"))]
        told = [pickle.dumps(so_far), *([None] * (len(rows) - 1))]
        yield pa.table([*columns, told], schema=OUTCOMES).to_pandas()

    return judge


@frozen(eq=False)
class Batch:
    """The results of all buckets after one batch."""

    so_far: SoFar
    ends: dict[str, int]
    """For each part, the position up to which it was read by this batch."""
    is_told: threading.Event = field(factory=threading.Event)
    """The follower sets this event when it has reported the results."""


def together(every: Mapping[int, SoFar]) -> SoFar:
    """Combine the results of all buckets."""
    tally = Tally(sys.maxsize)
    beside: list[Finding] = []
    for one in every.values():
        tally.merge(one.tally)
        beside += one.beside
    newest = max(every.values(), key=lambda one: one.survey.event_count)
    made = {name: finding for one in every.values() for name, finding in one.completed.items()}
    left_out, unsure = (sum(each) for each in zip(*((one.left_out, one.unsure) for one in every.values()), strict=True))
    return SoFar(tally, beside, newest.survey, made, left_out, unsure)


@define(eq=False)
class StreamJudge:
    """The batches of a query, one at a time. A query that ends is restarted and continues from its checkpoint."""

    engine: SparkEngine
    growth: GrowingHistory
    limits: Limits
    checkpoint: Path
    known: dict[int, SoFar] = field(factory=dict)
    """The results so far, by bucket."""
    ends: dict[str, int] = field(factory=dict)
    """For each part, the position up to which it was judged."""
    begun: int = 0
    """The number of queries that were started since the last batch."""
    _query: StreamingQuery | None = None
    _waiting: queue.SimpleQueue[Batch] = field(factory=queue.SimpleQueue)
    _closed: threading.Event = field(factory=threading.Event)

    def outcomes(self) -> DataFrame:
        """Returns rows of `OUTCOMES` for every bucket after each batch."""
        paths = msgspec.json.encode(list(map(str, self.growth.paths))).decode()
        events = self.engine.session.readStream.format(SOURCE).option(DIRECTORIES, paths).load()
        return events.groupBy("queue_group").applyInPandasWithState(
            _grouped(self.limits), from_arrow_schema(OUTCOMES), "content binary", "update", GroupStateTimeout.NoTimeout
        )

    def begin(self) -> None:
        """Start a query, or continue one from its checkpoint; raises `SparkUnavailableError`."""
        self.begun += 1
        try:
            writer = (
                self.outcomes().writeStream.outputMode("update").foreachBatch(self.take).trigger(processingTime=TRIGGER)
            )
            with with_settings(self.engine.session, _SETTINGS):
                self._query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        except (PySparkException, Py4JJavaError) as error:
            raise self._ended(error) from error

    def take(self, batch: DataFrame, _number: int) -> None:
        """Receive a batch on Spark's thread, and return when it was reported; raises an error if it never will be."""
        closed = self._closed
        rows = batch.toArrow()
        if not len(rows):
            return
        for group, content in zip(rows["queue_group"].to_pylist(), rows["so_far"].to_pylist(), strict=True):
            if content is not None:
                self.known[group] = pickle.loads(content)  # noqa: S301 - the workers' own bytes
        ready = Batch(together(self.known), dict(zip(rows["part"].to_pylist(), rows["until"].to_pylist(), strict=True)))
        self._waiting.put(ready)
        while not ready.is_told.wait(LOOK_S):
            if closed.is_set():
                raise SparkUnavailableError("the follower ended")

    def _ended(self, error: object) -> SparkUnavailableError:
        why = fault_of(error)[:FAULT_CHARACTERS_MAX]
        remedy = f"if it ends again, remove {self.checkpoint}, and all of the history is judged again"
        return SparkUnavailableError(f"the stream of new events ended: {why}; {remedy}")

    def begin_again(self) -> None:
        """Forget all results, and start a query that judges the history from its beginning."""
        self.close()
        rmtree(self.checkpoint, ignore_errors=True)
        self.known, self.ends, self._waiting, self._closed = {}, {}, queue.SimpleQueue(), threading.Event()
        self.begin()

    def close(self) -> None:
        """End the query. After a restart, batches that were not reported are delivered again."""
        self._closed.set()
        if self._query is not None:
            self._query.stop()

    def look(self) -> Batch | None:
        """Returns the next batch; None if no batch is ready.

        Starts a new query if a worker failed, and raises `SparkUnavailableError` if a query failed for another reason.
        """
        assert self._query is not None, "the query must be begun first"
        # Read this state before the batch, because a query delivers its batches before it ends.
        is_active = self._query.isActive
        try:
            batch = self._waiting.get_nowait()
        except queue.Empty:
            if not is_active:
                error = self._query.exception()
                if self.begun >= BEGUN_MAX or _WORKER not in str(error):
                    raise self._ended(error) from None
                self.begin()
            return None
        self.begun = 0
        self.ends |= batch.ends
        return batch


@contextmanager
def stream_judge(
    engine: SparkEngine, growth: GrowingHistory, limits: Limits, directory: Path | None
) -> Iterator[StreamJudge]:
    """Run the query for a block. With a `directory`, a later query continues from the checkpoint in it."""
    engine.session.dataSource.register(NewEventSource)
    with TemporaryDirectory(prefix="longpoll-stream-") as temporary:
        checkpoint = Path(temporary) if directory is None else directory / CHECKPOINT
        found = StreamJudge(engine, growth, limits, checkpoint)
        try:
            found.begin()
            yield found
        finally:
            found.close()

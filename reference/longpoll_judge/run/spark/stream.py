"""A Python data source for streams: the new events of growing histories, a row per input split.

The follower keeps how far it read, with what it judged, in one file. So a query starts at the follower's position, and
its own checkpoint is not used. `read.growing_history` decides which lines are complete; `Arrivals` takes the rows.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from attrs import define, field, frozen
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from longpoll_judge.columns.exchange import decode, encode
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import History, InputSplit, find, kind_of, read_split
from longpoll_judge.read.unreadable import Damage
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.run.spark.session import unclosed_sockets_ignored
from longpoll_spec.history import NDJSON_SUFFIX

NAME: Final = "longpoll-new-events"
DIRECTORIES: Final = "directories"
ENDS: Final = "ends"
"""The options: JSON, a list of paths, and by part how far it was judged before."""
COLUMNS: Final = "number bigint, part string, until bigint, events binary, damages binary"
_SCHEMA: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("part", pa.string()),
        ("until", pa.int64()),
        ("events", pa.binary()),
        ("damages", pa.binary()),
    ]
)
BATCH_BYTES: Final = 64 << 20
"""About what is read at once, in bytes of lines: what is behind comes in several batches."""
PACKED: Final = 12
"""How many bytes of lines one of Parquet or of compressed lines may stand for."""


class NewEvents(DataSourceStreamReader):
    """The new events in some directories from given ends on, as rows of `COLUMNS`, ordered by `number` in a batch."""

    def __init__(self, directories: Sequence[str], ends: Mapping[str, int]) -> None:
        self._growth = GrowingHistory(list(directories))
        self._first = dict(ends)
        self._ends = dict(ends)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """By part how far it was judged before."""
        return self._first

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """By part how far the next batch reads."""
        history = self._growth.look()
        count = Counter(part.path for part in history.splits)
        size = 0
        for part in history.splits:
            start = max(part.start, self._ends.get(part.path, 0))
            if part.end <= start:
                continue
            is_lines = kind_of(part.path) == NDJSON_SUFFIX
            size += part.end - start if is_lines else PACKED * self._growth.stamps[part.path].size // count[part.path]
            self._ends[part.path] = part.end
            if size >= BATCH_BYTES:
                break
        return dict(self._ends)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The splits of what is new."""
        self._ends = dict(end)
        found = [_between(part, start, end) for part in find(self._growth.paths).splits]
        return [InputPartition(numbered) for numbered in enumerate(each for each in found if each is not None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The events of a split, and what could not be read of it."""
        number, part = cast("tuple[int, InputSplit]", partition.value)
        table, damages = read_split(part)
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "number": number,
                    "part": part.path,
                    "until": part.end,
                    "events": encode(table),
                    "damages": msgspec.msgpack.encode(damages),
                }
            ],
            _SCHEMA,
        )


def _between(part: InputSplit, start: dict[str, int], end: dict[str, int]) -> InputSplit | None:
    """The part of the split between two offsets; None if it is empty."""
    first, last = max(part.start, start.get(part.path, 0)), min(part.end, end.get(part.path, 0))
    return msgspec.structs.replace(part, start=first, end=last) if first < last else None


class NewEventSource(DataSource):
    """`readStream.format(NAME)`, with the options `DIRECTORIES` and `ENDS`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def schema(self) -> str:
        """The columns of a split."""
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """The reader of what is new."""
        directories = msgspec.json.decode(self.options[DIRECTORIES], type=list[str])
        return NewEvents(directories, msgspec.json.decode(self.options[ENDS], type=dict[str, int]))


TRIGGER: Final = "500 milliseconds"
LOOK_S: Final = 0.2
"""How often a waiting batch checks whether its reader still exists."""
BEGUN_MAX: Final = 20
"""How many queries may end one after the other without having brought anything: on a machine that is so busy that a
worker does not start in ten seconds, those of some minutes."""


def _check(query: StreamingQuery) -> None:
    if not query.isActive:
        raise SparkUnavailableError(f"the stream of new events ended: {query.exception()}")


@frozen(eq=False)
class Batch:
    """The events of one batch."""

    tables: list[pa.Table]
    damages: list[Damage]
    ends: dict[str, int]
    """By part that it has something of: how far."""


@define(eq=False)
class Arrivals:
    """The batches of a query (`follow.Arriving`); at most one waits here, and one in Spark.

    A query that ends is started again from the current ends.
    """

    engine: SparkEngine
    growth: GrowingHistory
    ends: dict[str, int]
    kept: Path
    """A directory for what Spark writes."""
    begun: int = 0
    """How many queries were begun since a batch was taken."""
    _query: StreamingQuery | None = None
    _waiting: queue.Queue[Batch] = field(factory=lambda: queue.Queue(1))
    _closed: threading.Event = field(factory=threading.Event)

    def begin(self) -> None:
        """Begin a query where the ends stand."""
        self.begun += 1
        rows = self.engine.session.readStream.format(NewEventSource.name())
        for name, value in ((DIRECTORIES, list(map(str, self.growth.paths))), (ENDS, self.ends)):
            rows = rows.option(name, msgspec.json.encode(value).decode())
        writer = rows.load().writeStream.foreachBatch(self.take).trigger(processingTime=TRIGGER)
        self._query = writer.option("checkpointLocation", mkdtemp(dir=self.kept)).start()

    def take(self, batch: DataFrame, _number: int) -> None:
        """Take a batch from Spark, on Spark's thread."""
        with unclosed_sockets_ignored():
            rows = batch.toArrow().sort_by("number")
        if not len(rows):
            return
        tables = [fill(decode(content.as_buffer())) for content in rows["events"]]
        damages = [each for content in rows["damages"].to_pylist() for each in _DAMAGES.decode(content)]
        ends = dict(zip(rows["part"].to_pylist(), rows["until"].to_pylist(), strict=True))
        ready = Batch(tables, damages, ends)
        while not self._closed.is_set():
            try:
                self._waiting.put(ready, timeout=LOOK_S)
            except queue.Full:
                continue
            return

    def close(self) -> None:
        """Take nothing any more."""
        self._closed.set()
        if self._query is not None:
            self._query.stop()

    def look(self) -> tuple[History, Sequence[Batch]]:
        """See `follow.Arriving.look`; raises `SparkUnavailableError`."""
        history = self.growth.look()
        assert self._query is not None, "it is begun before anybody looks"
        # Asked first: what a query has brought it brought before it ended.
        is_active = self._query.isActive
        try:
            batch = self._waiting.get_nowait()
        except queue.Empty:
            if not is_active:
                if self.begun >= BEGUN_MAX:
                    _check(self._query)
                self.begin()
            return history, []
        self.begun = 0
        return history, [batch]

    def read(self, new: Sequence[Batch]) -> Iterator[tuple[list[pa.Table], list[Damage]]]:
        """See `follow.Arriving.read`."""
        for batch in new:
            self.ends |= batch.ends
            yield batch.tables, batch.damages


_DAMAGES: Final = msgspec.msgpack.Decoder(list[Damage])


@contextmanager
def arriving_events(engine: SparkEngine, growth: GrowingHistory, ends: dict[str, int]) -> Iterator[Arrivals]:
    """The new events from these ends on, read by workers; the ends advance as events are taken."""
    engine.session.dataSource.register(NewEventSource)
    with TemporaryDirectory(prefix="longpoll-stream-") as kept:
        found = Arrivals(engine, growth, ends, Path(kept))
        try:
            found.begin()
            yield found
        finally:
            found.close()

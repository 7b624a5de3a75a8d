"""Hands a follower the new events of growing histories, as the batches of one Structured Streaming query.

`stream_source` cuts what is new into batches. `follow` judges them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

import msgspec
import pyarrow as pa
from attrs import define, field, frozen
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from longpoll_judge.columns.batch import decode
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.schema import Damage, fill
from longpoll_judge.read.source import History
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.run.spark.session import unclosed_sockets_ignored
from longpoll_judge.run.spark.stream_source import DIRECTORIES, ENDS, NewEventSource

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

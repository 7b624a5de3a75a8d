"""Hears of new events by Structured Streaming: one query a directory, whose batches are counted.

Leaves out how a growing history is cut into batches (`stream`) and what is done about them (`follow`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.read.data_sources import HistorySource, register
from longpoll_judge.run.spark.engine import SparkEngine

TRIGGER: Final = "500 milliseconds"


@contextmanager
def new_events(engine: SparkEngine, directories: Iterable[Path | str]) -> Iterator[Callable[[], bool]]:
    """Whether there was a batch with events since the question was last asked; raises `SparkUnavailableError`."""
    grown = threading.Event()

    def note(batch: DataFrame, _number: int) -> None:
        if batch.count():
            grown.set()

    register(engine.session)
    with ExitStack() as stack:
        kept = Path(stack.enter_context(TemporaryDirectory(prefix="longpoll-stream-")))
        queries: list[StreamingQuery] = []
        for number, directory in enumerate(directories):
            rows = engine.session.readStream.format(HistorySource.name()).load(str(directory))
            writer = rows.writeStream.foreachBatch(note).trigger(processingTime=TRIGGER)
            queries.append(writer.option("checkpointLocation", str(kept / str(number))).start())
            stack.callback(queries[-1].stop)

        def is_new() -> bool:
            for query in queries:
                if not query.isActive:
                    raise SparkUnavailableError(f"the stream of new events ended: {query.exception()}")
            was_set = grown.is_set()
            grown.clear()
            return was_set

        yield is_new

"""Writes a large simulated history as a Spark job: one task per tile, each writes its part.

Every worker must be able to write to the directory. Tiles: see `tiles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from attrs import evolve
from model_tests.support.judge.tiles import TILE_EVENTS, plan, simulated_tile, write_meta, write_place
from pyspark.sql import SparkSession

from longpoll_judge.generate import Load
from longpoll_judge.run.spark.session import unclosed_sockets_ignored


def write_large(session: SparkSession, directory: Path, load: Load, *, tile_events: int = TILE_EVENTS) -> int:
    """Write a history of about `load.events` events; returns their number."""
    tile = simulated_tile(evolve(load, events=min(tile_events, load.events)))
    places = plan([tile], max(1, round(load.events / len(tile.table))))
    write_meta(directory)

    def write_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts = [write_place(directory, tile, places[number]) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(counts, pa.int64())], names=["events"])

    with unclosed_sockets_ignored():
        numbers = session.range(0, len(places), 1, min(len(places), 4 * session.sparkContext.defaultParallelism))
        return sum(row["events"] for row in numbers.mapInArrow(write_all, "events bigint").collect())

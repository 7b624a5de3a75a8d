"""A growing history as a stream of Spark's: its new lines, each once.

    spark.readStream.format("longpoll-history").load("/tmp/history")

The offset of a part is the byte after its last whole line; a part of another kind than NDJSON comes as a whole, once.
Leaves out the reading (`source`) and what is done with the rows (`follow`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from longpoll_judge.read.growth import stamps_of, whole_end
from longpoll_judge.read.schema import PLAIN_SCHEMA
from longpoll_judge.read.source import SLICE_BYTES, Slice, find, kind_of, read_slice
from longpoll_spec.history import NDJSON_SUFFIX


class HistoryStream(DataSourceStreamReader):
    """The new events of one directory."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = directory

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Nothing has been read."""
        return {}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """By part how far it can be read."""
        return {
            part: whole_end(part) if kind_of(part) == NDJSON_SUFFIX else stamp.size
            for part, stamp in stamps_of([self._directory]).items()
        }

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The slices of what is new."""
        return [InputPartition(each) for part in find([self._directory]).slices for each in _new(part, start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The events of a slice."""
        table, _damages = read_slice(cast("Slice", partition.value))
        yield from table.cast(PLAIN_SCHEMA).to_batches()


def _new(part: Slice, start: dict[str, int], end: dict[str, int]) -> Iterator[Slice]:
    """What lies in the slice between two offsets."""
    if kind_of(part.path) != NDJSON_SUFFIX:
        if part.path not in start and part.path in end:
            yield part
        return
    first = max(part.start, start.get(part.path, 0))
    last = min(part.start + SLICE_BYTES, end.get(part.path, 0))
    if first < last:
        yield msgspec.structs.replace(part, start=first, end=last)

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
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from longpoll_judge.read.growing_history import stamps_of, whole_end
from longpoll_judge.read.schema import PLAIN_SCHEMA, REQUIRED, fill
from longpoll_judge.read.source import SPLIT_BYTES, InputSplit, find, kind_of, read_split
from longpoll_judge.read.unreadable import Damage
from longpoll_spec.history import NDJSON_SUFFIX


class HistoryStream(DataSourceStreamReader):
    """The new events of one directory."""

    def __init__(self, directory: Path | str, columns: Sequence[str] = PLAIN_SCHEMA.names) -> None:
        self._directory = directory
        self._columns = columns

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
        """The splits of what is new."""
        return [InputPartition(each) for part in find([self._directory]).splits for each in _new(part, start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The events of a split."""
        table, _damages = read_columns(cast("InputSplit", partition.value), self._columns)
        yield from table.to_batches()


def read_columns(part: InputSplit, names: Sequence[str]) -> tuple[pa.Table, list[Damage]]:
    """These columns of a split's events as plain Arrow, and what could not be read."""
    table, damages = read_split(part, tuple(dict.fromkeys((*REQUIRED, *names))))
    return fill(table, names).cast(pa.schema([PLAIN_SCHEMA.field(name) for name in names])), damages


def _new(part: InputSplit, start: dict[str, int], end: dict[str, int]) -> Iterator[InputSplit]:
    """The part of the split between two offsets."""
    if kind_of(part.path) != NDJSON_SUFFIX:
        if part.path not in start and part.path in end:
            yield part
        return
    first = max(part.start, start.get(part.path, 0))
    last = min(part.start + SPLIT_BYTES, end.get(part.path, 0))
    if first < last:
        yield msgspec.structs.replace(part, start=first, end=last)

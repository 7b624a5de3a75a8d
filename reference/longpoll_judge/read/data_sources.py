"""Two Python data sources for Spark: `longpoll-history`, a recorded history, and `rocketmq-store`, a store directory.

    register(spark)
    spark.read.format("longpoll-history").load("/tmp/history")
    spark.read.format("longpoll-history").schema("event string, topic string, queue bigint").load("/tmp/history")
    spark.readStream.format("longpoll-history").load("/tmp/history")
    spark.read.format("rocketmq-store").option("part", "consumequeue").load("/tmp/store")

A schema with some of a history's columns is all that is read of its Parquet parts: Spark 4.0 cannot tell a source in
Python which columns a query uses. A partition is a split of a history, or a range of a file; both must lie where every
worker can read them. Unreadable data of a history becomes a row with the `event` `damage` and the reason as `cause`.
The readers: `source`, `rocketmq_store`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from longpoll_judge.errors import JudgeUserError
from longpoll_judge.read.growing_history import stamps_of, whole_end
from longpoll_judge.read.rocketmq_store import SCHEMAS, FileRange, Part, ranges, read_records, read_units
from longpoll_judge.read.schema import DEFAULTS, PLAIN_SCHEMA, REQUIRED, Damage, fill
from longpoll_judge.read.source import SPLIT_BYTES, InputSplit, find, kind_of, read_split
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


DAMAGE: Final = "damage"
_SQL_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary"}


class DataSourceOptionError(JudgeUserError):
    """A data source was asked for without a path, or for a part that there is not."""


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{column.name}` {_SQL_TYPES.get(column.type, 'array<bigint>')}" for column in schema)


def _path(options: dict[str, str]) -> str:
    if not options.get("path"):
        raise DataSourceOptionError("the path is missing; write .load(PATH)")
    return options["path"]


class HistorySource(DataSource):
    """A history as rows, on the common clock."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "longpoll-history"

    def schema(self) -> str:
        """The fields of an event."""
        return _ddl(PLAIN_SCHEMA)

    def reader(self, schema: Any) -> DataSourceReader:
        """The reader of one directory."""
        return _HistoryReader(_path(dict(self.options)), _columns(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a directory that grows."""
        return HistoryStream(_path(dict(self.options)), _columns(schema))


def _columns(schema: Any) -> list[str]:
    """The columns that are asked for; raises `DataSourceOptionError` for one that a history does not have."""
    names: list[str] = schema.fieldNames()
    unknown = [name for name in names if name not in PLAIN_SCHEMA.names]
    if unknown:
        raise DataSourceOptionError(f"a history has no column {unknown[0]!r}; its columns are in docs/history.md")
    return names


class _HistoryReader(DataSourceReader):
    def __init__(self, directory: str, columns: list[str]) -> None:
        self._directory = directory
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        history = find([self._directory])
        parts = [InputPartition((part, [])) for part in history.splits]
        return parts + ([InputPartition((None, history.damages))] if history.damages else [])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part, damages = cast("tuple[InputSplit | None, list[Damage]]", partition.value)
        if part is not None:
            table, damages = read_columns(part, self._columns)
            yield from table.to_batches()
        rows = [
            DEFAULTS
            | {"event": DAMAGE, "after_ns": 0, "before_ns": 0, "source": damage.file, "sequence": damage.position}
            | {"cause": damage.reason, "lost_count": damage.count}
            for damage in damages
        ]
        yield from pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA).select(self._columns).to_batches()


class StoreSource(DataSource):
    """A part of a store directory as rows; option `part`: `commitlog` (the default) or `consumequeue`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "rocketmq-store"

    def schema(self) -> str:
        """The columns of the part."""
        return _ddl(SCHEMAS[self._part()])

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """The reader of one part."""
        return _StoreReader(Path(_path(dict(self.options))), self._part())

    def _part(self) -> Part:
        part = self.options.get("part", "commitlog")
        if part not in SCHEMAS:
            raise DataSourceOptionError(f"a store has no part {part!r}; write {' or '.join(SCHEMAS)}")
        return part


class _StoreReader(DataSourceReader):
    def __init__(self, store: Path, part: Part) -> None:
        self._store = store
        self._part: Part = part

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in ranges(self._store, self._part)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = cast("FileRange", partition.value)
        yield from [read_units(part)] if self._part == "consumequeue" else read_records(part)


def use_this_python(session: Any) -> None:
    """Let workers on this machine run the driver's Python, unless another one is chosen: PySpark runs `python3`."""
    context = getattr(session, "_sc", None)
    if context is None or not re.fullmatch(r"local(\[.*\])?", context.master):
        return
    if not (os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")):
        context.pythonExec = sys.executable


def register(session: SparkSession) -> None:
    """Make both formats known to a session."""
    use_this_python(session)
    for source in (HistorySource, StoreSource):
        session.dataSource.register(source)

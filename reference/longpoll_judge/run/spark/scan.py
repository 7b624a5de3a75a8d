"""A history as DataFrames: its input splits with their statistics, and its events.

Both are Python data sources whose executors read the parts. Spark 4.0 cannot tell such a source which columns a query
uses, so the caller names them in the schema. The sources work on workers that have none of our packages
(`code_archive`), unlike those for users (`read.data_sources`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from longpoll_judge.columns.lookup import are_of
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.read.schema import LISTS, NAMES, PLAIN_SCHEMA, coded, compute
from longpoll_judge.read.source import InputSplit
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.queue_verdict import LOG_EVENTS
from longpoll_judge.run.windows import Extent, overview_of, read_again

SPLITS: Final = pa.schema(
    [
        ("split", pa.int64()),
        ("events", pa.int64()),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("overview", pa.binary()),
    ]
)
"""The statistics of a split: `overview` is an `Overview` as MessagePack."""
_SQL_TYPES: Final = {pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean"}
BATCH_EVENTS: Final = 20_000
"""Rows of an Arrow batch: some MB."""
_registering: Final = Lock()

Read = Callable[[bytes], Iterator[pa.RecordBatch]]


def ddl_of(schema: pa.Schema) -> str:
    """The schema as Spark writes it."""
    return ", ".join(f"`{column.name}` {sql_type(column.type)}" for column in schema)


def sql_type(kind: pa.DataType) -> str:
    """A type of `PLAIN_SCHEMA` or of a result as Spark writes it."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{column.name}`: {sql_type(column.type)}' for column in kind)}>"
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

    with _registering:  # the name stands for another history after the next registration
        session.dataSource.register(EventSource)
        return session.read.format(source).load()


def read_statistics(part: bytes) -> Iterator[pa.RecordBatch]:
    """A row of `SPLITS` for each of some numbered splits."""
    keep_freed_memory()
    for number, split in msgspec.msgpack.decode(part, type=list[tuple[int, InputSplit]]):
        overview = overview_of(split)
        count, first_ns, last_ns, _sum = overview.extent
        row = [number, count, first_ns, last_ns, msgspec.msgpack.encode(overview)]
        yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=SPLITS)


def event_schema(columns: Sequence[str]) -> pa.Schema:
    """Events with these columns, and the number of the window that each is in."""
    return pa.schema([*(PLAIN_SCHEMA.field(name) for name in columns), ("window", pa.int64())])


def event_reader(columns: Sequence[str]) -> Read:
    """Reads the events of requests and logs; see `event_schema`. A column is null where it has its default in a batch.

    A part is a list of (window, split, extent). The reader raises `HistoryChangedError` where a split has other events
    than when it was surveyed.
    """

    def read(part: bytes) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for window, split, extent in msgspec.msgpack.decode(part, type=list[tuple[int, InputSplit, Extent]]):
            table = read_again(split, extent)
            codes, names = coded(table, "event")
            is_judged = are_of(codes, names, (*REQUEST_EVENTS, *LOG_EVENTS))
            if not is_judged.all():
                table = table.filter(pa.array(is_judged))
            values = [_plain(table, name) for name in columns]
            values.append(pa.repeat(pa.scalar(window, pa.int64()), len(table)))
            yield from pa.table(values, schema=event_schema(columns)).to_batches(BATCH_EVENTS)

    return read


def _plain(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column as Spark has it, all null where no event has a value."""
    kind = PLAIN_SCHEMA.field(name).type
    if name not in table.column_names:
        return pa.nulls(len(table), kind)
    column = table[name]
    if name in NAMES and all(chunk.dictionary.to_pylist() == [""] for chunk in column.chunks):
        return pa.nulls(len(table), kind)
    if name in LISTS and len(table) and not compute.max(compute.list_value_length(column)).as_py():
        return pa.nulls(len(table), kind)
    return column.cast(kind)

"""The Python data source `longpoll` for Spark: a recorded history as rows.

    register(spark)
    spark.read.format("longpoll").load("/tmp/history")
    spark.read.format("longpoll").schema("time timestamp, event string, queue bigint").load("/tmp/history")
    spark.read.format("longpoll").option("topic", "orders").option("since", "2026-11-21T10:20:42").load("/tmp/history")
    spark.readStream.format("longpoll").load("/tmp/history")

Spark 4.0 does not tell a Python data source which columns and rows a query uses. Therefore the user names the columns
in the schema, and only these columns of Parquet parts are read. The options `topic`, `queue`, `since` and `until`
select the rows that Python passes to Java. A partition is a split of a history, which every worker must be able to
read. Unreadable data becomes a row with the `event` `damage` and the reason as `cause`. The module `source` reads the
files.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from attrs import frozen
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from longpoll_judge.errors import JudgeUserError
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.schema import DEFAULTS, PLAIN_SCHEMA, REQUIRED, Damage, compute, fill
from longpoll_judge.read.source import History, InputSplit, find, kind_of, read_split
from longpoll_spec.history import NDJSON_SUFFIX

FRAME_SCHEMA: Final = pa.schema([("time", pa.timestamp("us", "UTC")), *PLAIN_SCHEMA])
"""The columns of a history in Spark: the fields of an event, null if missing, and the time of `after_ns` in us."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@frozen
class Chosen:
    """The columns and rows of a history that a query selects; None means all rows."""

    columns: tuple[str, ...] = tuple(FRAME_SCHEMA.names)
    topic: str | None = None
    queue: int | None = None
    since_ns: int | None = None
    """Skip events that ended before this time."""
    until_ns: int | None = None
    """Skip events that began at this time or later."""

    @classmethod
    def of(cls, schema: Any, options: Mapping[str, str]) -> Chosen:
        """Returns the selection of a schema and options. Raises `DataSourceOptionError`."""
        names: list[str] = schema.fieldNames()
        unknown = [name for name in names if name not in FRAME_SCHEMA.names]
        if unknown:
            raise DataSourceOptionError(f"a history has no column {unknown[0]!r}; its columns are in docs/history.md")
        queue = options.get("queue")
        if queue is not None and not queue.isdecimal():
            raise DataSourceOptionError(f"the option queue is {queue!r}; write the number of a queue")
        moments = (_moment_ns(name, options) for name in ("since", "until"))
        return cls(tuple(names), options.get("topic"), None if queue is None else int(queue), *moments)

    def read(self, part: InputSplit) -> tuple[pa.Table, list[Damage]]:
        """Return the selected columns and rows of a split, and its unreadable data."""
        needed = [name for name in dict.fromkeys((*REQUIRED, "topic", "queue", *self.columns)) if name != "time"]
        table, damages = read_split(part, needed)
        return self.framed(fill(table, needed)), damages

    def framed(self, table: pa.Table) -> pa.Table:
        """Returns the selected columns and rows of a table that has all selected columns."""
        tests = [
            *([compute.equal(table["topic"], self.topic)] if self.topic is not None else []),
            *([compute.equal(table["queue"], self.queue)] if self.queue is not None else []),
            *([compute.greater_equal(table["before_ns"], self.since_ns)] if self.since_ns is not None else []),
            *([compute.less(table["after_ns"], self.until_ns)] if self.until_ns is not None else []),
        ]
        for test in tests and [reduce(compute.and_, tests)]:
            table = table.filter(test)
        return pa.table(
            [_column(table, name) for name in self.columns], pa.schema(map(FRAME_SCHEMA.field, self.columns))
        )


def _moment_ns(name: str, options: Mapping[str, str]) -> int | None:
    """Return a timestamp in ns of Unix time. A text without a time zone is UTC."""
    if name not in options:
        return None
    try:
        moment = datetime.fromisoformat(options[name])
    except ValueError:
        text = f"the option {name} is {options[name]!r}; write a time such as 2026-11-21T10:20:42"
        raise DataSourceOptionError(text) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1_000


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name == "time":
        return compute.divide(table["after_ns"], 1_000).cast(FRAME_SCHEMA.field(name).type)
    column, default = table[name].cast(FRAME_SCHEMA.field(name).type), DEFAULTS.get(name)
    is_nothing = default == "" or (isinstance(default, int) and default < 0)
    return compute.if_else(compute.equal(column, default), None, column) if is_nothing else column


BATCH_BYTES: Final = 64 << 20
"""The approximate size of one batch of a stream, measured in bytes of NDJSON lines."""
PACKED: Final = 12
"""The number of NDJSON bytes that are assumed for each byte of Parquet or compressed NDJSON."""
Offset = dict[str, int]
"""How far each part was read: up to a byte in NDJSON, or up to a row group in Parquet."""


class HistoryStream(DataSourceStreamReader):
    """Yields the new events of a directory, or of several ones, in batches."""

    def __init__(self, directories: Sequence[str], chosen: Chosen | None = None) -> None:
        self._growth = GrowingHistory(list(directories))
        self._ends: Offset = {}
        self._chosen = chosen or Chosen()

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns the offset at which no part of the history has been read."""
        return {}

    def latestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns the offset at which the next batch ends."""
        history = self._growth.look()
        ends = dict(self._ends)
        count = Counter(part.path for part in history.splits)
        size = 0
        for part in history.splits:
            start = max(part.start, ends.get(part.path, 0))
            if part.end <= start:
                continue
            is_lines = kind_of(part.path) == NDJSON_SUFFIX
            size += part.end - start if is_lines else PACKED * self._growth.stamps[part.path].size // count[part.path]
            ends[part.path] = part.end
            if size >= BATCH_BYTES:
                break
        self._ends = ends
        return dict(ends)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the splits of the new events. After a restart, the query continues from `end`."""
        return [InputPartition(part) for part in self.between(find(self._growth.paths), start, end)]

    def between(self, history: History, start: Offset, end: Offset) -> list[InputSplit]:
        """Returns the splits of a history between two offsets."""
        self._ends = dict(end)
        cut = (
            msgspec.structs.replace(
                part, start=max(part.start, start.get(part.path, 0)), end=min(part.end, end.get(part.path, 0))
            )
            for part in history.splits
        )
        return [part for part in cut if part.start < part.end]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields the events of one split."""
        table, _damages = self._chosen.read(cast("InputSplit", partition.value))
        yield from table.to_batches()


DAMAGE: Final = "damage"


class DataSourceOptionError(JudgeUserError):
    """The data source got no path, or an invalid column or option."""


def _path(options: dict[str, str]) -> str:
    if not options.get("path"):
        raise DataSourceOptionError("the path is missing; write .load(PATH)")
    return options["path"]


class HistorySource(DataSource):
    """A history as rows, with all times on the common clock."""

    @classmethod
    def name(cls) -> str:
        """Returns the name to use in `format`."""
        return "longpoll"

    def schema(self) -> StructType:
        """Returns the schema: the fields of an event, and its time."""
        return from_arrow_schema(FRAME_SCHEMA)

    def reader(self, schema: Any) -> DataSourceReader:
        """Returns a reader of one directory."""
        options = dict(self.options)
        return _HistoryReader(_path(options), Chosen.of(schema, options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns a reader of one directory that grows."""
        options = dict(self.options)
        return HistoryStream([_path(options)], Chosen.of(schema, options))


class _HistoryReader(DataSourceReader):
    def __init__(self, directory: str, chosen: Chosen) -> None:
        self._directory = directory
        self._chosen = chosen

    def partitions(self) -> Sequence[InputPartition]:
        history = find([self._directory])
        parts = [InputPartition((part, [])) for part in history.splits]
        return parts + ([InputPartition((None, history.damages))] if history.damages else [])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part, damages = cast("tuple[InputSplit | None, list[Damage]]", partition.value)
        if part is not None:
            table, damages = self._chosen.read(part)
            yield from table.to_batches()
        rows = [
            {"event": DAMAGE, "after_ns": 0, "before_ns": 0, "source": damage.file, "sequence": damage.position}
            | {"cause": damage.reason, "lost_count": damage.count}
            for damage in damages
        ]
        yield from pa.Table.from_pylist(rows, schema=FRAME_SCHEMA).select(self._chosen.columns).to_batches()


def use_this_python(session: Any) -> None:
    """Let local workers run the driver's Python instead of PySpark's default `python3`, unless the user set another."""
    context = getattr(session, "_sc", None)
    if context is None or not re.fullmatch(r"local(-cluster)?(\[.*\])?", context.master):
        return
    if not (os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")):
        context.pythonExec = sys.executable


def register(session: SparkSession) -> None:
    """Register the format `longpoll` in a session."""
    use_this_python(session)
    session.dataSource.register(HistorySource)

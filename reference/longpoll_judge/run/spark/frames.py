"""Judges the events of a DataFrame: `longpoll.judge(spark.read.format("delta").load("/tmp/events"))`.

A source such as Kafka may return different rows each time it is read, but the rules read a history more than once.
Therefore the events are written once as Parquet, in order of time and without duplicates, and this directory is judged
(`engine`). The events' times must come from one clock that is never set back, as in DataFrames of the data source
`longpoll`. The rows of this data source about damage stay damage.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Final
from uuid import uuid4

import msgspec
from attrs import define, evolve
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from longpoll_judge.contract.result import Result, TableName, Verdict
from longpoll_judge.errors import JudgeUserError
from longpoll_judge.read.data_sources import DAMAGE
from longpoll_judge.read.files import absolute, beside, is_uri, remove, write
from longpoll_judge.read.schema import PLAIN_SCHEMA, REQUIRED, TELLING, Damage
from longpoll_judge.read.source import MONOTONIC, History, find
from longpoll_judge.run.spark.session import (
    Running,
    check_is_open,
    failures_told,
    is_on_this_machine,
    is_remote,
    stage,
)
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Meta, Source

ROW_GROUP_BYTES: Final = 32 << 20
BLOCK: Final = 100_000
"""Sequence numbers are divided into blocks of this size. The events of a source in one block are written to one file.
"""
DAMAGES_MAX: Final = 1_000
DIRECTORY: Final = "spark.longpoll.directory"
"""The setting with the directory to which events of a DataFrame are written for judging on a cluster."""
_TYPES: Final = {column.name: column.dataType.simpleString() for column in from_arrow_schema(PLAIN_SCHEMA)}
EVENT_DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in _TYPES.items())
"""The columns of events as a Spark schema, for sources without a schema, such as JSON in a Kafka topic."""
_INTEGER: Final = "tinyint|smallint|int|bigint"
_FITTING: Final = {
    "bigint": _INTEGER,
    "string": r"string.*|(var)?char\(\d+\)",
    "boolean": "boolean",
    "array<bigint>": f"array<({_INTEGER}|void)>",
}
"""For each type of a column of events, the Spark types that can hold the column's values."""


class FrameError(JudgeUserError):
    """The DataFrame cannot be judged: its columns are not those of events, or workers see other files."""


@define(eq=False)
class FrameResult:
    """The judgement of a DataFrame. Spark's jobs run once, when the first result is requested.

    Creation raises `FrameError` if the columns are not those of events, or if the DataFrame is a stream.
    """

    _frame: DataFrame
    _conf: Mapping[str, str]
    _judge: Callable[[History], Result]

    def __attrs_post_init__(self) -> None:
        check_is_open(self._frame.sparkSession)
        if self._frame.isStreaming:
            raise FrameError("a streaming DataFrame has no end: write it to a table and judge that, or use --follow")
        _events_of(self._frame)

    @cached_property
    def result(self) -> Result:
        """The whole result, as for a directory. Raises `FrameError`, and `SparkUnavailableError` if a job fails."""
        with history_of(self._frame, self._conf) as history:
            return self._judge(history)

    @property
    def verdict(self) -> Verdict:
        """`valid`, `invalid` or `unknown`."""
        return self.result.verdict

    def findings(self, session: SparkSession | None = None) -> DataFrame:
        """A row for each finding, with the columns in `contract.result.FINDINGS`."""
        return self._table("findings", session)

    def counts(self, session: SparkSession | None = None) -> DataFrame:
        """A row for each clause of the contract, with the columns in `contract.result.COUNTS`."""
        return self._table("counts", session)

    def metrics(self, session: SparkSession | None = None) -> DataFrame:
        """A row for each count and latency, with the columns in `contract.result.METRICS`."""
        return self._table("metrics", session)

    def explain(self) -> None:
        """Print Spark's plan for reading and sorting the events, which needs no job."""
        _in_order(self._frame).explain("formatted")

    def to_pandas(self, name: TableName = "findings") -> Any:
        """One of the three tables as a pandas DataFrame."""
        return self.result.to_pandas(name)

    def _table(self, name: TableName, session: SparkSession | None) -> DataFrame:
        found: DataFrame = self.result.to_spark(session or self._frame.sparkSession, name)
        return found


@contextmanager
def history_of(frame: DataFrame, conf: Mapping[str, str]) -> Iterator[History]:
    """Write the events of a DataFrame as a history that is deleted at the end of the block; raises `FrameError`."""
    session: Any = frame.sparkSession
    in_order = _in_order(frame)
    running = Running(session, is_here=not is_remote(session))
    with _shared(session, conf) as parent, failures_told():
        place = parent if is_uri(parent) else f"file://{parent}"
        with stage(running, "write events in order"):
            writer = in_order.write.mode("append").partitionBy("is_damage")
            writer.option("parquet.block.size", str(ROW_GROUP_BYTES)).parquet(place)
            written = session.read.schema(in_order.schema).parquet(place)
            names = written.where("NOT is_damage").select("source").distinct().toArrow()["source"].to_pylist()
            damages = _damages(written.where("is_damage"))
        sources = [Source(name=name, clock=MONOTONIC) for name in sorted(names)]
        meta = Meta(format_version=FORMAT_VERSION, sources=sources)
        directory = beside(parent, "is_damage=false")
        write(beside(directory, META_FILE), msgspec.json.encode(meta))
        history = find([directory])
        yield evolve(history, damages=[*history.damages, *damages])


@contextmanager
def _shared(session: Any, conf: Mapping[str, str]) -> Iterator[str]:
    """Create a directory that the driver and all workers see, and remove it after the block; raises `FrameError`."""
    given = conf.get(DIRECTORY) or session.conf.get(DIRECTORY, None)
    if given:
        parent = beside(absolute(given), f"longpoll-frame-{uuid4().hex}")
        try:
            yield parent
        finally:
            with suppress(OSError):
                remove(parent)
    elif is_remote(session) or not is_on_this_machine(session.sparkContext.master or ""):
        raise FrameError(
            f"on a cluster, set {DIRECTORY} to a directory for temporary files that the driver and all workers share: "
            f'conf={{"{DIRECTORY}": "s3a://bucket/tmp"}}'
        )
    else:
        with tempfile.TemporaryDirectory(prefix="longpoll-frame-") as parent:
            yield parent


def _in_order(frame: DataFrame) -> DataFrame:
    """Returns the distinct events nearly in order of time, and whether each of them is damage."""
    # If a source repeats an event, the copies are equal and in one block, so removing duplicates needs no second
    # exchange.
    blocks = _events_of(frame).selectExpr("*", f"sequence DIV {BLOCK} AS block")
    lacking = " OR ".join(f"{name} IS NULL" for name in REQUIRED)
    told = blocks.repartition("source", "block").distinct().drop("block")
    marked = told.selectExpr("*", f"(event <=> '{DAMAGE}' OR {lacking}) AS is_damage")
    return marked.sortWithinPartitions("is_damage", "after_ns")


def _events_of(frame: DataFrame) -> DataFrame:
    """Returns the columns of events, with their names and types.

    Raises `FrameError` if a column is missing or has a wrong type.
    """
    found: dict[str, list[Any]] = {}
    for column in frame.schema.fields:
        found.setdefault(column.name.lower(), []).append(column)
    chosen: list[str] = []
    for name, kind in _TYPES.items():
        columns = found.get(name, [])
        if not columns and name in (*REQUIRED, *TELLING):
            why = "docs/history.md lists the columns of events, and a column may be null"
            raise FrameError(f"the DataFrame has no column {name!r}; {why}")
        if len(columns) > 1:
            raise FrameError(f"the DataFrame has {len(columns)} columns {name!r}: drop or rename all but one")
        for column in columns:
            given = column.dataType.simpleString()
            if not re.fullmatch(f"void|{_FITTING[kind]}", given):
                raise FrameError(f"the column {column.name!r} of the DataFrame is {given}: cast it to {kind}")
            chosen.append(f"CAST(`{column.name}` AS {kind}) AS `{name}`")
    return frame.selectExpr(*chosen)


def _damages(rows: DataFrame) -> list[Damage]:
    """Returns the damage in rows of `longpoll`, and the events without a required field.

    Raises `FrameError` if there is too much damage to list.
    """
    defaults = {"source": "''", "sequence": "-1L", "cause": "'damage'", "lost_count": "1L"}
    columns = [
        f"{f'coalesce({name}, {default})' if name in rows.columns else default} AS {name}"
        for name, default in defaults.items()
    ]
    told = rows.where(f"event <=> '{DAMAGE}'").selectExpr(*columns).limit(DAMAGES_MAX + 1).collect()
    if len(told) > DAMAGES_MAX:
        raise FrameError(
            f"the DataFrame has over {DAMAGES_MAX:,} rows of damage; judge its history's directory instead"
        )
    # Do not count the rows, because equal rows were merged into one.
    is_lacking = not rows.where(f"NOT event <=> '{DAMAGE}'").isEmpty()
    more = [Damage("the DataFrame", -1, f"rows without {', '.join(REQUIRED[:-1])} or {REQUIRED[-1]}")] * is_lacking
    return [Damage(row["source"], row["sequence"], row["cause"], row["lost_count"]) for row in told] + more

"""The events of a DataFrame as a history: `longpoll.judge(spark.read.format("delta").load("/tmp/events"))`.

A source such as Kafka has other rows each time it is read, and the rules read a history more than once. So the events
are written once, as Parquet in order of time and each once, and that directory is judged (`engine`). Their times are
taken as those of one clock that is never set back, as `longpoll` gives them; its rows of damage stay damage.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import msgspec
from attrs import evolve
from pyspark.sql import DataFrame

from longpoll_judge.errors import JudgeUserError
from longpoll_judge.read.data_sources import DAMAGE
from longpoll_judge.read.files import absolute, beside, is_uri, remove, write
from longpoll_judge.read.schema import PLAIN_SCHEMA, REQUIRED, Damage
from longpoll_judge.read.source import MONOTONIC, History, find
from longpoll_judge.run.spark.engine import ddl_of, sql_type
from longpoll_judge.run.spark.session import (
    Running,
    check_is_open,
    failures_told,
    is_local,
    is_remote,
    stage,
)
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Meta, Source

ROW_GROUP_BYTES: Final = 32 << 20
DAMAGES_MAX: Final = 1_000
DIRECTORY: Final = "spark.longpoll.directory"
"""The setting that names where events of a DataFrame are written while they are judged on a cluster."""
EVENT_DDL: Final = ddl_of(PLAIN_SCHEMA)
"""The columns of events as Spark writes a schema, for sources without one, such as JSON in a Kafka topic."""
_INTEGER: Final = "tinyint|smallint|int|bigint"
_FITTING: Final = {
    "bigint": _INTEGER,
    "string": r"string.*|(var)?char\(\d+\)",
    "boolean": "boolean",
    "array<bigint>": f"array<({_INTEGER}|void)>",
}
"""By the type of a column of events, Spark's types that hold the same values."""


class FrameError(JudgeUserError):
    """A DataFrame that cannot be judged: its columns are not those of events, or workers see other files."""


@contextmanager
def history_of(frame: DataFrame, conf: Mapping[str, str]) -> Iterator[History]:
    """The events of a DataFrame as a history that goes with the block; raises `FrameError`."""
    session: Any = frame.sparkSession
    check_is_open(session)
    if frame.isStreaming:
        raise FrameError("a streaming DataFrame has no end: write it to a table and judge that, or use --follow")
    # A source that delivers events again delivers equal ones. They have equal times, so this needs no second exchange.
    told = _events_of(frame).repartitionByRange("after_ns").distinct()
    lacking = " OR ".join(f"{name} IS NULL" for name in REQUIRED)
    marked = told.selectExpr("*", f"(event <=> '{DAMAGE}' OR {lacking}) AS is_damage")
    in_order = marked.sortWithinPartitions("is_damage", "after_ns")
    running = Running(session, is_here=not is_remote(session))
    with _shared(session, conf) as parent, failures_told():
        place = parent if is_uri(parent) else f"file://{parent}"
        with stage(running, "write events in order"):
            writer = in_order.write.mode("append").partitionBy("is_damage")
            writer.option("parquet.block.size", str(ROW_GROUP_BYTES)).parquet(place)
            written = session.read.schema(marked.schema).parquet(place)
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
    """A new directory that the driver and all workers see, removed afterwards; raises `FrameError`."""
    given = conf.get(DIRECTORY) or session.conf.get(DIRECTORY, None)
    if given:
        parent = beside(absolute(given), f"longpoll-frame-{uuid4().hex}")
        try:
            yield parent
        finally:
            with suppress(OSError):
                remove(parent)
    elif is_remote(session) or not is_local(session.sparkContext.master or ""):
        raise FrameError(
            f"on a cluster, set {DIRECTORY} to a directory for temporary files that the driver and all workers share: "
            f'conf={{"{DIRECTORY}": "s3a://bucket/tmp"}}'
        )
    else:
        with tempfile.TemporaryDirectory(prefix="longpoll-frame-") as parent:
            yield parent


def _events_of(frame: DataFrame) -> DataFrame:
    """The columns of events, with their own names and types; raises `FrameError` where one is missing or unfit."""
    found: dict[str, list[Any]] = {}
    for column in frame.schema.fields:
        found.setdefault(column.name.lower(), []).append(column)
    chosen: list[str] = []
    for name, kind in ((one.name, sql_type(one.type)) for one in PLAIN_SCHEMA):
        columns = found.get(name, [])
        if not columns and name in REQUIRED:
            raise FrameError(f"the DataFrame has no column {name!r}; docs/history.md lists the columns of events")
        if len(columns) > 1:
            raise FrameError(f"the DataFrame has {len(columns)} columns {name!r}: drop or rename all but one")
        for column in columns:
            given = column.dataType.simpleString()
            if not re.fullmatch(f"void|{_FITTING[kind]}", given):
                raise FrameError(f"the column {column.name!r} of the DataFrame is {given}: cast it to {kind}")
            chosen.append(f"CAST(`{column.name}` AS {kind}) AS `{name}`")
    return frame.selectExpr(*chosen)


def _damages(rows: DataFrame) -> list[Damage]:
    """The damage that `longpoll` reports in its rows, and the events without a required field.

    Raises `FrameError` if it is too much to list.
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
    # Equal rows are one row here, so a number of such rows would be too small.
    is_lacking = not rows.where(f"NOT event <=> '{DAMAGE}'").isEmpty()
    more = [Damage("the DataFrame", -1, f"rows without {', '.join(REQUIRED[:-1])} or {REQUIRED[-1]}")] * is_lacking
    return [Damage(row["source"], row["sequence"], row["cause"], row["lost_count"]) for row in told] + more

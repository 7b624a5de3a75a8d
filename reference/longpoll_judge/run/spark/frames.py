"""DataFrames in and out: the events of one as a history, and the findings of a result as one.

    result = longpoll.judge(spark.read.format("delta").load("/tmp/events"))
    findings_frame(spark, result).write.parquet("/tmp/findings")

A source such as Kafka has other rows each time it is read, and the rules read a history more than once. So the events
are written once, as Parquet in order of time, and that directory is judged (`engine`). Their times are taken as those
of one clock that is never set back, as `longpoll-history` gives them; its rows of damage stay damage.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from attrs import evolve
from pyspark.sql import DataFrame, SparkSession

from longpoll_judge.contract.result import Result
from longpoll_judge.errors import JudgeUserError
from longpoll_judge.read.data_sources import DAMAGE
from longpoll_judge.read.schema import PLAIN_SCHEMA, REQUIRED, Damage
from longpoll_judge.read.source import MONOTONIC, History, find
from longpoll_judge.run.spark.engine import sql_type
from longpoll_judge.run.spark.session import is_local, is_remote
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Meta, Source

ROW_GROUP_BYTES: Final = 32 << 20
DAMAGES_MAX: Final = 1_000

FINDINGS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "property", "clause", "verdict", "topic")),
        ("queue", pa.int64()),
        *((name, pa.string()) for name in ("group", "connection", "request", "time", "why", "tag")),
        *((name, pa.float64()) for name in ("window_start_ms", "window_end_ms")),
        ("messages", pa.list_(pa.int64())),
    ]
)
"""The columns of `findings_frame`, as docs/judge.md describes a finding's fields."""


class FrameError(JudgeUserError):
    """A DataFrame that cannot be judged: it has no events, or its workers see other files than the driver."""


@contextmanager
def history_of(frame: DataFrame) -> Iterator[History]:
    """The events of a DataFrame as a history that goes with the block; raises `FrameError`."""
    lacking = [name for name in REQUIRED if name not in frame.columns]
    if lacking:
        raise FrameError(f"the DataFrame has no column {lacking[0]!r}; docs/history.md lists the columns of events")
    session: Any = frame.sparkSession
    if is_remote(session) or not is_local(session.sparkContext.master or ""):
        raise FrameError(
            "on a cluster, write the DataFrame to a directory that all workers can read: df.write.parquet(DIRECTORY). "
            "Add meta.json (docs/history.md) and judge that directory"
        )
    columns = [column for column in PLAIN_SCHEMA if column.name in frame.columns]
    events = frame.selectExpr(*(f"CAST(`{one.name}` AS {sql_type(one.type)}) AS `{one.name}`" for one in columns))
    told = events.where(f"NOT event <=> '{DAMAGE}'")
    with tempfile.TemporaryDirectory(prefix="longpoll-frame-") as parent:
        directory = Path(parent) / "history"
        in_order = told.repartitionByRange("after_ns").sortWithinPartitions("after_ns")
        in_order.write.option("parquet.block.size", str(ROW_GROUP_BYTES)).parquet(str(directory))
        names = session.read.parquet(str(directory)).select("source").distinct().toArrow()["source"].to_pylist()
        sources = [Source(name=name, clock=MONOTONIC) for name in sorted(names)]
        meta = Meta(format_version=FORMAT_VERSION, sources=sources)
        (directory / META_FILE).write_bytes(msgspec.json.encode(meta))
        history = find([directory])
        yield evolve(history, damages=[*history.damages, *_damages(events)])


def _damages(events: DataFrame) -> list[Damage]:
    """The damage that `longpoll-history` reports in its rows; raises `FrameError` if it is too much to list."""
    defaults = {"source": "''", "sequence": "-1L", "cause": "'damage'", "lost_count": "1L"}
    columns = [f"{name if name in events.columns else default} AS {name}" for name, default in defaults.items()]
    rows = events.where(f"event = '{DAMAGE}'").selectExpr(*columns).limit(DAMAGES_MAX + 1).collect()
    if len(rows) > DAMAGES_MAX:
        raise FrameError(
            f"the DataFrame has over {DAMAGES_MAX:,} rows of damage; judge its history's directory instead"
        )
    return [Damage(row["source"], row["sequence"], row["cause"], row["lost_count"]) for row in rows]


def findings_frame(session: SparkSession, result: Result) -> DataFrame:
    """The findings of a result, a row each, with the columns `FINDINGS`; their evidence is in the result."""
    rows = [{name: getattr(finding, name) for name in FINDINGS.names} for finding in result.findings]
    return session.createDataFrame(pa.Table.from_pylist(rows, FINDINGS))

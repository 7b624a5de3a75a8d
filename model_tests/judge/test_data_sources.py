"""Spark's format `longpoll`: the rows are the events of the files, however the files are split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from model_tests.judge.test_cluster import plans_of
from model_tests.support.judge.faults import plant
from model_tests.support.judge.generate import Load
from model_tests.support.judge.recording import load
from model_tests.support.judge.tiles import write_large
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, lit, now

import longpoll
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import EVIDENCE
from longpoll_judge.read.data_sources import DAMAGE, FRAME_SCHEMA, DataSourceOptionError, HistorySource, register
from longpoll_judge.read.schema import DEFAULTS
from longpoll_judge.read.source import find, read_split
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.run.spark.session import with_settings
from longpoll_spec.history import META_FILE

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MIDDLE: Final = "2023-11-14T22:30:00.600"
MIDDLE_NS: Final = 1_700_001_000_600_000_000
GOLDEN = Path(__file__).parents[1] / "store" / "golden" / "store-4.9.7-clean.tar.xz"


def events_of(directory: Path) -> list[dict[str, Any]]:
    return [row for part in find([directory]).splits for row in read_split(part)[0].to_pylist()]


def rows_of(directory: Path, *columns: str, **options: str) -> list[dict[str, Any]]:
    source = HistorySource({"path": str(directory), **options})
    schema = SimpleNamespace(fieldNames=lambda: list(columns or FRAME_SCHEMA.names))
    reader = source.reader(schema)
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_row_has_its_events_time_and_null_for_missing_fields(clean: Path) -> None:
    """Missing fields are null, so a sum over a column needs no filter and a join by request needs no exception."""
    events = events_of(clean)
    rows = {row["sequence"]: row for row in rows_of(clean)}
    lacking = Counter(name for row in rows.values() for name, value in row.items() if value is None)

    assert len(rows) == len(events)
    for event in events:
        row = dict(rows[event["sequence"]])
        assert (row.pop("time") - EPOCH) // timedelta(microseconds=1) == event["after_ns"] // 1_000
        for name, value in row.items():
            assert value == event[name] or (value is None and event[name] == DEFAULTS[name]), name
        assert not any(isinstance(value, int) and value < 0 for value in row.values())
    assert min(lacking["tag"], lacking["queue_offset"], lacking["offset_next"]) > 10


@pytest.mark.parametrize(
    ("options", "is_chosen"),
    [
        ({"topic": "orders"}, lambda event: event["topic"] == "orders"),
        ({"topic": "orders", "queue": "0"}, lambda event: (event["topic"], event["queue"]) == ("orders", 0)),
        ({"queue": "77"}, lambda _event: False),
        ({"since": MIDDLE}, lambda event: event["before_ns"] >= MIDDLE_NS),
        (
            {"until": f"{MIDDLE}+00:00", "topic": "orders"},
            lambda event: event["after_ns"] < MIDDLE_NS and event["topic"] == "orders",
        ),
    ],
)
def test_options_choose_the_rows(
    options: dict[str, str], is_chosen: Callable[[dict[str, Any]], bool], clean: Path
) -> None:
    """Options choose rows by the events' fields, whatever columns are selected. Java gets only the chosen rows."""
    events = events_of(clean)
    chosen = {event["sequence"] for event in events if is_chosen(event)}

    assert {row["sequence"] for row in rows_of(clean, "sequence", **options)} == chosen
    assert len(chosen) < len(events)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"queue": "first"}, "write the number of a queue"),
        ({"since": "noon"}, "write a time such as 2026-11-21T10:20:4"),
    ],
)
def test_an_invalid_option_of_the_source_is_refused(options: dict[str, str], why: str, clean: Path) -> None:
    with pytest.raises(DataSourceOptionError, match=why):
        rows_of(clean, **options)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_schema_prunes_the_scan(clean: Path, tmp_path: Path, spark_engine: SparkEngine) -> None:
    """The plan scans four columns with one exchange. Damage is still a row, and an unknown column is an error."""
    session = spark_engine.session
    register(session)
    plant(clean, "half_line", tmp_path / "torn")
    source = session.read.format("longpoll").schema("time timestamp, queue bigint, event string, tag string")
    counted: Any = source.load(str(tmp_path / "torn")).groupBy("event").count()
    found = {row["event"]: row["count"] for row in counted.toArrow().to_pylist()}
    with pytest.raises(PySparkException, match="a history has no column 'colour'"):
        session.read.format("longpoll").schema("colour string").load(str(clean)).count()

    plan = counted._jdf.queryExecution().executedPlan().toString()
    assert re.search(r"BatchScan longpoll\[time#\d+, queue#\d+L?, event#\d+, tag#\d+\]", plan), plan
    assert set(re.findall(r"(\w+)partitioning\((\w+)#", plan)) == {("hash", "event")}
    assert found.pop(DAMAGE) == 1
    assert found == Counter(event.event for event in load(clean).events)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_reads_a_directory_of_parquet_parts(tmp_path: Path, spark_engine: SparkEngine) -> None:
    """A meta file with a leading underscore is not part of the table, and the judge still finds it."""
    write_large(tmp_path, Load(events=2_000))
    (tmp_path / META_FILE).rename(tmp_path / f"_{META_FILE}")

    assert spark_engine.session.read.parquet(str(tmp_path)).count() == len(events_of(tmp_path))
    assert longpoll.judge([tmp_path], engine="local").verdict == "valid"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_damage_in_a_history_is_a_row(clean: Path, tmp_path: Path, spark_engine: SparkEngine) -> None:
    session = spark_engine.session
    register(session)
    plant(clean, "half_line", tmp_path / "torn")
    events = session.read.format("longpoll").load(str(tmp_path / "torn")).toArrow().to_pylist()

    assert sum(row["event"] == DAMAGE for row in events) == 1
    assert len(events) == len(load(clean).events) + 1


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("fault", ["next_wrong", "half_line"])
def test_a_frame_gets_the_findings_of_its_history(
    fault: str, clean: Path, tmp_path: Path, spark_engine: SparkEngine
) -> None:
    """A data frame has the findings of the history that it was read from, and damage makes its verdict unknown.

    Repeated events, names in capitals, other integer types, empty or extra columns, another time zone and the ANSI mode
    do not change the findings. Spark reads and exchanges the events once.
    """
    session = spark_engine.session
    register(session)
    plant(clean, fault, tmp_path / "faulty")
    frame = session.read.format("longpoll").load(str(tmp_path / "faulty"))
    frame = frame.unionByName(frame).withColumns({"actors": lit(None), "at": now(), "queue": col("queue").cast("int")})
    frame = frame.withColumn("offsets", col("offsets").cast("array<int>"))
    frame, before = frame.toDF(*(name.upper() for name in frame.columns)), len(plans_of(session))
    with with_settings(session, {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "Asia/Kolkata"}):
        judgement = longpoll.judge(frame)
        assert plans_of(session)[before:] == []
        there = judgement.result
    here = longpoll.judge(tmp_path / "faulty")

    assert there.verdict == here.verdict != "valid"
    texts = [[(one.id, one.clause, one.why) for one in result.findings] for result in (there, here)]
    assert texts[0] == texts[1]
    (reading,) = [plan for plan in plans_of(session)[before:] if re.search(r"BatchScan longpoll\b(?!-)", plan)]
    assert "InsertIntoHadoopFsRelationCommand" in reading
    assert set(re.findall(r"(\w+)partitioning\((\w+)#\d+, (\w+)#", reading)) == {("hash", "source", "block")}
    assert len(set(re.findall(r"(\w+)partitioning\(.*", reading))) == 1
    count = len(plans_of(session))
    rows = judgement.findings(session).select("id", "clause", "why").collect()
    metrics = {(row.metric, row.label): row.value for row in judgement.metrics().collect()}
    counts = {row.clause: row for row in judgement.counts().collect()}
    assert judgement.verdict == there.verdict
    assert [plan for plan in plans_of(session)[count:] if "longpoll" in plan] == []
    told = Counter[str]()
    for one in (one for each in here.findings for one in each.told()):
        told[one.clause] += getattr(one, "count", 1)
    assert {name: row.violated + row.unknown for name, row in counts.items() if row.property != EVIDENCE} == {
        name: 0 for name in CLAUSE if CLAUSE[name].property != EVIDENCE
    } | told
    assert {row.property: row.judged for row in counts.values()}.items() <= ({EVIDENCE: 0} | there.judged).items()
    assert [tuple(row) for row in rows] == texts[0]
    expected = Counter(
        [*((one.verdict, one.clause) for one in here.findings), *(("gaps", one["clause"]) for one in there.gaps)]
    )
    assert {name: value for name, value in metrics.items() if name[0] in {"violated", "unknown", "gaps"}} == expected
    assert metrics["events", ""] == here.events
    latencies = {("latency_ms", f"{name} p99"): one.p99 for name, one in here.latency.items()}
    assert latencies.items() <= metrics.items()
    assert len(latencies) > 0
    assert (there.events, there.requests, there.shares) == (here.events, here.requests, here.shares)

"""The whole of `longpoll verify`, as a user runs it, and a recorded run of over 50,000 events judged on Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from longpoll.verification.history import PLANTED
from longpoll.verification.served import ServedBroker
from longpoll_broker.testing.load import LoadPlan, drive
from longpoll_judge.contract.result import Result
from longpoll_judge.read.source import find
from longpoll_judge.run.job import LATE_MS, WAKE_MS, judge_on
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.testing.plant import plant
from longpoll_runtime.real import RealRuntime

LONGPOLL = Path(sys.executable).with_name("longpoll")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_main_job_ends_well_and_writes_its_report(tmp_path: Path) -> None:
    """Exit 0, a row for every part, and a page with the race as a chart."""
    done = subprocess.run(
        [LONGPOLL, "verify", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )

    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads(done.stdout)
    parts = {row["part"] for row in page["rows"]}
    assert {"law", "proof", "store", "broker", "suite", "client", "history"} <= parts
    report = (tmp_path / page["report"]).read_text()
    assert report.count("<svg") >= 3
    assert "The history is" in report


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_recorded_run_is_valid_and_planted_faults_are_found_on_spark(tmp_path: Path, spark_engine: SparkEngine) -> None:
    """A real run of at least 50,000 events is valid; with each planted fault it is invalid, rightly named."""
    recorded = tmp_path / "history"
    with ServedBroker(tmp_path / "store", recorded) as served:
        assert drive(RealRuntime(), served.address, LoadPlan("T_recorded")).problems == []

    def judged(history: Path) -> Result:
        return judge_on(spark_engine, find([history]), wake_ms=WAKE_MS, late_ms=LATE_MS, say=lambda _stage: None)

    clean = judged(recorded)

    assert clean.verdict == "valid", clean.findings
    assert clean.events >= 50_000
    for name in PLANTED:
        fault = plant(recorded, name, tmp_path / name)
        result = judged(tmp_path / name)
        found = {finding.property for finding in result.findings}
        assert result.verdict == "invalid", name
        assert found, name
        assert found <= fault.properties, name

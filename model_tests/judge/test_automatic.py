"""`longpoll judge --engine auto`: the chosen engine, and the accuracy of the estimated number of events."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from model_tests.support.judge.convert import convert

from longpoll.cli import main
from longpoll.options import judge as options
from longpoll.options.judge import choose, estimated_events
from longpoll.verification import stages as verify
from longpoll.verification.limits import Limits, declared
from longpoll_spec.policy import STRICT

NO_PYSPARK = """
import contextlib, io, json, sys
sys.modules["pyspark"] = None
import longpoll.commands.judge as judge
import longpoll.options.judge as engine
from longpoll.entry import main
engine.LOCAL_EVENTS_MAX = 9
judge.select.select = lambda *_: ([1], [], [])
history, calls, told = sys.argv[1], json.loads(sys.argv[2]), []
for words in calls:
    sys.argv, code, said = ["longpoll", "judge", history, *words], 0, io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    told.append((code, said.getvalue()))
print(json.dumps(told))
"""


def test_the_estimate_is_near(clean: Path, tmp_path: Path) -> None:
    """The estimate is exact for Parquet, within 10 % for lines, and within a factor of 3 if compressed."""
    events = convert(clean, tmp_path / "parquet", into="parquet")
    (tmp_path / "zst").mkdir()
    for part in clean.glob("part-*.ndjson"):
        with pa.CompressedOutputStream(str(tmp_path / "zst" / f"{part.name}.zst"), "zstd") as file:
            file.write(part.read_bytes())

    assert estimated_events(str(tmp_path / "parquet")) == events
    assert abs(estimated_events(str(clean)) - events) < events / 10
    assert events / 3 < estimated_events(str(tmp_path / "zst")) < events * 3


def test_a_damaged_part_counts_as_empty(clean: Path, tmp_path: Path) -> None:
    """A damaged part and a missing directory count as empty, because the judge reports them later."""
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1 and no end")
    (tmp_path / "part-1.ndjson").mkdir()
    (tmp_path / "part-2.other").write_bytes(bytes(1 << 20))

    assert estimated_events(str(tmp_path)) == 0
    assert estimated_events(str(tmp_path / "nowhere")) == 0
    shutil.copy(next(iter(sorted(clean.glob("part-*")))), tmp_path / "part-3.ndjson")
    assert estimated_events(str(tmp_path)) > 100


@pytest.mark.parametrize(
    ("place", "given", "most", "engine", "why"),
    [
        ("", {}, 10**7, "local", "has about "),
        ("", {}, 1_000, "spark", "more than 1,000"),
        ("", {"--master": "local[2]"}, 10**7, "spark", "--master is set"),
        ("", {"--conf": "spark.a"}, 10**7, "spark", "--conf is set"),
        ("", {"SPARK_REMOTE": "sc://x"}, 10**7, "spark", "SPARK_REMOTE is set"),
        ("", {"PYSPARK_GATEWAY_PORT": "7"}, 10**7, "spark", "PYSPARK_GATEWAY_PORT is set"),
        ("s3://bucket/history", {}, 10**7, "spark", "is at a URI"),
    ],
)
def test_the_history_and_the_options_choose_the_engine(
    *,
    place: str,
    given: Mapping[str, str],
    most: int,
    engine: str,
    why: str,
    clean: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark judges long histories, remote histories, and any history if a cluster is named. A file:// URI is local."""
    for name in options.SPARK_VARIABLES:
        monkeypatch.setenv(name, given.get(name, ""))
    monkeypatch.setattr(options, "LOCAL_EVENTS_MAX", most)
    conf = {given["--conf"]: "1"} if "--conf" in given else {}
    found = [
        choose([each], master=given.get("--master"), conf=conf) for each in (place or clean, place or clean.as_uri())
    ]

    assert [each.engine for each in found] == [engine, engine]
    assert all(why in each.why for each in found)


def test_another_programs_variable_does_not_require_pyspark(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK_REMOTE may be set for another program, even on a machine without pyspark."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://x")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    found = choose([clean], master=None, conf={})

    assert found.engine == "local"
    assert found.why.startswith("SPARK_REMOTE is set, but pyspark is not installed")


def test_the_command_reports_the_chosen_engine(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in options.SPARK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    shown = CliRunner().invoke(main, ["judge", str(clean)])
    told = CliRunner().invoke(main, ["judge", str(clean), "--json"])
    chosen = CliRunner().invoke(main, ["judge", str(clean), "--engine", "local"])

    assert (shown.exit_code, told.exit_code) == (0, 0)
    assert shown.stderr.startswith("engine: local, because the history has about ")
    assert (json.loads(told.stdout)["engine"], told.stderr, chosen.stderr) == ("local", "", "")


def test_the_main_job_judges_on_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[object] = []

    def judge(_paths: object, **how: object) -> None:
        engines.append(how["engine"])
        raise InterruptedError

    monkeypatch.setattr(verify, "judge", judge)
    with pytest.raises(InterruptedError):
        verify.judged(tmp_path, declared(STRICT), Limits(100, 50), lambda _text: None)
    assert engines == ["spark"]


def test_without_pyspark_a_long_history_is_judged_here(clean: Path) -> None:
    calls: dict[tuple[str, ...], int] = {(): 0, ("--follow",): 0, ("--master", "local[1]"): 2}
    # All calls share one process, because the imports take most of the time.
    done = subprocess.run(
        [sys.executable, "-c", NO_PYSPARK, str(clean), json.dumps(list(calls))],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    for (words, code), (exit_code, stderr) in zip(calls.items(), told, strict=True):
        assert exit_code == code, (words, stderr)
        assert "pip install 'longpoll[spark]'" in stderr
        assert code or "engine: local, because the history has about" in stderr

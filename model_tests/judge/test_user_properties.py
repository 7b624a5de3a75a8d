"""The user-defined property of docs/judge.md finds an injected fault with both engines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from model_tests.support.judge.histories import PAGE, shown_on_page

import longpoll
from longpoll.cli import main
from longpoll_judge.contract.result import Result
from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import Engine, judge_on
from longpoll_recorder.writer import HistoryWriter
from longpoll_runtime.real import RealRuntime

(SNIPPET,) = re.findall(r"```python mine.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_example_prints_the_output_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, shown = shown_on_page("judge_it.py")
    monkeypatch.chdir(PAGE.parents[1])
    exec(program, {})  # noqa: S102 - it is the page's

    assert capsys.readouterr().out == shown


def recorded(directory: Path, *offsets: int) -> Path:
    with HistoryWriter(RealRuntime(), directory) as history:
        for offset in range(3):
            history.published("jobs", offset)
        for offset in offsets:
            history.answered(history.polled("jobs", offset, 1_000, count_max=1), offsets=[offset])
    return directory


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(SNIPPET)
    return file


def command(*words: str | Path) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(main, ["judge", *map(str, words), "--engine", "local", "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_the_example_property_reports_a_lower_offset(mine: Path, tmp_path: Path) -> None:
    asked = "--property", f"{mine}:reads_forward"
    code, result, _err = command(recorded(tmp_path / "forward", 0, 1, 2), *asked)
    assert (code, result["verdict"], result["judged"]["own.reads_forward"]) == (0, "valid", 3)
    code, result, _err = command(recorded(tmp_path / "back", 0, 1, 0, 1), *asked)
    assert (code, result["verdict"]) == (1, "invalid")
    assert [(each["clause"], each["verdict"]) for each in result["findings"]] == [("own.reads_forward", "violated")]
    (finding,) = result["findings"]
    assert finding["why"].endswith("asks for offset 0 after it was given all before 2")
    assert [event["event"] for event in finding["evidence"]] == ["request_received", "answer_sent"]
    assert finding["evidence"][0]["offset"] == 0


def every_pull(pulls: pa.Table) -> list[tuple[int, str]]:
    return [(row, "is there") for row in range(len(pulls))]


def raises(pulls: pa.Table) -> Iterator[tuple[int, str]]:
    yield 0, "is there"
    raise ValueError("three")


def exits(pulls: pa.Table) -> list[tuple[int, str]]:
    raise SystemExit(0)


def names_no_row(pulls: pa.Table) -> list[tuple[int, str]]:
    return [(len(pulls), "is there")]


def says_nothing(pulls: pa.Table) -> list[tuple[int, Any]]:
    return [(0, None)]


def judged(engine: Engine, history: Path, *properties: Any) -> Result:
    result = judge_on(engine, find([history]), wake_ms=100, late_ms=50, say=lambda _stage: None, properties=properties)
    return msgspec.structs.replace(result, seconds=0.0)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_both_engines_give_the_same_findings_of_a_property(spark_engine: Engine, mine: Path, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(SNIPPET, scope)  # noqa: S102 - it is the page's
    history = recorded(tmp_path / "history", 0, 1, 0, 2, 1)
    properties = scope["reads_forward"], every_pull, raises
    here = judged(LocalEngine(threads=1), history, *properties)
    assert here == judged(spark_engine, history, *properties)
    assert Counter(finding.clause for finding in here.findings) == {"own.reads_forward": 2, "own.every_pull": 5}
    assert len(here.gaps) == 1


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (raises, "ValueError: three"),
        (exits, "SystemExit: 0"),
        (names_no_row, "the row 2, but there are 2"),
        (says_nothing, "instead of a row number"),
    ],
)
def test_a_faulty_property_leaves_the_verdict_unknown(own: Any, why: str, tmp_path: Path) -> None:
    result = longpoll.judge(recorded(tmp_path, 0, 1), properties=[own])
    assert (result.verdict, result.findings, result.judged[f"own.{own.__name__}"]) == ("unknown", [], 0)
    assert why in result.gaps[0]["why"]


def test_an_uncertain_finding_of_a_property_is_unknown(tmp_path: Path) -> None:
    with HistoryWriter(RealRuntime(), tmp_path / "open") as history:
        history.published("jobs", 0)
        history.abandoned(history.polled("jobs", 1, 1_000))
    (finding,) = longpoll.judge(tmp_path / "open", properties=[every_pull]).findings
    assert (finding.verdict, len(finding.evidence)) == ("unknown", 1)
    settable = recorded(tmp_path / "settable", 0)
    meta = settable / "meta.json"
    meta.write_text(meta.read_text("utf-8").replace('"monotonic"', '"unix"'), "utf-8")
    assert [each.verdict for each in longpoll.judge(settable, properties=[every_pull]).findings] == ["unknown"]


def test_a_user_propertys_finding_is_in_every_report(mine: Path, tmp_path: Path) -> None:
    """The finding is in every report, but has no evidence directory, because its evidence is not a history."""
    history = recorded(tmp_path / "history", 0, 0)
    files = [tmp_path / f"report.{kind}" for kind in ("html", "json")]
    reports = [word for file in files for word in ("--report", file)]
    asked = ("--property", f"{mine}:reads_forward", "--evidence", tmp_path / "evidence")
    code, _result, err = command(history, *asked, *reports)
    assert (code, err) == (1, "")
    assert all("own.reads_forward" in file.read_text("utf-8") for file in files)
    assert list((tmp_path / "evidence").iterdir()) == []


@pytest.mark.parametrize("content", ["", "reads_forward = 3\n", "1 / 0\n", "def (\n", "raise SystemExit(0)\n"])
def test_a_missing_function_is_reported_in_one_line(content: str, mine: Path, tmp_path: Path) -> None:
    mine.write_text(content)
    code, result, err = command(recorded(tmp_path / "history", 0), "--property", f"{mine}:reads_forward")
    assert (code, result, err.count("\n")) == (2, {}, 1)

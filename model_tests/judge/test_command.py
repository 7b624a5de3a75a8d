"""The command `judge`: its exit codes, JSON and reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from model_tests.support.judge.faults import plant

from longpoll import exit_codes
from longpoll.cli import main


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["judge", "--engine", "local", *map(str, arguments)])


@pytest.mark.parametrize(("fault", "code"), [(None, 0), ("next_wrong", 1), ("half_line", 3)])
def test_the_exit_code_is_the_verdict(clean: Path, tmp_path: Path, fault: str | None, code: int) -> None:
    """The exit code is 0 for valid, 1 for invalid and 3 for unknown; the table and the JSON agree."""
    directory = tmp_path / "history"
    if fault is None:
        directory = clean
    else:
        plant(clean, fault, directory)
    shown, told = run(directory), run(directory, "--json")
    result = json.loads(told.stdout)

    assert (shown.exit_code, told.exit_code) == (code, code)
    assert f"verdict: {result['verdict']}" in shown.stdout
    assert result["verdict"] == {0: "valid", 1: "invalid", 3: "unknown"}[code]
    assert {"verdict", "events", "queues", "seconds", "findings", "latency", "thresholds", "gaps"} <= set(result)
    assert set(result["latency"]["wake_ms"]) == {"count", "p50", "p99", "max"}
    assert result["thresholds"] == {"wake_ms": 100.0, "late_ms": 50.0}
    assert [finding["property"] for finding in result["findings"]] == (["answer_is_right"] if code == 1 else [])


@pytest.mark.parametrize(
    "arguments", [["/nonexistent"], ["/nonexistent", "--wake-ms", "-1"], ["--engine", "abacus", "/nonexistent"], []]
)
def test_a_usage_error_exits_with_2_and_no_traceback(arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.output.strip()


def test_an_unwritable_report_is_a_usage_error(clean: Path, tmp_path: Path) -> None:
    result = run(clean, "--report", tmp_path / "none" / "page.html")

    assert result.exit_code == 2
    assert "cannot write the report" in result.output.replace("\n", " ")


@pytest.mark.parametrize("name", ["meta.json", "part-000000.ndjson", "part-verdict.json"])
def test_a_report_over_the_evidence_is_refused(clean: Path, tmp_path: Path, name: str) -> None:
    history = shutil.copytree(clean, tmp_path / "history")
    (tmp_path / "report.json").symlink_to(history / name)
    before = {file.name: file.read_bytes() for file in history.iterdir()}
    for report in (history / name, tmp_path / "report.json"):
        refused = run(history, "--report", report)

        assert refused.exit_code == 2
        assert {file.name: file.read_bytes() for file in history.iterdir()} == before
    assert run(history, "--report", history / "verdict.json").exit_code == 0


def test_a_report_on_a_full_disk_exits_with_3(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").symlink_to("/dev/full")
    with pytest.raises(SystemExit) as ended:
        exit_codes.ended(
            lambda: main(["judge", str(clean), "--engine", "local", "--report", str(tmp_path / "report.json")]), []
        )

    assert ended.value.code == 3


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e300", "-1", "x"])
def test_a_limit_is_a_finite_number(clean: Path, number: str) -> None:
    refused = run(clean, f"--wake-ms={number}")

    assert refused.exit_code == 2
    assert "--wake-ms" in refused.output


def test_the_command_writes_both_reports(clean: Path, tmp_path: Path) -> None:
    plant(clean, "wake_delayed", tmp_path / "history")
    pages = tmp_path / "r.html", tmp_path / "r.json"
    told = run(tmp_path / "history", *(word for page in pages for word in ("--report", page)), "--json")

    assert told.exit_code == 1
    assert json.loads(pages[1].read_text()) == json.loads(told.stdout)
    assert "a wakeup was lost or late" in pages[0].read_text()
    for words, sentence in (
        (["--report", tmp_path / "r.xml"], "must end in .html, .json"),
        (["--windows", "w"], "no option --windows any more: --report FILE.html draws"),
        (["--webhook", "https://host"], "no option --webhook any more: --findings FILE appends"),
    ):
        former = run(tmp_path / "history", *words)
        assert former.exit_code == 2
        assert sentence in former.stderr

"""The command `judge`: its exit codes, its JSON and its page."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from model_tests.support.judge.faults import plant
from model_tests.support.judge.generate import simulated_meta
from model_tests.support.judge.recording import load, write

from longpoll import exit_codes
from longpoll.cli import main
from longpoll_spec.history import Event


def run(*arguments: object) -> Result:
    """Run `longpoll judge --engine local`."""
    return CliRunner().invoke(main, ["judge", "--engine", "local", *map(str, arguments)])


class Page(HTMLParser):
    """Collects tags and text, and whatever would be fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag."""
        self.tags.add(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that tags are nested."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.text += data


@pytest.mark.parametrize(("fault", "code"), [(None, 0), ("next_wrong", 1), ("half_line", 3)])
def test_the_exit_code_is_the_verdict(clean: Path, tmp_path: Path, fault: str | None, code: int) -> None:
    """0 valid, 1 invalid, 3 unknown; the table and the JSON say the same."""
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
def test_a_mistake_is_exit_2_without_traceback(arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.output.strip()


def test_a_report_that_cannot_be_written_is_a_mistake(clean: Path, tmp_path: Path) -> None:
    """The line names the file."""
    result = run(clean, "--report", tmp_path / "none" / "page.html")

    assert result.exit_code == 2
    assert "cannot write the report" in result.output.replace("\n", " ")


@pytest.mark.parametrize("name", ["meta.json", "part-000000.ndjson", "part-verdict.json"])
def test_a_report_over_the_evidence_is_refused(clean: Path, tmp_path: Path, name: str) -> None:
    """Exit 2 before the work, by way of a link too, and every file stays as it was."""
    history = shutil.copytree(clean, tmp_path / "history")
    (tmp_path / "report.json").symlink_to(history / name)
    before = {file.name: file.read_bytes() for file in history.iterdir()}
    for report in (history / name, tmp_path / "report.json"):
        refused = run(history, "--report", report)

        assert refused.exit_code == 2
        assert {file.name: file.read_bytes() for file in history.iterdir()} == before
    assert run(history, "--report", history / "verdict.json").exit_code == 0


def test_a_report_without_room_leaves_the_question_open(clean: Path, tmp_path: Path) -> None:
    """Exit 3, and a sentence that names the file."""
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


def test_the_page_is_self_contained_and_escaped(clean: Path, tmp_path: Path) -> None:
    """A topic that is markup is shown as text, nothing is fetched, and every tag is closed."""
    evil = "<script>alert('x')</script>&"
    plant(clean, "next_wrong", tmp_path / "planted")

    def rename(event: Event) -> Event:
        changed = json.loads(json.dumps({name: getattr(event, name) for name in event.__struct_fields__}))
        return Event(**(changed | ({"topic": evil} if event.topic else {})))

    write(tmp_path / "evil", map(rename, load(tmp_path / "planted").events), simulated_meta())
    assert run(tmp_path / "evil", "--report", tmp_path / "page.html").exit_code == 1
    html = (tmp_path / "page.html").read_text()
    page = Page(html)

    assert page.open == []
    assert page.links == []
    assert html.count("<script") == 0
    assert evil in page.text
    assert "an answer was wrong" in page.text
    assert '"event":"answer_sent"' in page.text

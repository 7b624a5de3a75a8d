"""The output of the judge: page, Markdown, JUnit XML, windows; hostile names stay text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner
from model_tests.judge.test_picture import Page
from model_tests.support.judge.faults import plant

from longpoll.cli import main
from longpoll_judge.contract.result import (
    COMMIT_IS_TOLD,
    COMMIT_NEVER_REGRESSES,
    FOLLOWS_THE_LAW,
    HOLD_LIMIT_KEPT,
    MESSAGE_IS_DELIVERED,
    PROPERTIES,
    SEND_IS_KEPT,
    Result,
)
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.report import histogram, render_junit, render_markdown, render_section, sequence_chart
from longpoll_judge.show.window import host, itf, shiviz

HOSTILE = "<script>alert(1)</script>|\x01`*"


@pytest.fixture(scope="module")
def faulty(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history whose wakeup comes 2 s late."""
    directory = tmp_path_factory.mktemp("reported") / "history"
    plant(clean, "wake_delayed", directory)
    return directory


@pytest.fixture(scope="module")
def result(faulty: Path) -> Result:
    """Its judgement."""
    return judge([faulty], engine="local")


def test_the_section_needs_nothing_else(result: Result) -> None:
    """No script, no address; both distributions and each finding are drawn."""
    page = Page(render_section(result))

    assert "script" not in page.tags
    assert page.addresses == []
    assert page.tags.count("svg") == len(result.findings) + sum(bool(bars) for bars in result.histogram.values())


def test_names_stay_text(result: Result) -> None:
    """A topic that looks like markup is shown, not obeyed, in every kind of report."""
    evil = [msgspec.structs.replace(finding, topic=HOSTILE, why=HOSTILE) for finding in result.findings]
    changed = msgspec.structs.replace(result, findings=evil)
    page = Page(render_section(changed))

    assert "script" not in page.tags
    assert "<script>" not in render_markdown(changed)
    assert ET.fromstring(render_junit(changed)).find("testcase/failure") is not None  # noqa: S314 - our own text


def test_histograms_hold_every_latency(result: Result) -> None:
    """The bars add up to the count, and end where the highest latency lies."""
    for name, values in result.latency.items():
        bars = result.histogram[name]
        assert sum(count for _upper, count in bars) == values.count > 0
        assert values.max is not None
        assert values.max <= bars[-1][0] * 1.01
        assert histogram(bars, name).count("<rect") == len(bars)
    assert histogram([], "none") == ""


def test_a_sequence_chart_shows_every_event(result: Result) -> None:
    """One circle an event, and a lane for the request and one for the log."""
    (finding, *_rest) = result.findings
    chart = sequence_chart(finding)

    assert chart.count("<circle") == len(finding.shown()) >= 3
    assert chart.count('class="lane"') == len({host(event) for event in finding.shown()}) == 2
    ET.fromstring(chart)  # noqa: S314 - our own text


def test_junit_counts_properties(result: Result, clean: Path) -> None:
    """A violated property fails, what is missing or had no case is skipped, and a clean history fails nowhere."""
    failed = ET.fromstring(render_junit(result))  # noqa: S314 - our own text
    names = {case.get("name") for case in failed.findall("testcase") if case.find("failure") is not None}
    passed = ET.fromstring(render_junit(judge([clean], engine="local")))  # noqa: S314 - our own text

    assert names == {finding.property for finding in result.findings}
    assert len(failed.findall("testcase")) == len(PROPERTIES) + 1
    assert passed.get("failures") == "0"
    skipped = {case.get("name") for case in passed.findall("testcase") if case.find("skipped") is not None}
    of_sends = {SEND_IS_KEPT, MESSAGE_IS_DELIVERED}
    assert skipped == {HOLD_LIMIT_KEPT, FOLLOWS_THE_LAW, COMMIT_IS_TOLD, COMMIT_NEVER_REGRESSES, *of_sends}


def test_markdown_names_every_finding(result: Result) -> None:
    """One line a finding."""
    text = render_markdown(result)

    assert text.startswith("# The history is invalid")
    assert len(re.findall(r"^- \*\*", text, re.MULTILINE)) == len(result.findings)


def test_a_window_keeps_the_order_of_time(result: Result) -> None:
    """Vector clocks order just those events of different hosts whose intervals do not overlap."""
    (finding, *_rest) = result.findings
    lines = shiviz(finding).splitlines()[2::2]
    clocks = [msgspec.json.decode(line.split(" ", 1)[1]) for line in lines]
    for later, event in enumerate(finding.shown()):
        for earlier, other in enumerate(finding.shown()[:later]):
            certain = other["before_ns"] < event["after_ns"] or host(other) == host(event)
            name = host(other)
            assert (clocks[later].get(name, 0) >= clocks[earlier][name]) == certain


def test_a_trace_holds_every_event(result: Result) -> None:
    """ITF: one state an event, numbers beyond 53 bits as texts."""
    (finding, *_rest) = result.findings
    trace = msgspec.json.decode(itf(finding))

    assert [state["event"] for state in trace["states"]] == [event["event"] for event in finding.shown()]
    assert trace["states"][0]["after_ns"] == {"#bigint": str(finding.shown()[0]["after_ns"])}
    assert set(trace["vars"]) == set(trace["states"][0]) - {"#meta"}


def test_the_command_writes_them_all(faulty: Path, tmp_path: Path) -> None:
    """Four reports and two files a finding; an unknown kind is one clear line."""
    runner = CliRunner()
    options = [part for kind in ("html", "md", "xml", "json") for part in ("--report", str(tmp_path / f"r.{kind}"))]
    told = runner.invoke(
        main, ["judge", str(faulty), "--engine", "local", *options, "--windows", str(tmp_path / "w"), "--json"]
    )
    said = msgspec.json.decode(told.stdout)

    assert told.exit_code == 1
    assert len(list((tmp_path / "w").iterdir())) == 2 * len(said["findings"])
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes())["findings"] == said["findings"]
    assert all((tmp_path / f"r.{kind}").stat().st_size > 500 for kind in ("html", "md", "xml"))
    unknown = runner.invoke(main, ["judge", str(faulty), "--engine", "local", "--report", str(tmp_path / "r.pdf")])
    assert unknown.exit_code == 2
    assert "must end in .html" in unknown.stderr

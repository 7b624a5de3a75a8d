"""The output of the judge: the section of a page, JSON; hostile names stay text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner
from click.testing import Result as Invocation
from model_tests.judge.test_picture import Page
from model_tests.support.judge.faults import plant

from longpoll.cli import main
from longpoll_judge.contract.result import (
    Result,
)
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.report import histogram, render_section, sequence_chart

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
    """A topic that looks like markup is shown, not obeyed."""
    evil = [msgspec.structs.replace(finding, topic=HOSTILE, why=HOSTILE) for finding in result.findings]
    changed = msgspec.structs.replace(result, findings=evil)
    page = Page(render_section(changed))

    assert "script" not in page.tags


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
    assert chart.count('class="lane"') == 2
    ET.fromstring(chart)  # noqa: S314 - our own text


def test_the_command_writes_them_all(faulty: Path, tmp_path: Path) -> None:
    """Both kinds of report; another kind, and a former option, are one clear line."""

    def judged(*words: str) -> Invocation:
        return CliRunner().invoke(main, ["judge", str(faulty), "--engine", "local", *words])

    told = judged("--report", str(tmp_path / "r.html"), "--report", str(tmp_path / "r.json"), "--json")

    assert told.exit_code == 1
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes()) == msgspec.json.decode(told.stdout)
    assert (tmp_path / "r.html").stat().st_size > 500
    for words, sentence in (
        (["--report", str(tmp_path / "r.xml")], "must end in .html, .json"),
        (["--windows", "w"], "no option --windows any more: --report FILE.html draws"),
        (["--webhook", "https://host"], "no option --webhook any more: --findings FILE appends"),
    ):
        former = judged(*words)
        assert former.exit_code == 2
        assert sentence in former.stderr

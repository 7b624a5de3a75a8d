"""The output of the judge: latencies as histograms, and reports as files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from click.testing import Result as Invocation
from model_tests.support.judge.faults import plant

from longpoll.cli import main
from longpoll_judge.contract.result import (
    Result,
)
from longpoll_judge.run.pipeline import judge


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


def test_histograms_hold_every_latency(result: Result) -> None:
    """The bars add up to the count, and end where the highest latency lies."""
    for name, values in result.latency.items():
        bars = result.histogram[name]
        assert sum(count for _upper, count in bars) == values.count > 0
        assert values.max is not None
        assert values.max <= bars[-1][0] * 1.01


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

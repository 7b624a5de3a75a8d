"""The reports of the judge as files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from click.testing import Result as Invocation
from model_tests.support.judge.faults import plant

from longpoll.cli import main


@pytest.fixture(scope="module")
def faulty(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history whose wakeup comes 2 s late."""
    directory = tmp_path_factory.mktemp("reported") / "history"
    plant(clean, "wake_delayed", directory)
    return directory


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

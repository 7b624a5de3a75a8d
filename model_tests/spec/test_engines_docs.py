"""The page about the engines tells the truth: every command in it runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines import ENGINES

PAGE: Final = Path(__file__).parents[2] / "docs" / "engines.md"
BLOCKS: Final = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
COMMANDS: Final = [line for block in BLOCKS for line in block.splitlines() if line.startswith("longpoll ")]
FINDS_NOTHING: Final = "--policy strict --bounds wide --engine simulate"


def _marks(command: str) -> list[pytest.MarkDecorator]:
    is_spark = "spark" in command  # a session of its own, beside the one that tests share
    return [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("spark_alone")] if is_spark else []


@pytest.mark.long
@pytest.mark.parametrize("command", [pytest.param(each, marks=_marks(each)) for each in COMMANDS])
def test_every_command_of_the_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as the page says: all holds, something is violated, or nothing was found."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, shlex.split(command)[1:])

    wanted = 1 if "rocketmq" in command else 3 if FINDS_NOTHING in command else 0
    assert done.exit_code == wanted, done.output


def test_the_page_names_every_engine() -> None:
    """No engine goes untold."""
    told = re.findall(r"^\| `(\w+)`", PAGE.read_text("utf-8"), re.MULTILINE)

    assert sorted(told) == sorted(ENGINES)
    assert len(COMMANDS) > 4

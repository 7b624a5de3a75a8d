"""The page about the engines tells the truth: every command in it runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from longpoll_spec.engines import ENGINES

LONGPOLL: Final = Path(sys.executable).with_name("longpoll")
PAGE: Final = Path(__file__).parents[2] / "docs" / "engines.md"
BLOCKS: Final = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
COMMANDS: Final = [line for block in BLOCKS for line in block.splitlines() if line.startswith("longpoll ")]
FINDS_NOTHING: Final = "--policy strict --bounds wide --engine simulate"


def _marks(command: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long, pytest.mark.spark] if "spark" in command else []


@pytest.mark.long
@pytest.mark.parametrize("command", [pytest.param(each, marks=_marks(each)) for each in COMMANDS])
def test_every_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    """It ends as the page says: all holds, something is violated, or nothing was found.

    In a process of its own, for some have a limit of memory or a Spark of their own.
    """
    arguments = [str(LONGPOLL), *shlex.split(command)[1:]]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)

    wanted = 1 if "rocketmq" in command else 3 if FINDS_NOTHING in command else 0
    assert done.returncode == wanted, done.stdout + done.stderr


def test_the_page_names_every_engine() -> None:
    """No engine goes untold."""
    told = re.findall(r"^\| `(\w+)`", PAGE.read_text("utf-8"), re.MULTILINE)

    assert sorted(told) == sorted(ENGINES)
    assert len(COMMANDS) > 4

"""The tables, the counterexample and the sample conversation of docs/dojo.md match the output of the dojo."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from model_tests.dojo.test_world import Right

from longpoll.cli import main
from longpoll_kit.errors import HINTS as KIT_HINTS
from longpoll_kit.programs.explore import Bounds, orders
from longpoll_kit.programs.process import Program
from longpoll_kit.programs.protocol import HINTS
from longpoll_kit.programs.schedule import STRICT
from longpoll_kit.programs.starters import starters

PAGE = (Path(__file__).parents[2] / "docs" / "dojo.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?sm)^```\w*\n(.*?)^```$", PAGE)
SOURCES = {program.name: program.source for program in starters("python")}


def test_the_page_lists_every_property() -> None:
    """The page lists the kit's properties that apply to programs, and the dojo's own properties."""
    section = PAGE.partition("## Properties\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"(?m)^\| `(\w+)` \|", section))
    assert HINTS.keys() <= listed <= HINTS.keys() | KIT_HINTS.keys()


def test_the_counterexample_on_the_page_is_printed_by_the_dojo(tmp_path: Path) -> None:
    (tmp_path / "lost_wakeup.py").write_text(SOURCES["lost_wakeup"])
    said = CliRunner().invoke(main, ["dojo", sys.executable, "-S", str(tmp_path / "lost_wakeup.py")]).stdout
    story = next(block for block in BLOCKS if block.startswith("no_lost_wakeup"))

    assert said.startswith(story)


def test_the_conversation_on_the_page_is_that_of_the_correct_program(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(SOURCES["right"])
    block = next(block for block in BLOCKS if block.startswith("> "))
    turns = [turn.splitlines() for turn in block.split("> ")[1:]]
    assert len(turns) == 5
    with Program([sys.executable, "-S", str(tmp_path / "right.py")]) as program:
        for message, *lines in turns:
            replies = [msgspec.to_builtins(reply) for reply in program.turn(message.encode())]
            assert json.loads(json.dumps(replies)) == [json.loads(line.removeprefix("< ")) for line in lines]


@pytest.mark.long  # test_command.py runs the shorter bounds in every test run, so this test has only the long bounds.
def test_the_counts_are_those_of_the_bound() -> None:
    counted = 0
    for moves in range(1, Bounds().moves + 1):
        played = list(orders(Right(), Bounds(), STRICT, moves, plain=True))
        assert [each.violation for each in played if each.violation is not None] == []
        # A schedule that ends early because no further step is possible was counted with the schedules of its own
        # length.
        counted += sum(len(each.steps) == moves for each in played)

    assert f"all schedules of up to {Bounds().moves} steps: {counted:,}\n" in PAGE

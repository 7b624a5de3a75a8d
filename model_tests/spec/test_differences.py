"""The comparison of two policies, the documentation page about engines, and the benchmark of exploration."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs
import pytest
from click.testing import CliRunner
from model_tests.bench import explore_bench

from longpoll.cli import main
from longpoll_spec.engines import ENGINES
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.policy import PRESETS, knob_values, policy_named, preset
from longpoll_spec.render.differences import aligned, difference
from longpoll_spec.render.spec_page import OPEN, action_lines


def test_a_comparison_shows_exactly_the_knobs_and_actions_that_differ() -> None:
    for one, other in pairwise(PRESETS.values()):
        found = difference(one, other)
        assert [knob for knob, _, _ in found.knobs] == [
            knob for knob in knob_values() if getattr(one, knob) != getattr(other, knob)
        ]
        plain = {each.action for each in found.actions if not each.aspect}
        assert plain == {
            name for name in ACTION_NAMES if action_lines(name, one, OPEN) != action_lines(name, other, OPEN)
        }
    assert difference(preset("strict"), preset("strict")).actions == ()


def test_equal_lines_are_aligned() -> None:
    pairs = list(aligned(["a", "b", "c"], ["a", "x", "y", "c"]))

    assert pairs == [("a", "a"), ("b", "x"), ("", "y"), ("c", "c")]


def test_the_command_prints_the_knobs_that_differ() -> None:
    told = CliRunner().invoke(main, ["policies", "strict", "strict+recheck_after_hold=none", "--json"])
    data = json.loads(told.stdout)

    assert data["knobs"] == [{"name": "recheck_after_hold", "values": ["after_insert", "none"]}]
    hold = next(each for each in data["actions"] if each["name"] == "hold" and not each["aspect"])
    assert ["       recheck_due[r] := running", ""] in hold["lines"]
    assert data["policies"] == ["strict", policy_named("strict+recheck_after_hold=none").name]
    one = CliRunner().invoke(main, ["policies", "strict"])
    assert (one.exit_code, "name two policies" in one.output) == (2, True)
    assert "are the same policy" in CliRunner().invoke(main, ["policies", "strict", "strict"]).output


LONGPOLL: Final = Path(sys.executable).with_name("longpoll")
PAGE: Final = Path(__file__).parents[2] / "docs" / "engines.md"
BLOCKS: Final = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
COMMANDS: Final = [line for block in BLOCKS for line in block.splitlines() if line.startswith("longpoll ")]


def _marks(command: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long, pytest.mark.spark] if "spark" in command else []


@pytest.mark.long
@pytest.mark.parametrize("command", [pytest.param(each, marks=_marks(each)) for each in COMMANDS])
def test_every_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    arguments = [str(LONGPOLL), *shlex.split(command)[1:]]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)

    wanted = 1 if "rocketmq" in command else 0
    assert done.returncode == wanted, done.stdout + done.stderr


def test_the_page_names_every_engine() -> None:
    told = re.findall(r"^\| `(\w+)`", PAGE.read_text("utf-8"), re.MULTILINE)

    assert sorted(told) == sorted(ENGINES)
    assert len(COMMANDS) > 4


ROOT = Path(__file__).parents[2]


def test_the_benchmark_fails_if_engines_count_differently(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def measured(_: object, ways: list[explore_bench.Way], plain: bool) -> list[explore_bench.Figure]:
        asked.append([way.name for way in ways])
        return [right, spin if plain else wrong]

    right = explore_bench.Figure("packed", 100, 400, 1.0, 1.0, 0.1, 8.0)
    spin = attrs.evolve(right, name="SPIN", seconds=2.0, processor_seconds=4.0)
    wrong = attrs.evolve(spin, transitions=401)
    monkeypatch.setattr(explore_bench, "measure", measured)
    explore_bench.main(["--also", "-"])
    shown = capsys.readouterr().out

    assert "2.00 x SPIN" in shown
    assert "4.00 x SPIN by that" in shown
    with pytest.raises(SystemExit, match="do not count the same"):
        explore_bench.main(["--json"])
    both = json.loads(capsys.readouterr().out)
    assert [each["bounds"] for each in both] == ["bench", "tiny"]
    assert both[1]["figures"][1]["transitions"] == 401
    assert asked[0] == ["packed", "packed, 2 workers"]
    assert asked[-1] == [*asked[0], "packed, symmetry", "packed, 500 MB", "python", "spark, 2 workers"]


def test_a_comparison_shows_the_lines_of_an_action_that_differ_once() -> None:
    told = CliRunner().invoke(main, ["policies", "strict", "strict+recheck_after_hold=none"]).output

    assert told.count("recheck_due[r] := running") == 1
    assert "phase[r] = missed" not in told  # This line of the action `hold` is the same under the two policies.
    assert "hold also differs with channels, limit, role" in told

"""The measurement of exploring: what it runs, and that engines that count differently make it fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from model_tests.bench import explore_bench

ROOT = Path(__file__).parents[2]


def _bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "model_tests.bench", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_engines_that_count_differently_make_it_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal counts pass and print one line each; one transition more or less is an error."""
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


def test_a_mistake_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown policy exits 2 with the ones that are known."""
    with pytest.raises(SystemExit) as stopped:
        explore_bench.main(["--policy", "nope"])

    assert stopped.value.code == 2
    assert "known: strict" in capsys.readouterr().err

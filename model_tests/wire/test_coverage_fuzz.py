"""The coverage-guided fuzzer, where it is installed (`make setup` installs it where it can)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "model_tests" / "wire" / "coverage_fuzz.py"
INSTALLED: Final = importlib.util.find_spec("atheris") is not None


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Fuzz in a process of its own; what it finds is left in the directory."""
    if not INSTALLED:
        pytest.skip("no coverage-guided fuzzing: atheris is not installed: make setup")
    (directory / "corpus").mkdir()
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "spec", "reference"))
    words = ["corpus" if word == "CORPUS" else word for word in options]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        cwd=directory, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


@pytest.mark.long
def test_nothing_that_a_peer_sends_is_an_unexpected_error(tmp_path: Path) -> None:
    """A hundred thousand inputs, each led by what the last ones covered; and it covers more than its corpus did."""
    done = run(tmp_path, "CORPUS", "-runs=100000", "-max_len=4096", "-seed=1")

    assert done.returncode == 0, done.stderr[-3000:]
    found = [int(count) for count in re.findall(r"cov: (\d+)", done.stderr)]
    assert found[-1] > found[0]


@pytest.mark.long
def test_planted_an_error_that_is_not_covered_is_found(tmp_path: Path) -> None:
    """The protocol's own errors count as unexpected: the fuzzer ends with one."""
    done = run(tmp_path, "planted", "CORPUS", "-runs=100000", "-max_len=4096", "-seed=1")

    assert done.returncode != 0
    assert list(tmp_path.glob("crash-*"))

"""The broker's zoo: each fault that its tests once passed over turns a test red now."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import Final

import pytest
from model_tests.mutants.broker_faults import FAULTS, Fault

ROOT: Final = pathlib.Path(__file__).resolve().parents[2]
NEEDED: Final = ("pyproject.toml", "spec", "reference", "model_tests")
FAILED: Final = 1
"""pytest's exit code when tests ran and some failed; another one would show a fault of the zoo."""


def outcome(tree: pathlib.Path, missed_by: str) -> subprocess.CompletedProcess[str]:
    """The tests' result for a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", missed_by]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of what the broker's tests need."""
    skipped = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_missed(fault: Fault, tree: pathlib.Path) -> None:
    path = tree / fault.file
    path.write_text(path.read_text(encoding="utf-8").replace(fault.before, fault.after), encoding="utf-8")
    found = outcome(tree, fault.missed_by)

    assert found.returncode == FAILED, found.stdout[-2000:]

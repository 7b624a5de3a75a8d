"""`make setup EXTRAS=...`: which locked packages it takes, when it runs, and what it says before it starts."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.tidy.test_house import unpinned
from packaging.requirements import Requirement
from requirements.extras import LOCKS, UnknownExtraError, direct, entries, main, name_of, select

ROOT: Final = Path(__file__).parents[2]
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: Final = sorted(PYPROJECT["project"]["optional-dependencies"])
TEXTS: Final = [(ROOT / "requirements" / name).read_text("utf-8") for name in LOCKS]
RUNS: Final = "requirements/setup.sh"


def selected(extras: Iterable[str], locks: Iterable[str] = TEXTS) -> str:
    return select(direct(PYPROJECT["project"], extras), locks)


def names(lock: str) -> set[str]:
    return {name for name, _ in entries(lock)}


def lacking(lock: str) -> set[str]:
    """Return the requirements of the lock's packages, by their metadata, that are missing from the lock."""
    wanted = set()
    for name in names(lock):
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # The requirement is for another operating system, or for Java.
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.add(name_of(requirement.name))
    return wanted - names(lock)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_all_its_requirements(extra: str) -> None:
    lock = selected([extra])

    assert names(lock) >= direct(PYPROJECT["project"], [extra])
    assert unpinned(lock) == []
    assert lacking(lock) == set()


def test_a_small_environment_is_small() -> None:
    assert {"pytest", "hypothesis"} <= names(selected(["testing"]))
    assert not {"numpy", "pyspark", "ruff", "mypy"} & names(selected(["testing"]))
    assert names(selected(["law", "testing"])) == names(selected(["law"])) | names(selected(["testing"]))


def test_all_extras_together_are_the_whole_lock() -> None:
    roots = direct(PYPROJECT["project"], ["all", "connect"])
    roots |= {name_of(line) for line in PYPROJECT["dependency-groups"]["dev"]}

    assert select(roots, TEXTS[:1]) == f"{TEXTS[0].strip()}\n"


def test_an_unknown_extra_is_reported_in_one_sentence() -> None:
    with pytest.raises(UnknownExtraError, match="no extra is called 'lw'; the extras are all, compression"):
        direct(PYPROJECT["project"], ["lw"])


def test_an_old_extra_of_an_environment_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed extra that pyproject.toml no longer has is skipped, but a requested one is an error."""
    monkeypatch.setattr("sys.argv", ["extras.py", "testing", "removed law"])
    assert main() == 0
    assert names(capsys.readouterr().out) == names(selected(["testing", "law"]))
    monkeypatch.setattr("sys.argv", ["extras.py", "removed"])
    assert main() == 2


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("stamp", "extras", "runs"),
    [
        (None, "", True),
        (None, "testing", True),
        ("testing", "testing", False),
        ("spec testing", "testing,spec", False),
        ("testing", "spec", True),
        ("testing", "spec,testing", True),
        ("testing", "", True),
        ("dev", "", False),
        ("dev", "spec", False),
        ("", "", True),
    ],
)
def test_set_up_runs_if_a_package_is_missing(tmp_path: Path, stamp: str | None, extras: str, runs: bool) -> None:
    """A plain `make setup` completes an environment that lacks packages, and does not change a complete one."""
    if stamp is not None:
        (tmp_path / ".fresh").write_text(f"{stamp}\n")
    done = make("--dry-run", "setup", f"VENV={tmp_path}", f"EXTRAS={extras}")

    assert done.returncode == 0, done.stderr
    assert (RUNS in done.stdout) == runs


def test_set_up_runs_after_a_change_of_the_locks(tmp_path: Path) -> None:
    stamp = tmp_path / ".fresh"
    stamp.write_text("dev\n")
    done = make("--dry-run", "setup", f"VENV={tmp_path}", "--what-if=requirements/longpoll.lock")

    assert RUNS in done.stdout

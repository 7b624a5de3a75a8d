"""The zoo: historic bugs as patches of our sources. Shows that the tests named at the top of each patch find its bug.

    python -m model_tests.mutants.patches              # every bug: apply the patch to a copy, run its test
    python -m model_tests.mutants.patches NAME...      # some bugs
    python -m model_tests.mutants.patches --list       # their names and titles

A patch begins with `# title:`, `# source:` and `# found by:` (tests, or a file of tests), and may have `# symptom:`. To
add a patch, change the code, and write the output of `git diff` below these lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from attrs import frozen

ROOT: Final = Path(__file__).parents[2]
ZOO: Final = Path(__file__).with_name("zoo")
NEEDED: Final = ("pyproject.toml", "spec", "reference", "model_tests", "docs", "packaging")
PASSED: Final = 0
FAILED: Final = 1
_HEAD: Final = re.compile(r"^# ([a-z ]+): (.*)$", re.MULTILINE)


class PatchError(Exception):
    """A patch has no title or test, or does not apply; the message names it."""


@frozen
class Bug:
    name: str
    title: str
    source: str
    symptom: str
    """The effect for a user; empty if the title describes it."""
    tests: tuple[str, ...]
    """The tests that find the bug, as arguments of pytest."""
    patch: Path

    @property
    def files(self) -> set[str]:
        return set(re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text("utf-8"), re.MULTILINE))


def read(path: Path) -> Bug:
    head = dict(_HEAD.findall(path.read_text("utf-8").partition("\n--- ")[0]))
    try:
        title, source, found_by = (head[key] for key in ("title", "source", "found by"))
    except KeyError as error:
        raise PatchError(f"{path.name}: no line # {error.args[0]}:") from error
    return Bug(path.stem, title, source, head.get("symptom", ""), tuple(found_by.split()), path)


def bugs() -> list[Bug]:
    return [read(path) for path in sorted(ZOO.glob("*.patch"))]


def page() -> str:
    about = (
        "Bugs of hold tables, stores and clients, each as a patch of our own code. "
        "`python -m model_tests.mutants.patches NAME` applies one to a copy and runs the test that finds it."
    )
    lines = ["# The zoo", "", about, "", "| bug | what is wrong | source | found by |", "| --- | --- | --- | --- |"]
    for bug in bugs():
        told = f"{bug.title} {bug.symptom}".replace("|", "\\|").replace("*", "\\*").strip()
        lines.append(f"| `{bug.name}` | {told} | {bug.source} | {'<br>'.join(f'`{each}`' for each in bug.tests)} |")
    return "\n".join([*lines, ""])


def copy_tree(target: Path) -> None:
    """Copy the files that the tests need, including the compiled modules."""
    target.mkdir(exist_ok=True)
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns(".hypothesis"))
        else:
            shutil.copy2(ROOT / name, target / name)


def apply(bug: Bug, tree: Path, *options: str) -> None:
    """Apply a patch, revert it with `-R`, or only check it with `--check`; raises PatchError."""
    words = ["git", "apply", "-C1", *options, str(bug.patch)]
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PatchError(f"{bug.name}: {done.stderr.strip()}")
    for file in bug.files:
        # Compiled files are removed, because Python would reuse one if its changed source had the same second and size.
        if "--check" not in options:
            Path(cache_from_source(str(tree / file))).unlink(missing_ok=True)


def run_tests(bug: Bug, tree: Path) -> tuple[int, str]:
    """Return the exit code of pytest for the bug's tests in a tree, and the end of its output."""
    words = ["-q", "-x", "-m", "not peers", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *bug.tests]
    paths = os.pathsep.join(str(tree / each) for each in ("", "spec", "reference"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def is_found(bug: Bug, tree: Path) -> bool:
    """Whether the bug's tests fail with it; raises PatchError if the patch does not apply or its tests cannot run."""
    apply(bug, tree)
    try:
        code, said = run_tests(bug, tree)
    finally:
        apply(bug, tree, "-R")
    if code not in {PASSED, FAILED}:
        raise PatchError(f"{bug.name}: pytest ended with {code}: {said}")
    return code == FAILED


def main(words: Iterable[str]) -> int:
    """Run the tests of the named bugs; returns 1 if a bug is not found, and 2 for an unknown name."""
    known = {bug.name: bug for bug in bugs()}
    names = [word for word in words if word != "--list"]
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"no bug {unknown[0]}; python -m model_tests.mutants.patches --list shows all\n")
        return 2
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        if "--list" not in words:
            copy_tree(Path(directory))
        for bug in [known[name] for name in names] or known.values():
            outcome = "listed" if "--list" in words else "found" if is_found(bug, Path(directory)) else "NOT FOUND"
            missed += outcome == "NOT FOUND"
            sys.stdout.write(f"{outcome:9} {bug.name}: {bug.title}\n")
            sys.stdout.flush()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

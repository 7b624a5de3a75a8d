"""Runs TLC on an exported model, and reads TLC's counts and the first violated invariant.

Package registries do not have TLC, so the environment variable `TLA2TOOLS` names its jar or class path. Export: see
`render.export.tla`. Expected numbers: see `engines.manifest`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

CLASS_PATH: Final = "TLA2TOOLS"
TLC_START_STATES: Final = 1
"""The difference between TLC's counts and ours: TLC counts its initial state as generated, and its depth in states."""
COMPLETE: Final = r"^(Model checking completed\. No error has been found\.)"
NO_STATISTICS: Final = "NO_STATISTICS\n"
"""The content of a file in TLC's home directory that keeps TLC from sending statistics."""


@frozen
class TlcRun:
    """The result of a complete TLC run, counted as our engines count."""

    distinct_states: int
    transitions: int
    depth: int


@frozen
class TlcViolation:
    """The invariant or property of steps whose violation stopped TLC, and the length of the violating run."""

    invariant: str
    length: int


def why_no_tlc() -> str | None:
    """Returns the reason why TLC cannot run here, or None if it can."""
    if not os.environ.get(CLASS_PATH):
        return f"set {CLASS_PATH} to the class path of TLC, which no package registry has"
    return None if shutil.which("java") else "java not found"


def run_tlc(name: str, module: str, configuration: str, directory: Path) -> TlcRun | TlcViolation:
    """Check a module on one thread and breadth-first, so that a reported violation has a shortest run.

    Raises `RuntimeError` with TLC's last lines if TLC gives no result.
    """
    (directory / f"{name}.tla").write_text(module)
    (directory / f"{name}.cfg").write_text(configuration)
    return _read(_tlc(name, directory))


def keeps(name: str, module: str, configuration: str, wanted: str, directory: Path) -> bool:
    """Whether every run of the module's specification `Tried` satisfies a temporal property.

    Raises `RuntimeError` if TLC gives no result.
    """
    (directory / f"{name}.tla").write_text(module)
    constants = [line for line in configuration.splitlines() if line.startswith("CONSTANT ")]
    lines = ["SPECIFICATION Tried", *constants, "CHECK_DEADLOCK FALSE", f"PROPERTY {wanted}"]
    (directory / f"{name}.cfg").write_text("\n".join([*lines, ""]))
    said = _tlc(name, directory)
    if re.search(r"^Error: Temporal propert(?:y|ies) .*violated", said, re.MULTILINE):
        return False
    _found(COMPLETE, said)
    return True


def only_invariants(configuration: str, names: Iterable[str]) -> str:
    """Returns the configuration with these invariants only, and without properties of steps."""
    kept = [line for line in configuration.splitlines() if not re.search("INVARIANT|^PROPERTY", line)]
    return "\n".join([*kept, *(f"INVARIANT {name}" for name in names), ""])


def _tlc(name: str, directory: Path) -> str:
    home = directory / "home"
    (home / ".tlaplus").mkdir(parents=True, exist_ok=True)
    (home / ".tlaplus" / "esc.txt").write_text(NO_STATISTICS)
    options: Sequence[str] = ("-workers", "1", "-noGenerateSpecTE", "-metadir", "states", name)
    java = ("java", f"-Duser.home={home}", "-XX:+UseParallelGC", "-cp", _class_path(os.environ))
    done = subprocess.run([*java, "tlc2.TLC", *options], cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _class_path(environment: Mapping[str, str]) -> str:
    """Returns TLC's class path with absolute names, because TLC runs in the directory of the module."""
    return os.pathsep.join(str(Path(part).absolute()) for part in environment[CLASS_PATH].split(os.pathsep) if part)


def _read(said: str) -> TlcRun | TlcViolation:
    violated = re.search(
        r"^Error: (?:Invariant|Action property) (\w+) is violated( by the initial state)?", said, re.MULTILINE
    )
    if violated is not None:
        shown = 1 if violated[2] else len(re.findall(r"^State \d+: ", said, re.MULTILINE))
        return TlcViolation(violated[1], shown - 1)
    _found(COMPLETE, said)
    generated, distinct = _found(r"^(\d+) states generated, (\d+) distinct states found, 0 states left", said)
    (depth,) = _found(r"^The depth of the complete state graph search is (\d+)\.", said)
    return TlcRun(int(distinct), int(generated) - TLC_START_STATES, int(depth) - TLC_START_STATES)


def _found(pattern: str, said: str) -> tuple[str, ...]:
    match = re.search(pattern, said, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"TLC did not finish: {said[-600:]}")
    return match.groups()

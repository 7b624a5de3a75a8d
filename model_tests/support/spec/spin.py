"""Runs SPIN on an exported model: translates and compiles the model, runs it, and reads SPIN's counts and verdicts.

Needs the program `spin` and the C compiler `gcc`. Export: see `render.export.promela`. Expected numbers: see
`engines.manifest`.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

SPIN_START_TRANSITIONS: Final = 1
"""SPIN counts stored and matched states as transitions, so the start of its one process counts as one transition."""
EXHAUSTIVE: Final = ("-DSAFETY", "-DNOREDUCE")
"""Options to explore every state and every transition: only safety, without partial-order reduction."""
BREADTH_FIRST: Final = (*EXHAUSTIVE, "-DBFS")
"""Options for breadth-first order, in which each state and each finding is reached by a shortest run."""
EVERY_PROPERTY: Final = ("-DALWAYS", "-DSOMETIMES")

_COUNTS: Final = {
    "states": r"^\s*([\d.e+]+) states, stored",
    "transitions": r"^\s*([\d.e+]+) transitions",
    "depth": r"depth reached (\d+),",
    "errors": r"errors: (\d+)$",
}
_FINDING: Final = re.compile(r"^pan:\d+: (\w+) is (violated|reached)( by this step)? \(at depth (\d+)\)$", re.MULTILINE)
_TROUBLE: Final = re.compile(
    r"^(?:pan:\d+: (?!\w+ is (?:violated|reached))|error: |pan: (?!elapsed|rate)).*$", re.MULTILINE
)


@frozen
class SpinRun:
    """The result of a complete SPIN run, counted as our engines count.

    SPIN rounds counts of more than eight digits (`as_told`).
    """

    distinct_states: int
    transitions: int
    depth: int
    violated: dict[str, int]
    """Maps each violated property to the length of a run that violates it, the shortest one if SPIN ran breadth-first.
    """
    reached: dict[str, int]
    """Maps each state that must be reached to the length of a run that reaches it."""
    seconds: float
    """The duration of the run in seconds, without translation and compilation."""
    processor_seconds: float
    memory_mb: float


def as_told(count: int) -> int:
    """Returns a count rounded as SPIN prints it, with eight significant digits."""
    return int(float(f"{count:.8g}"))


def why_no_spin() -> str | None:
    """Returns the reason why SPIN cannot run here, or None if it can."""
    lacking = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    return f"{' and '.join(lacking)} not found; install the Debian packages spin and gcc" if lacking else None


def compile_spin(
    text: str, directory: Path, *, select: Sequence[str] = (), how: Sequence[str] = BREADTH_FIRST, optimise: str = "-O1"
) -> Path:
    """Translate Promela text and compile it in the directory; `select` has the options that choose the properties.

    Raises `RuntimeError` with the last lines of the tool that failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "law.pml").write_text(text)
    _tool(["spin", "-a", *select, "law.pml"], directory)
    _tool(["gcc", "-w", optimise, *how, "-o", "pan", "pan.c"], directory)
    return directory / "pan"


def run_spin(pan: Path, *options: str) -> SpinRun:
    """Run a compiled model to its end; raises `RuntimeError` if SPIN did not finish or reports an error of its own."""
    began, spent = time.perf_counter(), _children_seconds()
    said = _tool([str(pan), "-c0", *options], pan.parent)
    seconds, processor_seconds = time.perf_counter() - began, _children_seconds() - spent
    trouble = _TROUBLE.search(said)
    if trouble is not None:
        raise RuntimeError(f"SPIN says: {trouble[0]}")
    return _read(said, seconds, processor_seconds)


def _children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _read(said: str, seconds: float, processor_seconds: float) -> SpinRun:
    counts = {name: int(float(_only(pattern, said))) for name, pattern in _COUNTS.items()}
    found: dict[str, dict[str, int]] = {"violated": {}, "reached": {}}
    looks = 0
    for name, kind, by_step, depth in _FINDING.findall(said):
        looks += not by_step
        length = int(depth) + bool(by_step)
        found[kind][name] = min(length, found[kind].get(name, length))
    assert len(_FINDING.findall(said)) == counts["errors"], "SPIN counts more errors than it printed"
    return SpinRun(
        distinct_states=counts["states"],
        transitions=counts["transitions"] - looks - SPIN_START_TRANSITIONS,
        depth=counts["depth"],
        violated=found["violated"],
        reached=found["reached"],
        seconds=seconds,
        processor_seconds=processor_seconds,
        memory_mb=float(_only(r"([\d.]+)\s+total actual memory usage", said)),
    )


def _only(pattern: str, said: str) -> str:
    match = re.search(pattern, said, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"SPIN did not finish: {said[-400:]}")
    return match[1]


def _tool(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {said[-400:]}")
    return said

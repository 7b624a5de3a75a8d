"""`python -m model_tests.nightly` (`make nightly`): runs tests that are too long for `make test`, for a given time.

The minutes are divided among three parts. Simulated brokers run first. Then the tests marked `long` and the state
machines run in an order drawn from the seed. Last come the tests that need the whole machine. The default seed is the
date, so each night has different schedules and different tests.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import click
import msgspec
from attrs import frozen
from model_tests.nightly.plugin import PLAN, Line, Plan

from longpoll.options.values import Amount
from longpoll.output import Exit, emit_json, err, json_option, out, table

ROOT: Final = Path(__file__).resolve().parents[2]
LOGS: Final = ROOT / "build" / "nightly"
SIMULATED: Final = 0.2
"""The share of the minutes for simulated brokers."""
SHARED: Final = 0.65
"""The share of the minutes for the long tests. The remaining minutes are for tests that need the whole machine."""
GRACE_S: Final = 150.0
"""A test that still runs this many seconds after the deadline of its part is killed and counts as unfinished."""
TEST_S: Final = 1_200.0
"""The time limit of a test in seconds, unless its own marker allows more.

A test that reaches the deadline of the run first counts as unfinished and not as failed."""
KILL_S: Final = 10.0
NAMES: Final = {"shared": "long tests", "alone": "whole-machine tests"}
NO_TEST_RAN: Final = 5
"""pytest's exit code if no test ran."""


@frozen
class Part:
    name: str
    passed: int
    failed: tuple[str, ...]
    unfinished: tuple[str, ...]
    not_reached: int
    """Tests that did not start before the deadline."""
    seconds: float


@contextlib.contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process group; end the whole group at the end of the block.

    SIGINT comes first: pytest then runs its teardowns, which end processes in other sessions.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, start_new_session=True, stdout=sys.stderr
    )
    try:
        yield process
    finally:
        for number, patience_s in ((signal.SIGINT, KILL_S), (signal.SIGTERM, KILL_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)


def _wait(process: subprocess.Popen[bytes], until_s: float) -> int | None:
    """Return the exit code, or None if the process still runs when `time.monotonic` reaches `until_s`."""
    try:
        return process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def run_simulation(minutes: float, seed: int) -> Part:
    begun_s = time.monotonic()
    words = ("-m", "model_tests.support.simulation", "--minutes", f"{minutes:g}", "--seed", str(seed))
    environment = {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "spec", "reference"))}
    with _process((sys.executable, *words), environment) as process:
        code = _wait(process, begun_s + minutes * 60 + GRACE_S)
    command = f"python {' '.join(words)}"
    failed = (f"{command} (exit code {code})",) if code not in {Exit.OK, None} else ()
    unfinished = (command,) if code is None else ()
    return Part("simulated brokers", int(code == Exit.OK), failed, unfinished, 0, time.monotonic() - begun_s)


def run_tests(
    select: Literal["shared", "alone"], minutes: float, seed: int, words: Sequence[str], *, grace_s: float = GRACE_S
) -> Part:
    LOGS.mkdir(parents=True, exist_ok=True)
    name = NAMES[select]
    log = LOGS / f"{select}.jsonl"
    log.unlink(missing_ok=True)
    begun_s = time.monotonic()
    plan = Plan(seed=seed, deadline_s=begun_s + minutes * 60, select=select, log=str(log))
    environment = {
        PLAN: msgspec.json.encode(plan).decode(),
        "LONGPOLL_PROFILE": "long",
        "LONGPOLL_SEED": str(seed),
        "PYTHONPATH": str(ROOT),
    }
    command = (
        *(sys.executable, "-m", "pytest", "-p", "model_tests.nightly.plugin", "-q", "-m", "", "--tb", "short"),
        *(f"--hypothesis-seed={seed}", "--timeout", f"{TEST_S:g}", *words),
    )
    with _process(command, environment) as process:
        code = _wait(process, begun_s + minutes * 60 + grace_s)
        # The log is read before the process is ended, so that a test that fails because of the interrupt counts as
        # unfinished.
        part = result_of(name, log, time.monotonic() - begun_s)
    if code not in {0, 1, NO_TEST_RAN, None} or (code == 1 and not part.failed):
        failed = f"pytest ended with exit code {code} before it ran all tests"
        return Part(name, part.passed, (*part.failed, failed), part.unfinished, part.not_reached, part.seconds)
    return part


def result_of(name: str, log: Path, seconds: float) -> Part:
    """Count the lines that the plugin logged. A test whose end was not logged is unfinished."""
    lines = [msgspec.json.decode(line, type=Line) for line in log.read_bytes().splitlines()] if log.exists() else []
    tests: dict[str, set[str]] = {}
    for line in lines:
        if line.test:
            tests.setdefault(line.test, set()).add(line.outcome)
    failed = tuple(sorted(test for test, seen in tests.items() if "failed" in seen))
    unfinished = tuple(sorted(test for test, seen in tests.items() if not seen & {"failed", "finished"}))
    passed = sum("passed" in seen and not seen & {"failed"} and "finished" in seen for seen in tests.values())
    selected = max((line.count for line in lines if line.outcome == "selected"), default=0)
    return Part(name, passed, failed, unfinished, max(0, selected - len(tests)), seconds)


def today() -> int:
    """Return the date as a number, such as 20261126, so each night has its own seed and anyone can repeat it."""
    return int(dt.datetime.now(dt.UTC).strftime("%Y%m%d"))


def exit_of(parts: Sequence[Part]) -> Exit:
    """Return exit code 1 if a test failed, 3 if no part finished anything, and 0 otherwise."""
    if any(part.failed for part in parts):
        return Exit.VIOLATED
    return Exit.OK if any(part.passed for part in parts) else Exit.UNKNOWN


def _show(parts: Sequence[Part], seed: int) -> None:
    heads = ("part", "passed", "failed", "unfinished", "not reached", "minutes")
    rows = [
        (part.name, part.passed, len(part.failed), len(part.unfinished), part.not_reached, f"{part.seconds / 60:.1f}")
        for part in parts
    ]
    table(f"Nightly run with seed {seed}", heads, rows, right=heads[1:])
    for part in parts:
        for what, tests in (("failed", part.failed), ("unfinished", part.unfinished)):
            for test in tests:
                out.tell(f"{what}: {test}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=Amount(above_zero=True), default=45.0, show_default=True, help="Time for all parts.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Default: the date, such as 20261126.")
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count(), help="Test processes. Default: one a core.")
@json_option
def main(minutes: float, seed: int | None, workers: int, *, as_json: bool) -> None:
    """Run simulations and the long tests for a given time.

    \b
    Examples:
      make nightly                                        45 minutes, with today's seed
      make nightly MINUTES=10 SEED=20261126               shorter, and the night of 26 November again

    Exit codes: 0 nothing failed, 1 something did, 2 a mistake in the call, 3 no part finished anything.
    """  # noqa: D301 - click reads a real backspace: the lines after it keep their breaks
    seed = today() if seed is None else seed
    err.tell(f"nightly: {minutes:g} minutes, seed {seed}; repeat it with: make nightly MINUTES={minutes:g} SEED={seed}")
    parts = [run_simulation(minutes * SIMULATED, seed)]
    shared_words = ("-n", str(workers), "--dist", "loadgroup")
    parts.append(run_tests("shared", minutes * SHARED, seed, shared_words))
    spent = sum(part.seconds for part in parts[1:]) / 60
    parts.append(run_tests("alone", max(0.0, minutes - spent), seed, ()))
    code = exit_of(parts)
    if as_json:
        emit_json({"exit_code": int(code), "seed": seed, "minutes": minutes, "parts": msgspec.to_builtins(parts)})
    else:
        _show(parts, seed)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Builds the four runners of conformance vectors with the tools of their languages, and reads their results.

The built files are in a temporary directory. `test_vectors` has the expected results.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from attrs import evolve, frozen
from model_tests.peers.real_clients import ClientUnavailableError, make_ready

HERE: Final = Path(__file__).parent
TRIES: Final = 3
"""Failed vectors are played together up to this often, because a busy machine may answer late."""
Address = tuple[str, int]


@frozen
class Place:
    broker: Address
    name_server: Address
    name: str
    cluster: str
    has: frozenset[str]


@frozen
class Outcome:
    code: int
    passed: frozenset[str]
    failed: Mapping[str, str]
    skipped: Mapping[str, str]
    summary: str


def go(directory: Path) -> list[str]:
    _made(["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(directory / "play"), "."], HERE / "go")
    return [str(directory / "play")]


def rust(directory: Path) -> list[str]:
    _made(["cargo", "build", "--locked", "--target-dir", str(directory)], HERE / "rust")
    return [str(directory / "debug" / "play")]


def java(directory: Path) -> list[str]:
    _made(["javac", "-d", str(directory), "Play.java"], HERE / "java")
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", str(directory), "Play"]


def node(_directory: Path) -> list[str]:
    _made(["node", "--check", "play.js"], HERE / "node")
    return ["node", str(HERE / "node" / "play.js")]


RUNNERS: Final[Mapping[str, Callable[[Path], list[str]]]] = {"go": go, "rust": rust, "java": java, "node": node}


def _made(command: list[str], directory: Path) -> None:
    if shutil.which(command[0]) is None:
        raise ClientUnavailableError(f"no {command[0]} on PATH")
    make_ready(command, directory)


def play(command: Sequence[str], file: Path, place: Place, only: Collection[str] = ()) -> Outcome:
    addresses = [f"{host}:{port}" for host, port in (place.broker, place.name_server)]
    words = [
        str(file),
        *addresses,
        place.name,
        place.cluster,
        ",".join(sorted(place.has)),
        *([",".join(only)] if only else []),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    *lines, summary = done.stdout.splitlines() or [done.stderr]
    told: dict[str, dict[str, str]] = {"PASS": {}, "FAIL": {}, "SKIPPED": {}}
    for line in lines:
        outcome, vector, *why = line.split(" ", 2)
        told[outcome][vector] = " ".join(why)
    return Outcome(done.returncode, frozenset(told["PASS"]), told["FAIL"], told["SKIPPED"], summary)


def play_until_steady(command: Sequence[str], file: Path, place: Place, only: Collection[str]) -> Outcome:
    outcome = play(command, file, place, only)
    for _ in range(TRIES - 1):
        if not outcome.failed:
            break
        again = play(command, file, place, outcome.failed)
        outcome = evolve(outcome, code=again.code, passed=outcome.passed | again.passed, failed=again.failed)
    return outcome


def at_once(tasks: Mapping[str, Callable[[], Outcome]]) -> dict[str, Outcome]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = {name: pool.submit(task) for name, task in tasks.items()}
        return {name: future.result() for name, future in futures.items()}

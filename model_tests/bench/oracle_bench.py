"""Measures how many steps per second `longpoll oracle` checks on standard input and output, without its start-up time.

    python -m model_tests.bench.oracle_bench [--steps 100000]

The bench runs the oracle as a separate process twice, with all steps of a random legal run and with no steps, and
subtracts the second time from the first. The bench checks only that the oracle accepted every step.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

from model_tests.bench import leaving
from rich.console import Console
from rich.table import Table

from longpoll_judge.step_reader import model_of
from longpoll_spec.engines.python import successors
from longpoll_spec.history import Law

CASES: Final[Sequence[tuple[str, Sequence[str]]]] = (
    ("strict", ()),
    ("strict-clone", ()),
    ("rocketmq-4.9", ()),
    ("strict", ("--hidden", "tick")),
    ("strict", ("--record",)),
    ("strict", ("--requests", "8")),
)
"""Policy, and the other options of the command."""


def lines(policy: str, requests: int, count: int) -> bytes:
    """Return the oracle's input lines for a legal run in which the broker never stops."""
    model = model_of(policy, Law(requests=requests))
    step, state, chance = successors(model), model.initial, random.Random(1)
    written = []
    for _ in range(count):
        index, state = chance.choice([each for each in step(state) if model.actions[each[0]].name != "stop"])
        action = model.actions[index]
        written.append(json.dumps({"do": "did", "step": action.name, "actors": ",".join(map(str, action.actors))}))
    return "".join(f"{line}\n" for line in written).encode()


def seconds(policy: str, options: Sequence[str], text: bytes) -> float:
    with tempfile.TemporaryDirectory() as directory:
        words = [*options, str(Path(directory) / "histories")] if "--record" in options else options
        command = [sys.executable, "-m", "longpoll", "oracle", "--policy", policy, *words]
        begun_s = perf_counter()
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        taken_s = perf_counter() - begun_s
    assert b" 0 rejected" in done.stderr, done.stderr
    return taken_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="of each run")
    count = parser.parse_args().steps
    table = Table("policy", "options", "steps a second", title=f"longpoll oracle, {count:,} steps")
    for policy, options in CASES:
        requests = next((int(word) for word in options if word.isdigit()), 2)
        start_s = min(seconds(policy, options, b"") for _ in range(2))
        taken_s = seconds(policy, options, lines(policy, requests, count)) - start_s
        table.add_row(policy, " ".join(options), f"{count / taken_s:,.0f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    leaving.run(main)

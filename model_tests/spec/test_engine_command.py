"""`longpoll check` with the engines `simulate` and `spark`: what they print, and how they go on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll.commands import law
from longpoll_spec.engines.exploration import Progress
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.engines.spark.checkpoint import STATE_FILE


def test_the_command_tells_what_its_runs_came_to() -> None:
    """The object has the contract's keys and the coverage; nothing found on strict is exit 3, a finding exit 1."""
    words = ["check", "--bounds", "tiny", "--engine", "simulate", "--runs", "3000", "--seed", "5"]
    done = CliRunner().invoke(main, [*words, "--json"])
    found = CliRunner().invoke(main, [*words, "--policy", "rocketmq-4.9", "--all"])

    made = json.loads(done.stdout)
    assert done.exit_code == 3
    assert {"policy", "bounds", "engine", "distinct_states", "transitions", "depth", "urgent"} <= set(made)
    assert made["coverage"]["actions"]["append"] > 0
    assert made["coverage"]["sometimes"]["some_held"] > 0
    assert sum(made["coverage"]["actions"].values()) == made["transitions"]
    assert found.exit_code == 1
    assert "lost_by_hold" in found.stdout
    assert "Steps taken" in found.stdout


@pytest.mark.parametrize(
    "words",
    [["packed"], ["packed", "--workers", "2"], ["packed", "--memory-mb", "2000"], ["python"], ["simulate"]],
    ids=" ".join,
)
def test_an_interrupt_prints_what_was_explored(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, as a real signal in the middle: the object is printed with the counts so far, and the exit is 3."""

    def interrupting(_: Callable[[str], None]) -> Callable[[Progress], None]:
        def report(now: Progress) -> None:
            if now.depth == 6:
                signal.raise_signal(signal.SIGINT)

        return report

    monkeypatch.setattr(law, "_speed", interrupting)
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", "--json", "--engine", *words])
    made = json.loads(done.stdout)

    assert done.exit_code == 3
    assert not made["complete"]
    assert made["depth"] == 6
    assert made["distinct_states"] > 10
    assert {"unknown", "reached"} == {row["verdict"] for row in made["properties"] if not row["by_construction"]}


@pytest.mark.parametrize(
    ("option", "said", "engine"),
    [("--workers=2", "has no workers", "packed"), ("--master=local", "does not run on Spark", "spark")],
)
def test_options_of_other_engines_are_refused(option: str, said: str, engine: str) -> None:
    """The one line names the engine that has the option."""
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", "--engine", "simulate", option])

    assert done.exit_code == 2
    assert f"the simulate engine {said}" in done.stderr
    assert f"--engine {engine}" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[4]", "local-cluster[2,1,1024]"])
def test_a_killed_command_goes_on(master: str, tmp_path: Path) -> None:
    """The command, killed in the middle with a level half done, gives the pinned numbers when it is called again."""
    words = [sys.executable, "-m", "longpoll", "check", "--policy", "strict", "--bounds", "tiny", "--engine", "spark"]
    words += ["--master", master, "--checkpoint", str(tmp_path / "search"), "--json"]
    state = tmp_path / "search" / STATE_FILE
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        while process.poll() is None and not (state.exists() and len(_levels_in(state)) > 3):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    before = len(_levels_in(state))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    entry = pinned_entry("strict", "tiny")

    assert 3 < before <= entry.depth
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    assert (made["distinct_states"], made["transitions"], made["depth"]) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )


def _levels_in(state: Path) -> list[int]:
    levels: list[int] = json.loads(state.read_bytes())["levels"]
    return levels

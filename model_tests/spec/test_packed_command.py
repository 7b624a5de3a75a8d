"""`longpoll check` with workers and symmetry: the same numbers, and one clear line for what cannot be."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines.manifest import pinned_entry


@pytest.mark.parametrize(
    "options",
    [["--workers", "2"], ["--symmetry"], ["--workers", "2", "--symmetry"], ["--memory-mb", "2000", "--workers", "2"]],
)
def test_check_gives_the_same_numbers_however_it_searches(options: list[str]) -> None:
    """States, transitions and depth are the pinned ones, and so are the properties that are violated."""
    entry = pinned_entry("rocketmq-4.9", "tiny")
    named = [word for name in entry.violated for word in ("--property", name)]
    words = ["check", "--policy", "rocketmq-4.9", "--bounds", "tiny", *named, *options, "--json"]
    done = CliRunner().invoke(main, words)

    made = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (made["distinct_states"], made["transitions"], made["depth"]) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )
    violated = {row["name"]: row["depth"] for row in made["properties"] if row["verdict"] == "violated"}
    assert violated == entry.violated


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--workers", "0"], "--workers must be from 1 to 64, not 0"),
        (["--workers", "2", "--engine", "python"], "the python engine has no workers; use --engine packed"),
        (["--symmetry", "--engine", "python"], "the python engine has no symmetry; use --engine packed"),
        (["--memory-mb", "900", "--engine", "python"], "the python engine has no memory_mb; use --engine packed"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(options: list[str], line: str) -> None:
    """A mistake in the call is told in one line that says what to do."""
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", *options], env={"COLUMNS": "300"})

    assert done.exit_code == 2
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_too_little_memory_is_one_line_and_exit_3() -> None:
    """The line says how much the search needs and what else to do."""
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", "--memory-mb", "1"], env={"COLUMNS": "300"})

    assert done.exit_code == 3
    assert "1 MB is too little memory; this search needs" in done.stderr
    assert "increase --memory-mb" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

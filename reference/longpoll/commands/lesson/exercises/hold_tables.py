"""The exercises of lesson 11: tests a reader's own hold table with the dojo."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from longpoll.commands.lesson.answers import chosen_of, program_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right
from longpoll_dojo.errors import HINTS
from longpoll_dojo.explore import Bounds, Search
from longpoll_dojo.model import Allowances
from longpoll_dojo.program import Program
from longpoll_dojo.starters import starters
from longpoll_dojo.trace import lines_of

BOUNDS: Final = Bounds(moves=4, interleaved=2)
ODD_ONE: Final = "only_first"
LOST: Final = "no_lost_wakeup"


def driven(path: Path) -> Search:
    """The dojo's result for a Python program."""
    search = Search(BOUNDS, Allowances(0, 0))
    search.run(partial(Program, [sys.executable, str(path)]), seed=None, seconds=0.0)
    return search


def is_right(answer: str) -> Grade:
    """A hold table with scheduling points that is right in every order."""
    search = driven(program_of(answer))
    if search.finding is not None:
        return missing(
            f"{search.finding.violation.property}: {search.finding.violation}",
            "\n".join(lines_of(search.finding.played)),
        )
    if not search.step_points:
        return missing(
            "it is right, but announces no scheduling points; keep them, so that other messages can come in between"
        )
    return right(f"nothing goes wrong in {search.played:,} orders")


def breaks(answer: str) -> Grade:
    """The property that a table violates if it wakes only the first waiter."""
    chosen = chosen_of(answer, "property", sorted(HINTS))
    (program,) = [each for each in starters("python") if each.name == ODD_ONE]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / program.file
        path.write_text(program.source, "utf-8")
        finding = driven(path).finding
    assert finding is not None
    if chosen != {finding.violation.property}:
        return missing(f"{min(chosen)} is not the first finding; think of the second waiting pull")
    return right(f"{finding.violation.property}: {finding.violation}", "\n".join(lines_of(finding.played)))


TABLES: Final = (
    Exercise("Fix lost_wakeup.py, the example that forgets to look again.", "a Python program for the dojo", is_right),
    Exercise(
        f"Which property does {ODD_ONE}.py break? It wakes only the first waiting pull.",
        "a property's name",
        breaks,
    ),
)

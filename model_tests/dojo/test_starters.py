"""Each program to begin with: the right ones pass, and of each wrong one its fault is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from longpoll_dojo.errors import HINTS, StarterError
from longpoll_dojo.explore import Bounds, Search, given, play
from longpoll_dojo.model import Allowances, steps_of, token_of
from longpoll_dojo.program import Program
from longpoll_dojo.starters import LANGUAGES, RIGHT, Starter, faults, starters, write

FOUND_S = 10.0
QUICK = Bounds(moves=3, interleaved=2)
PYTHON = list(starters("python"))


def words_of(program: Starter, directory: Path) -> list[str]:
    """How a program that was written into a directory and made there is run from anywhere."""
    if program.language.name == "python":
        return [sys.executable, "-S", str(directory / program.file)]
    words = program.words(program.language.run)
    return [str(directory / word) if (directory / word).exists() else word for word in words]


def searched(words: list[str], bounds: Bounds) -> Search:
    """The dojo's result for a program."""
    search = Search(bounds, Allowances())
    search.run(lambda: Program(words), seed=None, seconds=0)
    return search


def assert_judged(program: Starter, directory: Path, bounds: Bounds) -> None:
    """A right program passes; a wrong one breaks what it is said to break, soon, and does so again from its token."""
    words = words_of(program, directory)
    begun_s = time.monotonic()
    search = searched(words, bounds)
    if program.name == RIGHT:
        assert search.finding is None
        assert search.is_whole
        assert len(search.step_points) == 3
        return
    assert time.monotonic() - begun_s < FOUND_S
    assert search.finding is not None, program.name
    assert search.finding.violation.property == program.breaks
    moves = steps_of(token_of(search.finding.played.moves))
    with Program(words) as partner:
        again = play(partner, Allowances(), given(moves))
    assert again.violation is not None
    assert again.violation.property == program.breaks


@pytest.mark.parametrize("program", PYTHON, ids=lambda program: program.name)
def test_python(program: Starter, tmp_path: Path) -> None:
    """The quick half: no toolchain but ours."""
    (tmp_path / program.file).write_text(program.source)

    assert_judged(program, tmp_path, QUICK if program.name == RIGHT else Bounds())


@pytest.mark.peers
@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "python"])
def test_other_languages(language: str, tmp_path: Path) -> None:
    """Each program is made as its language makes programs; without its compiler that is said, and nothing tried."""
    programs = write(language, tmp_path)
    needed = programs[0].language.build or programs[0].language.run
    if shutil.which(needed[0]) is None:
        pytest.skip(f"no {needed[0]} on PATH: the starters in {language} were not tried")
    for program in programs:
        if program.language.build:
            subprocess.run(program.words(program.language.build), cwd=tmp_path, check=True, timeout=200)
        assert_judged(program, tmp_path, QUICK if program.name == RIGHT else Bounds())


def test_faults_are_in_every_language() -> None:
    """Eight, each with the property that it breaks; none is the right program itself."""
    assert len(faults()) >= 6
    for name in LANGUAGES:
        programs = list(starters(name))
        assert [program.name for program in programs] == [RIGHT, *faults()]
        assert len({program.source for program in programs}) == len(programs)
        assert {program.breaks for program in programs[1:]} <= HINTS.keys()
    assert len(Counter(fault["breaks"] for fault in faults().values())) >= 5


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Existing files stay, and an error reports them."""
    (tmp_path / "right.py").write_text("mine")

    with pytest.raises(StarterError, match=r"right\.py already exists"):
        write("python", tmp_path)
    assert (tmp_path / "right.py").read_text() == "mine"
    with pytest.raises(StarterError, match="choose another"):
        write("python", tmp_path / "right.py" / "below")

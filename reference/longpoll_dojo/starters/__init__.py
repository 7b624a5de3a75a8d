"""Programs to begin with: a right one in each language, and the same with one subtle fault each.

The right ones stand in `code/` as they are. A fault is a piece of one that reads otherwise (`code/faults.toml`), so
what a wrong program differs in is its fault and nothing else. Leaves out how they are driven.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from longpoll_dojo.errors import StarterError

RIGHT: Final = "right"


@frozen
class Language:
    """How programs of a language are named, made and run."""

    name: str
    suffix: str
    build: tuple[str, ...]
    """The command that makes a program; empty: it is run as it stands. `{}` is the file's name less its suffix."""
    run: tuple[str, ...]


LANGUAGES: Final = {
    language.name: language
    for language in (
        Language("python", ".py", (), ("python3", "{}.py")),
        Language("go", ".go", ("go", "build", "-o", "{}", "{}.go"), ("./{}",)),
        Language("rust", ".rs", ("rustc", "-O", "-o", "{}", "{}.rs"), ("./{}",)),
        Language("java", ".java", ("javac", "-d", "{}", "{}.java"), ("java", "-cp", "{}", "HoldTable")),
        Language("javascript", ".js", (), ("node", "{}.js")),
    )
}


@frozen
class Starter:
    """One program: the right one of its language, or a wrong one."""

    language: Language
    name: str
    says: str
    """What it does wrong; empty of the right one."""
    breaks: str
    """The property that the dojo finds broken; empty of the right one."""
    source: str

    @property
    def file(self) -> str:
        """What it is written as."""
        return self.name + self.language.suffix

    def words(self, template: Sequence[str]) -> list[str]:
        """A command of its language for this program."""
        return [word.format(self.name) for word in template]


@cache
def _code(file: str) -> str:
    return resources.files(__name__).joinpath("code", file).read_text(encoding="utf-8")


@cache
def faults() -> dict[str, dict[str, Any]]:
    """Name of a fault -> what it is, what it breaks, and for each language the text that it replaces and by what."""
    return tomllib.loads(_code("faults.toml"))


def starters(language_name: str) -> Iterator[Starter]:
    """The right program of a language, then the wrong ones."""
    language = LANGUAGES[language_name]
    right = _code(RIGHT + language.suffix)
    yield Starter(language, RIGHT, "", "", right)
    for name, fault in faults().items():
        if language_name in fault:
            edit = fault[language_name]
            assert right.count(edit["old"]) == 1, (language_name, name)
            source = right.replace(edit["old"], edit["new"])
            yield Starter(language, name, fault["says"], fault["breaks"], source)


def write(language_name: str, directory: Path) -> list[Starter]:
    """Write the programs of a language into a directory, which is made. Raises StarterError and never overwrites."""
    programs = list(starters(language_name))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for program in programs:
            with (directory / program.file).open("x", encoding="utf-8") as file:
                file.write(program.source)
    except FileExistsError as error:
        raise StarterError(f"{error.filename} already exists; choose a new directory") from None
    except OSError as error:
        raise StarterError(
            f"cannot write to {directory}: {error.strerror or error}; choose another directory"
        ) from None
    return programs

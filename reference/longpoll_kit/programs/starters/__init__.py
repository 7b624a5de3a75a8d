"""Example programs: a correct program in each language, and copies with one subtle fault each.

The correct programs are in `code/`. Each fault is a textual replacement (`code/faults.toml`), so a faulty program
differs from the correct one only in its fault.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from longpoll_spec.errors import UserError

RIGHT: Final = "right"


class StarterError(UserError):
    """The example programs cannot be written to the directory. The message gives the reason."""


@frozen
class Language:
    """How to name, build and run programs of a language."""

    name: str
    suffix: str
    build: tuple[str, ...]
    """The build command; empty if the language needs no build. `{}` is the file's name without its suffix."""
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
    """An example program: the correct program of its language, or one with a fault."""

    language: Language
    name: str
    says: str
    """A description of the fault; empty for the correct program."""
    breaks: str
    """The property that this program breaks; empty for the correct program."""
    source: str

    @property
    def file(self) -> str:
        """The file name of this program."""
        return self.name + self.language.suffix

    def words(self, template: Sequence[str]) -> list[str]:
        """Return a build or run command of the language for this program."""
        return [word.format(self.name) for word in template]


@cache
def _code(file: str) -> str:
    return resources.files(__name__).joinpath("code", file).read_text(encoding="utf-8")


@cache
def faults() -> dict[str, dict[str, Any]]:
    """Map each fault to its description, the property it breaks, and a textual replacement per language."""
    return tomllib.loads(_code("faults.toml"))


def starters(language_name: str) -> Iterator[Starter]:
    """Yield the correct program of a language, then the faulty programs."""
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
    """Write the programs of a language into a directory, created if missing.

    Never overwrites a file. Raises StarterError.
    """
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

"""A list of known failures, for a CI that goes red on change only, in both directions.

A line is the id of a vector or of a clause, and perhaps ` # why`; other lines are empty or begin with `#`. Leaves out
what failed (`suite`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_conform.clauses import BY_ID, BY_VECTOR
from longpoll_conform.suite import Result
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import OutputError, UserError, not_known

SIZE_MAX: Final = 1 << 20


class KnownError(UserError):
    """A list that cannot be read; the text says which line, and why."""


@frozen
class Change:
    """What is otherwise than the list has it."""

    new: tuple[str, ...]
    """Vectors that fail and are not listed."""
    mended: tuple[str, ...]
    """Names that are listed, and pass now with all that was tested of them."""


def read_known(path: Path) -> frozenset[str]:
    """The names of a file. Raises KnownError."""
    try:
        if not path.is_file():
            raise KnownError(f"{path} is no file: a list of known failures has a name a line")
        if path.stat().st_size > SIZE_MAX:
            raise KnownError(f"{path} is larger than {SIZE_MAX >> 20} MiB: a list of known failures has a name a line")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KnownError(f"{path} cannot be read: {error}") from error
    found = set()
    for number, line in enumerate(lines, 1):
        name = line.partition("#")[0].strip()
        if name and name not in BY_ID and name not in BY_VECTOR:
            raise KnownError(f"{path}, line {number}: {not_known('clause or vector', name, [*BY_ID, *BY_VECTOR])}")
        if name:
            found.add(name)
    return frozenset(found)


def change(results: Sequence[Result], known: Collection[str]) -> Change:
    """What changed."""
    failed = {result.vector.id: result.clause.id for result in results if result.outcome == "FAIL"}
    new = tuple(vector for vector, clause in failed.items() if not {vector, clause} & set(known))
    return Change(new, tuple(sorted(name for name in known if _passes(results, name))))


def _passes(results: Sequence[Result], name: str) -> bool:
    outcomes = {result.outcome for result in results if name in {result.vector.id, result.clause.id}}
    return outcomes - {"UNTESTED"} == {"PASS"}


def write_known(path: Path, results: Sequence[Result]) -> None:
    """Write what failed as such a list. Raises OutputError."""
    try:
        path.write_text(known_text(results), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def known_text(results: Sequence[Result]) -> str:
    """What failed, as such a list."""
    lines = [f"{result.vector.id}  # {result.why}" for result in results if result.outcome == "FAIL"]
    return "".join(f"{escaped(line)}\n" for line in lines)

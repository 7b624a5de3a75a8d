"""Select clauses and vectors by name, and read the list of known failures.

With the list, a CI job fails only if the set of failures changes, also if a failure is fixed. Each line of the list is
the id of a vector or a clause, optionally followed by ` # why`. Empty lines and lines that begin with `#` are ignored.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_conform.capabilities import VERSIONS
from longpoll_conform.clauses import BY_ID, BY_VECTOR, POLLS, POPS, PROFILES, SEEN
from longpoll_conform.suite import Result
from longpoll_conform.vectors import Vector, recorded
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import OutputError, UserError, not_known

SIZE_MAX: Final = 1 << 20
NONE_CHOSEN: Final = "no clause or vector matches --only: --clauses lists them"


class KnownError(UserError):
    """The list cannot be read; the message gives the line and the reason."""


@frozen
class Change:
    """The differences between the results and the list of known failures."""

    new: tuple[str, ...]
    """Vectors that fail but are not in the list."""
    mended: tuple[str, ...]
    """Names in the list whose tested vectors all pass now."""


def read_known(path: Path) -> frozenset[str]:
    """Read the names in a list of known failures. Raises KnownError."""
    try:
        if not path.is_file():
            raise KnownError(f"{path} is not a file: write a list of known failures, one name per line")
        if path.stat().st_size > SIZE_MAX:
            raise KnownError(
                f"{path} is larger than {SIZE_MAX >> 20} MiB: write a list of known failures, one name per line"
            )
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


def chosen(
    policy: str, only: Sequence[str], excluded: Collection[str], whole: Sequence[Vector] | None = None
) -> tuple[list[Vector], list[str]]:
    """Return the selected vectors of `whole` or a policy's version, and the selected checks without a recording.

    Raises UserError if a name selects nothing.
    """
    if policy not in VERSIONS:
        raise UserError(not_known("policy with recorded answers", policy, VERSIONS))
    strange = next((vector.id for vector in whole or () if vector.id not in BY_VECTOR), None)
    if strange is not None:
        raise UserError(f"{strange} is not a vector of any clause: --clauses lists the vectors")
    unknown = next((vector for vector in whole or () if vector.profile not in PROFILES), None)
    if unknown is not None:
        raise UserError(f"{unknown.id}: {not_known('profile', unknown.profile, PROFILES)}")

    def is_chosen(shown: str) -> bool:
        names = {shown, BY_VECTOR[shown].id}
        wanted = not only or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in only)
        return wanted and not names & set(excluded)

    all_vectors = recorded(VERSIONS[policy]) if whole is None else whole
    vectors = [vector for vector in all_vectors if is_chosen(vector.id)]
    seen = [name for name in (*POLLS, *POPS, *SEEN) if is_chosen(name)] if whole is None else []
    if not vectors and not seen:
        raise UserError(NONE_CHOSEN if only else "every clause is excluded: shorten the list of --exclude")
    return vectors, seen


def check_only(only: Sequence[str]) -> None:
    """Raise UserError if a pattern matches no clause or vector of any version."""
    if only and not any(fnmatch.filter([*BY_ID, *BY_VECTOR], pattern) for pattern in only):
        raise UserError(NONE_CHOSEN)


def change(results: Sequence[Result], known: Collection[str]) -> Change:
    """Compare the results with the list of known failures."""
    failed = {result.vector.id: result.clause.id for result in results if result.outcome == "FAIL"}
    new = tuple(vector for vector, clause in failed.items() if not {vector, clause} & set(known))
    return Change(new, tuple(sorted(name for name in known if _passes(results, name))))


def _passes(results: Sequence[Result], name: str) -> bool:
    outcomes = {result.outcome for result in results if name in {result.vector.id, result.clause.id}}
    return outcomes - {"UNTESTED"} == {"PASS"}


def write_known(path: Path, results: Sequence[Result]) -> None:
    """Write the failures as a list of known failures. Raises OutputError."""
    try:
        path.write_text(known_text(results), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def known_text(results: Sequence[Result]) -> str:
    """Format the failures as a list of known failures."""
    lines = [f"{result.vector.id}  # {result.why}" for result in results if result.outcome == "FAIL"]
    return "".join(f"{escaped(line)}\n" for line in lines)

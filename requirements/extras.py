"""Select the locked packages of some extras: `python requirements/extras.py spec,testing [HAVE]`.

HAVE names the extras that an environment was made with before. One that is no extra any more is left out.

Prints the entries of the locks, with their hashes, that `pip install --require-hashes` needs for longpoll with these
extras. Reads pyproject.toml and the `# via` comments of the locks, and needs the standard library only, because it
runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = ("longpoll.lock", "java.lock")
NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class UnknownExtraError(Exception):
    """No extra of pyproject.toml has this name; the text lists the names."""


def name_of(requirement: str) -> str:
    """The normalized package name of a requirement or of a lock's entry."""
    found = NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[._-]+", "-", found[0]).lower()


def direct(project: Mapping[str, Any], extras: Iterable[str]) -> set[str]:
    """Names of the packages that longpoll asks for with these extras.

    Args:
        project: The table `project` of pyproject.toml.
        extras: Names of extras. An extra may include others, as in `longpoll[judge]`.

    Raises:
        UnknownExtraError: An extra is not in pyproject.toml.
    """
    known = project["optional-dependencies"]
    lines = list(project["dependencies"])
    for extra in extras:
        if extra not in known:
            raise UnknownExtraError(f"no extra is called {extra!r}; the extras are {', '.join(sorted(known))}")
        lines += known[extra]
    names = {name_of(line) for line in lines if not line.startswith("longpoll[")}
    for line in lines:
        if line.startswith("longpoll["):
            names |= direct(project, line[len("longpoll[") : -1].split(","))
    return names


def entries(lock: str) -> Iterator[tuple[str, str]]:
    """The entries of a lock: package name -> lines of the entry, comments included."""
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock.strip()):
        if NAME.match(entry):
            yield name_of(entry), entry


def required_by(entry: str) -> set[str]:
    """Names of the packages that require an entry, from its comment `# via`."""
    comments = re.findall(r"^ +#(?: via)? +([A-Za-z0-9._-]+)$", entry, re.MULTILINE)
    return {name_of(comment) for comment in comments if comment != "via"}


def select(names: set[str], locks: Iterable[str]) -> str:
    """The entries of these packages and of everything that they require, as one lock."""
    found = [pair for lock in locks for pair in entries(lock)]
    wanted: set[str] = set()
    added = names
    while added:
        wanted |= added
        added = {name for name, entry in found if required_by(entry) & wanted} - wanted
    return "".join(f"{entry}\n" for name, entry in found if name in wanted)


def main() -> int:
    """Print the selection; 2 where an extra is unknown."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    try:
        wanted, have = (re.split(r"[ ,]+", text.strip(" ,")) for text in (*sys.argv[1:], "")[:2])
        known = [extra for extra in have if extra in project["optional-dependencies"]]
        names = direct(project, [*wanted, *known])
    except UnknownExtraError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 2
    sys.stdout.write(select(names, [(ROOT / "requirements" / name).read_text("utf-8") for name in LOCKS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

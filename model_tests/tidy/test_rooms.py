"""A room has few enough things to look at, and what a docstring or a page names is there.

`python -m model_tests.tidy.test_rooms` prints the rooms with what stands in each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
SIBLINGS_MAX: Final = 15
"""Modules and rooms in one room."""
LARGER: Final = {
    "spec/longpoll_spec": 19,  # the law's own chapters, in the order in which one reads them
    "spec/longpoll_spec/actions": 17,  # one family of actions a module
    "reference/longpoll_client": 16,  # its rooms, and what threads and event loop both stand on
    "reference/longpoll/commands": 20,  # a command, or a few that belong together, a module
}
IMPORTS_MAX: Final = 24
"""Modules of ours that one module looks at: more tells of more than one idea, sooner than its length does."""
NAMED: Final = re.compile(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?:\.[A-Z_]\w*)*`")
"""A module with its room, perhaps with a name inside."""


def packages() -> Iterator[Path]:
    """Every shipped package, whatever stands in it."""
    for folder in ("spec", "reference"):
        yield from (path.parent for path in (ROOT / folder).rglob("__init__.py"))


def siblings(package: Path) -> list[str]:
    """What stands in a room besides its door."""
    inside = [path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return sorted(path.stem for path in inside if not path.name.startswith("__"))


def sizes() -> Mapping[str, int]:
    """Room -> how many things stand in it."""
    return {path.relative_to(ROOT).as_posix(): len(siblings(path)) for path in packages()}


def too_large(found: Mapping[str, int]) -> set[str]:
    """Rooms with more than they may have; a room that may have more and has not, too."""
    large = {name for name, size in found.items() if size > LARGER.get(name, SIBLINGS_MAX)}
    return large | {name for name, size in LARGER.items() if found.get(name) != size}


def test_no_room_is_crowded() -> None:
    """Nor is a larger one allowed for nothing; one module more than there may be is seen."""
    found = sizes()

    assert len(found) > 30
    assert too_large(found) == set()
    for planted in ("reference/longpoll_judge/rules", *LARGER):
        assert too_large({**found, planted: LARGER.get(planted, SIBLINGS_MAX) + 1}) == {planted}


def test_every_room_says_what_it_is() -> None:
    """At its door, in a sentence."""
    silent = [path for path in packages() if not ast.get_docstring(ast.parse((path / "__init__.py").read_text()))]

    assert silent == []


def looked_at(source: str) -> set[str]:
    """The modules of ours that a module imports, by name."""
    nodes = list(ast.walk(ast.parse(source)))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in found if name.partition(".")[0].startswith("longpoll")}


def looking_at_more(counts: Mapping[str, int]) -> dict[str, int]:
    """Modules that look at more others than they may."""
    return {name: count for name, count in counts.items() if count > IMPORTS_MAX}


def test_a_module_looks_at_few_others() -> None:
    """One that looks at one more is seen."""
    paths = [path for folder in ("spec", "reference") for path in (ROOT / folder).rglob("*.py")]
    counts = {path.relative_to(ROOT).as_posix(): len(looked_at(path.read_text(encoding="utf-8"))) for path in paths}

    assert len(counts) > 300
    assert looking_at_more(counts) == {}
    assert looking_at_more(counts | {"planted": IMPORTS_MAX + 1}) == {"planted": IMPORTS_MAX + 1}


def homeless(text: str, package: Path) -> set[str]:
    """Modules that a text of a package names by their room and that are not there."""
    top = next(path for path in (package, *package.parents) if path.parent.name in {"spec", "reference"})
    rooms = {path.name: path for path in top.iterdir() if (path / "__init__.py").is_file()}
    found = set()
    for name in NAMED.findall(text):
        first, *inside = name.split(".")
        place = rooms.get(first)
        if place is not None and not any(
            place.joinpath(*inside[:depth]).with_suffix(".py").is_file() for depth in range(1, len(inside) + 1)
        ):
            found.add(name)
    return found


@pytest.mark.parametrize("folder", ["spec", "reference"])
def test_a_module_that_is_named_is_there(folder: str) -> None:
    """In docstrings and comments; one that has moved away is found."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    found = {(path.name, name) for path in paths for name in homeless(path.read_text(encoding="utf-8"), path.parent)}

    assert found == set()
    core = ROOT / "reference" / "longpoll_broker" / "core"
    assert homeless("as `core.topics.RETRY` and `core.tables.topics.Topics` say", core) == {"core.topics"}


if __name__ == "__main__":
    for name, size in sorted(sizes().items()):
        print(f"{size:4} {name}")  # noqa: T201 - that is what it is called for

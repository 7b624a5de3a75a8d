"""Finds pairs of places in the source that share six or more lines and may diverge.

Lines are compared as text. Blank lines, comments, lone brackets, imports, and signature parameters are skipped. Lines
of the same shape with other names do not match (docs/decisions/0001-packages.md).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final, TypeAlias

from attrs import frozen

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("spec", "reference", "model_tests")
SHARED_MIN: Final = 6
"""The number of equal lines from which two places count as a copy."""
PLACES_MAX: Final = 8
"""Lines that occur in more places than this are a common idiom, not a copy."""

Line: TypeAlias = tuple[int, str]
"""(Number of a line in its file, from 1; its text with single spaces)."""


@frozen(order=True)
class Pair:
    """Two places with the same lines. The names are paths from the root, and the numbers are lines from 1."""

    one: str
    one_line: int
    other: str
    other_line: int
    shared: int

    def __str__(self) -> str:
        return f"{self.one}:{self.one_line} ~ {self.other}:{self.other_line}, {self.shared} lines"


def telling(source: str) -> list[Line]:
    passed: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            passed.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            passed.update(range(node.lineno, node.body[0].lineno))
    lines = ((number, " ".join(line.split())) for number, line in enumerate(source.splitlines(), 1))
    return [(number, text) for number, text in lines if number not in passed and re.match(r"[^#]*\w", text)]


def _runs(files: Mapping[str, Sequence[Line]]) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Yield pairs of places (file, line index) that begin with the same `SHARED_MIN` lines."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in files.items():
        for index in range(len(lines) - SHARED_MIN + 1):
            places[tuple(text for _number, text in lines[index : index + SHARED_MIN])].append((name, index))
    for found in places.values():
        if 2 <= len(found) <= PLACES_MAX:
            yield from combinations(sorted(found), 2)


def pairs(files: Mapping[str, str]) -> list[Pair]:
    """Return the pairs of places in these files, in order. Overlapping matches are joined to the longest pair."""
    lines = {name: telling(source) for name, source in files.items()}
    starts = set(_runs(lines))
    found = []
    for one, other in starts:
        if ((one[0], one[1] - 1), (other[0], other[1] - 1)) in starts:
            continue
        shared = SHARED_MIN
        while ((one[0], one[1] + shared - 5), (other[0], other[1] + shared - 5)) in starts:
            shared += 1
        overlaps = one[0] == other[0] and other[1] - one[1] < shared
        if not overlaps:
            found.append(Pair(one[0], lines[one[0]][one[1]][0], other[0], lines[other[0]][other[1]][0], shared))
    return sorted(found)


def sources(root: Path) -> dict[str, str]:
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {str(path.relative_to(root)): path.read_text() for path in paths}

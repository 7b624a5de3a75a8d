"""The page of the clauses that `longpoll conform` holds a broker against, made of their table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longpoll_conform.clauses import CAPABILITIES, CLAUSES


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Clauses"
    yield ""
    yield (
        "What [`longpoll conform`](conformance.md) holds a broker against. An id is for ever. "
        "A clause that needs a capability, or the lack of one, is asked only of a broker that is so."
    )
    yield from ("", "| id | level | sentence | source | needs |", "| --- | --- | --- | --- | --- |")
    for each in CLAUSES:
        needs = [*sorted(each.needs), *(f"no {name}" for name in sorted(each.lacks))]
        yield f"| `{each.id}` | {each.level} | {_cell(each.sentence)} | {_cell(each.source)} | {', '.join(needs)} |"
    yield from ("", "## Capabilities", "", "| capability | what it says |", "| --- | --- |")
    yield from (f"| {name} | {_cell(said)} |" for name, said in CAPABILITIES.items())


def _cell(text: str) -> str:
    return re.sub(r"([|*<>\[\]])", r"\\\1", text)

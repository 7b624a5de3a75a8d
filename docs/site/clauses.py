"""The page of the clauses of `longpoll conform`, generated from their table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longpoll_conform.clauses import CAPABILITIES, CLAUSES


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Clauses"
    yield ""
    yield (
        "The clauses of [`longpoll conform`](conformance.md). An id never changes. "
        "A clause that needs a capability, or the lack of one, applies only to such a broker."
    )
    yield from ("", "| id | level | sentence | source | needs |", "| --- | --- | --- | --- | --- |")
    for each in CLAUSES:
        needs = [*sorted(each.needs), *(f"no {name}" for name in sorted(each.lacks))]
        yield f"| `{each.id}` | {each.level} | {_cell(each.sentence)} | {_cell(each.source)} | {', '.join(needs)} |"
    yield from ("", "## Capabilities", "", "| capability | meaning |", "| --- | --- |")
    yield from (f"| {name} | {_cell(said)} |" for name, said in CAPABILITIES.items())


def _cell(text: str) -> str:
    return re.sub(r"([|*<>\[\]])", r"\\\1", text)

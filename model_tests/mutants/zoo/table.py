"""The kill matrix: which method finds which bug, as it is pinned, and the page that is generated from it.

`table.json` has a row a line, written by the script's `run --write`. A removed lock and a bug of history is to be found
by two methods and any other bug by one, one of them of the quick suite and within `PROMPT_S`; those that are not yet
are named in `OPEN`, each with the reason. Times are of the machine that measured them, and only that bound is compared
with them. Leaves out the looking (`run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from model_tests.mutants.zoo.catalogue import ENTRIES
from model_tests.mutants.zoo.entry import Entry, Kind
from model_tests.mutants.zoo.methods import METHODS
from model_tests.mutants.zoo.open_rows import OPEN
from model_tests.mutants.zoo.ours import MENDED
from model_tests.mutants.zoo.run import Cell

from longpoll_spec.engines.manifest import text_of

PINNED: Final = Path(__file__).with_name("table.json")
KINDS: Final[Mapping[Kind, str]] = {
    "historic": "bugs that other projects have had",
    "lock": "locks and guards of ours, taken away",
    "ours": "other faults of ours",
}


QUICK: Final = frozenset({"law", "units", "machines", "bytecodes", "steps", "pulls", "locksets", "simulated"})
"""Methods that `make check` or `make test` lets run on the code as it is."""
PROMPT_S: Final = 10.0
"""Of one core: one of these finds each bug that is not open in less."""


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one method found one bug."""

    what: str
    schedules: int | None = None
    cpu_s: float = 0.0


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bug: the methods that found it, and those that looked and did not."""

    id: str
    found: dict[str, Seen] = {}
    missed: list[str] = []
    open: str = ""
    """Why too few methods find it; empty where enough do."""


def needed(entry: Entry) -> int:
    """How many methods have to find an entry."""
    return 1 if entry.kind == "ours" else 2


def rows_of(cells: Iterable[Cell], known: Iterable[Row] = ()) -> list[Row]:
    """A row for each entry, in the catalogue's order: what is new in the place of what was known."""
    found: dict[str, dict[str, Seen]] = {row.id: dict(row.found) for row in known}
    missed: dict[str, set[str]] = {row.id: set(row.missed) for row in known}
    for cell in cells:
        seen, unseen = found.setdefault(cell.entry, {}), missed.setdefault(cell.entry, set())
        seen.pop(cell.method, None)
        unseen.discard(cell.method)
        if cell.outcome == "found":
            seen[cell.method] = Seen(cell.what, cell.schedules, cell.cpu_s)
        else:
            unseen.add(cell.method)
    return [
        Row(
            id=entry.id,
            found={method.name: found[entry.id][method.name] for method in METHODS if method.name in found[entry.id]},
            missed=[method.name for method in METHODS if method.name in missed[entry.id]],
            open=OPEN.get(entry.id, ""),
        )
        for entry in ENTRIES
        if entry.id in found
    ]


def pinned() -> list[Row]:
    """The table as it is known."""
    return msgspec.json.decode(PINNED.read_bytes(), type=list[Row])


def write(rows: Sequence[Row]) -> None:
    PINNED.write_text(text_of(rows), encoding="utf-8")


def problems(rows: Sequence[Row], entries: Sequence[Entry] = ENTRIES, opened: Mapping[str, str] = OPEN) -> list[str]:
    """Faults of a table: rows that do not match entries, and entries that too few methods find."""
    by_id = {row.id: row for row in rows}
    said = [f"{name}: no such entry" for name in (*by_id, *opened) if name not in {entry.id for entry in entries}]
    for entry in entries:
        row = by_id.get(entry.id)
        if row is None and entry.id.startswith(MENDED):
            continue  # `mutants/test_broker_faults.py` plants it beside its own test
        if row is None:
            said.append(f"{entry.id}: not in the table; run `python -m model_tests.mutants.zoo run {entry.id} --write`")
            continue
        looked = {*row.found, *row.missed}
        apply = [method for method in METHODS if method.applies(entry)]
        cheap = {method.name for method in apply if not method.is_dear}
        said += [f"{entry.id}: {name} did not look" for name in sorted(cheap - looked)]
        said += [f"{entry.id}: {name} does not apply" for name in sorted(looked - {each.name for each in apply})]
        if row.open != opened.get(entry.id, ""):
            said.append(f"{entry.id}: the table says another reason")
        if (len(row.found) < needed(entry)) != bool(row.open):
            how = "is open and need not be" if row.open else "is not named as open"
            said.append(f"{entry.id}: found by {len(row.found)} of {needed(entry)} methods, and {how}")
        quick = [seen.cpu_s for name, seen in row.found.items() if name in QUICK]
        if row.found and not row.open and min(quick, default=PROMPT_S) >= PROMPT_S:
            said.append(f"{entry.id}: no method of the quick suite finds it in {PROMPT_S:.0f} s of a core")
    return said


# -- the page --------------------------------------------------------------------------------------------------------

HEAD: Final = Path(__file__).with_name("head.txt")
"""What stands above the tables."""


def page_of(rows: Sequence[Row]) -> str:
    """The page of a table."""
    by_id = {entry.id: entry for entry in ENTRIES}
    lines = [HEAD.read_text(encoding="utf-8"), *_summary(rows), ""]
    for kind, title in KINDS.items():
        chosen = [row for row in rows if by_id[row.id].kind == kind]
        names = [method.name for method in METHODS]
        lines += [f"## {title[0].upper()}{title[1:]}", "", f"| bug | source | {' | '.join(names)} |"]
        lines.append("| --- | --- |" + " ---: |" * len(names))
        lines += [_line(row, by_id[row.id]) for row in chosen]
        lines.append("")
    open_rows = [row for row in rows if row.open]
    lines += ["## Open", "", "Too few methods find these, and the reason is known:", ""]
    lines += [f"- `{row.id}` ({len(row.found)} of {needed(by_id[row.id])}): {row.open}" for row in open_rows]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[Row]) -> list[str]:
    shown = {row.id for row in rows}
    kinds = Counter(entry.kind for entry in ENTRIES if entry.id in shown)
    told = ", ".join(f"{kinds[kind]} {title}" for kind, title in KINDS.items())
    by_count = Counter(min(len(row.found), 2) for row in rows)
    counts = f"{by_count[2]} are found by two methods or more, {by_count[1]} by one, {by_count[0]} by none."
    said = [
        f"{len(rows)} bugs: {told}. {counts}",
        "",
        "| method | what it is | looked at | found | alone |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for method in METHODS:
        found = [row for row in rows if method.name in row.found]
        looked = len(found) + sum(method.name in row.missed for row in rows)
        alone = sum(len(row.found) == 1 for row in found)
        said.append(f"| {method.name} | {method.says} | {looked} | {len(found)} | {alone} |")
    return said


def _line(row: Row, entry: Entry) -> str:
    cells = (_cell(row, method.name, applies=method.applies(entry)) for method in METHODS)
    return f"| `{row.id}` | {entry.source} | {' | '.join(cells)} |"


def _cell(row: Row, name: str, *, applies: bool) -> str:
    seen = row.found.get(name)
    if seen is None:
        return "-" if name in row.missed else "?" if applies else ""
    count = "" if seen.schedules is None else f"{seen.schedules} / "
    return f"{count}{seen.cpu_s:.1f} s"

"""Stored results of mutants: accepted survivors and figures as data, and results that still hold.

A result holds while the module's text and the failing test are unchanged; for a survivor, all its tests.
`build/mutants` has one row a line, so a stopped run continues. Test helpers are not compared: after a change of one,
use `--anew`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen
from model_tests.mutants.code.generate import Module, mutants_of
from model_tests.mutants.code.server import KILLED, Result
from model_tests.mutants.tests_of import BROKER, HELD_WHILE_IT_GROWS, RULES, STORE, known_tests

ROOT: Final = Path(__file__).resolve().parents[3]
REFERENCE: Final = "reference"
PLACES: Final = (
    f"{BROKER}/hold",
    f"{BROKER}/shared",
    f"{BROKER}/send",
    f"{BROKER}/io/channel.py",
    f"{BROKER}/rocketmq/accounts",
    f"{BROKER}/rocketmq/admin/lock_processor.py",
    STORE,
    RULES,
    HELD_WHILE_IT_GROWS,
)
"""The modules that matter."""
SURVIVORS: Final = ROOT / "model_tests/mutants/code_survivors.json"
FIGURES: Final = ROOT / "model_tests/mutants/code_figures.json"
HEAD: Final = ROOT / "model_tests/mutants/code/head.txt"
RESULTS: Final = ROOT / "build/mutants"
SHARE_MAX: Final = 0.05
"""Fewer of all the mutants may survive, each with its reason."""


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant that no test kills, and why that is right."""

    id: str
    change: str
    """With the id: a place that moved, or a text that changed, is looked at again."""
    reason: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one module's mutants."""

    module: str
    mutants: int
    killed: int
    stuck: int
    """Of the killed: ended, because they came to no end."""
    explained: int
    open: int
    """Survivors without a reason."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A result as it is kept, with hashes of what it was found with."""

    result: Result
    module: str
    tests: str


def modules() -> dict[str, Path]:
    """The modules that matter, by their dotted names, with their files."""
    found: dict[str, Path] = {}
    for place in PLACES:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if file.name != "__init__.py":
                found[".".join(file.relative_to(ROOT / REFERENCE).with_suffix("").parts)] = file
    return found


def module_of(name: str) -> Module:
    path = modules()[name]
    return mutants_of(name, str(path), path.read_text("utf-8"))


def tests_of_module(name: str) -> tuple[str, ...]:
    return known_tests(modules()[name].relative_to(ROOT).as_posix())


# -- pinned ----------------------------------------------------------------------------------------------------------


def survivors() -> list[Survivor]:
    return msgspec.json.decode(SURVIVORS.read_bytes(), type=list[Survivor])


def figures() -> list[Figures]:
    return msgspec.json.decode(FIGURES.read_bytes(), type=list[Figures])


def lines_of(rows: Iterable[msgspec.Struct]) -> str:
    """Rows as JSON, a row a line."""
    return "[\n" + ",\n".join(msgspec.json.encode(row).decode() for row in rows) + "\n]\n"


def of_module(name: str, accepted: Iterable[Survivor]) -> list[Survivor]:
    return [each for each in accepted if each.id.partition(":")[0] == name]


def unexplained(results: Iterable[Result], accepted: Iterable[Survivor]) -> list[Result]:
    """Survivors without a given reason."""
    known = {(each.id, each.change) for each in accepted}
    return [each for each in results if each.outcome not in KILLED and (each.id, each.change) not in known]


def problems(name: str, results: Sequence[Result], accepted: Sequence[Survivor]) -> list[str]:
    """Faults of a module whose mutants were all tried."""
    alive = {(each.id, each.change) for each in results if each.outcome not in KILLED}
    ids = {each.id for each in results}
    said = [f"{each.id} survives: {each.change}" for each in unexplained(results, accepted)]
    for row in of_module(name, accepted):
        if row.id not in ids:
            said.append(f"{row.id} is listed as a survivor, and there is no such mutant")
        elif (row.id, row.change) not in alive:
            said.append(f"{row.id} is listed as a survivor, and is killed or is another change: {row.change}")
    return said


def too_many(rows: Iterable[Figures]) -> str:
    """The fault if too many mutants survive in all; empty if not."""
    rows = list(rows)
    alive, every = sum(row.explained + row.open for row in rows), sum(row.mutants for row in rows)
    is_wrong = bool(rows) and alive >= SHARE_MAX * every
    return f"{alive} of {every} mutants survive, which is {SHARE_MAX:.0%} or more" if is_wrong else ""


def figures_of(name: str, results: Sequence[Result], accepted: Sequence[Survivor]) -> Figures:
    killed = sum(each.outcome in KILLED for each in results)
    left = len(unexplained(results, accepted))
    return Figures(
        module=name,
        mutants=len(results),
        killed=killed,
        stuck=sum(each.outcome == "stuck" for each in results),
        explained=len(results) - killed - left,
        open=left,
    )


def page_of(rows: Sequence[Figures]) -> str:
    """The page of the figures."""
    total = [sum(getattr(row, name) for row in rows) for name in ("mutants", "killed", "explained", "open")]
    without = [name for name in modules() if name not in {row.module for row in rows}]
    lines = [
        HEAD.read_text("utf-8"),
        "| module | mutants | killed | of these stuck | explained | open |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(f"| `{r.module}` | {r.mutants} | {r.killed} | {r.stuck} | {r.explained} | {r.open} |" for r in rows),
        "",
        "{} mutants of {} modules: {} killed, {} explained, {} open.".format(total[0], len(rows), *total[1:]),
        "",
    ]
    changed = changed_since(rows)
    if changed:
        told = ", ".join(f"`{name}` ({now} mutants now)" for name, now in changed.items())
        lines += [f"Changed since it was run, so that a row above says nothing of what came: {told}.", ""]
    if without:
        lines += ["Not yet run: " + ", ".join(f"`{name}`" for name in without) + ".", ""]
    return "\n".join(lines)


def changed_since(rows: Iterable[Figures]) -> dict[str, int]:
    """Modules that have another number of mutants by now than when theirs were tried, and how many."""
    now = {row.module: len(module_of(row.module).mutants) for row in rows}
    return {row.module: now[row.module] for row in rows if now[row.module] != row.mutants}


def page() -> str:
    """The page of the figures that are kept."""
    return page_of(figures())


def write(new: Iterable[Figures]) -> None:
    """Put new figures in the place of old ones."""
    by_module = {row.module: row for row in (*figures(), *new)}
    rows = [by_module[name] for name in modules() if name in by_module]
    FIGURES.write_text(lines_of(rows), "utf-8")


# -- results that still hold -----------------------------------------------------------------------------------------


def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@frozen
class Stamp:
    """Hashes of a module and of its tests, by their names, before any mutant is tried."""

    module: str
    tests: Mapping[str, str]

    def of_tests(self, result: Result) -> str:
        """Of the test that was red, or of all of them."""
        if result.outcome in KILLED:
            return self.tests.get(result.test.partition("::")[0], "it is not one of the tests any more")
        return hashlib.sha256(repr(sorted(self.tests.items())).encode()).hexdigest()


def stamp_of(name: str) -> Stamp:
    """How a module and its tests are now."""
    tests = {test: _hash_of(ROOT / "model_tests" / test) for test in tests_of_module(name)}
    return Stamp(_hash_of(modules()[name]), tests)


def keep(name: str, result: Result, stamp: Stamp) -> None:
    """Add a result to those that are kept."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    row = Row(result=result, module=stamp.module, tests=stamp.of_tests(result))
    with (RESULTS / f"{name}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def still_hold(name: str, stamp: Stamp) -> Mapping[str, Result]:
    """Results that are kept and still hold, by id."""
    file = RESULTS / f"{name}.jsonl"
    if not file.exists():
        return {}
    held: dict[str, Result] = {}
    for line in file.read_bytes().splitlines():
        try:
            row = msgspec.json.decode(line, type=Row)
        except msgspec.DecodeError:  # a line that a run was stopped in
            continue
        if row.module == stamp.module and row.tests == stamp.of_tests(row.result):
            held[row.result.id] = row.result
    return held

"""The script of the zoo: plants known bugs in our own code one at a time, and shows which methods find each.

`python -m model_tests.mutants.zoo --help`
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
import msgspec
from model_tests.mutants.zoo.catalogue import ENTRIES
from model_tests.mutants.zoo.entry import Entry
from model_tests.mutants.zoo.methods import METHODS
from model_tests.mutants.zoo.plant import ROOT
from model_tests.mutants.zoo.run import Cell, decode
from model_tests.mutants.zoo.table import Row, pinned, rows_of
from model_tests.mutants.zoo.table import write as write_table
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from longpoll import exit_codes
from longpoll.output import Exit, emit_json, fail, json_option, out, progress_bar, styled, table, user_mistakes
from longpoll_spec.errors import UserError, not_known

RUNNER: Final = "model_tests.mutants.zoo.run"
SCRIPT: Final = "python -m model_tests.mutants.zoo"


class UnknownEntryError(UserError):
    """The name of a bug or a method is unknown; the text suggests the nearest one."""


def _entry(name: str) -> Entry:
    entries = {entry.id: entry for entry in ENTRIES}
    if name not in entries:
        raise UnknownEntryError(not_known("bug", name, entries, SCRIPT))
    return entries[name]


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--id", "text", default="", metavar="TEXT", help="Only bugs whose name contains TEXT.")
@click.option("--source", default="", metavar="TEXT", help="Only bugs whose source contains TEXT, such as kafka.")
@click.option("--open", "only_open", is_flag=True, help="Only bugs that too few methods find.")
@json_option
@click.pass_context
@user_mistakes
def zoo(ctx: click.Context, *, text: str, source: str, only_open: bool, as_json: bool) -> None:
    """List known bugs of hold tables, and the methods that find each bug in our own code.

    The bugs come from other projects and from ours. Each one is a change of a few lines.

    \b
    Examples:
      python -m model_tests.mutants.zoo --source kafka
      python -m model_tests.mutants.zoo --open --json
      python -m model_tests.mutants.zoo show rocketmq-no-recheck
      python -m model_tests.mutants.zoo run rocketmq-no-recheck --method bytecodes

    Exit codes: 0 the results match the recorded table, 1 they differ, 2 a mistake in the command line, 3 stopped
    before the end.
    """
    if ctx.invoked_subcommand is not None:
        return
    rows = {row.id: row for row in pinned()}
    chosen = [
        entry
        for entry in ENTRIES
        if text.lower() in entry.id
        and source.lower() in entry.source.lower()
        and not (only_open and not (entry.id in rows and rows[entry.id].open))
    ]
    if as_json:
        emit_json({"bugs": [_told(entry, rows.get(entry.id)) for entry in chosen]})
        return
    table(
        "Bugs and the methods that find them",
        ("bug", "source", "found by", "missed by"),
        ((entry.id, entry.source, *_who(rows.get(entry.id))) for entry in chosen),
    )
    out.print(f"{len(chosen)} bugs; `{SCRIPT} show BUG` describes one, `make docs` makes a page with the times")


def _who(row: Row | None) -> tuple[str, str]:
    return ("not tried", "") if row is None else (", ".join(row.found) or "none", ", ".join(row.missed))


def _told(entry: Entry, row: Row | None) -> dict[str, Any]:
    found = {} if row is None else row.found
    return {
        "id": entry.id,
        "kind": entry.kind,
        "source": entry.source,
        "says": entry.says,
        "knob": entry.knob,
        "slip": entry.slip,
        "changes": [{"file": each.file, "before": each.before, "after": each.after} for each in entry.changes],
        "found": {
            name: {"what": seen.what, "schedules": seen.schedules, "cpu_s": seen.cpu_s} for name, seen in found.items()
        },
        "missed": [] if row is None else row.missed,
        "open": "" if row is None else row.open,
    }


@zoo.command("show")
@click.argument("name", metavar="BUG")
@json_option
@user_mistakes
def show_command(name: str, *, as_json: bool) -> None:
    """Describe one bug, print its code change, and list the methods that find it.

    \b
    Example:
      python -m model_tests.mutants.zoo show kafka-busy-lock-is-passed-over
    """
    entry = _entry(name)
    row = next((row for row in pinned() if row.id == name), None)
    if as_json:
        emit_json(_told(entry, row))
        return
    out.print(styled("[bold]{}[/]: {}", entry.id, entry.source))
    out.tell(entry.says)
    if entry.knob or entry.slip:
        out.print(f"in the specification of {entry.policy}: {entry.knob or entry.slip}")
    for change in entry.changes:
        out.print()
        out.print(styled("[bold]{}[/]", change.file))
        for mark, colour, said in (("-", "red", change.before), ("+", "green", change.after)):
            for line in said.splitlines():
                out.print(Text(f"{mark}{line}", style=colour))
    out.print()
    if row is not None and row.found:
        table(
            "Found by",
            ("method", "what", "after", "seconds"),
            ((method, seen.what, seen.schedules or "", seen.cpu_s) for method, seen in row.found.items()),
            right=("after", "seconds"),
        )
    out.print(f"missed by: {_who(row)[1] or 'none'}")
    if row is not None and row.open:
        out.tell(f"open: {row.open}")


@zoo.command("run")
@click.argument("names", metavar="[BUG]...", nargs=-1)
@click.option("--method", "methods", multiple=True, metavar="NAME", help="Only this method; repeatable.")
@click.option("--write", is_flag=True, help="Record the results as the new table.")
@json_option
@user_mistakes
def run_command(names: Sequence[str], methods: Sequence[str], *, write: bool, as_json: bool) -> None:
    """Inject bugs, each in its own process, and run the methods on them. All bugs take about an hour.

    Without --write, the command compares the results with the recorded table. It ignores the times.

    \b
    Examples:
      python -m model_tests.mutants.zoo run rocketmq-no-recheck
      python -m model_tests.mutants.zoo run --method bytecodes --write
    """
    known = [method.name for method in METHODS]
    for name in methods:
        if name not in known:
            raise UnknownEntryError(not_known("method", name, known))
    chosen = [_entry(name) for name in dict.fromkeys(names)] or list(ENTRIES)
    cells = _looked(chosen, list(dict.fromkeys(methods)) or known)
    before = pinned()
    wrong = [] if write else _differences(cells, before)
    if write:
        write_table(rows_of(cells, before))
    if as_json:
        emit_json({"looked": [msgspec.to_builtins(cell) for cell in cells], "differs": wrong})
    else:
        table(
            "Results of the methods",
            ("bug", "method", "outcome", "what", "after", "seconds"),
            ((c.entry, c.method, c.outcome, c.what, c.schedules or "", c.cpu_s) for c in cells),
            right=("after", "seconds"),
            grouped=True,
        )
        for said in wrong:
            out.tell(said)
    sys.exit(Exit.VIOLATED if wrong else Exit.OK)


def _differences(cells: Sequence[Cell], rows: Sequence[Row]) -> list[str]:
    found = {row.id: row.found for row in rows}
    looked = {(row.id, name) for row in rows for name in (*row.found, *row.missed)}
    return [
        f"{cell.entry}: {cell.method} {cell.outcome} it, unlike in the recorded table"
        for cell in cells
        if (cell.entry, cell.method) not in looked
        or (cell.outcome == "found") != (cell.method in found.get(cell.entry, {}))
    ]


def _looked(entries: Sequence[Entry], methods: Sequence[str]) -> list[Cell]:
    """Run the methods and return their results, with a progress bar."""
    every = [each for each in METHODS if each.name in methods]
    total = sum(method.applies(entry) for entry in entries for method in every)
    cells: list[Cell] = []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=total)
        for cell in _cells([entry.id for entry in entries], methods):
            cells.append(cell)
            progress.update(task, description=f"{cell.entry}: {cell.method} {cell.outcome}", completed=len(cells))
    return cells


def _cells(ids: Sequence[str], methods: Sequence[str]) -> Iterator[Cell]:
    """Start the runner, a new process without our imports, and read its results."""
    words = [word for name in methods for word in ("--method", name)]
    with subprocess.Popen(
        [sys.executable, "-m", RUNNER, *words, *ids],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as runner:
        assert runner.stdout is not None
        try:
            for line in runner.stdout:
                yield decode(line)
        except KeyboardInterrupt:
            runner.terminate()
            fail("stopped before all bugs were tried, so the result is unknown", Exit.UNKNOWN)
        if runner.wait():
            fail("a method crashed (see above), so the result is unknown", Exit.UNKNOWN)


if __name__ == "__main__":
    exit_codes.ended(lambda: zoo(prog_name=SCRIPT, standalone_mode=False), sys.argv[1:])

"""`longpoll zoo`: injects known bugs into our own code one at a time, and shows which methods find each.

The bugs, methods and results are in `model_tests/mutants/zoo`, so the command needs a checkout of the project.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from longpoll.exit_codes import printable
from longpoll.output import Exit, emit_json, fail, json_option, out, progress_bar, styled, table, user_mistakes
from longpoll_spec.errors import UserError, not_known

ROOT: Final = Path(__file__).resolve().parents[3]
ROOM: Final = "model_tests/mutants/zoo"
RUNNER: Final = "model_tests.mutants.zoo.run"


class NoCheckoutError(UserError):
    """The sources and tests that the zoo needs are missing."""


class UnknownEntryError(UserError):
    """The name of a bug or a method is unknown; the text suggests the nearest one."""


def _part(name: str) -> Any:
    """A module of the zoo; raises NoCheckoutError outside a checkout."""
    if not (ROOT / ROOM).is_dir():
        raise NoCheckoutError(
            "the zoo needs the project's sources; clone the repository, run `make setup`, and run `longpoll zoo` there"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"model_tests.mutants.zoo.{name}")


def _entry(name: str) -> Any:
    entries = {entry.id: entry for entry in _part("catalogue").ENTRIES}
    if name not in entries:
        raise UnknownEntryError(not_known("bug", name, entries, "longpoll zoo"))
    return entries[name]


def _ids(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
    """The matching bugs, each with its source."""
    return _completed(lambda: {entry.id: entry.source for entry in _part("catalogue").ENTRIES}, incomplete)


def _methods(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
    """The matching methods, each with its description."""
    return _completed(lambda: {method.name: method.says for method in _part("methods").METHODS}, incomplete)


def _completed(says: Callable[[], dict[str, str]], incomplete: str) -> list[Any]:
    """The matching names with their descriptions; none outside a checkout."""
    try:
        said = says()
    except NoCheckoutError:
        return []
    return [CompletionItem(name, help=text) for name, text in said.items() if name.startswith(incomplete)]


class _Zoo(click.Group):
    """A group that suggests the nearest command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest name in the error."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            said = not_known("command", args[0], self.commands).removeprefix("unknown command ")
            raise click.UsageError(f"No such command {printable(said)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Zoo, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--id", "text", default="", metavar="TEXT", help="Only bugs whose name contains TEXT.")
@click.option("--source", default="", metavar="TEXT", help="Only bugs whose source contains TEXT, such as kafka.")
@click.option("--open", "only_open", is_flag=True, help="Only bugs that too few methods find.")
@json_option
@click.pass_context
@user_mistakes
def zoo(ctx: click.Context, *, text: str, source: str, only_open: bool, as_json: bool) -> None:
    """List known bugs of hold tables, and the methods that find each bug in our own code.

    The bugs come from other projects and from ours. Each one is a change of a few lines. This needs a checkout of the
    project.

    \b
    Examples:
      longpoll zoo --source kafka
      longpoll zoo --open --json
      longpoll zoo show rocketmq-no-recheck
      longpoll zoo run rocketmq-no-recheck --method bytecodes

    Exit codes: 0 the results match the recorded table, 1 they differ, 2 a mistake in the command line, 3 stopped
    before the end.
    """
    if ctx.invoked_subcommand is not None:
        return
    rows = {row.id: row for row in _part("table").pinned()}
    chosen = [
        entry
        for entry in _part("catalogue").ENTRIES
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
    out.print(f"{len(chosen)} bugs; `longpoll zoo show BUG` describes one, `make docs` makes a page with the times")


def _who(row: Any) -> tuple[str, str]:
    return ("not tried", "") if row is None else (", ".join(row.found) or "none", ", ".join(row.missed))


def _told(entry: Any, row: Any) -> dict[str, Any]:
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
@click.argument("name", metavar="BUG", shell_complete=_ids)
@json_option
@user_mistakes
def show_command(name: str, *, as_json: bool) -> None:
    """Describe one bug, print its code change, and list the methods that find it.

    \b
    Example:
      longpoll zoo show kafka-busy-lock-is-passed-over
    """
    entry = _entry(name)
    row = next((row for row in _part("table").pinned() if row.id == name), None)
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
@click.argument("names", metavar="[BUG]...", nargs=-1, shell_complete=_ids)
@click.option(
    "--method", "methods", multiple=True, metavar="NAME", help="Only this method; repeatable.", shell_complete=_methods
)
@click.option("--write", is_flag=True, help="Record the results as the new table.")
@json_option
@user_mistakes
def run_command(names: Sequence[str], methods: Sequence[str], *, write: bool, as_json: bool) -> None:
    """Inject bugs, each in its own process, and run the methods on them. All bugs take about an hour.

    Without --write, the command compares the results with the recorded table. It ignores the times.

    \b
    Examples:
      longpoll zoo run rocketmq-no-recheck
      longpoll zoo run --method bytecodes --write
    """
    known = [method.name for method in _part("methods").METHODS]
    for name in methods:
        if name not in known:
            raise UnknownEntryError(not_known("method", name, known))
    chosen = [_entry(name) for name in dict.fromkeys(names)] or list(_part("catalogue").ENTRIES)
    cells = _looked(chosen, list(dict.fromkeys(methods)) or known)
    rows = _part("table")
    before = rows.pinned()
    wrong = [] if write else _differences(cells, before)
    if write:
        rows.write(rows.rows_of(cells, before))
    if as_json:
        emit_json({"looked": [json.loads(line) for line in map(_encoded, cells)], "differs": wrong})
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


def _encoded(cell: Any) -> bytes:
    import msgspec  # noqa: PLC0415 - only this option needs it

    return msgspec.json.encode(cell)


def _differences(cells: Sequence[Any], rows: Sequence[Any]) -> list[str]:
    found = {row.id: row.found for row in rows}
    looked = {(row.id, name) for row in rows for name in (*row.found, *row.missed)}
    return [
        f"{cell.entry}: {cell.method} {cell.outcome} it, unlike in the recorded table"
        for cell in cells
        if (cell.entry, cell.method) not in looked
        or (cell.outcome == "found") != (cell.method in found.get(cell.entry, {}))
    ]


def _looked(entries: Sequence[Any], methods: Sequence[str]) -> list[Any]:
    """Run the methods and return their results, with a progress bar."""
    every = [each for each in _part("methods").METHODS if each.name in methods]
    total = sum(method.applies(entry) for entry in entries for method in every)
    cells: list[Any] = []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=total)
        for cell in _cells([entry.id for entry in entries], methods):
            cells.append(cell)
            progress.update(task, description=f"{cell.entry}: {cell.method} {cell.outcome}", completed=len(cells))
    return cells


def _cells(ids: Sequence[str], methods: Sequence[str]) -> Iterator[Any]:
    """Start the runner, a new process without our imports, and read its results."""
    decode = _part("run").decode
    words = [word for name in methods for word in ("--method", name)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with subprocess.Popen(  # noqa: S603 - ourselves, with names that were looked up
        [sys.executable, "-m", RUNNER, *words, *ids],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
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

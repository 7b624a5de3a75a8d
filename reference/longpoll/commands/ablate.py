"""`longpoll ablate`: the purpose of each knob of our own policies.

The changes are tried in `longpoll_spec.engines.ablate`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from longpoll.options.completion import own_policies
from longpoll.output import Exit, cell_of, emit_json, fail, json_option, out, progress_bar, styled, table, user_mistakes
from longpoll_spec.policy import PRESETS, other_settings, preset

if TYPE_CHECKING:
    from collections.abc import Callable

    from longpoll_spec.engines.ablate import Row


@click.command()
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="NAME",
    help="strict or strict-clone; repeatable.  [default: both]",
    shell_complete=own_policies,
)
@json_option
@user_mistakes
def ablate(*, names: Sequence[str], as_json: bool) -> None:
    """Change each knob of our own policies in turn, and report which properties are violated.

    If no property is violated, the knob is redundant in that policy, and the table gives the reason. A violation is
    found by exploration and comes with the token of a shortest run for `longpoll explain`. The other properties are
    proved.

    \b
    Examples:
      longpoll ablate
      longpoll ablate --policy strict --json

    Exit codes: 0 every change violates a property or is redundant for the given reason, 1 a reason is wrong or missing,
    2 a mistake in the call, 3 a property could not be decided.
    """
    # Importing z3 takes a second, and only this command and `prove` need it.
    from longpoll_spec.engines import ablate as engine  # noqa: PLC0415

    for name in names:
        preset(name)
        if name not in engine.POLICIES:
            fail(f"{name} is not one of our own policies: choose {' or '.join(engine.POLICIES)}")
    chosen = list(dict.fromkeys(names)) or list(engine.POLICIES)
    total = sum(1 for name in chosen for _change in other_settings(PRESETS[name]))
    try:
        with _bar(total) as report:
            rows = engine.ablate(chosen, report=report)
    except KeyboardInterrupt:
        fail("stopped before every change was tried: the result is unknown", Exit.UNKNOWN)
    if as_json:
        emit_json({"rows": [_row(row) for row in rows]})
    else:
        _show(rows)
    sys.exit(_exit_of(rows))


def _row(row: Row) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "knob": row.knob,
        "violates": [verdict.name for verdict in row.violations],
        "depth": row.depth,
        "redundant_because": row.redundant_because,
        "undecided": row.undecided,
        "problem": row.problem,
        "tokens": {verdict.name: verdict.token for verdict in row.violations},
    }


def _show(rows: Sequence[Row]) -> None:
    for name in dict.fromkeys(row.policy for row in rows):
        mine = [row for row in rows if row.policy == name]
        table(f"{name}, with one knob changed", ("change", "violated properties"), ((r.knob, _said(r)) for r in mine))
    out.print("The number after a property is the length of its shortest run; --json has the tokens.")


def _said(row: Row) -> Text:
    parts: list[Text | str] = [", ".join(f"{verdict.name} ({verdict.depth})" for verdict in row.violations)]
    if row.undecided:
        parts.append(styled("[yellow]undecided: {}[/]", ", ".join(row.undecided)))
    if row.redundant_because:
        parts.append(styled("[green]redundant:[/] {}", row.redundant_because))
    if row.problem:
        parts.append(styled("[bold red]{}[/]", row.problem))
    return Text("\n").join(cell_of(part) for part in parts if part)


def _exit_of(rows: Sequence[Row]) -> Exit:
    if any(row.problem for row in rows):
        return Exit.VIOLATED
    return Exit.UNKNOWN if any(row.undecided and not row.violations for row in rows) else Exit.OK


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr, in a terminal only; call the function with each change before it is tried."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=total)
        begun = iter(range(total))
        yield lambda words: progress.update(task, description=words, completed=next(begun))

"""What every command shares: one JSON object or a human table on stdout, progress on stderr, exit codes.

Names of topics, groups, clients and files, tags, and what a history or a peer says come from strangers. So every text
is shown as it is, never as markup, and what could steer a terminal is written out (`plain`): by the consoles, tables,
`say` and `emit_json` themselves, for nobody has to remember it. Only `styled` makes colours, of a template of our own.

Leaves out what the commands say; each command's module does that.
"""

from __future__ import annotations

import enum
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, NoReturn, ParamSpec

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from longpoll.guard import printable
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import MemoryShortError, UserError

P = ParamSpec("P")


class NotWritableError(UserError):
    """What was asked for cannot be written where it was asked for; the text says why."""


WIDTH_OF_A_FILE: Final = 140
"""Columns of a table that goes to a file or a pipe, which has no width of its own."""


class _Console(Console):
    """Rich's, less its own idea of what a closed pipe is: exit code 1."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts as they are, and what `styled` made in colours."""
        super().print(*(Text(plain(each)) if isinstance(each, str) else each for each in objects), **options)

    def on_broken_pipe(self) -> NoReturn:
        """Let the command end as any other that the system refuses something."""
        raise BrokenPipeError


out = _Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
err = _Console(stderr=True, highlight=False)


class Exit(enum.IntEnum):
    """The exit codes of every command."""

    OK = 0
    VIOLATED = 1
    USER = 2
    UNKNOWN = 3


def plain(text: str) -> str:
    """A text of strangers on a terminal: whatever is no visible letter is written out, but for ends of lines."""
    return "\n".join(map(printable, text.split("\n")))


def styled(template: str, *values: object) -> Text:
    """Our own markup with `{}` for each of the values, which stay as they are and begin no line."""
    return Text.from_markup(template.format(*(escape(printable(str(value))) for value in values)), emoji=False)


def say(text: str) -> None:
    """Write lines to stdout, at once and without a width."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on stderr that is gone when it is done, and is not drawn where nobody sees it."""
    shown = columns or (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    return _Progress(*shown, console=err, transient=True, disable=not err.is_terminal)


class _Progress(Progress):
    """Rich's, with descriptions as they are."""

    def add_task(self, description: str, *options: Any, **fields: Any) -> TaskID:
        """Add a task."""
        return super().add_task(printable(description), *options, **fields)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Change a task."""
        if fields.get("description") is not None:
            fields["description"] = printable(fields["description"])
        super().update(task_id, **fields)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def user_mistakes(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command so that a user's mistake is one clear line and exit 2, never a traceback.

    Too little memory is no mistake: it leaves what was asked unknown, which is exit 3.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except MemoryShortError as error:
            fail(str(error), Exit.UNKNOWN)
        except UserError as error:
            fail(str(error))

    return wrapped


def fail(message: str, code: Exit = Exit.USER) -> NoReturn:
    """Print one line on stderr and leave with the code."""
    err.print(f"longpoll: {printable(message)}", soft_wrap=True)
    sys.exit(code)


def check_file(file: Path, what: str) -> None:
    """Look whether a file can be written, before the work; raises NotWritableError."""
    with _telling(file, what):
        if not os.path.lexists(file):
            tempfile.TemporaryFile(dir=file.parent).close()
        elif file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not os.access(file.resolve(strict=True), os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_directory(directory: Path, what: str) -> None:
    """Make a directory, unless it is there, and look whether files can be written into it; raises NotWritableError."""
    with _telling(directory, what):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


@contextmanager
def _telling(place: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritableError(f"cannot write {what} {place}: {error.strerror}; name another place") from None


def json_text(value: Any) -> str:
    """One JSON object on one line, of which every letter can be seen."""
    return escaped(msgspec.json.encode(value).decode())


def emit_json(value: Any) -> None:
    """Print one JSON object on a line of its own."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a human table; cells are shown with `str`, on one line, but for a Text, which is somebody's who made it."""
    grid = Table(title=Text(printable(title), style="table.title"), title_justify="left")
    for column in columns:
        grid.add_column(Text(printable(column)), overflow="fold")
    for row in rows:
        grid.add_row(*map(cell_of, row))
    out.print(grid)


def cell_of(value: object) -> Text:
    """What a table shows of a value."""
    return value if isinstance(value, Text) else Text(printable(str(value)))

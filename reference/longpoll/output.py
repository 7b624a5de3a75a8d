"""Output shared by all commands: one JSON object or a table on stdout, progress on stderr, exit codes.

Topic names, tags, file names and peers' texts are untrusted. The consoles, tables, `say` and `emit_json` therefore
never read a text as markup, and they escape control characters (`plain`). Only `styled` adds colours.
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
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from longpoll.exit_codes import printable
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import MemoryShortError, UserError
from longpoll_spec.history import PART_FILES

P = ParamSpec("P")


class NotWritableError(UserError):
    """An output file or directory cannot be written; the text says why."""


WIDTH_OF_A_FILE: Final = 140
"""Columns of output to a file or a pipe."""
WIDTH_MIN: Final = 20
"""The smallest width, in columns; a smaller value of COLUMNS counts as this width."""
WIDTH_MAX: Final = 10_000
WORD_MAX: Final = 18
"""The longest word, in characters, that a table keeps on one line; longer words, such as paths, may be folded."""


def _columns() -> int | None:
    """The value of COLUMNS; None if COLUMNS is not a positive number."""
    asked = os.environ.get("COLUMNS", "")
    is_number = asked.isascii() and asked.isdigit() and len(asked) < 10 and int(asked)
    return min(max(int(asked), WIDTH_MIN), WIDTH_MAX) if is_number else None


class _Console(Console):
    """Like rich's console, but a closed pipe does not lead to exit code 1, and a pipe has more than 80 columns."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False)
        # Rich would keep the current value of COLUMNS, although the variable may change later.
        self._width = self._height = None

    @property
    def size(self) -> ConsoleDimensions:
        """Return the size with the number of columns: COLUMNS, else the terminal's, else `WIDTH_OF_A_FILE`."""
        size, asked = super().size, _columns()
        if self._width is not None:
            return size
        if asked is not None:
            return ConsoleDimensions(asked, size.height)
        return size if self.file.isatty() else ConsoleDimensions(WIDTH_OF_A_FILE, size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts without markup, and texts from `styled` in colours."""
        super().print(*(Text(plain(each)) if isinstance(each, str) else each for each in objects), **options)

    def tell(self, said: str | Text) -> None:
        """Print prose, wrapped on a terminal. In a file, prose stays on one line, so that a search finds it."""
        self.print(said, soft_wrap=_columns() is None and not self.file.isatty())

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError, which the guard handles."""
        raise BrokenPipeError


out = _Console()
err = _Console(stderr=True)


class Exit(enum.IntEnum):
    """The exit codes of every command."""

    OK = 0
    VIOLATED = 1
    USER = 2
    UNKNOWN = 3
    PARTLY = 4


def plain(text: str) -> str:
    """Untrusted text for a terminal: all control characters except line ends are escaped."""
    return "\n".join(map(printable, text.split("\n")))


def styled(template: str, *values: object) -> Text:
    """Fill the values into our own markup at each `{}`; they are escaped and stay on one line."""
    return Text.from_markup(template.format(*(escape(printable(str(value))) for value in values)), emoji=False)


def say(text: str) -> None:
    """Write lines to stdout at once, without wrapping."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A progress bar on stderr that disappears at the end; nothing is drawn if stderr is not a terminal."""
    shown = columns or (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    return _Progress(*shown, console=err, transient=True, disable=not err.is_terminal)


class _Progress(Progress):
    """rich's `Progress` with control characters escaped in its descriptions."""

    def add_task(self, description: str, *options: Any, **fields: Any) -> TaskID:
        return super().add_task(printable(description), *options, **fields)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        if fields.get("description") is not None:
            fields["description"] = printable(fields["description"])
        super().update(task_id, **fields)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")


def user_mistakes(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command so that a user's mistake prints one clear line and exits with 2, without a traceback.

    Too little memory is not a mistake: the result is unknown, which is exit code 3.
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
    """Print one line on stderr and exit with the code."""
    err.print(f"longpoll: {printable(message)}", soft_wrap=True)
    sys.exit(code)


def begin_recording(history: Path | None) -> None:
    """Print a note on stderr if the directory has an earlier history, because the judge will read that history too."""
    if history is not None and any(history.glob(PART_FILES)):
        err.print(f"{history} has an earlier history, and `longpoll judge` reads both", soft_wrap=True)


def end_recording(history: Path | None, trouble: str) -> None:
    """Exit with 3 if a recorded history is incomplete; else print the command that judges the history."""
    if trouble:
        fail(trouble, Exit.UNKNOWN)
    if history is not None:
        err.print(f"recorded {history}; next: longpoll judge {history}", soft_wrap=True)


def check_file(file: Path, what: str) -> None:
    """Check before the work that a file can be written; raises NotWritableError."""
    with _telling(file, what):
        if not os.path.lexists(file):
            tempfile.TemporaryFile(dir=file.parent).close()
        elif file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not os.access(file.resolve(strict=True), os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_directory(directory: Path, what: str) -> None:
    """Create a directory if it is missing; raises NotWritableError if the directory is not writable."""
    with _telling(directory, what):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


@contextmanager
def _telling(place: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritableError(f"cannot write {what} {place}: {error.strerror}; choose another path") from None


def json_text(value: Any) -> str:
    """Return a JSON value as one line of text, with invisible characters escaped."""
    return escaped(msgspec.json.encode(value).decode())


def emit_json(value: Any) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    grouped: bool = False,
) -> None:
    """Print a table; if the output is too narrow, print each row as several lines.

    Args:
        title: The line above the table.
        columns: The column heads.
        rows: Cells, shown with `str` on one line; a Text is shown unchanged.
        right: The right-aligned columns.
        grouped: Print equal first cells once, and a line between groups.
    """
    cells = [[cell_of(value) for value in row] for row in rows]
    heads = [Text(printable(column)) for column in columns]
    out.print(Text(printable(title), style="table.title"))
    if _room_needed([heads, *cells]) <= out.width:
        out.print(_grid(heads, cells, right=right, grouped=grouped))
        return
    for place, row in enumerate(cells):
        if place:
            out.print()
        out.print(_stacked(heads, row))


def _room_needed(rows: Sequence[Sequence[Text]]) -> int:
    """The width of a table that folds only words longer than `WORD_MAX`."""
    words = [
        max((cell_len(word) for cell in column for word in cell.plain.split()), default=0)
        for column in zip(*rows, strict=True)
    ]
    return sum(min(each, WORD_MAX) + 3 for each in words) + 1


def _grid(heads: Sequence[Text], rows: Sequence[Sequence[Text]], *, right: Sequence[str], grouped: bool) -> Table:
    grid = Table()
    for head in heads:
        grid.add_column(head, justify="right" if head.plain in right else "left", overflow="fold")
    group = ""
    for place, (first, *others) in enumerate(rows):
        if grouped and place and first.plain != group:
            grid.add_section()
        grid.add_row(first if not (grouped and place and first.plain == group) else "", *others)
        group = first.plain
    return grid


def _stacked(heads: Sequence[Text], row: Sequence[Text]) -> Table:
    lines = Table.grid(Column(overflow="fold", max_width=out.width // 2), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for head, cell in zip(heads, row, strict=True):
        if cell.plain:
            lines.add_row(head, cell)
    return lines


def cell_of(value: object) -> Text:
    """A value as a table cell."""
    return value if isinstance(value, Text) else Text(printable(str(value)))

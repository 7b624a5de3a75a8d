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
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from longpoll.guard import printable
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import MemoryShortError, UserError

P = ParamSpec("P")


class NotWritableError(UserError):
    """What was asked for cannot be written where it was asked for; the text says why."""


WIDTH_OF_A_FILE: Final = 140
"""Columns of what goes to a file or a pipe, which has no width of its own."""
WIDTH_MIN: Final = 20
"""Columns below which nothing can be read: COLUMNS asks for no fewer."""
WIDTH_MAX: Final = 10_000
WORD_MAX: Final = 18
"""Letters of a word that a table keeps on one line; longer ones, such as paths and ids, may be folded."""


def _columns() -> int | None:
    """The columns that COLUMNS asks for; None where it says nothing that makes sense."""
    asked = os.environ.get("COLUMNS", "")
    is_number = asked.isascii() and asked.isdigit() and len(asked) < 10 and int(asked)
    return min(max(int(asked), WIDTH_MIN), WIDTH_MAX) if is_number else None


class _Console(Console):
    """Rich's, less its own idea of what a closed pipe is (exit code 1), and of how wide a pipe is (80 columns)."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False)
        # Rich would keep what COLUMNS says now, and it may say another thing later.
        self._width = self._height = None

    @property
    def size(self) -> ConsoleDimensions:
        """How many columns there are: what COLUMNS says, else the terminal's, else those of a file."""
        size, asked = super().size, _columns()
        if self._width is not None:
            return size
        if asked is not None:
            return ConsoleDimensions(asked, size.height)
        return size if self.file.isatty() else ConsoleDimensions(WIDTH_OF_A_FILE, size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        """As rich's."""
        self._width, self._height = new_size

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts as they are, and what `styled` made in colours."""
        super().print(*(Text(plain(each)) if isinstance(each, str) else each for each in objects), **options)

    def tell(self, said: str | Text) -> None:
        """Print prose: at words where the columns are known; in a file on one line, where it can be searched for."""
        self.print(said, soft_wrap=_columns() is None and not self.file.isatty())

    def on_broken_pipe(self) -> NoReturn:
        """Let the command end as any other that the system refuses something."""
        raise BrokenPipeError


out = _Console()
err = _Console(stderr=True)


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
    """A bar on stderr that is gone when it is done, and is not drawn where stderr is no terminal."""
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


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    grouped: bool = False,
) -> None:
    """Print a human table; where there is too little room for its columns, each row as lines of its own.

    Args:
        title: Stands above it.
        columns: The heads of its columns.
        rows: Cells, shown with `str` and on one line, but for a Text, which is somebody's who made it.
        right: The columns whose cells stand at the right.
        grouped: Whether rows whose first cells are equal belong together: it is then said once, above a line.
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
    """How many columns a table takes in which no word is folded, but for very long ones."""
    words = [
        max((cell_len(word) for cell in column for word in cell.plain.split()), default=0)
        for column in zip(*rows, strict=True)
    ]
    return sum(min(each, WORD_MAX) + 3 for each in words) + 1


def _grid(heads: Sequence[Text], rows: Sequence[Sequence[Text]], *, right: Sequence[str], grouped: bool) -> Table:
    """The rows with a column for each head."""
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
    """One row with a line for each head of which there is anything to say."""
    lines = Table.grid(Column(overflow="fold", max_width=out.width // 2), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for head, cell in zip(heads, row, strict=True):
        if cell.plain:
            lines.add_row(head, cell)
    return lines


def cell_of(value: object) -> Text:
    """What a table shows of a value."""
    return value if isinstance(value, Text) else Text(printable(str(value)))

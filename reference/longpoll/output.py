"""What every command shares: one JSON object or a human table on stdout, progress on stderr, exit codes.

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
from rich.progress import Progress, ProgressColumn
from rich.table import Table

from longpoll_broker.errors import BrokerUserError
from longpoll_judge.errors import JudgeUserError
from longpoll_spec.errors import MemoryShortError, SpecUserError

P = ParamSpec("P")


class NotWritableError(Exception):
    """What was asked for cannot be written where it was asked for; the text says why."""


USER_ERRORS = (SpecUserError, BrokerUserError, JudgeUserError, NotWritableError)

WIDTH_OF_A_FILE: Final = 140
"""Columns of a table that goes to a file or a pipe, which has no width of its own."""


class _Console(Console):
    """Rich's, less its own idea of what a closed pipe is: exit code 1."""

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


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on stderr that is gone when it is done, and is not drawn where nobody sees it."""
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


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
        except USER_ERRORS as error:
            fail(str(error))

    return wrapped


def fail(message: str, code: Exit = Exit.USER) -> NoReturn:
    """Print one line on stderr and leave with the code."""
    err.print(f"longpoll: {message}", soft_wrap=True, markup=False)
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


def emit_json(value: Any) -> None:
    """Print one JSON object on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a human table; cells are shown with `str`."""
    grid = Table(title=title, title_justify="left")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    out.print(grid)

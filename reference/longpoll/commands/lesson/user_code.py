"""Runs the reader's code: an exception in it becomes one sentence, not an internal error."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from attrs import frozen

from longpoll_spec.errors import UserError

TEXT_MAX: Final = 300
"""Most characters shown of an exception's text."""


@frozen
class UserCodeErrors:
    """A block that turns the program's exceptions into a UserError with file and line."""

    path: Path

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise UserError for an exception; Ctrl-C and UserError pass unchanged."""
        if error is None or isinstance(error, (UserError, KeyboardInterrupt)):
            return
        lines = [each.lineno for each in traceback.extract_tb(trace) if Path(each.filename) == self.path]
        place = f"{self.path}, line {lines[-1]}" if lines else str(self.path)
        raise UserError(f"{place}: {type(error).__name__}: {str(error)[:TEXT_MAX]}") from None

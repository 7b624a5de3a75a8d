"""A reader's own code, run: what goes wrong in it is the reader's mistake, told in one sentence, and no fault of ours.

Leaves out what it is run for.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from attrs import frozen

from longpoll_spec.errors import UserError

TEXT_MAX: Final = 300
"""Characters that are shown of what an exception says."""


@frozen
class FaultsTold:
    """What is raised within is told as the program's: where, and what. A UserError says it all already."""

    path: Path

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell of it; Ctrl-C goes on as it is."""
        if error is None or isinstance(error, (UserError, KeyboardInterrupt)):
            return
        lines = [each.lineno for each in traceback.extract_tb(trace) if Path(each.filename) == self.path]
        place = f"{self.path}, line {lines[-1]}" if lines else str(self.path)
        raise UserError(f"{place}: {type(error).__name__}: {str(error)[:TEXT_MAX]}") from None

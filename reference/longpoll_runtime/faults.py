"""What a request, a filter or a read may run into and still be answered for, one tuple for every `except`.

Every exception of Python's, not a list of those that somebody has thought of: a number that does not fit its field, a
memory that is full and a broken invariant of our own are caused by requests too, and one request must cost the others
nothing. It is answered with code 1, its connection closes at most, and the log has the traceback.

Leaves out what is no `Exception`, such as SystemExit: that ends the thread, and with it the process
(`threads`). Tests take an AssertionError in the log for a failure (`model_tests/conftest.py`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

FAULTS: Final = (Exception,)


class KeepGoing:
    """Logs what its block raises and goes on after it: one part of a loop that must not cost the next one its turn."""

    __slots__ = ("_log", "_what")

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        """The log's line, as text."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, FAULTS):
            return False
        self._log.error("%s", self._what, exc_info=error, stacklevel=2)
        return True

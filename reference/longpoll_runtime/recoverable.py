"""Exceptions that a request, filter or read may cause without affecting others: one tuple for every `except`.

It is every `Exception`, not a list of expected ones. A number that does not fit, full memory, or a broken invariant may
be caused by a request too, and one request must not affect others. The request is answered with code 1, at most its
connection closes, and the log has the traceback.

Other exceptions, such as SystemExit, end the thread and so the process (`threads`). The exception is user code: a
callback that exits must not end our process (`KeepThread`). Tests treat a logged AssertionError as a failure
(`model_tests/conftest.py`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import ClassVar, Final

FAULTS: Final = (Exception,)
ANYTHING: Final = (BaseException,)
"""The exceptions of user code on our threads, including SystemExit and cancellation."""


class KeepGoing:
    """Logs an exception of its block and continues, so that a loop's next part still runs."""

    __slots__ = ("_log", "_what")
    _kept: ClassVar[tuple[type[BaseException], ...]] = FAULTS

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        """The text of the log line."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._kept):
            return False
        self._log.error("%s", self._what, exc_info=error, stacklevel=2)
        return True


class KeepThread(KeepGoing):
    """`KeepGoing` for any exception, for user code on one of our threads."""

    __slots__ = ()
    _kept = ANYTHING

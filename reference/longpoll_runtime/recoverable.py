"""What a request, a filter or a read may run into and still be answered for, one tuple for every `except`.

Every exception of Python's, not a list of those that somebody has thought of: a number that does not fit its field, a
memory that is full and a broken invariant of our own are caused by requests too, and one request must cost the others
nothing. It is answered with code 1, its connection closes at most, and the log has the traceback.

What is no `Exception`, such as SystemExit, ends the thread, and with it the process (`threads`), but for what is
somebody else's: a callback that exits must not end the process of who has not asked for it (`KeepThread`). Tests take
an AssertionError in the log for a failure (`model_tests/conftest.py`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import ClassVar, Final

FAULTS: Final = (Exception,)
ANYTHING: Final = (BaseException,)
"""What others' code may raise that runs on a thread of ours: SystemExit and a cancellation among them."""


class KeepGoing:
    """Logs what its block raises and goes on after it: one part of a loop that must not cost the next one its turn."""

    __slots__ = ("_log", "_what")
    _kept: ClassVar[tuple[type[BaseException], ...]] = FAULTS

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        """The log's line, as text."""

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
    """The same of whatever is raised, for others' code that runs on a thread of ours."""

    __slots__ = ()
    _kept = ANYTHING

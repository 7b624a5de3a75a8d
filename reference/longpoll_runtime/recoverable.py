"""The exceptions that a request, a filter or a read may cause without an effect on other requests.

`FAULTS` has `Exception` and not a list of expected classes, because a request may also cause an overflow, full memory
or a failed assertion, which must not affect other requests. A request that causes an exception gets an answer with code
1, or at worst its connection closes, and the traceback is logged.

Any other exception, such as SystemExit, ends the thread and therefore the process (see `threads`). An exception of user
code, even SystemExit, never ends the process (`KeepThread`). Tests treat a logged AssertionError as a failure
(`model_tests/conftest.py`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import ClassVar, Final

FAULTS: Final = (Exception,)
ANYTHING: Final = (BaseException,)
"""The exceptions that are caught from user code on our threads, including SystemExit and cancellation."""


class KeepGoing:
    """Logs an exception of its `with` block and continues after the block, so that a loop can go on."""

    __slots__ = ("_log", "_what")
    _kept: ClassVar[tuple[type[BaseException], ...]] = FAULTS

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        """The text of the log line."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._kept):
            return False
        self._log.error("%s", self._what, exc_info=error, stacklevel=2)
        return True


class KeepThread(KeepGoing):
    """Logs any exception of user code in its `with` block, even SystemExit, and continues after the block."""

    __slots__ = ()
    _kept = ANYTHING

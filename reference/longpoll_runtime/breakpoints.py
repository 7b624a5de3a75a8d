"""A thread stopped at any line: what comes between two lines of somebody's code comes there for certain.

Only lines of code that is neither Python's own nor installed nor the project's are counted, so a pause at line n is
one between two lines of the program under test. While a debugger or a coverage tool traces, there are no pauses.

Leaves out threads that ran before, but for the one that asks, and code that is not Python.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

PAUSE_S: Final = 0.005
"""How long a thread is stopped at most: the others may need what it holds."""
NOT_COUNTED: Final = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(str(Path(__file__).parents[1] / name) for name in ("longpoll_runtime", "longpoll_kit")),
)


class Pause:
    """Stops the first thread that has come to the n-th line.

    Invariant: `_left` is how many lines there are until then; below 0 a thread is stopped, or was.
    """

    def __init__(self, line: int) -> None:
        self._left = line
        self.place = ""
        """File and line before which a thread is stopped."""
        self._reached = threading.Event()
        self._ended = threading.Event()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Count lines of this thread inside the block."""
        before = sys.gettrace()
        if before is None:
            sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            self._reached.set()

    @contextmanager
    def new_threads(self) -> Iterator[None]:
        """Count lines of threads that are started inside the block."""
        before = threading.gettrace()
        if before is None and sys.gettrace() is None:
            threading.settrace(self._trace)
        try:
            yield
        finally:
            threading.settrace(before)

    def wait_reached(self) -> bool:
        """Wait until a thread is stopped, or for as long as a pause; whether one was stopped."""
        self._reached.wait(PAUSE_S)
        return self._left < 0

    def end(self) -> None:
        """Let the thread go on."""
        self._ended.set()

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if self._left < 0 or not _is_counted(frame.f_code.co_filename):
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self._reached.set()
                self._ended.wait(PAUSE_S)
        return self._trace


@functools.cache
def _is_counted(path: str) -> bool:
    return not path.startswith(("<", *NOT_COUNTED))

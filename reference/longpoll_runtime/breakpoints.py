"""Pauses a thread at a chosen line, to force an interleaving between two lines of user code.

Lines of Python's library, of installed packages, of `longpoll_kit` and of `longpoll_runtime` are not counted. If a
debugger or a coverage tool is active, no thread is paused. Only the calling thread and threads that are started later
can be paused, and only in Python code.
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
"""The longest pause, in seconds. A pause has a limit because other threads may need the locks of the paused thread."""
NOT_COUNTED: Final = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(str(Path(__file__).parents[1] / name) for name in ("longpoll_runtime", "longpoll_kit")),
)


class Pause:
    """Pauses the first thread that reaches the n-th counted line.

    Invariant: `_left` is the number of lines to count before the pause, and is negative once a thread was paused.
    """

    def __init__(self, line: int) -> None:
        self._left = line
        self.place = ""
        """The file and line before which the thread is paused."""
        self._reached = threading.Event()
        self._ended = threading.Event()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Count the lines that this thread executes inside the block."""
        before = sys.gettrace()
        # A worker that was started inside an earlier pause's `new_threads` is still traced by that pause.
        if before is None or isinstance(getattr(before, "__self__", None), Pause):
            sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            self._reached.set()

    @contextmanager
    def new_threads(self) -> Iterator[None]:
        """Count the lines of threads that are started inside the block."""
        before = threading.gettrace()
        if before is None and sys.gettrace() is None:
            threading.settrace(self._trace)
        try:
            yield
        finally:
            threading.settrace(before)

    def wait_reached(self) -> bool:
        """Wait at most `PAUSE_S` until a thread is paused; returns whether a thread is or was paused."""
        self._reached.wait(PAUSE_S)
        return self._left < 0

    def end(self) -> None:
        """Resume the paused thread."""
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

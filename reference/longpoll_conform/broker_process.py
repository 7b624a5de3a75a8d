"""A broker that is started by a command, and restarted when it stops answering.

The command is no shell's. It may start a name server as well, and is ended with everything that it started.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from longpoll_conform.connection import SilentError
from longpoll_spec.errors import UserError

START_S: Final = 60.0
STOP_S: Final = 15.0
LOOK_S: Final = 0.2


class StartError(UserError):
    """A command that cannot be run; the text says why."""


class BrokerProcess:
    """A running command. Invariant: `_process` is the one of the last start; leaving the `with` block ends it."""

    def __init__(self, command: str, is_well: Callable[[], bool]) -> None:
        """Start it, and wait until `is_well`. Raises StartError, and SilentError when it never is."""
        self._words = shlex.split(command)
        if not self._words:
            raise StartError("--start needs a command that starts the broker")
        self._is_well = is_well
        self._process: subprocess.Popen[bytes] | None = None
        with ExitStack() as undo:
            # Also when Ctrl-C comes while it is waited for.
            undo.callback(self.end)
            self.restart()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def restart(self) -> None:
        """End it and start it anew. Raises as the first start does."""
        self.end()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise StartError(f"{self._words[0]} cannot be run: {error.strerror or error}") from error
        end_s = time.monotonic() + START_S
        while not self._is_well():
            if self._process.poll() is not None:
                raise SilentError(f"{self._words[0]} ended with {self._process.returncode} before the broker answered")
            if time.monotonic() > end_s:
                self.end()
                raise SilentError(f"{self._words[0]} started no broker that answers within {START_S:g} s")
            time.sleep(LOOK_S)

    def end(self) -> None:
        """End the command and what it started: asked first, then killed."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue
        process.wait()
        self._process = None

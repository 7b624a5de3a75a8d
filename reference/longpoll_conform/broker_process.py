"""Start a broker with the user's command, and restart it.

The command runs without a shell, and may also start a name server. `end` stops all processes that the command started.
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
    """The command cannot be run; the message says why."""


class BrokerProcess:
    """A broker that was started by a command and that ends with the `with` block."""

    def __init__(self, command: str, is_well: Callable[[], bool]) -> None:
        """Start the broker, and wait until `is_well`. Raises StartError, or SilentError if it never becomes well."""
        self._words = shlex.split(command)
        if not self._words:
            raise StartError("--start needs a command that starts the broker")
        self._is_well = is_well
        self._process: subprocess.Popen[bytes] | None = None
        with ExitStack() as undo:
            # End the broker also if Ctrl-C interrupts the wait for its start.
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
        """End the broker and start it again. Raises StartError or SilentError, like the first start."""
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
                raise SilentError(f"{self._words[0]} did not start a broker that answers within {START_S:g} s")
            time.sleep(LOOK_S)

    def end(self) -> None:
        """End the command and its children: SIGTERM first, then SIGKILL."""
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

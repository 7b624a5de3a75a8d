"""Runs a broker in its own process, as a user would: `longpoll serve`, its ready line, SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from longpoll_runtime.closeable import Stoppable
from longpoll_spec.errors import UserError

STOP_S: Final = 30.0


class ServeError(UserError):
    """The broker did not start or stop correctly."""


class ServedBroker(Stoppable):
    """A running `longpoll serve`. `stop` is idempotent; leaving the `with` block never leaves a process behind.

    Nor does a kill of this process: the broker's standard input is a pipe that ends with it (`--with-parent`).
    """

    def __init__(self, store: Path, record: Path | None, *options: str) -> None:
        """Start it and wait for the ready line; raises ServeError."""
        command = [sys.executable, "-m", "longpoll", "serve", "--store", str(store)]
        command += ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--with-parent", *options]
        if record is not None:
            command += ["--record", str(record)]
        self.store = store
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with ExitStack() as undo:
            undo.callback(self.kill)
            self.address, self.name_server = self._await_ready()
            undo.pop_all()

    @property
    def process_id(self) -> int:
        """The broker's process id."""
        return self._process.pid

    def _await_ready(self) -> tuple[tuple[str, int], str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        if not line.startswith("ready ") or not {"broker", "name-server"} <= words.keys():
            raise ServeError(f"the broker ended before it was ready; its first line is {line!r}")
        host, _, port = words["broker"].rpartition(":")
        return (host, int(port)), words["name-server"]

    def stop(self) -> int:
        """Stop it and return its exit code; raises ServeError if it does not stop in time."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServeError(f"the broker did not stop within {STOP_S:g} s of SIGTERM and was killed") from None
        self._close_pipes()
        return code

    def kill(self) -> None:
        """Kill it with SIGKILL by its process id and wait for its end; does nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

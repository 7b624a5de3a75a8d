"""Starts the command line in separate processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from model_tests.support.broker.raw_client import PATIENCE_S

COMMAND: Final = (sys.executable, "-c", "from longpoll.cli import main; main()")
StartCommand = Callable[..., "subprocess.Popen[str]"]
"""Starts a command of `longpoll` with options. The process is killed at the end of the test if it still runs."""


@contextmanager
def commands(name: str) -> Iterator[StartCommand]:
    """Yields a function that starts `longpoll NAME` any number of times; processes left after the block are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        command = [*COMMAND, name, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def serving(*options: str) -> Iterator[dict[str, str]]:
    """Run `longpoll serve` on free ports and yield the fields of its ready line; the process must exit with code 0."""
    command = [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            yield dict(pair.split("=", 1) for pair in served.stdout.readline().split()[1:])
        finally:
            served.send_signal(signal.SIGTERM)
            try:
                code = served.wait(PATIENCE_S)
            finally:
                served.kill()
            assert code == 0

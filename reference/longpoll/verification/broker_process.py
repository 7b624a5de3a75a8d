"""Runs a broker in its own process, as a user would, and measures how fast it answers a small request.

During a load, another connection repeats a request that the broker can answer at once. The time limits for the load's
answers (`limits`) are raised by the slowest answer to the small request and by the delay of this process, because a
thread that waits for a processor is not at fault.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from longpoll_client.errors import ClientError
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import GetMaxOffsetRequestHeader
from longpoll_runtime import Runtime
from longpoll_runtime.services import Stoppable
from longpoll_spec.errors import UserError

STOP_S: Final = 30.0


class ServeError(UserError):
    """The broker did not start or stop correctly."""


class ServedBroker(Stoppable):
    """A running `longpoll serve`. `stop` is idempotent; leaving the `with` block never leaves a process behind.

    If this process is killed, the broker ends too, because its standard input is a pipe from this process
    (`--with-parent`).
    """

    def __init__(self, store: Path, record: Path | None, *options: str) -> None:
        """Start the broker and wait for its ready line; raises ServeError."""
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
        """Stop the broker and return its exit code; raises ServeError if it does not stop in time."""
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
        """Kill the broker with SIGKILL and wait for its end; does nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


PERIOD_S: Final = 0.02
TIMEOUT_S: Final = 10.0
"""Wait this long for the small request's answer. A broker that is silent for longer is not just busy."""


class HostLatency:
    """Measures round trips of a small request until its block ends. Its thread owns all attributes except `_ended`."""

    def __init__(self, runtime: Runtime, address: tuple[str, int], topic: str) -> None:
        """Start to query the max offset of a queue of `topic`. The topic need not exist, because any answer counts."""
        self.worst_ms = 0.0
        """The longest round trip plus the longest delay of this process."""
        self.rounds = 0
        self._runtime = runtime
        self._client = _connected(runtime, address)
        self._header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
        self._ended = runtime.event()
        self._thread = runtime.spawn("echo", self._ask)

    def _ask(self) -> None:
        if self._client is None:
            return
        try:
            late_ns = 0
            while not self._ended.is_set():
                begun_ns = self._runtime.monotonic_ns()
                self._client.call(RequestCode.GET_MAX_OFFSET, self._header, timeout_s=TIMEOUT_S)
                answered_ns = self._runtime.monotonic_ns()
                self.worst_ms = max(self.worst_ms, (answered_ns - begun_ns + late_ns) / 1e6)
                self.rounds += 1
                self._ended.wait(PERIOD_S)
                late_ns = max(0, self._runtime.monotonic_ns() - answered_ns - round(PERIOD_S * 1e9))
        except ClientError:
            # Keep the measurements so far. If the broker no longer answers, a stage that needs an answer reports it.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._client is not None:
            self._client.close()
        self._thread.join()


def _connected(runtime: Runtime, address: tuple[str, int]) -> RemotingClient | None:
    """Connect to the broker; None if it accepts no connection."""
    try:
        return RemotingClient(runtime, *address)
    except ClientError:
        return None

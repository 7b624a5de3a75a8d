"""Redis as a subject: `RPUSH` publishes, `BLPOP` polls, `CLIENT UNBLOCK` cancels; a minimal client.

Each poll has a connection, on which it first asks for its client id, because a cancel needs that.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, Final

from longpoll_kit.subject import LongPollSubject, Polled

SERVER: Final = shutil.which("redis-server")
PATIENCE_S: Final = 10.0


class Connection:
    """A connection that speaks RESP, Redis's protocol."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def send(self, *words: bytes) -> None:
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))

    def reply(self) -> Any:
        """Read a reply: an int, bytes, a list or None; raises OSError for an error or an end."""
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise OSError(f"Redis said {line!r}")

    def call(self, *words: bytes) -> Any:
        """Send a command and read its reply."""
        self.send(*words)
        return self.reply()

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class RedisServer:
    """A server on a socket in a separate directory, with a command log; `stop` ends it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "socket"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        assert SERVER is not None
        words = [
            "--port",
            "0",
            "--unixsocket",
            str(self.path),
            "--dir",
            str(self.directory),
            "--appendonly",
            "yes",
            "--save",
            "",
        ]
        self.process = subprocess.Popen([SERVER, *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert any("ready to accept connections" in line for line in self.process.stdout)

    def stop(self) -> None:
        """End it in order, which ends every connection."""
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)


class RedisSubject(LongPollSubject):
    """A server's lists as queues. Restarts are in order; it keeps its lists in its log."""

    semantics = "consuming"
    durable = True

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.process_id = server.process.pid

    def publish(self, queue: str, body: bytes) -> None:
        self.call(b"RPUSH", queue.encode(), body)

    def call(self, *words: bytes) -> Any:
        """Run a command on a new connection."""
        connection = Connection(self.server.path)
        try:
            return connection.call(*words)
        finally:
            connection.close()

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Connection, bytes]:
        """BLPOP, by a client whose id is known."""
        connection = Connection(self.server.path)
        number: int = connection.call(b"CLIENT", b"ID")
        connection.send(b"BLPOP", queue.encode(), b"%f" % (timeout_ms / 1000))
        return connection, b"%d" % number

    def finish_poll(self, handle: tuple[Connection, bytes]) -> Polled:
        """Read its reply: the list's name and a message, or nothing."""
        try:
            found = handle[0].reply()
        finally:
            handle[0].close()
        return Polled(found[1:] if found else ())

    def cancel(self, handle: tuple[Connection, bytes]) -> None:
        """CLIENT UNBLOCK, until it waits no more: a poll that Redis has not read yet is not blocked yet."""
        while not self.call(b"CLIENT", b"UNBLOCK", handle[1]):
            listed: bytes = self.call(b"CLIENT", b"LIST", b"ID", handle[1])
            if not listed or (b"cmd=blpop" in listed and b"flags=b" not in listed):
                return

    def restart(self) -> None:
        self.server.stop()
        self.server.start()
        self.process_id = self.server.process.pid

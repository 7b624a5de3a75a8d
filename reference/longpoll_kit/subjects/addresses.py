"""Helpers of the subjects: parse addresses, find processes, create queues on first use, close connections on errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
LISTENS: Final = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""


def address_of(url: str, port: int) -> tuple[str, int]:
    """The host and port of a URL; by default this host and the service's usual port."""
    split = urlsplit(url)
    return split.hostname or "127.0.0.1", split.port or port


def local_process(host: str | None, port: int | None) -> int | None:
    """The process of this host that listens at an address; None if not found or owned by another user.

    If this process waits for a processor, the kit does not count the waiting time against the service.
    """
    if host not in LOOPBACK or port is None:
        return None
    lines = [line.split() for each in ("tcp", "tcp6") for line in Path(f"/proc/net/{each}").read_text().splitlines()]
    sockets = {
        f"socket:[{line[9]}]" for line in lines if line[3] == LISTENS and int(line[1].rpartition(":")[2], 16) == port
    }
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end, or close a file, while its files are listed. Another user's files cannot be listed.
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return int(process.name)
    return None


@contextmanager
def closed_on_error(connection: Any) -> Iterator[Any]:
    """Close a connection if the block raises, because no other code could close it."""
    with ExitStack() as stack:
        stack.callback(connection.close)
        yield connection
        stack.pop_all()


class MadeOnce:
    """Creates each queue once, when a thread first names it."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.made: dict[str, Any] = {}

    def __call__(self, queue: str) -> Any:
        """Return the result of `make` for a queue."""
        with self._lock:
            if queue not in self.made:
                self.made[queue] = self._make(queue)
            return self.made[queue]

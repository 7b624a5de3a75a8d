"""Finds the process of a service on this machine, so that its waits for a processor are not its faults."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
LISTENS: Final = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""


def local_process(host: str | None, port: int | None) -> int | None:
    """The process of this machine that listens at an address; None if there is none, or another user's."""
    if host not in LOOPBACK or port is None:
        return None
    lines = [line.split() for each in ("tcp", "tcp6") for line in Path(f"/proc/net/{each}").read_text().splitlines()]
    sockets = {
        f"socket:[{line[9]}]" for line in lines if line[3] == LISTENS and int(line[1].rpartition(":")[2], 16) == port
    }
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(descriptor.readlink()) in sockets:
                return int(descriptor.parts[2])
    return None

"""Waits until a capture of loopback contains a connection, before the test stops tcpdump."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path


def wait_until_captured(process: subprocess.Popen[str], port: int, file: Path, patience_s: float) -> None:
    """Wait until the file has a new connection to the port.

    A stopped tcpdump loses packets that it has not read. Raises TimeoutError if the connection does not appear or
    tcpdump has ended.
    """
    here = socket.inet_aton("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as last:
        packet = here + here + struct.pack(">HH", last.getsockname()[1], port)
    until_s = time.monotonic() + patience_s
    while packet not in file.read_bytes():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the last connection is never in {file}")
        process.send_signal(signal.SIGUSR2)
        with suppress(subprocess.TimeoutExpired):
            raise TimeoutError(f"tcpdump ended by itself, with {process.wait(0.05)}")

"""The brokers that `broker_bench` compares: ours under a policy, and the Java broker 4.9.7, one process each.

Leaves out what is measured.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen
from model_tests.bench.broker_figures import JAVA
from model_tests.conformance.java_broker import resolve, running

from longpoll_broker.testing.harness.workers import private_bytes
from longpoll_runtime import Address

END_S: Final = 30.0
JAVA_HEAP: Final = "2g"
COMMAND: Final = (sys.executable, "-c", "from longpoll.cli import main; main()")


@frozen
class Side:
    """A running broker."""

    name: str
    address: Address
    process_id: int
    memory_bytes: Callable[[], int]
    """What it uses now: private memory of ours, live heap of a Java broker."""


@contextmanager
def ours(name: str, directory: Path, options: Sequence[str] = ()) -> Iterator[Side]:
    """`longpoll serve` with a store of its own."""
    any_port = "127.0.0.1:0"
    command = (*COMMAND, "serve", "--json", "--listen", any_port, "--name-server", any_port, *options)
    with subprocess.Popen((*command, "--store", str(directory)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = msgspec.json.decode(process.stdout.readline())
            host, _colon, port = ready["broker"].rpartition(":")
            yield Side(name, (host, int(port)), process.pid, lambda: private_bytes(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_S)


@contextmanager
def java(directory: Path) -> Iterator[Side]:
    """The Java broker; raises JavaUnavailableError."""
    directory.mkdir()
    with running(resolve(directory), directory / "home", heap=JAVA_HEAP) as broker:
        yield Side(JAVA, broker.address, broker.process_id, lambda: live_heap(broker.process_id))


def live_heap(process_id: int) -> int:
    """Bytes of a Java process's objects that a full collection leaves (`jcmd`, which belongs to a JDK)."""
    for command in ("GC.run", "GC.class_histogram"):
        told = subprocess.run(("jcmd", str(process_id), command), capture_output=True, text=True, check=True).stdout
    # The last line: Total <instances> <bytes>
    return int(told.split()[-1])

"""The brokers that `broker_bench` compares, each in its own process: ours with a policy, and the Java broker 4.9.7."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen
from model_tests.bench.broker_figures import JAVA
from model_tests.bench.served import serving
from model_tests.conformance.java_broker import resolve, running
from model_tests.support.broker.harness.workers import private_bytes

from longpoll_runtime import Address

JAVA_HEAP: Final = "2g"


@frozen
class Side:
    name: str
    address: Address
    process_id: int
    memory_bytes: Callable[[], int]
    """The broker's current memory: our private memory, or a Java broker's live heap."""


@contextmanager
def ours(name: str, directory: Path, options: Sequence[str] = ()) -> Iterator[Side]:
    with serving(directory, options, ends=signal.SIGTERM) as served:
        process_id = served.process.pid
        yield Side(name, served.address, process_id, lambda: private_bytes(process_id))


@contextmanager
def java(directory: Path) -> Iterator[Side]:
    directory.mkdir()
    with running(resolve(directory), directory / "home", heap=JAVA_HEAP) as broker:
        yield Side(JAVA, broker.address, broker.process_id, lambda: live_heap(broker.process_id))


def live_heap(process_id: int) -> int:
    """Return the size of a Java process's live objects in bytes, by `jcmd` after a full garbage collection."""
    for command in ("GC.run", "GC.class_histogram"):
        told = subprocess.run(("jcmd", str(process_id), command), capture_output=True, text=True, check=True).stdout
    # The last line has the form: Total <instances> <bytes>
    return int(told.split()[-1])

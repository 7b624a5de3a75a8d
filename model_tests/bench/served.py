"""Starts and ends the processes that the benches measure, reads their kernel statistics, and parses common options.

The ready line of `longpoll serve --json` contains the addresses of the broker and the name server.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import frozen

from longpoll_runtime import Address

MAIN: Final = "from longpoll.cli import main; main()"
ANY_PORT: Final = "127.0.0.1:0"
END_S: Final = 600.0
"""Time limit for stopping a broker, in seconds. A broker with many queues stops slowly."""


def address_of(text: str) -> Address:
    host, _colon, port = text.rpartition(":")
    return host or "127.0.0.1", int(port)


def processor_s(pid: int) -> float:
    """Return the user and system time of a process and its ended child processes so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text("ascii").rpartition(")")[2].split()[1])
        except OSError:
            continue  # The process ended while its status was read.
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found & parents.keys()


def status_kib(pid: int, name: str) -> int:
    """Return one value of `/proc/PID/status`, such as VmHWM or RssAnon, in KiB; 0 if the process has ended.

    An ended process whose parent has not noticed its end has no memory, and no such values.
    """
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    if "\nState:\tZ" in status:
        return 0
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


@frozen
class Served:
    process: subprocess.Popen[str]
    address: Address
    name_server: Address


@contextmanager
def serving(
    store: Path,
    options: Sequence[str] = (),
    *,
    settings: str = "",
    ends: signal.Signals = signal.SIGINT,
) -> Iterator[Served]:
    config = store.parent / f"{store.name}.conf"
    config.write_text(settings)
    command = [sys.executable, "-c", MAIN, "serve", "--store", str(store), "--config", str(config), "--json"]
    command += ["--listen", ANY_PORT, "--name-server", ANY_PORT, "--log-level", "error", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = msgspec.json.decode(process.stdout.readline())
            yield Served(process, address_of(ready["broker"]), address_of(ready["name-server"]))
        finally:
            process.send_signal(ends)
            process.wait(END_S)


def machine() -> dict[str, str]:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_gib:.0f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[1]:.1f} over 5 minutes",
    }


def parser_of(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def print_json(found: Any) -> None:
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")

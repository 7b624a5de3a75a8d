"""Runs work in separate processes that begin together, and reads a process's time and memory.

Times and memory come from Linux's /proc (`stat`, `smaps`).
"""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

from longpoll_client.errors import ClientError

Result = TypeVar("Result")
JOIN_S: Final = 60.0
READY: Final = "ready"


Begin = Callable[[], None]
"""A function that reports that its process is ready, and returns when all processes are ready."""
Worker = Callable[[Begin], Result]
"""The function of a process, which prepares its work, calls `begin`, works, and returns a result."""


def _child(work: Worker[Result], pipe: Connection) -> None:
    def begin() -> None:
        pipe.send(READY)
        pipe.recv()

    try:
        pipe.send(work(begin))
    except (ClientError, OSError, EOFError) as error:
        pipe.send(ClientError(f"a load process failed: {error}"))


def together(works: Sequence[Worker[Result]]) -> list[Result]:
    """Run each function in a separate process and return the results; raises ClientError if one fails."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    is_done = False
    try:
        for work in works:
            here, there = context.Pipe()
            process = context.Process(target=_child, args=(work, there), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            _expect_ready(_received(pipe))
        for pipe in pipes:
            pipe.send(READY)
        results = [_checked(_received(pipe)) for pipe in pipes]
        is_done = True
        return results
    finally:
        for process in processes:
            if not is_done:
                # After an error or Ctrl-C the other processes are killed, because their results are no longer needed.
                process.kill()
            process.join(JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()


def _received(pipe: Connection) -> object:
    try:
        return pipe.recv()
    except EOFError:
        raise ClientError("a load process ended early") from None


def _expect_ready(told: object) -> None:
    if told != READY:
        _checked(told)


def _checked(told: object) -> Any:
    if isinstance(told, Exception):
        raise told
    return told


def processor_seconds(process_id: int) -> float:
    """Returns the user and system time in seconds that a process has used."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_share(process_id: int, seconds: float) -> float:
    """Returns the share of one core that a process uses in the next seconds; raises ClientError if it ends."""
    begun_s, used_s = time.monotonic(), processor_seconds(process_id)
    ended = os.pidfd_open(process_id)
    try:
        # The wait lasts as long as the measurement, unless the process ends earlier.
        if select.select([ended], [], [], seconds)[0]:
            raise ClientError("the measured process ended")
    finally:
        os.close(ended)
    return (processor_seconds(process_id) - used_s) / (time.monotonic() - begun_s)


def private_bytes(process_id: int) -> int:
    """Returns a process's private memory in bytes, without shared mapped files such as those of a store."""
    size_bytes, is_mapped_file = 0, False
    for line in Path(f"/proc/{process_id}/smaps").read_text().splitlines():
        name, _space, rest = line.partition(" ")
        if not name.endswith(":"):
            # The first line of a mapping has its addresses, its permissions (such as rw-p or rw-s) and more.
            is_mapped_file = rest[3:4] == "s"
        elif name in {"Private_Clean:", "Private_Dirty:"} and not is_mapped_file:
            size_bytes += int(rest.split()[0]) * 1024
    return size_bytes

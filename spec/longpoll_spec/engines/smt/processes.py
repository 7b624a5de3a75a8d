"""Runs tasks in several processes: each process takes the next task that no other has taken, until none is left.

The processes are forked, so a task may be any function; its result is pickled. Ctrl-C interrupts the caller only, and
the processes end when the call ends.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.sharedctypes import Synchronized
from typing import TypeAlias, TypeVar

from longpoll_spec.engines.packed.workers import start_process
from longpoll_spec.errors import LongpollError, MemoryShortError

T = TypeVar("T")
Report: TypeAlias = Callable[[str], None]
Task: TypeAlias = Callable[[Report], T]
"""A function that returns a result, and reports its progress as text."""


def in_processes(tasks: Mapping[str, Task[T]], count: int, report: Report) -> Mapping[str, T]:
    """Run the tasks in `count` processes; returns the result of each. The tasks begin in the given order.

    Raises the `LongpollError`, `MemoryError` or `OSError` of a task, and `MemoryShortError` if a signal ends a process.
    Any other exception is a bug: its process prints the traceback, and the call raises `RuntimeError`.
    """
    context = multiprocessing.get_context("fork")
    taken: Synchronized[int] = context.Value("i", 0)
    started: list[ForkProcess] = []
    running: dict[Connection, ForkProcess] = {}
    found: dict[str, T] = {}
    try:
        for _ in range(min(count, len(tasks))):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(tasks, taken, theirs, (*running, mine)), daemon=True)
            start_process(process)
            started.append(process)
            running[mine] = process
            theirs.close()
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                try:
                    name, said = pipe.recv()
                except EOFError:
                    _end(running.pop(pipe))
                    continue
                if isinstance(said, Exception):
                    raise said
                if name:
                    found[name] = said
                else:
                    report(said)
    finally:
        for process in started:
            process.kill()
            process.join()
            process.close()
    return found


def _end(process: ForkProcess) -> None:
    """Wait until a process that closed its pipe has exited; raise if it failed."""
    process.join()
    assert process.exitcode is not None
    if process.exitcode < 0:
        raise MemoryShortError(
            f"signal {-process.exitcode} ended a process of the proof, probably for lack of memory: "
            "prove one --configuration each"
        )
    if process.exitcode:
        raise RuntimeError("a process of the proof failed; its traceback is on standard error")


def _work(
    tasks: Mapping[str, Task[T]], taken: Synchronized[int], pipe: Connection, callers: Sequence[Connection]
) -> None:
    """Run tasks in one process, until none is left.

    The process closes its copies of the caller's pipe ends, so that sending fails if the caller has exited.
    """
    for each in callers:
        each.close()
    while (name := _next(list(tasks), taken)) is not None:
        try:
            answer: object = tasks[name](lambda text: pipe.send(("", text)))
        except (LongpollError, MemoryError, OSError) as error:
            answer = error
        pipe.send((name, answer))


def _next(names: Sequence[str], taken: Synchronized[int]) -> str | None:
    with taken.get_lock():
        number = taken.value
        taken.value += 1
    return names[number] if number < len(names) else None

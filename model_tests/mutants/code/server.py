"""Runs the tests of one module against its mutants: tests are collected once, and each mutant has a fork of that.

In the fork the live functions of the module are given the code of the changed text, so nothing is imported or
collected again; then the tests that come to the changed statement run, up to the first red one: the cheapest first,
and those that killed many before earlier. Which tests come to which statement is measured, in a fork as well, by
functions that say so.

A fork that says nothing for far longer than its test takes is ended: the change made it wait, or go round, for ever.
Leaves out what is chosen and kept (`command`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, Literal

import msgspec
import pytest
from attrs import define, field
from hypothesis import Phase, settings
from model_tests.mutants.code.generate import HIT, Module, Mutant, instrumented, mutants_of
from model_tests.mutants.tests_of import LEFT_OUT

from longpoll_runtime.recoverable import FAULTS

Outcome = Literal["killed", "stuck", "survived", "unreached"]
KILLED: Final = frozenset({"killed", "stuck"})
SILENT_S: Final = 6.0
"""What a test may take beyond ten times what it takes without a change: a machine is shared."""
BUSY_S: Final = 1.5
"""The same of processor time, which nobody else takes: a loop without end is known by it sooner."""
SILENT_FACTOR: Final = 10.0
RUN_S: Final = 0.005
"""What it takes to run a test that takes no time."""
MEASURE_S: Final = 600.0
"""What a test may take without a change."""
NONE_RAN: Final = 5
"""pytest's exit code when no test ran: all ran in forks."""
MEMORY: Final = "/dev/shm"  # noqa: S108 - a directory of our own is made in it
"""Files of the tests stand in memory, where a machine has such a place."""
WORDS: Final = (
    *("-q", "--assert=plain", "--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider"),
    *("-m", "not long and not peers and not spark"),
    *("-k", " and ".join(f"not {part}" for part in LEFT_OUT)),
)
MEMORY_MAX: Final = 6 << 30
"""A loop that gathers for ever ends here, bytes."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="result"):
    """The result of one mutant."""

    id: str
    change: str
    outcome: Outcome
    test: str = ""
    """Which test was red, or was running when it stuck."""
    ran: int = 0
    """Tests that ran."""
    line: int = 0


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Why a module could not be tried."""

    why: str


@define
class Measured:
    """The tests' results without a change."""

    seconds: dict[str, float] = field(factory=dict)
    """By test, where it is green."""
    red: list[str] = field(factory=list)
    reaches: dict[int, set[str]] = field(factory=dict)
    """By statement, the tests that come to it."""
    kills: Counter[str] = field(factory=Counter)
    """By test, the mutants that it has killed."""

    def price(self, name: str) -> tuple[float, str]:
        """The expected price of a kill by a test: a test that killed many is worth its time."""
        return (self.seconds[name] + RUN_S) / (1 + self.kills[name]), name


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_of(each)


def functions_of(path: str) -> list[FunctionType]:
    """The live functions that were compiled from a file."""
    return [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == path]


def swap(functions: Sequence[FunctionType], tree: ast.Module, path: str) -> int:
    """Give live functions the code that a tree has for them; how many were changed."""
    codes = {(code.co_qualname, code.co_firstlineno): code for code in codes_of(compile(tree, path, "exec"))}
    changed = 0
    for function in functions:
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and code != function.__code__:
            function.__code__ = code
            changed += 1
    return changed


@define(eq=False)
class Server:
    """A plugin that tries mutants in place of running the session's tests. Invariant: this process runs no test."""

    module: Module
    wanted: frozenset[str] | None
    """Ids of the mutants to try; None is all."""
    told: Callable[[Result | Failed], None]
    functions: list[FunctionType] = field(factory=list)
    measured: Measured = field(factory=Measured)

    def pytest_collection(self) -> None:
        """A red example is enough: it need not be made small, nor kept."""
        settings.register_profile(
            "mutants",
            parent=settings.get_profile(settings.get_current_profile_name()),
            phases=(Phase.explicit, Phase.generate),
            database=None,
            derandomize=True,
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.told(Failed(why="the tests cannot be collected"))
            return True
        assert threading.active_count() == 1, "a test file starts a thread as it is imported: it would not be forked"
        gc.unfreeze()  # what is frozen is not among the collector's objects: conftest.py freezes what was collected
        self.functions = functions_of(self.module.path)
        if not self.functions:
            self.told(Failed(why="the tests import none of its functions"))
            return True
        gc.collect()
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        self._measure(items)
        if self.measured.red:
            self.told(Failed(why=f"red without any change: {', '.join(self.measured.red)}"))
            return True
        for mutant in self.module.mutants:
            if self.wanted is None or mutant.id in self.wanted:
                self.told(self._tried(mutant, items))
        return True

    def _measure(self, items: Mapping[str, pytest.Item]) -> None:
        """Run every test with functions that record executed statements; a test that fails so counts for all."""

        def reaching(say: Callable[[Any], None]) -> None:
            hits: set[int] = set()

            def say_hits(row: list[Any]) -> None:
                say([*row, sorted(hits)])
                hits.clear()

            setattr(builtins, HIT, hits.add)
            swap(self.functions, instrumented(self.module), self.module.path)
            _run(list(items.values()), say_hits, {})

        rows, _ = _forked(reaching, lambda _rows: MEASURE_S)
        for name, _, seconds, hits in rows:
            self.measured.seconds[name] = seconds
            for number in hits:
                self.measured.reaches.setdefault(number, set()).add(name)
        doubtful = [items[name] for name, is_green, _, _ in rows if not is_green]
        for name, is_green, seconds in _forked(lambda say: _run(doubtful, say, {}), lambda _rows: MEASURE_S)[0]:
            self.measured.seconds[name] = seconds
            if not is_green:
                self.measured.red.append(name)
        if len(rows) < len(items):
            self.measured.red.append(f"{list(items)[len(rows)]} (the process ended)")

    def _tried(self, mutant: Mutant, items: Mapping[str, pytest.Item]) -> Result:
        names = sorted(self.measured.reaches.get(mutant.statement, ()), key=self.measured.price)

        def result(outcome: Outcome, test: str = "", ran: int = 0) -> Result:
            named = test.removeprefix("model_tests/")
            return Result(id=mutant.id, change=mutant.change, outcome=outcome, test=named, ran=ran, line=mutant.line)

        def trying(say: Callable[[Any], None]) -> None:
            mutant.plant()
            say(swap(self.functions, self.module.tree, self.module.path))
            _run([items[name] for name in names], say, self.measured.seconds)

        def patience_s(rows: Sequence[Any]) -> float:
            running = min(max(len(rows) - 1, 0), len(names) - 1)
            return SILENT_S + SILENT_FACTOR * self.measured.seconds[names[running]]

        if not names:
            return result("unreached")
        rows, is_stuck = _forked(trying, patience_s)
        done = rows[1:]
        if is_stuck:
            return result("stuck", names[min(len(done), len(names) - 1)], len(done))
        if done and not done[-1][1]:
            self.measured.kills[done[-1][0]] += 1
            return result("killed", done[-1][0], len(done))
        if len(done) < len(names):
            return result("killed", names[len(done)] + " (the process ended)", len(done))
        if not rows[0]:
            raise RuntimeError(f"{mutant.id} changes no live function")
        return result("survived", ran=len(done))


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _run(items: Sequence[pytest.Item], say: Callable[[Any], None], seconds: Mapping[str, float]) -> None:
    """Run tests; return for each whether it passes and how long it took.

    With `seconds`, the times without a change, stop at the first failure, and send SIGVTALRM when a test takes far more
    processor time.
    """
    for item, following in _pairs(items):
        reds: list[str] = []
        if seconds:
            signal.setitimer(signal.ITIMER_VIRTUAL, BUSY_S + SILENT_FACTOR * seconds[item.nodeid])
        item.config.pluginmanager.register(_Reds(reds), name="mutants-reds")
        begun_s = time.perf_counter()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        say([item.nodeid, not reds, round(time.perf_counter() - begun_s, 4)])
        item.config.pluginmanager.unregister(name="mutants-reds")
        if reds and seconds:
            return


@define(eq=False)
class _Reds:
    """Notes that a test is red."""

    reds: list[str]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reds.append(report.nodeid)


def _forked(
    work: Callable[[Callable[[Any], None]], None], patience_s: Callable[[Sequence[Any]], float]
) -> tuple[list[Any], bool]:
    """Do work in a fork: what it said, and whether it fell silent and was ended."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
        try:
            work(lambda row: _write(writes, row))
        except FAULTS:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writes)
    rows: list[Any] = []
    rest = b""
    is_over = False
    try:
        while (is_heard := select.select([reads], [], [], patience_s(rows))[0]) or _is_behind(child):
            if not is_heard:
                continue
            chunk = os.read(reads, 1 << 16)
            if not chunk:
                is_over = True
                break
            *lines, rest = (rest + chunk).split(b"\n")
            rows += [json.loads(line) for line in lines]
    finally:
        os.close(reads)
        ended_by = _end(child, is_over=is_over)
    return rows, not is_over or ended_by == signal.SIGVTALRM


def _is_behind(child: int) -> bool:
    """Whether a thread of a process could run: on a busy machine its silence says nothing."""
    for stat in Path(f"/proc/{child}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            if stat.read_text().rpartition(") ")[2][0] in "RD":
                return True
    return False


def _write(writes: int, row: Any) -> None:
    left = json.dumps(row).encode() + b"\n"
    while left:
        left = left[os.write(writes, left) :]


def _end(child: int, *, is_over: bool) -> int:
    """End a child, if it has not ended, and what it has started, by their group; the signal that it ended by."""
    if not is_over:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return status & 0x7F


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The work for a server."""

    path: str
    name: str
    tests: tuple[str, ...]
    wanted: frozenset[str] | None = None
    """Ids of the mutants; None is all."""


def serve(order: Order, writes: int) -> None:
    """In a process made for it: try the mutants of a module; rows of JSON to a pipe."""

    def told(row: Result | Failed) -> None:
        left = msgspec.json.encode(row) + b"\n"
        while left:
            left = left[os.write(writes, left) :]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that a fork that is under way is ended too
    module = mutants_of(order.name, order.path, Path(order.path).read_text("utf-8"))
    server = Server(module, order.wanted, told)
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as directory:
        root = Path.cwd()
        # A mutant may write to a path of its making: such files go with this directory.
        os.chdir(directory)
        tests = [str(root / test) for test in order.tests]
        ours = (f"--rootdir={root}", f"--config-file={root / 'pyproject.toml'}")
        places = (*(ours if Path(tests[0]).is_relative_to(root) else ()), f"--basetemp={directory}/tests")
        code = pytest.main([*WORDS, *places, *tests], plugins=[server])
    if code not in {0, NONE_RAN}:
        told(Failed(why=f"pytest ended with {code}"))


def main() -> int:
    """Read an order from stdin, and write rows to stdout; what tests print there goes to stderr."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    writes = os.dup(1)
    os.dup2(2, 1)
    serve(order, writes)
    return 0


if __name__ == "__main__":
    sys.exit(main())

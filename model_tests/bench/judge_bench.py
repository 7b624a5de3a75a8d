"""How fast the judge is: simulated histories of rising size, without Spark on one thread and on Spark with two cores.

    python -m model_tests.bench.judge_bench [--events 1000000 10000000 100000000] [--queues 16] [--engines local spark]
    python -m model_tests.bench.judge_bench --events --lagging 5000000 --engines spark

The histories have sends, acknowledgements and committed offsets too, but those of groups that lag have not.
Prints one line a figure: events per second of processor time (on Spark of the driver, the JVM and the workers),
the cost of an event against the smallest size, and the most memory that the local engine took, or each kind of Spark's
processes held; then the same with all events on one queue, with 16 groups that lag (`--lagging`), and of the smallest
size as NDJSON (`--plain` leaves the first and the last of these out). A history of 10^8 events takes 1.5 GB of disk
and minutes to write: `--kept DIRECTORY --write` does that beforehand. Leaves out how the histories are written, which
is not timed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from attrs import define, field, frozen
from model_tests.bench import leaving
from model_tests.bench.served import family, processor_s, status_kib
from model_tests.support.judge.convert import convert
from model_tests.support.judge.laggards import write_lagging
from model_tests.support.judge.tiles import write_large

from longpoll_judge.generate import Load
from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import Engine, judge_on
from longpoll_judge.run.spark.engine import open_engine
from longpoll_spec.history import PARQUET_SUFFIX

WARM_EVENTS = 600_000
"""Enough for a task on each core: a worker of Spark takes a second to start with its first one."""
MASTER = "local[2]"
KIB = 1024
LAGGING_GROUPS = 16
REPEATS = 3
SAMPLE_S = 0.05
"""How often it is looked how much memory Spark's processes hold."""
"""The least processor time counts: a machine with other work on it makes the same work dearer, never cheaper."""
ONCE_EVENTS = 50_000_000
"""Larger histories are judged once, and not on one queue."""


@frozen
class Measured:
    """One history to be judged."""

    name: str
    events: int
    directory: Path


@contextmanager
def opened() -> Iterator[Engine]:
    """A running Spark; its start is printed."""
    begun = time.monotonic()
    with open_engine(MASTER) as running:
        print(f"spark    {'start':<34} {time.monotonic() - begun:>12.2f} s")  # noqa: T201
        yield running


def judged(engine: Engine, history: Path) -> float:
    """Judge, and return the processor time of this process and those that it started; the history must be valid."""
    begun = {pid: processor_s(pid) for pid in family(os.getpid())}
    result = judge_on(engine, find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
    if result.verdict != "valid":
        raise SystemExit(
            f"the simulated history {history} is {result.verdict}: {result.findings[:1]} {result.gaps[:1]}"
        )
    return sum(processor_s(pid) - begun.get(pid, 0.0) for pid in family(os.getpid()))


def judged_alone(history: Path) -> tuple[float, int]:
    """Judge on one thread: processor seconds, and the most memory that this process ever took, in bytes."""
    seconds = judged(LocalEngine(threads=1), history)
    # Not getrusage: its maximum is handed down from the process that started this one.
    return seconds, status_kib(os.getpid(), "VmHWM") * KIB


def measure_local(histories: Sequence[Measured], warm: Path) -> None:
    """Print the figures of the engine without Spark, each in its own process."""
    base = 0.0
    for history in histories:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(judged_alone, (warm,))
            repeats = REPEATS if history.events < ONCE_EVENTS else 1
            seconds, memory = min(pool.apply(judged_alone, (history.directory,)) for _ in range(repeats))
        base = show("local", history, seconds, base, f"   {memory / KIB**3:.2f} GiB")


@define(eq=False)
class Sampled:
    """The most memory that this process and those that it started held, looked at again and again, in bytes."""

    most: dict[str, int] = field(factory=dict)
    """By kind of process: `driver`, `jvm`, and `worker` for the largest of these."""
    _is_over: threading.Event = field(factory=threading.Event)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look as long as the block lasts."""
        self.most.clear()
        self._is_over.clear()
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            for kind, held in memory_by_kind():
                self.most[kind] = max(self.most.get(kind, 0), held)

    def text(self) -> str:
        """The most of each kind."""
        return "   " + ", ".join(f"{kind} {held / KIB**2:.0f} MiB" for kind, held in sorted(self.most.items()))


def memory_by_kind() -> Iterator[tuple[str, int]]:
    """The memory of this process and all its descendants, by kind."""
    for pid in family(os.getpid()):
        try:
            status = (Path(f"/proc/{pid}") / "status").read_text(encoding="utf-8")
        except OSError:
            continue  # it has ended meanwhile
        kind = "driver" if pid == os.getpid() else "jvm" if status.startswith("Name:\tjava\n") else "worker"
        yield kind, status_kib(pid, "VmRSS") * KIB if "VmRSS" in status else 0


def measure_spark(histories: Sequence[Measured], warm: Path) -> None:
    """Print the figures of Spark, in a session whose workers have all judged something before."""
    with opened() as running:
        judged(running, warm)
        base = 0.0
        sampled = Sampled()
        for history in histories:
            with sampled.looking():
                seconds = judged(running, history.directory)
            base = show("spark", history, seconds, base, sampled.text())


def show(engine: str, history: Measured, seconds: float, base: float, more: str) -> float:
    """Print one line; the cost that later ones are compared with."""
    cost = seconds / history.events
    line = (
        f"{engine:<8} {history.name:<34} {1 / cost:>12,.0f} events/s   cost of an event x {cost / (base or cost):.2f}"
    )
    print(line + more, flush=True)  # noqa: T201
    return base or cost


def made(path: Path, write: Callable[[Path], int]) -> int:
    """Have a history written, unless it is there; how many events it has."""
    if not path.exists():
        return write(path)
    return sum(pq.read_metadata(part).num_rows for part in path.glob(f"*{PARQUET_SUFFIX}"))


def histories_of(directory: Path, options: argparse.Namespace) -> Iterator[Measured]:
    """The histories to measure, each in its own directory."""
    kinds = [(f"{events:,} events", events, options.queues) for events in options.events]
    if not options.plain:
        kinds += [(f"{name}, one queue", events, 1) for name, events, _queues in kinds if events < ONCE_EVENTS]
    for name, events, queues in kinds:
        path, load = directory / f"{events}-{queues}", Load(events=events, queues=queues, is_whole=True)
        yield Measured(name, made(path, partial(write_large, load=load)), path)
    for events, queues in itertools.product(options.lagging, (options.queues, 1)):
        path = directory / f"lagging-{events}-{queues}"
        load = Load(events=events, queues=queues, consumers=("*",))
        count = made(path, partial(write_lagging, load=load, groups=LAGGING_GROUPS))
        yield Measured(f"{events:,}, {LAGGING_GROUPS} lag, {queues} queues", count, path)
    if options.events and not options.plain:
        text, smallest = directory / "text", options.events[0]
        count = made(directory / f"{smallest}-{options.queues}", lambda _path: 0)
        if not text.exists():
            convert(directory / f"{smallest}-{options.queues}", text, into="ndjson")
        yield Measured(f"{smallest:,} events, NDJSON", count, text)


def main(arguments: Sequence[str]) -> None:
    """Simulate, then measure each engine."""
    parser = argparse.ArgumentParser(description="How fast the judge is.")
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--lagging", type=int, nargs="*", default=[5_000_000], help="sizes with 16 groups that lag")
    parser.add_argument("--plain", action="store_true", help="neither on one queue nor as NDJSON")
    parser.add_argument("--kept", type=Path, help="keep the histories in this directory, and take those that are there")
    parser.add_argument("--write", action="store_true", help="write the histories and measure nothing; wants --kept")
    parser.add_argument("--engines", nargs="+", choices=("local", "spark"), default=["local", "spark"])
    options = parser.parse_args(arguments)
    if options.write and options.kept is None:
        parser.error("--write wants --kept DIRECTORY")
    with ExitStack() as stack:
        directory = options.kept or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longpoll-bench-")))
        histories = list(histories_of(directory, options))
        warm = directory / "warm"
        made(warm, partial(write_large, load=Load(events=WARM_EVENTS)))
        for engine in () if options.write else options.engines:
            (measure_local if engine == "local" else measure_spark)(histories, warm)


if __name__ == "__main__":
    leaving.run(lambda: main(sys.argv[1:]))

"""How fast the judge is: simulated histories of rising size, without Spark on one thread and on Spark with two cores.

    python model_tests/bench/judge_bench.py [--events 1000000 10000000 100000000] [--queues 16] [--engines local spark]

Prints one line a figure: events per second (of processor time without Spark, of wall time after the start on Spark),
the cost of an event against the smallest size, and the most memory that the local engine took; then the same with all
events on one queue, with 16 groups that lag (`--lagging`), and of the smallest size as NDJSON. A history of 10^8 events
takes 1.5 GB of disk and minutes to write. Leaves out how the histories are written, which is not timed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from longpoll_judge.read.convert import convert
from longpoll_judge.read.source import find
from longpoll_judge.run.job import Engine, judge_on
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.spark.engine import open_engine
from longpoll_judge.testing.generate import Load
from longpoll_judge.testing.laggards import write_lagging
from longpoll_judge.testing.tiles import write_large

WARM_EVENTS = 600_000
"""Enough for a task on each core: a worker of Spark takes a second to start with its first one."""
MASTER = "local[2]"
KIB = 1024
LAGGING_GROUPS = 16
REPEATS = 3
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
    """Judge, and say how long it took on the wall; the history must turn out valid."""
    result = judge_on(engine, find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
    if result.verdict != "valid":
        raise SystemExit(
            f"the simulated history {history} is {result.verdict}: {result.findings[:1]} {result.gaps[:1]}"
        )
    return result.seconds


def judged_alone(history: Path) -> tuple[float, int]:
    """Judge on one thread: processor seconds, and the most memory that this process ever took, in bytes."""
    begun = time.process_time()
    judged(LocalEngine(threads=1), history)
    seconds = time.process_time() - begun
    # Not getrusage: its maximum is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) * KIB


def measure_local(histories: Sequence[Measured], warm: Path) -> None:
    """Print the figures of the engine without Spark, each in a process of its own."""
    base = 0.0
    for history in histories:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(judged_alone, (warm,))
            repeats = REPEATS if history.events < ONCE_EVENTS else 1
            seconds, memory = min(pool.apply(judged_alone, (history.directory,)) for _ in range(repeats))
        base = show("local", history, seconds, base, f"   {memory / KIB**3:.2f} GiB")


def measure_spark(histories: Sequence[Measured], warm: Path) -> None:
    """Print the figures of Spark, in a session whose workers have all judged something before."""
    with opened() as running:
        judged(running, warm)
        base = 0.0
        for history in histories:
            base = show("spark", history, judged(running, history.directory), base, "")


def show(engine: str, history: Measured, seconds: float, base: float, more: str) -> float:
    """Print one line; the cost that later ones are compared with."""
    cost = seconds / history.events
    line = (
        f"{engine:<8} {history.name:<34} {1 / cost:>12,.0f} events/s   cost of an event x {cost / (base or cost):.2f}"
    )
    print(line + more, flush=True)  # noqa: T201
    return base or cost


def main(arguments: Sequence[str]) -> None:
    """Simulate, then measure each engine."""
    parser = argparse.ArgumentParser(description="How fast the judge is.")
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--lagging", type=int, nargs="*", default=[5_000_000], help="sizes with 16 groups that lag")
    parser.add_argument("--engines", nargs="+", choices=("local", "spark"), default=["local", "spark"])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
        histories = []
        kinds = [(f"{events:,} events", events, options.queues) for events in options.events]
        kinds += [(f"{name}, one queue", events, 1) for name, events, _queues in kinds if events < ONCE_EVENTS]
        for number, (name, events, queues) in enumerate(kinds):
            path = Path(directory) / str(number)
            count = write_large(path, Load(events=events, queues=queues))
            histories.append(Measured(name, count, path))
        for events, queues in itertools.product(options.lagging, (options.queues, 1)):
            path = Path(directory) / f"lagging-{events}-{queues}"
            count = write_lagging(path, Load(events=events, queues=queues, consumers=("*",)), LAGGING_GROUPS)
            histories.append(Measured(f"{events:,}, {LAGGING_GROUPS} lag, {queues} queues", count, path))
        smallest = histories[0]
        text = Path(directory) / "text"
        convert(smallest.directory, text, into="ndjson", say=lambda _done, _whole: None)
        histories.append(Measured(f"{smallest.name}, NDJSON", smallest.events, text))
        warm = Path(directory) / "warm"
        write_large(warm, Load(events=WARM_EVENTS))
        for engine in options.engines:
            (measure_local if engine == "local" else measure_spark)(histories, warm)


if __name__ == "__main__":
    main(sys.argv[1:])

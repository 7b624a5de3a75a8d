"""Measures the judge on simulated histories of rising size, locally on one thread and on Spark with two cores.

    python -m model_tests.bench.judge_bench [--events 1000000 10000000 100000000] [--queues 16] [--engines local spark]
    python -m model_tests.bench.judge_bench --events --lagging 5000000 --engines spark

The histories have sends, acknowledgements and committed offsets, except those with lagging groups. Each output line has
the events per second of processor time (on Spark: of the driver, the JVM and the workers), the cost of an event
relative to the smallest size, and the peak memory of each kind of process. The bench then measures three more
histories: one with all events on one queue, one with 16 lagging groups (`--lagging`), and the smallest one as NDJSON. A
history of 10^8 events takes 1.5 GB of disk, and minutes to write, which are not measured.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen
from model_tests.bench import leaving
from model_tests.bench.served import family, processor_s, status_kib
from model_tests.support.judge.convert import convert
from model_tests.support.judge.generate import Load
from model_tests.support.judge.laggards import write_lagging
from model_tests.support.judge.tiles import write_large

from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import Engine, judge_on
from longpoll_judge.run.spark.engine import open_engine

WARM_EVENTS: Final = 600_000
"""Number of events for a warm-up of each core, because a Spark worker takes a second to start with its first task."""
LAGGING_GROUPS: Final = 16
REPEATS: Final = 3
"""Each measurement runs this often, and the least processor time counts, because other load only adds to it."""
ONCE_EVENTS: Final = 50_000_000
"""Histories with more events than this are judged only once, and are not judged with all events on one queue."""


@frozen
class Measured:
    name: str
    events: int
    directory: Path


def judged(engine: Engine, history: Path) -> float:
    begun = {pid: processor_s(pid) for pid in family(os.getpid())}
    result = judge_on(engine, find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
    if result.verdict != "valid":
        raise SystemExit(f"the simulated {history} is {result.verdict}: {result.findings[:1]} {result.gaps[:1]}")
    return sum(processor_s(pid) - begun.get(pid, 0.0) for pid in family(os.getpid()))


def memory() -> str:
    most: dict[str, int] = {}
    for pid in family(os.getpid()):
        name = (Path("/proc") / str(pid) / "comm").read_text("utf-8").strip()
        kind = "driver" if pid == os.getpid() else "jvm" if name == "java" else "worker"
        # getrusage is not used, because it inherits the maximum of the parent process.
        most[kind] = max(most.get(kind, 0), status_kib(pid, "VmHWM"))
    return ", ".join(f"{kind} {kib / 1024:.0f} MiB" for kind, kib in sorted(most.items()))


def judged_alone(history: Path) -> tuple[float, str]:
    return judged(LocalEngine(threads=1), history), memory()


def measure_local(histories: Sequence[Measured], warm: Path) -> None:
    base = 0.0
    for history in histories:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(judged_alone, (warm,))
            repeats = REPEATS if history.events < ONCE_EVENTS else 1
            seconds, used = min(pool.apply(judged_alone, (history.directory,)) for _ in range(repeats))
        base = show("local", history, seconds, base, used)


def measure_spark(histories: Sequence[Measured], warm: Path) -> None:
    begun = time.monotonic()
    with open_engine("local[2]") as running:
        print(f"spark    {'start':<34} {time.monotonic() - begun:>12.2f} s")  # noqa: T201
        judged(running, warm)
        base = 0.0
        for history in histories:
            base = show("spark", history, judged(running, history.directory), base, memory())


def show(engine: str, history: Measured, seconds: float, base: float, used: str) -> float:
    cost = seconds / history.events
    rate = f"{1 / cost:>12,.0f} events/s   cost of an event x {cost / (base or cost):.2f}"
    print(f"{engine:<8} {history.name:<34} {rate}   {used}", flush=True)  # noqa: T201
    return base or cost


def histories_of(directory: Path, options: argparse.Namespace) -> Iterator[Measured]:
    kinds = [(f"{events:,} events", events, options.queues) for events in options.events]
    kinds += [(f"{name}, one queue", events, 1) for name, events, _queues in kinds if events < ONCE_EVENTS]
    for name, events, queues in kinds:
        path = directory / f"{events}-{queues}"
        yield Measured(name, write_large(path, Load(events=events, queues=queues, is_whole=True)), path)
    for events, queues in itertools.product(options.lagging, (options.queues, 1)):
        path, load = directory / f"lagging-{events}-{queues}", Load(events=events, queues=queues, consumers=("*",))
        count = write_lagging(path, load=load, groups=LAGGING_GROUPS)
        yield Measured(f"{events:,}, {LAGGING_GROUPS} lag, {queues} queues", count, path)
    for events in options.events[:1]:
        count = convert(directory / f"{events}-{options.queues}", directory / "text", into="ndjson")
        yield Measured(f"{events:,} events, NDJSON", count, directory / "text")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="How fast the judge is.")
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--lagging", type=int, nargs="*", default=[5_000_000], help="sizes with 16 groups that lag")
    parser.add_argument("--engines", nargs="+", choices=("local", "spark"), default=["local", "spark"])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as made:
        histories = list(histories_of(Path(made), options))
        write_large(Path(made) / "warm", Load(events=WARM_EVENTS))
        for engine in options.engines:
            (measure_local if engine == "local" else measure_spark)(histories, Path(made) / "warm")


if __name__ == "__main__":
    leaving.run(lambda: main(sys.argv[1:]))

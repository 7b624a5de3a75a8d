"""How fast the judge is: simulated histories of rising size, without Spark on one thread and on Spark with two cores.

    python model_tests/bench/judge_bench.py [--events 100000 1000000] [--queues 16] [--engines local spark]

Prints one line a figure: events per second after the start, the cost of an event against the smallest size, the start
itself, and the same with all events on one queue. Leaves out Parquet, which is not read yet.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from longpoll_judge.generate import Load, simulate, simulated_meta, write
from longpoll_judge.job import Engine, judge_on
from longpoll_judge.local import LocalEngine
from longpoll_judge.source import find
from longpoll_judge.spark import open_engine

WARM_EVENTS = 5_000
MASTER = "local[2]"


@contextmanager
def opened(engine: str) -> Iterator[Engine]:
    """A running engine; Spark's start is printed."""
    if engine == "local":
        yield LocalEngine(threads=1)
        return
    begun = time.monotonic()
    with open_engine(MASTER) as running:
        print(f"{engine:<8} {'start':<28} {time.monotonic() - begun:>10.2f} s")  # noqa: T201
        yield running


def judged_seconds(engine: Engine, history: Path) -> float:
    """How long one judgement takes; the history must turn out valid."""
    result = judge_on(engine, find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
    if result.verdict != "valid":
        raise SystemExit(
            f"the simulated history {history} is {result.verdict}: {result.findings[:1]} {result.gaps[:1]}"
        )
    return result.seconds


def measure(engine: str, histories: Sequence[tuple[str, int, Path]], warm: Path) -> None:
    """Print the figures of one engine."""
    with opened(engine) as running:
        begun = time.monotonic()
        judged_seconds(running, warm)
        print(f"{engine:<8} {'first small judgement':<28} {time.monotonic() - begun:>10.2f} s")  # noqa: T201
        base = 0.0
        for name, events, history in histories:
            cost = judged_seconds(running, history) / events
            base = base or cost
            print(f"{engine:<8} {name:<28} {1 / cost:>10,.0f} events/s   cost of an event x {cost / base:.2f}")  # noqa: T201


def main(arguments: Sequence[str]) -> None:
    """Simulate, then measure each engine."""
    parser = argparse.ArgumentParser(description="How fast the judge is.")
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--engines", nargs="+", choices=("local", "spark"), default=["local", "spark"])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
        histories = []
        kinds = [(f"{events:,} events", events, options.queues) for events in options.events]
        kinds.append((f"{options.events[-1]:,} events, one queue", options.events[-1], 1))
        for number, (name, events, queues) in enumerate(kinds):
            history = Path(directory) / str(number)
            write(history, simulate(Load(events=events, queues=queues)), simulated_meta())
            histories.append((name, events, history))
        warm = Path(directory) / "warm"
        write(warm, simulate(Load(events=WARM_EVENTS)), simulated_meta())
        for engine in options.engines:
            measure(engine, histories, warm)


if __name__ == "__main__":
    main(sys.argv[1:])

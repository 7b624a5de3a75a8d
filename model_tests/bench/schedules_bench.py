"""How many schedules a second are tried on one core: two pulls and a message with the spec, and the whole broker.

    python -m model_tests.bench.schedules_bench [--seconds 3]

Other work on the machine lowers the rates. A loop of 20 million additions is timed for comparison.
"""

from __future__ import annotations

import argparse
import itertools
import platform
from collections.abc import Callable
from time import perf_counter
from typing import Final

from model_tests.bench import leaving
from model_tests.simulate.exploration import wander
from model_tests.simulate.test_two_pulls import race
from model_tests.support.simulation.plan import InjectedFault, Plan, Pull, Send, Wait
from model_tests.support.simulation.run import play
from model_tests.support.simulation.search import Settings, one_run, schedule_of
from model_tests.support.simulation.strategies import FewSwitches, RandomWalk
from rich.console import Console
from rich.table import Table

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import STRICT

ADDITIONS: Final = 20_000_000
LAW_RUNS: Final = 200
PAIR: Final = Bounds("pair", requests=2, messages=1, hold_ticks=2, scan_ticks=2)


def rate(run: Callable[[int], object], seconds: float) -> float:
    """Runs of seed after seed, a second."""
    begun_s = perf_counter()
    for count in itertools.count(1):
        run(count)
        taken_s = perf_counter() - begun_s
        if taken_s >= seconds:
            return count / taken_s
    raise AssertionError


def small_plan(seed: int) -> Plan:
    """Two connections: one whose two pulls are held, one that sends a message; then the broker is stopped."""
    return Plan(
        seed=seed,
        peers=((Pull(0, 5_000), Pull(1, 5_000), Wait()), (Send(0, 1),)),
        mishaps=(InjectedFault(400.0, "stop"),),
        io_thread_count=1,
        syncs=False,
        is_fast=False,
        delay_ms_max=1.0,
        is_pieced=False,
    )


def small_run(seed: int) -> object:
    """A run of it, as a search of seeds makes them."""
    return play(small_plan(seed), STRICT, schedule_of(Settings().strategy, seed))


def loop_s() -> float:
    """How long a loop of additions takes."""
    begun_s, total = perf_counter(), 0
    for number in range(ADDITIONS):
        total += number
    return perf_counter() - begun_s


def beside_law(seed: int) -> object:
    """`LAW_RUNS` runs of the hold service in lockstep with the specification, which is compiled once."""
    return wander(STRICT, PAIR, seed=seed, runs=LAW_RUNS, moves=40)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    measures: dict[str, Callable[[int], object]] = {
        "two pulls and a message, at operations": lambda seed: race(RandomWalk(seed)),
        "the same, at lines": lambda seed: race(FewSwitches(seed, (40, 80)), grain="line"),
        "the same, at accesses": lambda seed: race(FewSwitches(seed, (60, 200)), grain="access"),
        "two pulls and a message, each segment beside the law": beside_law,
        "whole broker: a send, two held pulls, a stop": small_run,
        "whole broker, drawn plans": lambda seed: one_run(Settings(), seed),
    }
    table = Table("schedules", "a second", title=f"{platform.processor() or platform.machine()}, one core")
    for name, run in measures.items():
        runs = LAW_RUNS if run is beside_law else 1
        table.add_row(name, f"{runs * rate(run, seconds):,.0f}")
    table.add_row("(a loop of 20 million additions, s)", f"{loop_s():.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    leaving.run(main)

"""Compares the speed of our engines and SPIN on the same model: states per second, and bytes per state.

    python -m model_tests.bench.explore_bench [--policy strict] [--bounds bench] [--workers 1 2] [--json]

The packed engine and SPIN run at `--bounds`; then all our engines run in all modes at the smaller bounds `--also`. SPIN
and each worker have one core. SPIN's model comes from the export, is compiled with `-O2 -DSAFETY -DNOREDUCE`, and
checks the same `always` properties. The exit code is 1 if the engines count different numbers of states. Rates exclude
start-up and compilation. On a busy machine, compare processor seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import attrs
from attrs import frozen
from model_tests.bench import leaving
from model_tests.bench.served import parser_of, print_json
from model_tests.support.spec.spin import EXHAUSTIVE, as_told, compile_spin, run_spin, why_no_spin

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.errors import SpecUserError
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import preset, with_knobs
from longpoll_spec.render.export.promela import promela_of
from longpoll_spec.specification import properties_of, specification_of

KILOBYTE: Final = 1024
MEGABYTE: Final = 1024 * KILOBYTE
SPILL_MB: Final = 500
"""The memory limit of one search, in MB."""


@frozen
class Choice:
    policy: str
    knobs: tuple[str, ...]
    bounds: str

    def model(self) -> Model:
        policy = with_knobs(preset(self.policy), self.knobs)
        return specification_of(policy, named(self.bounds, policy))


@frozen
class Way:
    engine: str = "packed"
    workers: int = 1
    symmetry: bool = False
    memory_mb: int | None = None

    @property
    def name(self) -> str:
        parts = [self.engine]
        parts += [f"{self.workers} workers"] * (self.workers > 1) + ["symmetry"] * self.symmetry
        return ", ".join(parts if self.memory_mb is None else [*parts, f"{self.memory_mb} MB"])

    @contextmanager
    def options(self) -> Iterator[dict[str, Any]]:
        if self.engine != "spark":
            yield {"workers": self.workers, "symmetry": self.symmetry, "memory_mb": self.memory_mb}
            return
        # Spark imports NumPy, but the packed engine must decide first how NumPy is imported.
        from longpoll_judge.run.spark.session import open_session  # noqa: PLC0415

        with open_session(f"local[{self.workers}]") as session:
            yield {"session": session}


@frozen
class Figure:
    name: str
    distinct_states: int
    transitions: int
    seconds: float
    processor_seconds: float
    compile_seconds: float
    bytes_a_state: float

    @property
    def rate(self) -> float:
        return self.distinct_states / self.seconds


def judged(model: Model) -> tuple[Property, ...]:
    return tuple(item for item in properties_of(model) if item.kind != "sometimes")


def measure_engine(choice: Choice, way: Way) -> Figure:
    model = choice.model()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with way.options() as options:
        # The first call compiles, and the wall-clock time of a compilation depends on other load.
        first = explore(model, judged(model), engine=way.engine, limit_states=1, **options)
        began = processor_seconds()
        result = explore(model, judged(model), engine=way.engine, **options)
        spent = processor_seconds() - began
    # Pages shared by workers count for each worker, so the sum is an upper bound.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    peak += way.workers * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert result.complete, way
    return Figure(
        name=way.name,
        distinct_states=result.distinct_states,
        transitions=result.transitions,
        seconds=result.seconds,
        processor_seconds=spent,
        compile_seconds=first.compile_seconds,
        bytes_a_state=peak * KILOBYTE / result.distinct_states,
    )


def processor_seconds() -> float:
    """Return the processor seconds of this process and of its child processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def alone(choice: Choice, way: Way) -> Figure:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_engine, choice, way).result()


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(every)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def measure_spin(choice: Choice, states: int, directory: Path, *, checked: bool) -> Figure:
    """Run SPIN depth-first, which is its fastest search, with a hash table and a stack with room for every state."""
    model = choice.model()
    began = perf_counter()
    text = promela_of(model, judged(model))
    pan = compile_spin(text, directory, select=["-DALWAYS"] if checked else [], how=EXHAUSTIVE, optimise="-O2")
    compiled = perf_counter()
    run = run_spin(pan, f"-w{max(20, states.bit_length() + 1)}", f"-m{states + 10_000}")
    return Figure(
        name="SPIN" if checked else "SPIN, no property",
        distinct_states=run.distinct_states,
        transitions=run.transitions,
        seconds=run.seconds,
        processor_seconds=run.processor_seconds,
        compile_seconds=compiled - began,
        bytes_a_state=run.memory_mb * MEGABYTE / run.distinct_states,
    )


def measure(choice: Choice, ways: Sequence[Way], *, plain: bool) -> list[Figure]:
    figures: list[Figure] = []
    for way in ways:
        with on_cores(way.workers):
            figures.append(alone(choice, way))
    missing = why_no_spin()
    if missing is not None:
        sys.stderr.write(f"SPIN NOT MEASURED: {missing}\n")
        return figures
    with on_cores(1), tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
        states = figures[0].distinct_states
        runs = [True, False] if plain else [True]
        spins = [measure_spin(choice, states, Path(directory) / str(checked), checked=checked) for checked in runs]
    return [*figures, *spins]


def every_way(workers: Sequence[int]) -> list[Way]:
    shared = [Way(workers=count) for count in workers]
    return [*shared, Way(symmetry=True), Way(memory_mb=SPILL_MB), Way("python"), Way("spark", workers=max(workers))]


def show(choice: Choice, figures: Sequence[Figure]) -> None:
    spin = next((figure for figure in figures if figure.name == "SPIN"), None)
    settings = " ".join([choice.policy, *choice.knobs])
    sys.stdout.write(f"{settings} at {choice.bounds}: {figures[0].distinct_states:,} states\n")
    for figure in figures:
        ratio = "" if spin is None else f"{figure.rate / spin.rate:6.2f} x SPIN"
        spent = "" if spin is None else f", {spin.processor_seconds / figure.processor_seconds:.2f} x SPIN by that"
        sys.stdout.write(
            f"{figure.name:20} {figure.rate:12,.0f} states/s {ratio}  {figure.seconds:8.2f} s "
            f"({figure.processor_seconds:.2f} s of processor{spent}; + {figure.compile_seconds:.2f} s to compile)  "
            f"{figure.bytes_a_state:7.1f} B a state\n"
        )


def main(arguments: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--policy", default="strict", help="a preset's name")
    parser.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="set one knob; repeatable")
    parser.add_argument("--bounds", default="bench", help="tiny, small, wide or bench")
    parser.add_argument("--also", default="tiny", help="bounds at which every engine is measured; - for none")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], help="of the packed engine")
    options = parser.parse_args(arguments)
    fast = [Way(workers=count) for count in options.workers]
    asked = [(options.bounds, fast), *([(options.also, every_way(options.workers))] if options.also != "-" else [])]
    measured: list[tuple[Choice, list[Figure]]] = []
    for bounds, ways in asked:
        choice = Choice(options.policy, tuple(options.knob), bounds)
        try:
            figures = measure(choice, ways, plain=bounds == options.bounds)
        except SpecUserError as error:
            parser.error(str(error))
        measured.append((choice, figures))
        if not options.json:
            show(choice, figures)
    if options.json:
        print_json([as_object(*each) for each in measured])
    if any(differ(figures) for _, figures in measured):
        sys.exit("the engines do not count the same states and transitions")


def as_object(choice: Choice, figures: Sequence[Figure]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [{**attrs.asdict(figure), "states_a_second": figure.rate} for figure in figures]
    return {**attrs.asdict(choice), "figures": rows}


def differ(figures: Sequence[Figure]) -> bool:
    return len({(as_told(figure.distinct_states), as_told(figure.transitions)) for figure in figures}) > 1


if __name__ == "__main__":
    leaving.run(lambda: main(sys.argv[1:]))

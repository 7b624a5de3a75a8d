"""Compares our broker with the Java broker 4.9.7 on real sockets, in one run, with a ratio for every figure.

    python -m model_tests.bench.broker_bench [--seconds 4] [--rounds 2] [--without-java] [--json] [--only pull]

The two brokers run during the whole measurement and are measured alternately, so other load on the machine disturbs
both alike. A rate is that of the best round, and a latency is the median of the rounds. The project's own harness makes
the load, and its rate with a trivial server is printed too. BENCH_SECONDS sets --seconds: 1 is enough on a busy
machine, and a release is measured with 4 on an idle machine. The exit code is 1 if a limit is missed and 2 for a usage
error. Without Java only our figures are printed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from model_tests.bench import leaving
from model_tests.bench.broker_figures import OURS, POLLING, RECORDING, SIDES, Value
from model_tests.bench.broker_measures import Scale, measure
from model_tests.bench.broker_sides import Side, java, ours
from model_tests.bench.served import machine, parser_of, print_json
from model_tests.conformance.java_broker import JavaUnavailableError
from rich.console import Console
from rich.progress import Progress

from longpoll_client.errors import ClientError

SECONDS: Final = 4.0


def missed(values: Sequence[Value]) -> list[str]:
    return [value.name for value in values if value.met is False]


def shown(number: float) -> str:
    if number >= 1_000:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number else "0"


def cells(value: Value, sides: Sequence[str]) -> list[str]:
    numbers = [shown(value.sides[side]) if side in value.sides else "" for side in sides]
    return [*numbers, "" if value.ratio is None else f"{value.ratio:.2f}"]


def markdown(values: Sequence[Value], about: dict[str, str]) -> str:
    sides = [side for side in SIDES if any(side in value.sides for value in values)]
    lines = ["; ".join(f"{name}: {text}" for name, text in about.items()) + ".", ""]
    lines += [f"| figure | {' | '.join(sides)} | ours / Java | bar |", "| --- |" + " --- |" * (len(sides) + 2)]
    for value in values:
        name = f"{value.name}, {value.unit}" if value.unit else value.name
        missing = " (missed)" if value.met is False else ""
        lines.append(f"| {name} | {' | '.join(cells(value, sides))} | {value.bar}{missing} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("BENCH_SECONDS") or SECONDS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-java", action="store_true")
    parser.add_argument("--only", action="append", help="one kind of work: a method of `broker_measures.Bench`")
    chosen = parser.parse_args()
    if not 0.2 <= chosen.seconds <= 60 or not 1 <= chosen.rounds <= 20:
        parser.error("give 0.2 to 60 seconds and 1 to 20 rounds")
    about = machine()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longpoll-bench-")))
        sides: list[Side] = [stack.enter_context(ours(OURS, directory / "ours"))]
        if not chosen.without_java:
            try:
                sides.append(stack.enter_context(java(directory / "java")))
            except JavaUnavailableError as error:
                sys.stderr.write(f"longpoll: {error}; measuring ours alone\n")
        options = {POLLING: ("--knob", "notify=dispatcher_poll"), RECORDING: ("--record", str(directory / "history"))}
        variants = [stack.enter_context(ours(name, directory / name, words)) for name, words in options.items()]
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        try:
            values = measure(sides, variants, Scale(chosen.seconds, chosen.rounds), progress, only=chosen.only)
        except ClientError as error:
            sys.stderr.write(f"longpoll: the load failed: {error}\n")
            return 2
    if chosen.json:
        told = {"machine": about, "seconds": chosen.seconds, "figures": values, "missed": missed(values)}
        print_json(told)
    else:
        sys.stdout.write(markdown(values, about))
    return 1 if missed(values) else 0


if __name__ == "__main__":
    leaving.run(main)

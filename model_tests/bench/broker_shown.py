"""The table of `broker_bench`, and what machine it was measured on.

Leaves out how a figure is made (`broker_figures`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from model_tests.bench.broker_figures import SIDES, Value
from rich.console import Console
from rich.table import Table

WIDTH = 170


def machine() -> dict[str, str]:
    """The machine's properties that affect the figures."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_gib:.0f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[1]:.1f} over 5 minutes",
    }


def missed(values: Sequence[Value]) -> list[str]:
    """The figures whose bar is not met."""
    return [value.name for value in values if value.met is False]


def shown(number: float) -> str:
    """A number with as many digits as mean something."""
    if number >= 1_000:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number else "0"


def cells(value: Value, sides: Sequence[str]) -> list[str]:
    """A figure of each side, and the ratio."""
    numbers = [shown(value.sides[side]) if side in value.sides else "" for side in sides]
    return [*numbers, "" if value.ratio is None else f"{value.ratio:.2f}"]


def show(values: Sequence[Value], about: dict[str, str]) -> None:
    """Print the table and what was missed."""
    out = Console(width=WIDTH, highlight=False)
    out.print("; ".join(f"{name}: {text}" for name, text in about.items()))
    sides = [side for side in SIDES if any(side in value.sides for value in values)]
    table = Table("figure", "", *sides, "ours / Java", "bar", "")
    for value in values:
        told = "" if value.met is None else "met" if value.met else "MISSED"
        table.add_row(value.name, value.unit, *cells(value, sides), value.bar, told)
    out.print(table)
    for name in missed(values):
        out.print(f"missed: {name}")


def markdown(values: Sequence[Value], about: dict[str, str]) -> str:
    """The same as a table for a page."""
    sides = [side for side in SIDES if any(side in value.sides for value in values)]
    lines = ["; ".join(f"{name}: {text}" for name, text in about.items()) + ".", ""]
    lines += [f"| figure | {' | '.join(sides)} | ours / Java | bar |", "| --- |" + " --- |" * (len(sides) + 2)]
    for value in values:
        name = f"{value.name}, {value.unit}" if value.unit else value.name
        missing = " (missed)" if value.met is False else ""
        lines.append(f"| {name} | {' | '.join(cells(value, sides))} | {value.bar}{missing} |")
    return "\n".join(lines) + "\n"

"""Draws docs/services.svg from the table of docs/services.md: how late each server's wakes and deadlines are.

    python -m model_tests.bench.services_plot

`services_bench` calls this module with new figures. A test compares the picture with the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import log10
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_spec.render.pictures.svg import element, line, picture, style_of, text

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "services.md"
DRAWN: Final = DOCS / "services.svg"
KIND: Final = "lp-services"
TITLE: Final = "Lateness of wakes and of deadlines, milliseconds, on a logarithmic scale"
STYLE: Final = """
text{font-size:12px;fill:var(--ink)}
.tick{text-anchor:middle;fill:var(--dim)}
.grid{stroke:var(--line)}
.wake{fill:var(--step);stroke:var(--step);stroke-width:2}
.deadline{fill:var(--bad);stroke:var(--bad);stroke-width:2}
"""
LEFT: Final = 190
WIDTH: Final = 560
TOP: Final = 34
ROW: Final = 30
APART: Final = 5
"""The distance of a server's two lines from the middle of its row."""
DOT: Final = 4
END: Final = 4
LEAST_MS: Final = 0.1
TICKS_MS: Final = (0.1, 1, 10, 100, 1_000)
MOST_MS: Final = TICKS_MS[-1]
KINDS: Final = ("wake", "deadline")
FIGURES: Final = re.compile(r"^\| ([^|]+) \|(?:[^|]+\|){4} ([\d., ]+) \| ([\d., ]+) \| [\d,]+ \|$", re.MULTILINE)


@frozen
class Line:
    """The p50, p99 and maximum of one server's wakes, and of its deadlines, in ms."""

    server: str
    spreads: tuple[list[float], list[float]]


def of_table(table: str) -> list[Line]:
    found = FIGURES.findall(table)
    return [Line(name, (_numbers(wake), _numbers(deadline))) for name, wake, deadline in found]


def _numbers(told: str) -> list[float]:
    return [float(each.replace(",", "")) for each in told.split(", ")]


def x(figure_ms: float) -> float:
    return LEFT + WIDTH * log10(max(figure_ms, LEAST_MS) / LEAST_MS) / log10(MOST_MS / LEAST_MS)


def drawn(lines: list[Line]) -> str:
    """Return the picture: a dot at the median, a line to p99, and a stroke at the maximum."""
    height = TOP + ROW * len(lines) + 10
    parts = [*_axis(height), *(part for row, each in enumerate(lines) for part in _row(each, TOP + ROW * (row + 0.5)))]
    return picture(KIND, (LEFT + WIDTH + 30, height), TITLE, style_of(KIND, STYLE), parts) + "\n"


def _axis(height: float) -> Iterator[str]:
    for place, kind in enumerate(KINDS):
        yield element("circle", kind, cx=10 + 75.0 * place, cy=12, r=DOT)
        yield text("name", 18 + 75.0 * place, 16, kind)
    for tick_ms in TICKS_MS:
        yield text("tick", x(tick_ms), 16, f"{tick_ms:,g} ms")
        yield line("grid", x(tick_ms), TOP - 8, x(tick_ms), height - 8)


def _row(each: Line, y: float) -> Iterable[str]:
    yield text("name", 4, y + 4, each.server)
    for kind, (median, most, longest), at in zip(KINDS, each.spreads, (y - APART, y + APART), strict=True):
        yield line(kind, x(median), at, x(most), at)
        yield line(kind, x(longest), at - END, x(longest), at + END)
        yield element("circle", kind, cx=x(median), cy=at, r=DOT)


def write(table: str) -> None:
    DRAWN.write_text(drawn(of_table(table)), "utf-8")


if __name__ == "__main__":
    write(PAGE.read_text("utf-8"))

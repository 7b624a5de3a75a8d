"""Plots as SVG: lines over a logarithmic axis, or grouped bars, readable in light and dark.

Lines differ in dashes as well as in colour, and each bar shows its number, so colour is never the only distinction.
Every text is measured (`svg`) and escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from attrs import frozen

from longpoll_spec.errors import UserError
from longpoll_spec.render.pictures.svg import element, line, picture, style_of, text, width_of, wrapped

SIZE: Final = 13.0
SMALL: Final = 11.5
PAD: Final = 14.0
LINE: Final = 18.0
WIDTH: Final = 640.0
"""The width of the whole picture."""
HEIGHT: Final = 260.0
"""The height of a line plot's area."""
ROW: Final = 24.0
BAR: Final = 15.0
SERIES_MAX: Final = 6
"""The number of colours and dashes."""
POINTS_MAX: Final = 10_000
"""Over all series of one picture."""
DECADES_MAX: Final = 12
DASHES: Final = ("none", "7 4", "2 3", "10 3 2 3", "4 2", "1 5")
STYLE: Final = style_of(
    "lp-plot",
    f"""
text{{fill:var(--ink);font-size:{SIZE}px}}
.small{{fill:var(--dim);font-size:{SMALL}px}}
.middle{{text-anchor:middle}}
.end{{text-anchor:end}}
.head{{font-weight:700}}
.grid{{stroke:var(--line)}}
.curve{{fill:none;stroke-width:2.2}}
"""
    + "".join(
        f".s{number}{{stroke:var(--s{number});stroke-dasharray:{dash}}}\n.b{number}{{fill:var(--s{number})}}\n"
        for number, dash in enumerate(DASHES)
    ),
    light=";--s0:#1f5fa8;--s1:#b3261e;--s2:#2e7a36;--s3:#8a4b00;--s4:#7a3a9a;--s5:#3f4b55",
    dark=";--s0:#7db4f0;--s1:#ff8a80;--s2:#7fcf88;--s3:#f0b35a;--s4:#d3a4ee;--s5:#c3ccd4",
)


@frozen
class Line:
    """One series of points, from left to right."""

    name: str
    points: tuple[tuple[float, float], ...]
    """Each x above 0 (the axis is logarithmic) and y between 0 and 1."""


@frozen
class Bars:
    """One measurement of several things: a group of bars below a heading."""

    head: str
    """The quantity, with its unit."""
    figures: tuple[tuple[str, float], ...]
    """Name and value, 0 or more."""


def lines(series: Sequence[Line], *, title: str, across: str, up: str) -> str:
    """The series as one `<svg>` element; `across` and `up` label the axes. Raises UserError on invalid values."""
    _check(series)
    first, last = _decades(series)
    left = PAD + width_of("100 %", SMALL) + 8
    top = PAD + LINE
    right, bottom = WIDTH - PAD - 10, top + HEIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * (math.log10(x) - first) / (last - first), bottom - HEIGHT * y

    parts = [text("small", PAD, PAD + 4, up)]
    for quarter in range(5):
        y = bottom - HEIGHT * quarter / 4
        parts += [line("grid", left, y, right, y), text("small end", left - 6, y + 4, f"{25 * quarter} %")]
    for decade in range(first, last + 1):
        x = at(10.0**decade, 0)[0]
        parts += [line("grid", x, top, x, bottom), text("small middle", x, bottom + LINE, _ten(decade))]
    parts.append(text("small middle", (left + right) / 2, bottom + 2 * LINE, across))
    for number, each in enumerate(series):
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in each.points))
        parts.append(element("path", f"curve s{number}", f"<title>{escape(each.name)}</title>", d=f"M{path}"))
    y = bottom + 3 * LINE
    for number, each in enumerate(series):
        for row, words in enumerate(wrapped(each.name, WIDTH - left - 44 - PAD, SIZE)):
            y += LINE
            if not row:
                parts.append(line(f"curve s{number}", left, y - 4, left + 34, y - 4))
            parts.append(text("", left + 44, y, words))
    return picture("lp-plot", (WIDTH, y + PAD), title, STYLE, parts)


def bars(groups: Sequence[Bars], *, title: str) -> str:
    """The groups below one another as one `<svg>` element, each with its own scale. Raises UserError."""
    _check_bars(groups)
    names = [name for group in groups for name, _ in group.figures]
    label = min(max(width_of(name, SIZE) for name in names), WIDTH / 2) + 2 * PAD
    figure = max(width_of(shown(value), SMALL) for group in groups for _, value in group.figures) + PAD
    room = WIDTH - label - figure - PAD
    parts, y = [], PAD
    for group in groups:
        for words in wrapped(group.head, WIDTH - 2 * PAD, SIZE * 1.1):  # the head's letters are bold, and wider
            y += LINE
            parts.append(text("head", PAD, y, words))
        y += 8
        most = max(value for _, value in group.figures) or 1.0
        for number, (name, value) in enumerate(group.figures):
            width = room * value / most
            rows = wrapped(name, label - 2 * PAD + 1, SIZE)
            parts += [text("", PAD, y + BAR - 3 + LINE * row, words) for row, words in enumerate(rows)]
            parts.append(element("rect", f"b{number}", x=label, y=y, width=width, height=BAR))
            parts.append(text("small", label + width + 6, y + BAR - 3, shown(value)))
            y += ROW + LINE * (len(rows) - 1)
        y += 6
    return picture("lp-plot", (WIDTH, y + PAD), title, STYLE, parts)


def shares(name: str, values: Sequence[float]) -> Line:
    """The cumulative distribution of the values as a step line from 0 to 1."""
    found = sorted(values)
    if not found:
        raise UserError(f"plot: {name} has no values; measure first")
    points = [(found[0], 0.0)]
    for number, value in enumerate(found, start=1):
        points += [(value, points[-1][1]), (value, number / len(found))]
    return Line(name, tuple(points))


def shown(value: float) -> str:
    """The number as shown next to its bar: three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 or not value else f"{value:.2g}"


def _check(series: Sequence[Line]) -> None:
    if not 1 <= len(series) <= SERIES_MAX:
        raise UserError(f"plot: {len(series)} series; give 1 to {SERIES_MAX}")
    points = [point for each in series for point in each.points]
    if not all(each.points for each in series) or len(points) > POINTS_MAX:
        raise UserError(f"plot: {len(points)} points; give each series some, and {POINTS_MAX:,} in all at most")
    for x, y in points:
        if not (0 < x < math.inf and 0 <= y <= 1):
            raise UserError(f"plot: the point {x}, {y} is out of range; x must be above 0 and finite, y from 0 to 1")


def _check_bars(groups: Sequence[Bars]) -> None:
    if not groups or not all(1 <= len(group.figures) <= SERIES_MAX for group in groups):
        raise UserError(f"plot: give groups of 1 to {SERIES_MAX} bars each")
    for value in (value for group in groups for _, value in group.figures):
        if not 0 <= value < math.inf:
            raise UserError(f"plot: a bar cannot be {value} long; give finite values of 0 or more")


def _decades(series: Sequence[Line]) -> tuple[int, int]:
    values = [x for each in series for x, _ in each.points]
    first = math.floor(math.log10(min(values)))
    last = max(math.ceil(math.log10(max(values))), first + 1)
    if last - first > DECADES_MAX:
        raise UserError(f"plot: the values span {last - first} powers of ten; at most {DECADES_MAX} are allowed")
    return first, last


def _ten(decade: int) -> str:
    return f"{10**decade:,}" if decade >= 0 else f"{10.0**decade:.{-decade}f}"

"""Draws a run as lanes in SVG: one lane per thread, request phase and visible end, and one column per step.

Columns are equally wide. Time passes only in the columns of ticks, which are marked. Steps are numbered, and described
below the lanes. Texts are measured (`svg`), so that none overflows. With `moving` the picture shows one step after
another, except for readers who prefer reduced motion. With `narrow` the picture fits the screen of a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Final

from attrs import frozen

from longpoll_spec.model import Trace
from longpoll_spec.render.pictures.svg import element, line, picture, style_of, text, width_of, wrapped
from longpoll_spec.render.story import Scene, Story, story_of

SIZE: Final = 13.0
SMALL: Final = 11.0
COLUMN: Final = 52.0
COLUMN_NARROW: Final = 31.0
ROW: Final = 40.0
BAR: Final = 22.0
PAD: Final = 12.0
LINE: Final = 18.0
RADIUS: Final = 10.0
WIDTH_LEAST: Final = 560.0
WIDTH_NARROW: Final = 340.0
STEP_S: Final = 1.2
"""The seconds between two steps of a moving picture."""
REST: Final = 4
"""The time for which a moving picture shows all steps before it starts again, in steps."""
STYLE: Final = style_of(
    "lp-lanes",
    f"""
text{{fill:var(--ink);font-size:{SIZE}px}}
.java{{fill:var(--dim);font-size:{SMALL}px}}
.tick{{fill:var(--dim);font-size:{SMALL}px}}
.inside{{font-size:{SMALL}px}}
.middle{{text-anchor:middle}}
.lane{{fill:var(--lane)}}
.bar{{fill:var(--bar);stroke:var(--line)}}
.time{{stroke:var(--dim);stroke-dasharray:3 4}}
.arrow{{stroke:var(--step);stroke-width:1.6}}
.dot{{fill:var(--step)}}
.end{{fill:var(--lane);stroke:var(--step);stroke-width:1.6}}
.number{{fill:var(--paper);font-weight:700;text-anchor:middle;font-size:{SMALL}px}}
.bad{{fill:var(--bad)}}
text.bad{{fill:var(--bad)}}
""",
)


@frozen
class _Bar:
    start: int
    end: int
    word: str


@frozen
class _Sheet:
    """The sizes of one picture, in user units of SVG."""

    trace: Trace
    story: Story
    narrow: bool

    @property
    def column(self) -> float:
        return COLUMN_NARROW if self.narrow else COLUMN

    @property
    def bars(self) -> list[tuple[str, list[_Bar]]]:
        """(name, bars) for each request's phase and each queue's visible end whose value changes in the run."""
        shown = []
        for place, variable in enumerate(self.trace.model.variables):
            if variable.name.startswith("phase_"):
                name = f"request {variable.name.removeprefix('phase_')}"
            elif variable.name.startswith("visible_end"):
                name = f"visible end {variable.name.removeprefix('visible_end').strip('_')}".strip()
            else:
                continue
            words = [variable.show(step.state[place]).replace("_", " ") for step in self.trace.steps]
            if len(set(words)) > 1:
                shown.append((name, _bars(words)))
        return shown

    @property
    def label(self) -> float:
        names = [width_of(each.name, SIZE) for each in self.story.participants]
        java = [0.0 if self.narrow else width_of(each.java, SMALL) for each in self.story.participants]
        return max([0.0, *names, *java, *(width_of(name, SIZE) for name, _ in self.bars)]) + 2 * PAD

    @property
    def right(self) -> float:
        return self.label + self.column * len(self.trace.steps)

    @property
    def width(self) -> float:
        return max(self.right + PAD, WIDTH_NARROW if self.narrow else WIDTH_LEAST)

    @property
    def lanes(self) -> int:
        return len(self.story.participants) + len(self.bars)

    @property
    def bottom(self) -> float:
        return PAD + ROW * self.lanes

    def x(self, step: int) -> float:
        """The middle of a step's column; step 0 is the first state."""
        return self.label + self.column * (step + 0.5)

    def y(self, lane: int) -> float:
        return PAD + ROW * (lane + 0.5)

    def lane_of(self, key: str) -> int:
        return [each.key for each in self.story.participants].index(key)


def _bars(words: Sequence[str]) -> list[_Bar]:
    bars, at = [], 0
    for word, group in groupby(words):
        length = len(list(group))
        bars.append(_Bar(at, at + length, word))
        at += length
    return bars


def render(trace: Trace, *, moving: bool = False, narrow: bool = False) -> str:
    """Draw the run; returns one `<svg>` element as text."""
    sheet = _Sheet(trace, story_of(trace), narrow)
    legend = list(_legend(sheet, moving=moving))
    height = sheet.bottom + 2 * LINE + sum(lines for lines, _ in legend) * LINE + PAD
    parts = [*_lanes(sheet), *_values(sheet), *_ticks(sheet)]
    parts += [_moved(each.number, "".join(_step(sheet, each)), moving=moving) for each in sheet.story.scenes]
    y = sheet.bottom + 2 * LINE
    for lines, drawn in legend:
        parts.append(f'<g transform="translate(0 {y:.1f})">{drawn}</g>')
        y += lines * LINE
    style = STYLE + (_motion(len(sheet.story.scenes)) if moving else "")
    return picture("lp-lanes", (sheet.width, height), sheet.story.title, style, parts)


def _lanes(sheet: _Sheet) -> Iterator[str]:
    names = [(each.name, "" if sheet.narrow else each.java) for each in sheet.story.participants]
    names += [(name, "") for name, _ in sheet.bars]
    for lane, (name, java) in enumerate(names):
        y = sheet.y(lane)
        width = sheet.right - sheet.label
        yield element("rect", "lane", x=sheet.label, y=y - ROW / 2 + 2, width=width, height=ROW - 4, rx=4)
        yield text("name", PAD / 2, y + (-1 if java else 5), name)
        if java:
            yield text("java", PAD / 2, y + 13, java)


def _values(sheet: _Sheet) -> Iterator[str]:
    first = len(sheet.story.participants)
    for lane, (_, bars) in enumerate(sheet.bars, start=first):
        for bar in bars:
            x, width = sheet.label + sheet.column * bar.start, sheet.column * (bar.end - bar.start)
            y = sheet.y(lane)
            said = f"<title>{escape(bar.word)}</title>"
            yield element("rect", "bar", said, x=x + 1, y=y - BAR / 2, width=width - 2, height=BAR)
            shown = _fitting(bar.word, width - 6)
            if shown:
                yield text("inside middle", x + width / 2, y + 4, shown)


def _fitting(word: str, width: float) -> str:
    """The word, truncated with an ellipsis if it is too wide; empty if fewer than two letters would be left."""
    if width_of(word, SMALL) <= width:
        return word
    for length in range(len(word) - 1, 1, -1):
        if width_of(f"{word[:length]}…", SMALL) <= width:
            return f"{word[:length]}…"
    return ""


def _ticks(sheet: _Sheet) -> Iterator[str]:
    y = sheet.bottom + LINE
    for scene in sheet.story.scenes:
        if not scene.source:
            x = sheet.x(scene.number)
            yield line("time", x, PAD, x, sheet.bottom)
            yield text("tick middle", x, y, "tick")


def _step(sheet: _Sheet, scene: Scene) -> Iterator[str]:
    x = sheet.x(scene.number)
    kind = "dot bad" if scene.number == len(sheet.story.scenes) and sheet.story.wrong else "dot"
    if not scene.source:
        yield element("circle", kind, cx=x, cy=PAD + 4, r=RADIUS)
        yield text("number", x, PAD + 8, str(scene.number))
        return
    y, target = sheet.y(sheet.lane_of(scene.source)), sheet.y(sheet.lane_of(scene.target))
    if y != target:
        yield line("arrow", x, y, x, target)
        yield element("circle", "end", cx=x, cy=target, r=5)
    yield element("circle", kind, cx=x, cy=y, r=RADIUS)
    yield text("number", x, y + 4, str(scene.number))


def _legend(sheet: _Sheet, *, moving: bool) -> Iterator[tuple[int, str]]:
    """(number of lines, SVG) for the description of each step, and for the violation."""
    room = sheet.width - 34 - PAD
    names = {each.key: each.name for each in sheet.story.participants}
    for scene in sheet.story.scenes:
        words = f"{names[scene.source]} {scene.sentence}" if scene.source else scene.sentence
        lines = wrapped(words, room, SIZE)
        drawn = text("name", 6, 0, f"{scene.number}.") + _block("name", lines)
        yield len(lines), _moved(scene.number, drawn, moving=moving)
    if sheet.story.wrong:
        lines = wrapped(sheet.story.wrong[0], room, SIZE)
        yield len(lines), _moved(len(sheet.story.scenes), _block("bad", lines), moving=moving)


def _block(kind: str, lines: Sequence[str]) -> str:
    return "".join(text(kind, 34, LINE * number, line) for number, line in enumerate(lines))


def _moved(number: int, drawn: str, *, moving: bool) -> str:
    return f'<g class="lp-step lp-step-{number}">{drawn}</g>' if moving else drawn


def _motion(steps: int) -> str:
    """The CSS rules that show one step after another, unless the reader prefers reduced motion."""
    whole = (steps + REST) * STEP_S
    rules = [
        f"@keyframes lp-step-{step}{{0%,{share:.2f}%{{opacity:.25}}{share + 2:.2f}%,100%{{opacity:1}}}}"
        f".lp-step-{step}{{animation:lp-step-{step} {whole:.1f}s linear infinite}}"
        for step in range(1, steps + 1)
        for share in [100 * (step - 1) / (steps + REST)]
    ]
    return "@media (prefers-reduced-motion:no-preference){" + "".join(rules) + "}"

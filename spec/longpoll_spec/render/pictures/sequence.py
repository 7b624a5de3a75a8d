"""A story as a sequence chart in SVG.

One row per step: its number, an arrow between two lifelines with a few words, and the changes. A box at the end says
what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from longpoll_spec.render.pictures.svg import element, line, picture, style_of, text, tip, width_of, wrapped
from longpoll_spec.render.story import Scene, Story

COLUMN = 168
"""The least distance between two lifelines, in user units (pixels without zoom)."""
ROW = 62
LEFT = 64
TOP = 84
LINE = 18
SIZE = 14.0
"""Font size of arrow labels."""
SMALL = 11.5
"""Font size of changes."""

STYLE: Final = style_of(
    "lp-chart",
    f"""
text{{fill:var(--ink);font-size:{SIZE}px}}
.paper{{fill:var(--paper)}}
.life{{stroke:var(--line);stroke-dasharray:3 4}}
.head{{fill:var(--head);stroke:var(--line)}}
.name{{font-weight:600;text-anchor:middle}}
.java{{fill:var(--dim);font-size:{SMALL}px;text-anchor:middle}}
.change{{fill:var(--dim);font-size:{SMALL}px}}
.number{{fill:var(--dim);font-size:{SMALL}px}}
.arrow{{stroke:var(--step);stroke-width:1.6;fill:none}}
.tip{{fill:var(--step)}}
.said{{paint-order:stroke;stroke:var(--paper);stroke-width:5px;stroke-linejoin:round}}
.time{{stroke:var(--dim);stroke-dasharray:8 5}}
.bad{{fill:var(--badbg);stroke:var(--bad)}}
.wrong{{fill:var(--bad)}}
""",
    fits=False,
)


@frozen
class _Sheet:
    """The measures of one chart."""

    story: Story

    @property
    def column(self) -> float:
        """The distance between two lifelines: each participant's name and class fit."""
        names = [width_of(each.name, SIZE, bold=True) + 24 for each in self.story.participants]
        return max([COLUMN, *(width_of(each.java, SMALL) + 24 for each in self.story.participants), *names])

    @property
    def width(self) -> float:
        """The width of the lifelines, or of the longest description if that is wider."""
        said = [width_of(each.short, SIZE) for each in self.story.scenes]
        said += [width_of("; ".join(each.changes), SMALL) for each in self.story.scenes]
        return max(
            [LEFT + self.column * max(len(self.story.participants), 3) + 40, *(LEFT + each + 20 for each in said)]
        )

    @property
    def bottom(self) -> int:
        """The bottom end of the lifelines."""
        return TOP + ROW * len(self.story.scenes) + 14

    @property
    def wrong(self) -> list[str]:
        """The lines of the box at the end."""
        return [line for sentence in self.story.wrong for line in wrapped(sentence, self.width - 64, SIZE)]

    @property
    def height(self) -> int:
        return self.bottom + (len(self.wrong) * LINE + 44 if self.story.wrong else 14)

    def x(self, key: str) -> float:
        """The lifeline of a participant."""
        keys = [each.key for each in self.story.participants]
        return LEFT + self.column * (keys.index(key) + 0.5)


def story_svg(story: Story) -> str:
    """The story as one `<svg>` element."""
    sheet = _Sheet(story)
    return picture("lp-chart", (sheet.width, sheet.height), story.title, STYLE, _parts(sheet))


def _parts(sheet: _Sheet) -> Iterable[str]:
    yield element("rect", "paper", width=sheet.width, height=sheet.height)
    half = sheet.column / 2 - 5
    for each in sheet.story.participants:
        x = sheet.x(each.key)
        yield line("life", x, 58, x, sheet.bottom)
        yield element("rect", "head", x=x - half, y=10, width=2 * half, height=48, rx=7)
        yield text("name", x, 31, each.name) + text("java", x, 48, each.java)
    for scene in sheet.story.scenes:
        yield from _scene(sheet, scene)
    if sheet.story.wrong:
        yield from _wrong(sheet)


def _scene(sheet: _Sheet, scene: Scene) -> Iterable[str]:
    y = TOP + ROW * (scene.number - 1) + 30
    yield text("number", 14, y + 4, f"{scene.number}.")
    if not scene.source:
        yield line("time", LEFT, y, sheet.width - 20, y)
        yield from _words(sheet, LEFT + 6, y - 7, y + 15, scene)
        return
    start, end = sheet.x(scene.source), sheet.x(scene.target)
    if start == end:
        yield element("path", "arrow", d=f"M{start:.1f} {y - 8}h26v16h-20") + tip(start, y + 8, (9, 0), 5)
        yield from _words(sheet, start + 34, y + 2, y + 19, scene)
        return
    towards = 1 if end > start else -1
    yield line("arrow", start, y, end - 7 * towards, y) + tip(end, y, (-9 * towards, 0), 5)
    yield from _words(sheet, min(start, end) + 10, y - 7, y + 15, scene)


def _words(sheet: _Sheet, x: float, y: float, below: float, scene: Scene) -> Iterable[str]:
    """What happens, and below it the changes, from x or so far left of it that they stay on the sheet."""
    for kind, at, words, size in (
        ("said", y, scene.short, SIZE),
        ("said change", below, "; ".join(scene.changes), SMALL),
    ):
        yield text(kind, max(LEFT, min(x, sheet.width - 12 - width_of(words, size))), at, words)


def _wrong(sheet: _Sheet) -> Iterable[str]:
    y, lines = sheet.bottom + 14, sheet.wrong
    yield element("rect", "bad", x=14, y=y, width=sheet.width - 28, height=len(lines) * LINE + 18, rx=8)
    for number, words in enumerate(lines):
        yield text("wrong", 28, y + 24 + number * LINE, words)

"""A story as a sequence chart in SVG: no scripts, external fonts or images, readable in light and dark.

One row per step: its number, an arrow between two lifelines with a few words, and the changes. A box at the end says
what is wrong. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from attrs import frozen

from longpoll_spec.render.pictures.svg import FONT, width_of, wrapped
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

STYLE: Final = """
.lp-chart{--ink:#1c2733;--dim:#66727d;--paper:#fff;--line:#c6cfd6;--head:#eef2f5;--arrow:#1f5fa8;--bad:#b3261e;
--badbg:#fdecea;font:14px/1.4 @FONT@}
@media (prefers-color-scheme:dark){.lp-chart{--ink:#e3e8ec;--dim:#9aa7b1;--paper:#14191e;--line:#3c4852;
--head:#1f262d;--arrow:#7db4f0;--bad:#ff8a80;--badbg:#3a1b1a}}
.lp-chart .paper{fill:var(--paper)}.lp-chart text{fill:var(--ink)}
.lp-chart .life{stroke:var(--line);stroke-dasharray:3 4}
.lp-chart .head{fill:var(--head);stroke:var(--line)}.lp-chart .name{font-weight:600;text-anchor:middle}
.lp-chart .java,.lp-chart .change,.lp-chart .number{fill:var(--dim);font-size:11.5px}
.lp-chart .java{text-anchor:middle}
.lp-chart .arrow{stroke:var(--arrow);stroke-width:1.6;fill:none}.lp-chart .tip{fill:var(--arrow)}
.lp-chart .word,.lp-chart .change{paint-order:stroke;stroke:var(--paper);stroke-width:5px;stroke-linejoin:round}
.lp-chart .time{stroke:var(--dim);stroke-dasharray:8 5}.lp-chart .bad{fill:var(--badbg);stroke:var(--bad)}
.lp-chart .wrong{fill:var(--bad)}
""".replace("@FONT@", FONT)


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
    return "".join(_parts(_Sheet(story)))


def _parts(sheet: _Sheet) -> Iterable[str]:
    width, height = sheet.width, sheet.height
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lp-chart" role="img" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}"><title>{escape(sheet.story.title)}</title><style>{STYLE}</style>'
        f'<rect class="paper" width="{width:.0f}" height="{height}"/>'
    )
    half = sheet.column / 2 - 5
    for each in sheet.story.participants:
        x = sheet.x(each.key)
        yield f'<line class="life" x1="{x}" y1="58" x2="{x}" y2="{sheet.bottom}"/>'
        yield f'<rect class="head" x="{x - half}" y="10" width="{2 * half}" height="48" rx="7"/>'
        yield _text("name", x, 31, each.name) + _text("java", x, 48, each.java)
    for scene in sheet.story.scenes:
        yield from _scene(sheet, scene)
    if sheet.story.wrong:
        yield from _wrong(sheet)
    yield "</svg>"


def _scene(sheet: _Sheet, scene: Scene) -> Iterable[str]:
    y = TOP + ROW * (scene.number - 1) + 30
    yield _text("number", 14, y + 4, f"{scene.number}.")
    if not scene.source:
        yield f'<line class="time" x1="{LEFT}" y1="{y}" x2="{sheet.width - 20}" y2="{y}"/>'
        yield _word(sheet, LEFT + 6, y - 7, scene) + _changes(sheet, LEFT + 6, y, scene)
        return
    start, end = sheet.x(scene.source), sheet.x(scene.target)
    if start == end:
        yield f'<path class="arrow" d="M{start} {y - 8}h26v16h-20"/>' + _tip(start, y + 8, -1)
        yield _word(sheet, start + 34, y + 2, scene) + _changes(sheet, start + 34, y + 4, scene)
        return
    towards = 1 if end > start else -1
    yield f'<line class="arrow" x1="{start}" y1="{y}" x2="{end - 7 * towards}" y2="{y}"/>' + _tip(end, y, towards)
    left = min(start, end) + 10
    yield _word(sheet, left, y - 7, scene) + _changes(sheet, left, y, scene)


def _tip(x: float, y: float, towards: int) -> str:
    back = x - 9 * towards
    return f'<polygon class="tip" points="{x},{y} {back},{y - 5} {back},{y + 5}"/>'


def _word(sheet: _Sheet, x: float, y: float, scene: Scene) -> str:
    return _text("word", _within(sheet, x, width_of(scene.short, SIZE)), y, scene.short)


def _changes(sheet: _Sheet, x: float, y: float, scene: Scene) -> str:
    text = "; ".join(scene.changes)
    return _text("change", _within(sheet, x, width_of(text, SMALL)), y + 15, text)


def _within(sheet: _Sheet, x: float, width: float) -> float:
    """Where a text of this width begins so that it stays on the sheet: at x, or to the left of it."""
    return round(max(LEFT, min(x, sheet.width - 12 - width)), 1)


def _wrong(sheet: _Sheet) -> Iterable[str]:
    y, lines = sheet.bottom + 14, sheet.wrong
    yield f'<rect class="bad" x="14" y="{y}" width="{sheet.width - 28}" height="{len(lines) * LINE + 18}" rx="8"/>'
    for number, line in enumerate(lines):
        yield _text("wrong", 28, y + 24 + number * LINE, line)


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'

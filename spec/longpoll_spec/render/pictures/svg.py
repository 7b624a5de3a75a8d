"""Writes SVG elements, with light and dark colours, and computes text widths without a browser.

The other modules of this package compute the layout. Pictures contain only escaped text, and no scripts, external fonts
or images.

The widths are those of DejaVu Sans, which is wider than the usual fonts, so that no text overflows. A test measures
pictures in a browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import accumulate
from typing import Final

FONT: Final = "'DejaVu Sans',Verdana,sans-serif"
"""The fonts of pictures. A browser without these fonts most likely uses a font that is not wider."""
_LIGHT: Final = (
    "--ink:#1c2733;--dim:#55616c;--line:#c6cfd6;--edge:#8a98a5;--head:#eef2f5;--lane:#f3f6f8;--paper:#fff;"
    "--step:#1f5fa8;--bar:#dbe7f4;--bad:#b3261e;--badbg:#fdecea"
)
_DARK: Final = (
    "--ink:#e3e8ec;--dim:#a9b5be;--line:#3c4852;--edge:#73818d;--head:#1f262d;--lane:#1b2229;--paper:#14191e;"
    "--step:#7db4f0;--bar:#24384d;--bad:#ff8a80;--badbg:#3a1b1a"
)
_FIRST: Final = 32
"""The code of the first character in the tables of widths, the space."""
_PLAIN: Final = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
)  # fmt: skip
"""The widths of the characters from the space to the tilde, in thousandths of the font size."""
_BOLD: Final = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696, 696, 696,
    696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775, 637, 995,
    837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500, 500, 675, 716, 593, 716,
    678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595, 478, 712, 652, 924, 645, 652, 582, 712,
    365, 712, 838,
)  # fmt: skip
_OTHER: Final = 1_062
"""The greatest width of any other character, in thousandths of the font size."""


def style_of(kind: str, rules: str) -> str:
    """The CSS of a kind of picture: `rules`, and colours that follow the theme of the system or the page."""
    return (
        f"\n.{kind}{{{_LIGHT};font-family:{FONT};max-width:none}}\n"
        f"@media (prefers-color-scheme:dark){{.{kind}{{{_DARK}}}}}\n"
        f'body[data-theme="light"] .{kind}{{{_LIGHT}}}body[data-theme="dark"] .{kind}{{{_DARK}}}\n'
        + "\n".join(f".{kind} {rule}" for rule in rules.strip().splitlines())
        + "\n"
    )


def picture(kind: str, size: tuple[float, float], title: str, style: str, parts: Iterable[str]) -> str:
    """The `<svg>` element of class `kind`; `size` is its width and height, in user units.

    Without `style`, the page provides the CSS.
    """
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><title>{escape(title)}</title>'
        f"{f'<style>{style}</style>' if style else ''}{''.join(parts)}</svg>"
    )


def element(tag: str, kind: str, inside: str = "", **places: float | str) -> str:
    """An element of class `kind`; `inside` must be escaped. Numbers get one decimal place."""
    given = "".join(f' {name}="{at if isinstance(at, str) else f"{at:.1f}"}"' for name, at in places.items())
    return f'<{tag} class="{kind}"{given}>{inside}</{tag}>' if inside else f'<{tag} class="{kind}"{given}/>'


def text(kind: str, x: float, y: float, words: str) -> str:
    """A `<text>` element. The CSS of its class decides whether the text starts, is centred or ends at x."""
    return element("text", kind, escape(words), x=x, y=y)


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A `<line>` element from (x1, y1) to (x2, y2)."""
    return element("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """The width of the text at this font size, in the same unit."""
    table = _BOLD if bold else _PLAIN
    return sum(_letter(table, character) for character in text) * size / 1_000


def _letter(table: tuple[int, ...], character: str) -> int:
    place = ord(character) - _FIRST
    return table[place] if 0 <= place < len(table) else _OTHER


def wrapped(text: str, width: float, size: float) -> list[str]:
    """The text in lines of at most this width, in pixels at this font size. A word that is wider is split."""
    lines: list[str] = []
    for word in (piece for whole in text.split() for piece in _pieces(whole, width, size)):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pieces(word: str, width: float, size: float) -> Iterator[str]:
    while word and width_of(word, size) > width:
        ends = accumulate(width_of(character, size) for character in word)
        fits = max(sum(end <= width for end in ends), 1)
        yield word[:fits]
        word = word[fits:]
    if word:
        yield word

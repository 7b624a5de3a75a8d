"""Text width in pictures without a browser, estimated rather too wide, so that no text overflows.

The widths are those of DejaVu Sans, which is wider than the usual `sans-serif` and `system-ui` fonts; a test measures
pictures in a browser.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

FONT: Final = "'DejaVu Sans',Verdana,sans-serif"
"""The fonts of pictures; no likely substitute is wider."""
_FIRST: Final = 32
"""The first character of the tables."""
_PLAIN: Final = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
)  # fmt: skip
"""Thousandths of the size, from the space to the tilde."""
_BOLD: Final = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696, 696, 696,
    696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775, 637, 995,
    837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500, 500, 675, 716, 593, 716,
    678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595, 478, 712, 652, 924, 645, 652, 582, 712,
    365, 712, 838,
)  # fmt: skip
_OTHER: Final = 1_062
"""The width of any other character, at most, in thousandths."""


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """The width of the text at this font size, in the same unit."""
    table = _BOLD if bold else _PLAIN
    return sum(_letter(table, character) for character in text) * size / 1_000


def _letter(table: tuple[int, ...], character: str) -> int:
    place = ord(character) - _FIRST
    return table[place] if 0 <= place < len(table) else _OTHER


def wrapped(text: str, width: float, size: float) -> list[str]:
    """The text in lines of at most this width; a wider word is cut."""
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

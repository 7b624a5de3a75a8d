"""Compares the Chinese pages with the English ones: same blocks, links, paragraphs and names.

The explorer has its own table of Chinese words (`longpoll_spec.render.export.explorer`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

LESSONS: Final = Path(__file__).parents[1] / "lessons"
CHINESE: Final = LESSONS / "zh"
BLOCK: Final = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!\\)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_NAMED: Final = re.compile(r"`[^`\n]+`")
_HAN: Final = re.compile(r"[\u4e00-\u9fff]")
SHARE_LEAST: Final = 0.2
"""The minimum share of Chinese letters in a Chinese page, outside of blocks and code."""


def pairs() -> list[tuple[Path, Path]]:
    """Return each English page of the lessons and its Chinese page, which may be missing."""
    return [(page, CHINESE / page.name) for page in sorted(LESSONS.glob("*.md"))]


def blocks(text: str) -> list[str]:
    """Return the page's blocks, in order."""
    return BLOCK.findall(text)


def links(page: Path, text: str) -> list[str]:
    """Return the targets of a page's links, relative to `docs`. A Chinese lesson counts as the English lesson."""
    docs = LESSONS.parent
    found = []
    for link in _LINK.findall(BLOCK.sub("", text)):
        if re.match(r"\w+:", link):
            found.append(link)
            continue
        meant = Path(os.path.relpath(page.parent / link, docs))
        found.append(os.path.normpath(str(meant).replace("lessons/zh/", "lessons/")))
    return found


def paragraphs(text: str) -> list[str]:
    """Return the parts of a text between empty lines, with `@` instead of each block."""
    return [part for part in re.split(r"\n\s*\n", BLOCK.sub("@", text)) if part.strip()]


def shape(paragraph: str) -> tuple[int, list[str]]:
    """Return the number of lines of a paragraph, and its sorted names, which must not be translated."""
    return len(paragraph.splitlines()), sorted(_NAMED.findall(paragraph))


def differences(english: Path, chinese: Path) -> list[str]:
    """Return the differences of the Chinese page from the English page, apart from the language."""
    if not chinese.is_file():
        return [f"{english.name}: no Chinese page {chinese.name}"]
    before, after = english.read_text("utf-8"), chinese.read_text("utf-8")
    found = []
    if blocks(before) != blocks(after):
        found.append(f"{chinese.name}: other blocks than the English page: copy them from there")
    if sorted(links(english, before)) != sorted(links(chinese, after)):
        found.append(f"{chinese.name}: other links than the English page")
    if [len(mark) for mark in _heads(before)] != [len(mark) for mark in _heads(after)]:
        found.append(f"{chinese.name}: other headings than the English page")
    if before.count("<details>") != after.count("<details>"):
        found.append(f"{chinese.name}: other hints or solutions than the English page")
    one, other = (list(map(shape, paragraphs(text))) for text in (before, after))
    if len(one) != len(other):
        found.append(f"{chinese.name}: {len(other)} paragraphs, and the English page has {len(one)}")
    elif one != other:
        place = next(place for place, (left, right) in enumerate(zip(one, other, strict=True)) if left != right)
        found.append(f"{chinese.name}: other lines or names in the paragraph {paragraphs(after)[place][:40]!r}")
    prose = re.sub(r"`[^`]*`|[\W\d_]", "", BLOCK.sub("", after))
    if len(_HAN.findall(prose)) < SHARE_LEAST * len(prose):
        found.append(f"{chinese.name}: not in Chinese")
    return found


def _heads(text: str) -> list[str]:
    return re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE)

"""Slides made of the lessons' own text: a page for each lesson, a slide for each piece of it that a screen can hold.

A section's heading stands on each of its slides; a slide ends after a block of code, before an exercise, and where its
words would be more than `LETTERS_MAX`. Hints and solutions stay folded up. Keys go through the slides, the address
names the one that is shown, and print has one a sheet. The text is that of the lessons.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from attrs import frozen
from markdown_it import MarkdownIt

LESSONS: Final = Path(__file__).parents[1] / "lessons"
STATIC: Final = Path(__file__).with_name("deck")
PLACE: Final = "slides"
LETTERS_MAX: Final = 520
"""Of a slide's prose; a single paragraph may be longer, and then the slide scrolls."""
HAN: Final = re.compile(r"[\u4e00-\u9fff]")
"""A Chinese character takes the room of two Latin letters."""
LANGUAGES: Final = {"en": ("", "Slide", "Lesson"), "zh-Hans": ("zh/", "幻灯片", "课程页面")}
"""Language -> its folder, and what the bar at the bottom calls a slide and the lesson's page."""
_PIECE: Final = re.compile(r"^<details>.*?^</details>$(?!\n<details>)|^(`{3,})\w*\n.*?^\1$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r'<a href="(?!https?:)[^"]*">(.*?)</a>', re.DOTALL)
_EXERCISE: Final = re.compile(r"\*\*\d+\.\d+\*\*")


@frozen
class Slide:
    """What stands on one slide, as Markdown."""

    heading: str
    pieces: tuple[str, ...]


def slides_of(page: str) -> list[Slide]:
    """The slides of a lesson in its order; the first has its title and its opening words."""
    made: list[Slide] = []
    heading, pieces = "", list[str]()
    for piece in (*_pieces(page), "# "):
        if re.match(r"#{1,2} ", piece):
            if heading:
                made += [Slide(heading, tuple(part)) for part in _parts(pieces)]
            heading, pieces = piece.lstrip("# "), []
        else:
            pieces.append(piece)
    return made


def _pieces(text: str) -> Iterator[str]:
    """Headings, paragraphs, blocks and folded parts, each by itself."""
    at = 0
    for found in _PIECE.finditer(text):
        yield from filter(None, map(str.strip, re.split(r"\n\s*\n", text[at : found.start()])))
        yield found[0]
        at = found.end()
    yield from filter(None, map(str.strip, re.split(r"\n\s*\n", text[at:])))


def _parts(pieces: list[str]) -> Iterator[list[str]]:
    """The pieces of a section, cut into slides."""
    part: list[str] = []
    for piece in pieces:
        full = sum(map(_length, part)) + _length(piece) > LETTERS_MAX
        ends = bool(part) and (_is_block(part[-1]) and not piece.startswith("<details>"))
        if part and (ends or _EXERCISE.match(piece) or (full and not _is_block(piece))):
            yield part
            part = []
        part.append(piece)
    yield part


def _is_block(piece: str) -> bool:
    return piece.startswith("```")


def _length(piece: str) -> int:
    """The room that a piece of prose takes; blocks and folded parts have room of their own."""
    return 0 if piece.startswith(("```", "<details>")) else len(piece) + len(HAN.findall(piece))


def deck(name: str, page: str, language: str) -> str:
    """The slides of a lesson as one page, which needs nothing else."""
    written = MarkdownIt("commonmark", {"html": True}).enable("table")
    folder, word, lesson = LANGUAGES[language]
    made = slides_of(page)
    parts = []
    for number, slide in enumerate(made, start=1):
        inside = "\n".join(_LINK.sub(r"\1", written.render(piece)) for piece in slide.pieces)
        inside = inside.replace("<pre>", '<pre tabindex="0">')
        mark = "h1" if number == 1 else "h2"
        head = _LINK.sub(r"\1", written.renderInline(slide.heading))
        parts.append(f'<section id="{number}" aria-label="{word} {number}"><{mark}>{head}</{mark}>\n{inside}</section>')
    script = (STATIC / "deck.js").read_text("utf-8")
    mine = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    up = "../" * (1 + folder.count("/"))
    put = {
        "LANGUAGE": language,
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src '{mine}'",
        "TITLE": escape(slides_title(page)),
        "STYLE": (STATIC / "deck.css").read_text("utf-8"),
        "LESSON": f'<a href="{up}lessons/{folder}{name}.html">{lesson}</a>',
        "COUNT": str(len(made)),
        "SCRIPT": script,
        "SLIDES": "\n".join(parts),
    }
    text = (STATIC / "deck.html").read_text("utf-8")
    for place, value in put.items():  # the lesson's own text comes last, so that nothing in it is taken for a place
        text = text.replace(f"@{place}@", value)
    return text


def slides_title(page: str) -> str:
    """The lesson's title."""
    return slides_of(page)[0].heading


def decks() -> Iterator[tuple[str, str]]:
    """Place in the site -> page, for every lesson in each of its languages."""
    for language, (folder, _, _) in LANGUAGES.items():
        for path in sorted((LESSONS / folder).glob("[0-9]*.md"), key=_number):
            yield f"{PLACE}/{folder}{path.stem}.html", deck(path.stem, path.read_text("utf-8"), language)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def page() -> str:
    """The page of the site that lists the slides."""
    lines = [
        "# Slides",
        "",
        "Each lesson as slides, made from the lesson's text. `→`, space and *Page Down* go forward, `←` and *Page Up*",
        "go back, *Home* and *End* go to the first and the last slide. The address names the slide.",
        "A printed page has one slide. Hints and solutions are folded.",
        "",
        "```{raw} html",
        "<ol class=lp-decks>",
    ]
    for path in sorted(LESSONS.glob("[0-9]*.md"), key=_number):
        lines.append(f'<li value="{_number(path)}">{_listed(path, "en")}')
        chinese = LESSONS / "zh" / path.name
        if chinese.is_file():
            lines[-1] += f' · <span lang="zh-Hans">{_listed(chinese, "zh-Hans")}</span>'
        lines[-1] += "</li>"
    return "\n".join([*lines, "</ol>", "```", ""])


def _listed(path: Path, language: str) -> str:
    title = slides_title(path.read_text("utf-8")).partition(" ")[2]
    return f'<a href="{PLACE}/{LANGUAGES[language][0]}{path.stem}.html">{escape(title)}</a>'


def write(target: Path) -> None:
    """Write every deck below the folder."""
    for place, text in decks():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")

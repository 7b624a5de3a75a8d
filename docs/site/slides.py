"""Makes slides from the text of the lessons: a page for each lesson, and a slide for each part that fits on a screen.

The heading of a section is on each of its slides. A slide ends after a block of code, before an exercise, and before it
would have more than `LETTERS_MAX` letters. Hints and solutions stay collapsed. Keys change the slide, the address
contains the number of the current slide, and a printed sheet has one slide.
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
"""Maximum letters of a slide's prose. A single paragraph may be longer, and then the slide scrolls."""
HAN: Final = re.compile(r"[\u4e00-\u9fff]")
"""A Chinese character, which takes the space of two Latin letters."""
LANGUAGES: Final = {"en": ("", "Slide", "Lesson"), "zh-Hans": ("zh/", "幻灯片", "课程页面")}
"""Maps each language to its folder and to two labels of the navigation bar: one for a slide, one for the lesson's page.
"""
_PIECE: Final = re.compile(r"^<details>.*?^</details>$(?!\n<details>)|^(`{3,})\w*\n.*?^\1$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r'<a href="(?!https?:)[^"]*">(.*?)</a>', re.DOTALL)
_EXERCISE: Final = re.compile(r"\*\*\d+\.\d+\*\*")


@frozen
class Slide:
    """The content of one slide, as Markdown."""

    heading: str
    pieces: tuple[str, ...]


def slides_of(page: str) -> list[Slide]:
    """Return the slides of a lesson in order. The first slide has the title and the introduction."""
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
    """Yield headings, paragraphs, blocks and collapsed parts, one by one."""
    at = 0
    for found in _PIECE.finditer(text):
        yield from filter(None, map(str.strip, re.split(r"\n\s*\n", text[at : found.start()])))
        yield found[0]
        at = found.end()
    yield from filter(None, map(str.strip, re.split(r"\n\s*\n", text[at:])))


def _parts(pieces: list[str]) -> Iterator[list[str]]:
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
    """Return the length of a piece in Latin letters. Blocks and collapsed parts count as 0."""
    return 0 if piece.startswith(("```", "<details>")) else len(piece) + len(HAN.findall(piece))


def deck(name: str, page: str, language: str) -> str:
    """Return the slides of a lesson as one page, which needs no other file."""
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
    # Insert the lesson's own text last, so that no part of the text is mistaken for a placeholder.
    for place, value in put.items():
        text = text.replace(f"@{place}@", value)
    return text


def slides_title(page: str) -> str:
    """Return the lesson's title."""
    return slides_of(page)[0].heading


def decks() -> Iterator[tuple[str, str]]:
    """Yield the path in the website and the page of every lesson in each of its languages."""
    for language, (folder, _, _) in LANGUAGES.items():
        for path in sorted((LESSONS / folder).glob("[0-9]*.md"), key=_number):
            yield f"{PLACE}/{folder}{path.stem}.html", deck(path.stem, path.read_text("utf-8"), language)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def page() -> str:
    """Return the page of the website that lists the slides."""
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
    """Write the slides of every lesson into a folder."""
    for place, text in decks():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")

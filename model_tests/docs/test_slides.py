"""Slides have all of a lesson's text, in its order, a screenful at a time; and the lecturer's questions are true."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from docs.site import chinese, slides
from model_tests.docs.test_lessons import WIDTH, Command, commands, missing_line

from longpoll.cli import main

PAGES: Final = [path for folder in (slides.LESSONS, chinese.CHINESE) for path in sorted(folder.glob("[0-9]*.md"))]
HEADING: Final = re.compile(r"^#{1,2} (.*)$", re.MULTILINE)
LECTURER: Final = slides.LESSONS.parent / "lecturer.md"
QUESTIONS: Final = list(commands(LECTURER.read_text("utf-8")))
MADE: Final = "# 1. A lesson\n\nFirst.\n\n## Look\n\n{}\n\n```console\n# no heading\n```\n\nAfter.\n\n**1.1** Do it.\n"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_lesson_is_all_on_its_slides(path: Path) -> None:
    """Each block and each word once, in the lesson's order, but that a heading stands on each slide of its section."""
    text = path.read_text("utf-8")
    made = slides.slides_of(text)
    shown = [piece for slide in made for piece in slide.pieces]
    headings = [slide.heading for slide in made]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    said = "".join(part if place % 2 else HEADING.sub("", part) for place, part in enumerate(parts))
    assert re.sub(r"\s+", "", "".join(shown)) == re.sub(r"\s+", "", said)
    assert list(dict.fromkeys(headings)) == [head for part in parts[::2] for head in HEADING.findall(part)]
    for slide in made:
        prose = [len(piece) for piece in slide.pieces if not piece.startswith(("```", "<details>"))]
        assert sum(prose) <= slides.LETTERS_MAX or len(prose) == 1


def test_a_slide_ends_where_a_reader_does() -> None:
    """After a block, before an exercise, and where there are too many words; no line of a block is a heading."""
    made = slides.slides_of(MADE.format("Look here."))
    assert [(slide.heading, len(slide.pieces)) for slide in made] == [
        ("1. A lesson", 1),
        ("Look", 2),
        ("Look", 1),
        ("Look", 1),
    ]
    assert made[-1].pieces == ("**1.1** Do it.",)
    long = "word " * (slides.LETTERS_MAX // 10)
    assert len(slides.slides_of(MADE.format(f"{long}\n\n{long}\n\n{long}"))) == len(made) + 1


def test_a_deck_needs_nothing_else_and_runs_no_other_script() -> None:
    """A section for each slide, no address but the lesson's, and text that looks like a mark is text."""
    text = MADE.format("A `<script>alert(1)</script>` & [a link](../law.md) @SCRIPT@.")
    page = slides.deck("1-made", text, "en")

    assert page.count("<section ") == len(slides.slides_of(text))
    assert re.findall(r'(?:href|src)="([^"]*)"', page) == ["../lessons/1-made.html"]
    assert "<script>alert" not in page
    assert "@SCRIPT@" in page
    assert 'href="../../lessons/zh/1-made.html"' in slides.deck("1-made", text, "zh-Hans")
    assert "'unsafe-inline'; script-src 'sha256-" in unescape(page)


def test_every_lesson_has_a_deck_that_is_listed() -> None:
    """In each language that it is there in."""
    listed = re.findall(r'href="([^"]*)"', slides.page())

    assert sorted(listed) == sorted(place for place, _ in slides.decks())
    assert len(listed) == len(PAGES)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: str(QUESTIONS.index(each)))
def test_an_answer_of_the_exam_is_true(question: Command) -> None:
    """The command prints what stands below it."""
    ran = CliRunner().invoke(main, question.line.split()[1:], env={"COLUMNS": WIDTH})

    assert question.shown
    assert missing_line(question.shown, ran.output) is None, ran.output

"""Lessons, start page and explorer in Chinese are complete, with the same commands and links."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from docs.site import chinese, start

from longpoll_spec.bounds import named
from longpoll_spec.mutants.explorer import law_data
from longpoll_spec.policy import preset
from longpoll_spec.render.export.explorer.page import part

HAN: Final = re.compile(r"[\u4e00-\u9fff]")
PLACES: Final = re.compile(r"\{\d\}")
SAID: Final = re.compile(r"\b(?:say|fault)\(\s*(\"(?:[^\"\\]|\\.)*\")")
TYPED: Final = re.compile(r">([^<>@]*[A-Za-z]{2}[^<>@]*)<|aria-label=\"([^\"]*)\"")
OF_THE_PAGE: Final = {"English", "中文", "Home"}
"""Words of the page template that are the same in each language."""
PATTERNS: Final = ("forgets to write", "forgets what its guard says of", "takes the other case for")


def typed(page: str) -> set[str]:
    found = {(text or label).strip() for text, label in TYPED.findall(page.partition("<body>")[2])}
    return found - OF_THE_PAGE


def said(script: str) -> set[str]:
    return {json.loads(text) for text in SAID.findall(script)}


def told(data: dict[str, Any]) -> set[str]:
    """Return all texts of the specification: sentences, thread names, phrases with words in them, mutants and sizes."""
    texts = data["texts"]
    found = {texts[entry[key]] for entry in data["entries"] for key in ("sentence", "thread") if key in entry}
    places = {texts[entry["place"]] for entry in data["entries"] if "place" in entry}
    found |= {each for each in places if re.search(r", its |\(client\)|only in|not in|without", each)}
    for slip in data["slips"]:
        what = re.sub(r"^\(.*?\) ", "", slip["what"])
        kind = next((each for each in PATTERNS if what.startswith(each)), None)
        found.add(f"{kind} {{0}}" if kind else what)
    return found | {word for law in data["laws"] for word in re.findall(r"([a-z ]+?) \d+", law["sizes"])}


def lacking(words: dict[str, str], wanted: set[str]) -> list[str]:
    """Return English texts that have no Chinese text, or whose Chinese text has other placeholders."""
    wrong = {each for each in wanted if not HAN.search(words.get(each, "")) and re.search("[A-Za-z]{2}", each)}
    odd = {each for each in wanted if sorted(PLACES.findall(each)) != sorted(PLACES.findall(words.get(each, each)))}
    return sorted(wrong | odd)


@pytest.fixture(scope="module")
def wanted() -> set[str]:
    law = json.loads(law_data(preset(start.POLICY), partial(named, "tiny")))
    law_words = {word.strip() for word in told(law)}
    return typed(part("page.html")) | said(part("page.js")) | said(part("law.js")) | law_words


def test_every_text_of_the_explorer_is_translated(wanted: set[str]) -> None:
    words = json.loads(part("zh.json"))

    assert lacking(words, wanted) == []
    assert len(wanted) > 150
    spare = set(words) - wanted - {"queues", "tags"}  # The sizes `queues` and `tags` do not occur in the bounds `tiny`.
    assert {each for each in spare if each.strip() not in wanted} == set()


def test_every_text_of_the_start_page_is_translated() -> None:
    pages = start.pages()
    for key, words in start.WORDS.items():
        assert set(words) == set(start.LANGUAGES), key
        assert HAN.search(words["zh"]) or key == "other", key
    assert "?lang=zh" in pages["zh/index.md"]
    assert "(zh/index.md)" in pages["index.md"]
    # This text is in the README's section about evidence.
    assert "findings](findings.md) in RocketMQ's pull path" in pages["index.md"]
    assert "(../index.md)" in pages["zh/index.md"]


@pytest.mark.parametrize("pair", chinese.pairs(), ids=lambda pair: pair[0].stem)
def test_a_lesson_is_the_same_in_chinese(pair: tuple[Path, Path]) -> None:
    assert chinese.differences(*pair) == []


GLOSS: Final = re.compile(r"\*([\u4e00-\u9fff]+)\*（([a-z][a-z ]*)）")
ROW: Final = re.compile(r"^\| ([\u4e00-\u9fff]+) \| ([a-z -]+) \|", re.MULTILINE)
OWN: Final = {"event", "by construction"}
"""Words that a lesson explains in its own text."""


def test_a_term_has_one_translation_in_all_pages() -> None:
    """English words of the lessons are in the word list, and every word of the list is used."""
    rows = ROW.findall((chinese.CHINESE / "terms.md").read_text("utf-8"))
    words = dict(rows)
    lessons = "".join(page.read_text("utf-8") for _, page in chinese.pairs())
    glossed = {(word, english) for word, english in GLOSS.findall(lessons) if english not in OWN}

    assert len(rows) == len(words) == len(set(words.values())) > 40
    assert len(glossed) > 15
    assert {each for each in glossed if words.get(each[0]) != each[1]} == set()
    assert [word for word in words if word not in lessons + part("zh.json")] == []

"""The Markdown pages of the site before Sphinx reads them: their paths, and links within the site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from docs.site import build, commands, tree

import longpoll
from longpoll.cli import COMMANDS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda: {tree.DOCS / "injected.md": "injected.md"}, r"no place in docs/site/sections\.py for injected\.md$"),
        (lambda: longpoll.__all__.append("Injected"), r"sections\.py and longpoll\.__all__ differ: Injected$"),
    ],
)
def test_a_page_or_a_name_without_a_section_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Callable[[], dict[Path, str] | None], said: str
) -> None:
    monkeypatch.setattr(longpoll, "__all__", [*longpoll.__all__])
    found = tree.places() | (changed() or {})
    monkeypatch.setattr(tree, "places", lambda: found)

    with pytest.raises(SystemExit, match=said):
        build.main(tmp_path / "site", tmp_path / "source")


def test_links_lead_into_the_site(tmp_path: Path) -> None:
    page = tree.DOCS / "injected.md"
    page_text = (
        "[a](model.md#why) [b](../README.md) [c](../spec/longpoll_spec/errors.py) [d](../spec/longpoll_spec/terms)"
    )

    with pytest.raises(tree.TreeError, match=r"injected\.md: no file \.\./spec/longpoll_spec/terms"):
        tree.linked(page_text, page, "injected.md", tree.places(), tmp_path)
    said = tree.linked(page_text.rpartition(" ")[0], page, "injected.md", tree.places(), tmp_path)
    assert said == "[a](model.md#why) [b](project/readme.md) [c](files/spec/longpoll_spec/errors.py.txt)"
    assert "class LongpollError" in (tmp_path / "files/spec/longpoll_spec/errors.py.txt").read_text()


def test_a_list_of_pages_has_the_first_sentence_of_each() -> None:
    assert tree.first_sentence("# A\n\n[中文](zh/a.md)\n\nYou [test](b.md) it. Then\nmore:\n") == "You test it."
    assert tree.first_sentence("# A\n\n```text\nno\n```\n\nA page\nof `x`:\n\n- an item\n") == "A page of `x`"


def test_no_line_of_chinese_prose_ends_in_a_space() -> None:
    """A paragraph becomes one line; headings, lists, details and blocks keep their lines."""
    page = "# 课\n\n一句。\n“二”句，\n`a` 三句\nABC\n- 项\n1. 项\n<details>\n\n```text\n一\n二\n```\n四\n五\n"

    said = tree.unbroken(page)
    assert said == page.replace("句。\n“", "句。“").replace("，\n`", "，`").replace("句\nA", "句A").replace(
        "四\n五", "四五"
    )
    assert tree.unbroken("one\ntwo\n") == "one\ntwo\n"


def test_every_command_has_a_page_with_its_options() -> None:
    pages = commands.pages()

    assert set(pages) == {"index.md", *(f"{name}.md" for name in COMMANDS)}
    assert "| `--policy" in pages["check.md"]
    assert "## longpoll store verify" in pages["store.md"]
    assert "```text\nExamples:\n  longpoll explain TOKEN\n" in pages["explain.md"]

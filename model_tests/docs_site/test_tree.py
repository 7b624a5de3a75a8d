"""The pages of the site before Sphinx reads them: each has its place, links lead into the site, diagrams are whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from docs.site import build, commands, diagrams, tree
from docs.site.diagrams import DiagramError, drawn

import longpoll
from longpoll.cli import COMMANDS

MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda: {tree.DOCS / "injected.md": "injected.md"}, r"no place in docs/site/sections\.py for injected\.md$"),
        (lambda: longpoll.__all__.append("Injected"), r"sections\.py and longpoll\.__all__ differ: Injected$"),
    ],
)
def test_a_page_or_a_name_without_a_section_ends_the_build(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[[], dict[Path, str] | None], said: str
) -> None:
    """`make docs` ends with one sentence that names it, before it makes a page."""
    monkeypatch.setattr(longpoll, "__all__", [*longpoll.__all__])
    found = tree.places() | (changed() or {})
    monkeypatch.setattr(tree, "places", lambda: found)

    with pytest.raises(SystemExit, match=said):
        build.main()


def test_links_lead_into_the_site(tmp_path: Path) -> None:
    """To an anchor, else to a copy of the file. Broken links are named; blocks are left alone."""
    page = tree.DOCS / "injected.md"
    page_text = (
        "[a](law.md#why) [b](../README.md) [c](../spec/longpoll_spec/errors.py) [d](../spec/longpoll_spec/terms)"
    )

    with pytest.raises(tree.TreeError, match=r"injected\.md: no file \.\./spec/longpoll_spec/terms"):
        tree.linked(page_text, page, "injected.md", tree.places(), tmp_path)
    said = tree.linked(page_text.rpartition(" ")[0], page, "injected.md", tree.places(), tmp_path)
    assert said == "[a](law.md#why) [b](project/readme.md) [c](files/spec/longpoll_spec/errors.py.txt)"
    assert "class LongpollError" in (tmp_path / "files/spec/longpoll_spec/errors.py.txt").read_text()


def test_no_line_of_chinese_prose_ends_in_a_space() -> None:
    """A paragraph is one line; headings, lists, details and blocks keep theirs."""
    page = "# 课\n\n一句。\n“二”句，\n`a` 三句\nABC\n- 项\n1. 项\n<details>\n\n```text\n一\n二\n```\n四\n五\n"

    said = tree.unbroken(page)
    assert said == page.replace("句。\n“", "句。“").replace("，\n`", "，`").replace("句\nA", "句A").replace(
        "四\n五", "四五"
    )
    assert tree.unbroken("one\ntwo\n") == "one\ntwo\n"


def test_every_diagram_of_the_docs_is_drawn() -> None:
    """With each of its nodes and words."""
    texts = [*tree.generated().values(), *(page.read_text("utf-8") for page in tree.places() if page.is_file())]
    blocks = [block for text in texts for block in MERMAID.findall(text)]

    assert len(blocks) >= 7
    for block in blocks:
        picture = drawn(block)
        assert picture.startswith("<svg ")
        assert picture.count("<polygon") >= block.count(">") - block.count("<br/>") - block.count("->>") * 2


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("pie\n", "no diagram begins with 'pie'"),
        ("flowchart LR\n  a ==> b\n", "no arrow at ' ==> b'"),
        ("stateDiagram-v2\n  a -> b\n", "no move: 'a -> b'"),
        ("sequenceDiagram\n  participant A as a\n  A->>B: x\n", "no participant or message: 'A->>B: x'"),
    ],
)
def test_a_injected_line_that_is_not_understood_is_named(source: str, said: str) -> None:
    """Nothing is left out without a word."""
    with pytest.raises(DiagramError, match=re.escape(said)):
        drawn(source)


def test_a_chain_of_arrows_is_followed() -> None:
    """Each arrow of a line, with its words, from node to node."""
    names: dict[str, str] = {}
    edges = list(diagrams.chain("a[first one] -- goes --> b -->|by| c -. seen .-> d[(store)]", names))

    assert names == {"a": "first one", "b": "b", "c": "c", "d": "store"}
    assert [(edge.source, edge.target, edge.words, edge.dashed) for edge in edges] == [
        ("a", "b", "goes", False),
        ("b", "c", "by", False),
        ("c", "d", "seen", True),
    ]


def test_every_command_has_a_page_with_its_options() -> None:
    """Subcommands too; texts that keep their line breaks are in a block."""
    pages = commands.pages()

    assert set(pages) == {"index.md", *(f"{name}.md" for name in COMMANDS)}
    assert "| `--policy" in pages["check.md"]
    assert "## longpoll store verify" in pages["store.md"]
    assert "```text\nExamples:\n  longpoll explain TOKEN\n" in pages["explain.md"]

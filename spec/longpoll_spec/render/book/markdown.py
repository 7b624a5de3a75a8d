"""Markdown building blocks of the book: tables, raw HTML, links, lists, and two texts side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

Lines = Iterator[str]


def toctree(names: Iterable[str]) -> Lines:
    """The list of pages in Sphinx's sidebar."""
    yield from ("", "```{toctree}", ":hidden:", "", *names, "```")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """A table; bars in cells are escaped."""
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    yield ""


def raw(html: str) -> Lines:
    """HTML as it is, in an area that scrolls."""
    yield from ("```{raw} html", f'<div class="lp-scroll" tabindex="0" role="region" aria-label="Formula">{html}</div>')
    yield from ("```", "")


def links(names: Iterable[str], folder: str) -> str:
    """Links to pages of a folder, by their names; a remark if there are none."""
    return ", ".join(f"[`{name}`]({folder}{name}.md)" for name in names) or "none"


def two(pairs: Iterable[tuple[str, str]], heads: tuple[str, str]) -> Lines:
    """Two texts side by side; lines that differ are marked."""
    rows = "".join(
        f"<tr{'' if left == right else ' class=lp-other'}>"
        f"<td><code>{escape(left)}</code></td><td><code>{escape(right)}</code></td></tr>"
        for left, right in pairs
    )
    head = "".join(f"<th scope=col>{escape(each)}</th>" for each in heads)
    yield from raw(f'<table class="lp-sides"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>')

"""Makes the generated pages accessible by keyboard and screen reader, where Sphinx and the theme do not.

The keyboard reaches every area that scrolls, each landmark has its own name, the search page has a heading, and the
empty corner of a table is not a heading. A test checks every page with axe-core.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

_PLAIN: Final = {
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
}
_SEARCHED: Final = re.compile(r'(?<!</h1>)(<div id="search-results")')
_CORNER: Final = re.compile(r'<th class="(head[^"]*)">(?:<p>\s*</p>)?\s*</th>')
_SCROLLS: Final = re.compile(r"<(pre|figure|table)(?![^>]*tabindex)(?=[ >])")
_FORMULA: Final = re.compile(r'role="region" aria-label="Formula"')


def mended(page: str) -> str:
    """Return the page with its accessibility problems fixed."""
    for before, after in _PLAIN.items():
        page = page.replace(before, after)
    page = _CORNER.sub(r'<td class="\1"></td>', page)
    page = _SEARCHED.sub(r"<h1>Search</h1>\1", page)
    page = _SCROLLS.sub(r'<\1 tabindex="0"', page)
    return _FORMULA.sub(_numbered(), page)


def _numbered() -> Callable[[re.Match[str]], str]:
    numbers = count(1)
    return lambda _: f'role="region" aria-label="Formula {next(numbers)}"'


def mend(site: Path, made_by_hand: frozenset[str]) -> None:
    """Fix every page in the folder `site`, except in the subfolders `made_by_hand`, which Sphinx does not generate."""
    for path in site.rglob("*.html"):
        if path.relative_to(site).parts[0] not in made_by_hand:
            path.write_text(mended(path.read_text("utf-8")), encoding="utf-8")

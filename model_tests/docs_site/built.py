"""The site, built once for all tests of a run, and helpers that search its pages."""

from __future__ import annotations

import os
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from attrs import define, field
from docs.site.build import SITE, SOURCE, build

FETCHED: Final = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""HTML element -> its attribute with the address of a file that a browser fetches without a click."""


@define
class Page(HTMLParser):
    links: list[str] = field(factory=list)
    fetched: list[str] = field(factory=list)
    ids: set[str] = field(factory=set)

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if known.get("id"):
            self.ids.add(str(known["id"]))
        if tag == "a" and known.get("href"):
            self.links.append(str(known["href"]))
        name = FETCHED.get(tag)
        if name and known.get(name):
            self.fetched.append(str(known[name]))


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


def lost_links(site: Path) -> list[str]:
    """Return "page: link" for every link within the site whose file or anchor does not exist."""
    pages = {path: read(path) for path in site.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in (*page.links, *page.fetched):
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            meant = Path(os.path.normpath(path.parent / unquote(where.path))) if where.path else path
            entered = not where.fragment or meant not in pages or unquote(where.fragment) in pages[meant].ids
            if not meant.is_file() or not entered:
                lost.append(f"{path.relative_to(site)}: {link}")
    return lost


def fetched_elsewhere(site: Path) -> list[str]:
    """Return "page: address" for every resource that a browser would load from another site."""
    return [
        f"{path.relative_to(site)}: {address}"
        for path in site.rglob("*.html")
        for address in read(path).fetched
        if urlsplit(address).netloc
    ]


@cache
def built_site() -> Path:
    """Return the site in `build/site`, built once per process; a warning of Sphinx fails the test."""
    ran = build(SITE, SOURCE)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout == ""
    return SITE

"""The built site has no warning, no broken link and no external resource, and lists each page."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from docs.site import tree
from docs.site.start import EXPLORER
from model_tests.docs_site.built import fetched_elsewhere, lost_links, read

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("site")]


def test_every_page_exists_and_is_listed(site: Path) -> None:
    listed = {link.partition("#")[0] for link in read(site / "search.html").links}

    for place in tree.places().values():
        page = place.removesuffix(".md") + ".html"
        assert (site / page).is_file(), page
        assert page in listed, page


def test_the_list_marks_the_page_that_is_shown(site: Path) -> None:
    text = (site / "lessons/1-lost-by-hold.html").read_text("utf-8")

    assert len(re.findall(r'<li class="toctree-l\d current', text)) == 3
    assert re.search(r'current-page[^>]*><a class="reference internal" href="#">1\. ', text)


def test_every_link_has_a_target(site: Path, tmp_path: Path) -> None:
    assert lost_links(site) == []
    (tmp_path / "a.html").write_text('<a href="b.html">1</a><a href="#here">2</a><a href="#there">3</a><p id="here">')
    assert lost_links(tmp_path) == ["a.html: b.html", "a.html: #there"]


def test_nothing_is_fetched_from_elsewhere(site: Path, tmp_path: Path) -> None:
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))

    assert fetched_elsewhere(site) == []
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//\S+", styles) == []
    (tmp_path / "a.html").write_text('<script src="https://example.org/x.js"></script><a href="https://example.org">')
    assert fetched_elsewhere(tmp_path) == ["a.html: https://example.org/x.js"]


def test_pages_have_their_generated_parts(site: Path) -> None:
    start, api = ((site / page).read_text("utf-8") for page in ("index.html", "api/longpoll.html"))

    assert EXPLORER in read(site / "index.html").fetched
    assert (site / EXPLORER).stat().st_size < 1_000_000
    assert "lost_by_hold is violated" in start
    assert f"longpoll {version('longpoll')}" in start
    assert re.search(r"Last updated on \d\d \w+ 20\d\d", start)
    assert 'id="longpoll.Broker"' in api
    assert 'id="longpoll.Producer.send"' in api
    assert "--knob" in (site / "commands" / "check.html").read_text("utf-8")

"""The site as Sphinx makes it: no warning, no lost link, nothing fetched from elsewhere, and every page listed."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from docs.site import tree
from docs.site.start import EXPLORER
from model_tests.docs_site.built import build_or_skip, fetched_elsewhere, lost_links, read

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, and what was said."""
    return build_or_skip(tmp_path_factory)


def test_nothing_is_warned_of(made: tuple[Path, str]) -> None:
    """A warning is an error, and there is none."""
    assert made[1] == ""


def test_every_page_is_there_and_listed(made: tuple[Path, str]) -> None:
    """Each page of the docs is one of the site, and the list at the left leads to it."""
    site, _ = made
    listed = {link.partition("#")[0] for link in read(site / "search.html").links}

    for place in tree.places().values():
        page = place.removesuffix(".md") + ".html"
        assert (site / page).is_file(), page
        assert page in listed, page


def test_every_link_leads_somewhere(made: tuple[Path, str], tmp_path: Path) -> None:
    """To a file, and to a place in it; a planted one that does not is seen."""
    site, _ = made

    assert lost_links(site) == []
    (tmp_path / "a.html").write_text('<a href="b.html">1</a><a href="#here">2</a><a href="#there">3</a><p id="here">')
    assert lost_links(tmp_path) == ["a.html: b.html", "a.html: #there"]


def test_nothing_is_fetched_from_elsewhere(made: tuple[Path, str], tmp_path: Path) -> None:
    """No font, script or picture of a page needs the network; a planted one that does is seen."""
    site, _ = made
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))

    assert fetched_elsewhere(site) == []
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//\S+", styles) == []
    (tmp_path / "a.html").write_text('<script src="https://example.org/x.js"></script><a href="https://example.org">')
    assert fetched_elsewhere(tmp_path) == ["a.html: https://example.org/x.js"]


def test_the_start_page_has_the_race_and_the_explorer(made: tuple[Path, str]) -> None:
    """Its picture, the page that runs the law, the version and the date."""
    site, _ = made
    text = (site / "index.html").read_text("utf-8")

    assert EXPLORER in read(site / "index.html").fetched
    assert (site / EXPLORER).stat().st_size < 1_000_000
    assert "lost_by_hold is violated" in text
    assert f"longpoll {version('longpoll')}" in text
    assert re.search(r"Last updated on \d\d \w+ 20\d\d", text)


def test_names_of_commands_and_of_python_are_told(made: tuple[Path, str]) -> None:
    """A page for each command, and each public name with its signature."""
    site, _ = made
    api = (site / "api" / "longpoll.html").read_text("utf-8")

    assert 'id="longpoll.Broker"' in api
    assert 'id="longpoll.Producer.send"' in api
    assert "--knob" in (site / "commands" / "check.html").read_text("utf-8")

"""The site in a real browser, narrow and wide, light and dark: no content is truncated, and no network is used."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from docs.site.start import EXPLORER
from model_tests.support.browser import Browser

pytestmark = [pytest.mark.peers, pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.xdist_group("site")]
FINDING: Final = "findings/a-a-message-between-read-and-hold-lost-wakeup.html"
PAGES: Final = (
    "index.html",
    "try-it.html",
    "findings.html",
    FINDING,
    "architecture.html",
    "protocol.html",
    "polling.html",
    "lessons/1-lost-by-hold.html",
    "commands/check.html",
    "api/longpoll.html",
    "clauses.html",
)
SCREENS: Final = [(width, dark) for width in (390, 1_400) for dark in (False, True)]
CUT_OFF: Final = """
(() => {
  const bad = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) bad.push(`the page is ${wide} px too wide`);
  const kinds = "svg.lp-lanes[viewBox]";
  for (const svg of document.querySelectorAll(kinds)) {
    if (!svg.getClientRects().length) continue; // drawn for another width of screen
    const sheet = svg.viewBox.baseVal;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBBox(), where = text.getCTM().multiply(svg.getCTM().inverse());
      const x = box.x + where.e / (where.a || 1);
      if (x < sheet.x - 1 || x + box.width > sheet.x + sheet.width + 1) bad.push(`${text.textContent} is cut off`);
    }
  }
  const main = document.querySelector("article") || document.body;
  const over = main.scrollWidth - main.clientWidth - 8; // headings of the theme stand out by these
  if (over > 1) bad.push(`the text is ${over} px too wide`);
  for (const element of main.querySelectorAll("p, li, h1, h2, h3, td, pre, figure, table")) {
    const box = element.getBoundingClientRect();
    if (!box.width) continue;
    let scrolls = false;
    for (let up = element; up && up !== main; up = up.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) scrolls = true;
    }
    if (!scrolls && box.right > innerWidth + 1) bad.push(`${element.tagName} ${element.textContent.slice(0, 40)}`);
  }
  return bad;
})()
"""
"""A script that finds truncated content and content beyond the edge, except in scrolling areas."""
HIDDEN: Final = """
[...document.querySelectorAll("article, article *")]
  .filter((each) => each.getClientRects().length && getComputedStyle(each).overflowX !== "visible")
  .filter((each) => each.scrollWidth > each.clientWidth + 2)
  .map((each) => `${each.tagName} ${each.textContent.trim().slice(0, 40)}`)
"""
"""A script that finds scrolling areas whose content beyond the visible beginning would be missing in print."""
PAPER_PX: Final = 718
"""The width of A4 without its margins."""
LIGHTNESS: Final = """
(() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  return (r + g + b) / 3; })()
"""


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_no_content_is_truncated_and_no_network_is_used(browser: Browser, site: Path, width: int, dark: bool) -> None:
    for page in PAGES:
        browser.show(site / page, width=width, dark=dark)
        assert browser.run(CUT_OFF) == [], page
        assert [each for each in browser.addresses if not each.startswith(("file:", "data:", "blob:"))] == [], page
        assert (browser.run(LIGHTNESS) < 128) == dark, page
        assert browser.picture().startswith(b"\x89PNG"), page


def lost_on_paper(browser: Browser) -> list[str]:
    browser.call("Emulation.setEmulatedMedia", media="print")
    found = [*browser.run(CUT_OFF), *browser.run(HIDDEN)]
    browser.call("Emulation.setEmulatedMedia", media="")
    return found


def test_no_content_is_truncated_in_print(browser: Browser, site: Path) -> None:
    """In print, lines wrap and pictures shrink instead of scrolling. Without the print style sheet the test fails."""
    for page in PAGES:
        browser.show(site / page, width=PAPER_PX, dark=False)
        assert lost_on_paper(browser) == [], page

    browser.show(site / FINDING, width=PAPER_PX, dark=False)
    browser.run("for (const each of document.querySelectorAll('link[rel=stylesheet]'))"
                " if (each.href.includes('site.css')) each.remove()")  # fmt: skip
    assert any(each.startswith("PRE longpoll explain") for each in lost_on_paper(browser))


def test_a_word_is_searched_without_a_server(browser: Browser, site: Path) -> None:
    browser.show(site / "search.html", width=1_400, dark=False)
    browser.call("Page.navigate", url=(site / "search.html").as_uri() + "?q=commit_never_regresses")

    found = browser.run(
        "new Promise(done => { const look = () => {"
        " const links = [...document.querySelectorAll('#search-results a')].map(each => each.getAttribute('href'));"
        " if (links.some(each => each.startsWith('findings/h-'))) done(true); else requestAnimationFrame(look); };"
        " addEventListener('load', look); if (document.readyState === 'complete') look(); })"
    )
    assert found


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(site)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"port (\d+)", server.stdout.readline())
            assert found is not None
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("zh/index.html", "document.querySelector('iframe.lp-explorer') !== null"),
        ("search.html?q=commit_never_regresses", "document.querySelectorAll('#search-results a').length > 0"),
        (f"{EXPLORER}?lang=zh", "document.querySelectorAll('#enabled button').length > 0"),
    ],
)
def test_the_site_works_on_pythons_own_server(browser: Browser, served: str, page: str, shown: str) -> None:
    """A browser permits more to served pages than to `file:` pages; no other site is contacted."""
    browser.call("Page.navigate", url="about:blank")
    browser.addresses.clear()
    browser.call("Page.navigate", url=f"{served}/{page}")
    browser.until(f"location.protocol === 'http:' && document.readyState === 'complete' && {shown}")

    assert browser.addresses
    assert [each for each in browser.addresses if not each.startswith((served, "data:", "blob:"))] == []


def test_a_step_is_taken_on_the_start_page(browser: Browser, site: Path) -> None:
    browser.show(site / "index.html", width=1_400, dark=False)
    frame = browser.run("document.querySelector('iframe.lp-explorer').getAttribute('src')")
    browser.show(site / frame, width=1_400, dark=False)
    browser.run("document.querySelector('#enabled button').click()")

    assert browser.run("location.hash.slice(1)").startswith("lp1.")
    assert browser.run("document.querySelectorAll('#story li').length") == 1

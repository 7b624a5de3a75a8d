"""axe-core finds no violation in the pages of the site, and finds an injected fault of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from docs.site.accessible import mended
from docs.site.start import EXPLORER
from model_tests.docs_site.axe_core import fetched, violations
from model_tests.docs_site.test_seen import PAGES
from model_tests.support.browser import Browser

pytestmark = [pytest.mark.peers, pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.xdist_group("site")]
KINDS: Final = (
    *PAGES,
    EXPLORER,
    f"{EXPLORER}?lang=zh",
    "zh/index.html",
    "lessons/zh/1-lost-by-hold.html",
    "slides.html",
    "slides/1-lost-by-hold.html",
    "slides/zh/1-lost-by-hold.html",
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fetched(tmp_path_factory.mktemp("axe"))


CHOOSE: Final = """
const choose = (which, test) => {
  const box = typeof which === "string" ? document.querySelector(which) : which;
  box.value = [...box.options].find(test).value;
  box.dispatchEvent(new Event("change"));
};
const texted = (words) => (each) => each.text === words;
const place = (named) => document.querySelector(`[data-place="${named}"]`);
"""
SEARCHED: Final = """
new Promise((done) => { const look = () => document.querySelector("#progress").innerText.match(/depth|深度/)
  ? done() : setTimeout(look, 20); look() })
"""
USED: Final = {
    "a run": """
      for (let step = 0; step < 9; step += 1) document.querySelector("#enabled button").click();
      document.querySelector("#back").click()
    """,
    "a line struck out, and what its search has found": """
      choose("#text", texted("hold"));
      place("phase").querySelector("button").click()
    """,
    "a part of a guard turned round beside another line": """
      choose("#text", texted("notify_end"));
      choose(place("phase").querySelector("select"), (each) => each.value.includes("takes the other case"));
      choose("#text", texted("hold"));
      choose(place("what its guard says of phase").querySelector("select"),
             (each) => each.value.includes("turns round"))
    """,
    "a slip": 'choose("#slip", (each) => each.value !== "")',
    "two knobs, which close the place of a change by hand": """
      choose("#knob", texted("recheck_after_hold=after_insert"));
      choose("#knob2", texted("recheck=walk"));
      document.querySelector("#search").click()
    """,
    "an address that names no run": """
      history.replaceState(null, "", "#lp1.none");
      dispatchEvent(new Event("hashchange"))
    """,
}
"""Action of a reader in the explorer -> a script that does it; each script leaves a different page to check."""
SEARCHES: Final = {name for name in USED if name not in {"a run", "an address that names no run"}}


def used(browser: Browser, site: Path, name: str, *, language: str, width: int, dark: bool) -> None:
    """Open the explorer in the browser, do the named action, and wait until the explorer's search has ended."""
    # A blank page is loaded first, because the current address may contain a token, which would restore the previous
    # run.
    browser.call("Page.navigate", url="about:blank")
    show(browser, f"{EXPLORER}?lang={language}", site, width=width, dark=dark)
    browser.run(f"void (() => {{ {CHOOSE} {USED[name]} }})()")
    if name in SEARCHES:
        browser.run(SEARCHED)


def show(browser: Browser, address: str, site: Path, *, width: int, dark: bool) -> None:
    page, _, asked = address.partition("?")
    browser.show(site / page, width=width, dark=dark)
    if asked:
        language = asked.removeprefix("lang=")
        browser.call("Page.navigate", url=f"{(site / page).as_uri()}?{asked}")
        browser.run("new Promise(done => { const look = () => location.search && document.readyState === 'complete'"
                    f" && document.documentElement.lang.startsWith('{language}') ? done() : setTimeout(look, 20);"
                    " look() })")  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), [(1_400, True), (390, False), (390, True)])
def test_each_kind_of_page_on_each_screen(browser: Browser, site: Path, axe: str, width: int, dark: bool) -> None:
    """Narrow screens have more scrolling areas than wide ones, and dark mode has other colours."""
    found = {}
    for address in KINDS:
        show(browser, address, site, width=width, dark=dark)
        found[address] = violations(browser, axe)
    assert {address: wrong for address, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("language", "width", "dark"), [("en", 1_400, False), ("en", 390, True), ("zh", 1_400, True), ("zh", 390, False)]
)
def test_the_explorer_in_use(browser: Browser, site: Path, axe: str, *, language: str, width: int, dark: bool) -> None:
    found = {}
    for name in USED:
        used(browser, site, name, language=language, width=width, dark=dark)
        found[name] = violations(browser, axe)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("document.querySelectorAll('#places select').forEach((each) => { each.ariaLabel = '' })", "select-name"),
        ("const box = document.querySelector('#places button'); box.textContent = box.ariaLabel = ''", "button-name"),
        ("document.querySelectorAll('#places del').forEach((each) => { each.style.color = '#aaa' })", "color-contrast"),
        ("document.querySelector('#places').ariaChecked = 'yes'", "aria-allowed-attr"),
    ],
)
def test_an_injected_fault_in_the_readers_changes_is_found(
    browser: Browser, site: Path, axe: str, fault: str, rule: str
) -> None:
    """The injected fault is in elements that a script creates when a reader changes the specification."""
    name = "a line struck out, and what its search has found"
    used(browser, site, name, language="en", width=1_400, dark=False)
    assert "hold forgets to write phase" in browser.run("document.querySelector('#changes').innerText")
    browser.run(f"{{ {fault} }}")

    assert rule in {each.partition(":")[0] for each in violations(browser, axe)}


def test_every_page(browser: Browser, site: Path, axe: str) -> None:
    found = {}
    for path in sorted(site.rglob("*.html")):
        browser.show(path, width=1_400, dark=False)
        found[path.relative_to(site).as_posix()] = violations(browser, axe)
    assert len(found) > 200
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("document.querySelectorAll('article p').forEach((each) => { each.style.color = '#ddd' })", "color-contrast"),
        ("document.documentElement.removeAttribute('lang')", "html-has-lang"),
        ("document.querySelector('article').insertAdjacentHTML('beforeend', '<img src=\"data:,\">')", "image-alt"),
        ("document.querySelector('article pre').tabIndex = -1", "scrollable-region-focusable"),
    ],
)
def test_an_injected_fault_in_a_page_is_found(browser: Browser, site: Path, axe: str, fault: str, rule: str) -> None:
    """An injected fault in a page without violations is found."""
    browser.show(site / "lessons" / "1-lost-by-hold.html", width=390, dark=False)
    assert violations(browser, axe) == []
    browser.run(f"void ({fault})")

    assert {each.partition(":")[0] for each in violations(browser, axe)} == {rule}


def test_known_violations_are_fixed() -> None:
    """Scrolling areas have one tab stop, a corner cell is no heading, and landmarks have different names."""
    page = '<th class="head"><p></p></th><pre>a</pre><pre tabindex="0">b</pre><th class="head">c</th><prefix>'
    region = '<div role="region" aria-label="Formula">'

    assert mended(page) == (
        '<td class="head"></td><pre tabindex="0">a</pre><pre tabindex="0">b</pre><th class="head">c</th><prefix>'
    )
    assert mended(mended(page)) == mended(page)
    searched = '<h1>Search</h1><div id="search-results"></div>'
    assert mended(searched.removeprefix("<h1>Search</h1>")) == mended(searched) == searched
    assert mended(region * 2).count("Formula 1") == mended(region * 2).count("Formula 2") == 1

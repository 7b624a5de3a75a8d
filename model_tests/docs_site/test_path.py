"""Click through the site as a newcomer: from the start page to a lost wakeup, and to a mutant that a property detects.

Each click hits an element that is visible on the screen. docs/explorer.md states the number of clicks. The test prints
the time of clicks and searches next to the limits, but does not assert the time:

    pytest -m 'peers and long' -s model_tests/docs_site/test_path.py
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from attrs import define
from click.testing import CliRunner
from docs.site.start import LOST
from model_tests.support.browser import Browser

from longpoll.cli import main
from longpoll_spec.engines.tokens import replay

pytestmark = [pytest.mark.peers, pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.xdist_group("site")]
TO_LOST_MAX_S: Final = 60
TO_CAUGHT_MAX_S: Final = 600
"""The time limit in seconds that the course promises a reader, including thinking. The test only prints it."""
CLICKS_TO_LOST: Final = 7
CLICKS_TO_CAUGHT: Final = 9
CLICKS_TO_STORY: Final = 10
STRUCK: Final = "phase_0 := held"
CATCHER: Final = "time_can_pass"
PLACE: Final = """
(() => {{
  const shown = (each) => each.getClientRects().length && getComputedStyle(each).visibility === "visible";
  const seen = (each) => shown(each) && !each.disabled;
  const found = [...document.querySelectorAll("a, button")].filter(seen)
    .filter((each) => {{ const words = each.ariaLabel || each.textContent.trim(); return {test} }});
  if (found.length !== 1) return null;
  found[0].scrollIntoView({{ block: "center", behavior: "instant" }});
  const box = found[0].getClientRects()[0];
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const there = document.elementFromPoint(x, y);
  return found[0] === there || found[0].contains(there) ? [x, y] : null;
}})()
"""
"""A script that finds the only visible link or button with a text; it returns null if none or several are visible."""
LOADED: Final = """
new Promise((done) => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 20); look() }})
"""


@define
class Reader:
    browser: Browser
    clicks: int = 0

    def click(self, words: str, *, begins: bool = False) -> None:
        """Click the only link or button whose text is, or begins with, these words."""
        wanted = json.dumps(words)
        test = f"words.startsWith({wanted})" if begins else f"words === {wanted}"
        place = self.browser.run(PLACE.format(test=test))
        assert place is not None, f"no visible element has the text {words!r}, or several have"
        self.browser.click(*place)
        self.clicks += 1

    def wait(self, condition: str) -> None:
        """Wait until a condition holds in the page that the browser shows at that time."""
        self.browser.until(LOADED.format(condition=condition))

    def sees(self, where: str) -> str:
        return str(self.browser.run(f"document.querySelector({json.dumps(where)}).innerText"))

    def reads(self, *labels: str) -> None:
        """Take the steps with these labels, with one click each."""
        for label in labels:
            before = self.sees("#command")
            place = self.browser.run(PLACE.format(test=f"each.dataset.action === {json.dumps(label)}"))
            assert place is not None, f"there is no button for {label}"
            self.browser.click(*place)
            self.clicks += 1
            self.wait(f"document.querySelector('#command').innerText !== {json.dumps(before)}")


@pytest.fixture
def start(browser: Browser, site: Path) -> tuple[Browser, Path]:
    return browser, site / "index.html"


@pytest.mark.parametrize("width", [1_400, 390])
def test_a_newcomer_gets_from_the_start_page_to_a_caught_mutant(start: tuple[Browser, Path], width: int) -> None:
    browser, page = start
    browser.call("Page.navigate", url="about:blank")
    reader = Reader(browser)
    began = time.monotonic()
    browser.show(page, width=width, dark=False)
    reader.click("Open the explorer in its own window")
    reader.wait("document.readyState === 'complete' && document.querySelector('#enabled button')")
    labels = [step.action.label for step in replay(LOST).steps if step.action]
    assert reader.sees("#broken") == ""
    reader.reads(*labels)
    to_lost_s = time.monotonic() - began

    assert reader.clicks == CLICKS_TO_LOST
    assert "lost_by_hold" in reader.sees("#broken")
    told = CliRunner().invoke(main, reader.sees("#command").split()[1:], env={"COLUMNS": "160"})
    assert told.exit_code == 0
    assert "lost_by_hold" in told.output
    token = str(browser.run("location.hash.slice(1)"))
    assert [step.action.label for step in replay(token).steps if step.action] == labels

    # The text of the last step is already open, and removing its line starts the search.
    reader.click(f"Strike out {STRUCK}")
    reader.wait("document.querySelector('#progress').innerText.includes('depth')")
    assert "Changed: hold forgets to write phase." in reader.sees("#changes")
    assert f"{CATCHER} catches your change." in reader.sees("#progress")
    reader.click(f"Show the shortest run that violates {CATCHER}")
    reader.wait(f"document.querySelector('#broken').innerText.includes('{CATCHER}')")
    to_caught_s = time.monotonic() - began

    assert reader.clicks == CLICKS_TO_CAUGHT
    assert browser.run("document.querySelectorAll('#story li').length") == 3
    assert "unchanged specifications only" in reader.sees("#command")
    reader.click("Undo all changes")
    reader.wait("document.querySelector('#changes').innerText === ''")
    assert reader.clicks == CLICKS_TO_STORY
    assert browser.complaints == []
    sys.stdout.write(
        f"{width} px: a lost wakeup after {CLICKS_TO_LOST} clicks and {to_lost_s:.1f} of {TO_LOST_MAX_S} s, "
        f"a mutant caught after {CLICKS_TO_CAUGHT} and {to_caught_s:.1f} of {TO_CAUGHT_MAX_S} s\n"
    )

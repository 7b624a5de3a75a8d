"""The judge's page in a real browser: nothing is cut off, the lost wakeup is seen at once, and long records scroll."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.judge.browser import Browser, open_browser
from model_tests.judge.test_picture import EVIL, LOST, hostile, looked
from model_tests.support.judge.faults import FAULTS, plant
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.histories import RECORDINGS
from model_tests.support.judge.recording import write

from longpoll_judge.show.page import render_html

pytestmark = pytest.mark.long

SCREENS: Final = [(width, dark) for width in (1_400, 390) for dark in (False, True)]
WATCH_CANVAS: Final = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  window.written.push([text, x, x + this.measureText(text).width, this.canvas.clientWidth]);
  return write.call(this, text, x, y);
};
"""
"""Notes each text that is drawn, where it begins and ends, and how wide its canvas is, in px."""
MEASURE: Final = r"""
(() => {
  const bad = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) bad.push(`the page is ${wide} px too wide`);
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const name = element.tagName + " " + element.textContent.slice(0, 40);
    const scrolls = element.parentElement.closest(".scroller");
    if (!scrolls && (box.right > innerWidth + 1 || box.left < -1)) bad.push(`${name} lies outside`);
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const range = document.createRange();
    range.selectNodeContents(element);
    const text = range.getBoundingClientRect();
    const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
    if (["TD", "TH"].includes(element.tagName) && lines > element.textContent.trim().split(/\s+/).length) {
      bad.push(`${name} is broken within a word`);
    }
    for (let up = element; up !== document.body; up = up.parentElement) {
      const style = getComputedStyle(up), around = up.getBoundingClientRect();
      if (style.overflowX !== "visible" && text.right > around.right + 1) bad.push(`${name} is cut off at its right`);
      if (["hidden", "clip"].includes(style.overflowY) && text.bottom > around.bottom + 1) {
        bad.push(`${name} is cut off below`);
      }
    }
  }
  for (const [text, left, right, width] of window.written) {
    if (width && (left < 0 || right > width)) bad.push(`the drawn text ${text} is cut off`);
  }
  return bad;
})()
"""
"""What is too wide, outside, cut off, or a cell of a table whose words are broken, in words."""
LONGEST: Final = """
(async (encoded, colour, top) => {
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  const shot = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const area = new OffscreenCanvas(shot.width, shot.height), pen = area.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const wanted = pen.getImageData(0, 0, 1, 1).data;
  pen.drawImage(shot, 0, 0);
  const seen = pen.getImageData(0, 0, shot.width, shot.height).data;
  let best = { length: 0, rows: 0 };
  const same = (at) => [0, 1, 2].every((part) => Math.abs(seen[at + part] - wanted[part]) < 8);
  for (let y = Math.ceil(top); y < shot.height; y++) {
    for (let x = 0, from = 0; x <= shot.width; x++) {
      if (x < shot.width && same((y * shot.width + x) * 4)) continue;
      if (x - from > best.length) best = { length: x - from, left: from, right: x - 1, y, rows: 1 };
      else if (x - from === best.length && best.length) best.rows += 1;
      from = x + 1;
    }
  }
  return best;
})
"""
"""The longest level line of one colour in a screenshot from a height on, and how many rows have one as long."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests, which watches what is drawn."""
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH_CANVAS)
        yield opened


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the lost wakeup of Java 4.9.7."""
    page = tmp_path_factory.mktemp("lost") / "page.html"
    page.write_text(render_html(*looked(RECORDINGS / LOST)))
    return page


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a record of 10,000 pulls and more, with a late answer."""
    directory = tmp_path_factory.mktemp("many")
    write(directory / "clean", simulate(Load(events=44_000)), simulated_meta(), events_per_part=10_000)
    plant(directory / "clean", "answer_delayed", directory / "history")
    result, drawn = looked(directory / "history")
    assert drawn.pulls_in_all >= 10_000
    (directory / "page.html").write_text(render_html(result, drawn))
    return directory / "page.html"


def lanes_top(browser: Browser) -> float:
    """Where the bars begin, below the axis and the visible end."""
    return float(browser.run("document.querySelector('#lanes').getBoundingClientRect().top")) + 84


def red(browser: Browser, name: str = "over") -> dict[str, Any]:
    """The longest level line in the colour of what is late, on the first screen and among the bars."""
    colour = browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
    shot = base64.b64encode(browser.picture()).decode()
    found: dict[str, Any] = browser.run(f"({LONGEST})({json.dumps(shot)}, {json.dumps(colour)}, {lanes_top(browser)})")
    return found


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_the_lost_wakeup_is_seen_at_once(browser: Browser, lost: Path, tmp_path: Path, width: int, dark: bool) -> None:
    """On the first screen: what is wrong in words, and a red bar over a good part of the width; nothing is cut off."""
    browser.show(lost, width=width, dark=dark)
    (tmp_path / "screen.png").write_bytes(browser.picture())
    line = red(browser)
    ends = browser.run("['h1', '.why'].map((name) => document.querySelector(name).getBoundingClientRect().bottom)")

    assert line["length"] > 0.4 * width
    assert line["rows"] >= 2
    assert max(ends) < line["y"]
    assert browser.run(MEASURE) == []
    assert browser.complaints == []
    assert browser.addresses == [lost.as_uri()]


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_a_page_of_many_pulls_fits(browser: Browser, many: Path, width: int, dark: bool) -> None:
    """Whole, zoomed in, and with a pull chosen."""
    browser.show(many, width=width, dark=dark)
    for doing in ("all", "in", "in", "out", "next", "first"):
        browser.run(f"document.querySelector('[data-do={doing}]').click()")
        browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert browser.run(MEASURE) == []
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert browser.run(MEASURE) == []
    assert browser.run("document.querySelectorAll('#pulls [role=row]').length") < 50
    assert browser.run("Number(document.getElementById('pulls').getAttribute('aria-rowcount'))") == 10_000


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("document.body.insertAdjacentHTML('beforeend', '<div style=\"width:3000px;height:9px\"></div>')", "too wide"),
        ("document.querySelector('.why').style.cssText = 'height:12px;overflow:hidden'", "cut off below"),
        ("document.querySelector('#pulls [role=cell]').textContent = 'x'.repeat(400)", "cut off at its right"),
        ("document.querySelector('h1').style.marginLeft = '-40px'", "lies outside"),
        (
            "document.querySelector('.rates td').style.cssText = 'display:block;overflow-wrap:anywhere;width:0'",
            "a word",
        ),
        ("document.querySelector('canvas').getContext('2d').fillText('x'.repeat(900), 5, 9)", "drawn text"),
    ],
)
def test_what_does_not_fit_is_noticed(browser: Browser, lost: Path, fault: str, told: str) -> None:
    browser.show(lost, width=390, dark=False)
    assert browser.run(MEASURE) == []
    browser.run(f"void ({fault})")
    assert any(told in one for one in browser.run(MEASURE))


def test_the_page_of_every_fault_fits(browser: Browser, clean: Path, tmp_path: Path) -> None:
    """And of a record with nothing in it; no script ends with an error."""
    planted = {name: tmp_path / name for name in FAULTS}
    for name, directory in planted.items():
        plant(clean, name, directory)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "meta.json").write_text('{"format_version":1,"sources":[]}')
    for directory in (*planted.values(), tmp_path / "nothing"):
        page = directory.with_suffix(".html")
        page.write_text(render_html(*looked(directory)))
        browser.show(page, width=390, dark=False)
        assert (directory.name, browser.run(MEASURE), browser.complaints) == (directory.name, [], [])


def test_a_clean_history_has_no_red(browser: Browser, clean: Path, tmp_path: Path) -> None:
    """Else the line of the lost wakeup would say nothing."""
    (tmp_path / "page.html").write_text(render_html(*looked(clean)))
    browser.show(tmp_path / "page.html", width=1_400, dark=False)

    assert red(browser)["length"] < 40
    assert red(browser, "pull")["length"] > 3
    assert browser.run(MEASURE) == []


def test_a_click_shows_the_line_of_the_record(browser: Browser, lost: Path) -> None:
    """At the end of the late bar its answer; on the visible end what told of it."""
    browser.show(lost, width=1_400, dark=False)
    line = red(browser)
    recorded = {
        one["sequence"]: one
        for one in map(json.loads, (RECORDINGS / LOST / "part-000000.ndjson").read_text().splitlines())
    }
    for x, y, name in (
        (line["right"], line["y"], "answer_sent"),
        (line["left"], line["y"], "request_received"),
        (line["right"], lanes_top(browser) - 34, None),
    ):
        browser.click(x, y)
        (told,) = browser.run("[...document.querySelectorAll('#record .chosen')].map((each) => each.textContent)")
        event = json.loads(told)
        assert event["event"] == name or (name is None and event["event"] in {"answer_sent", "message_acknowledged"})
        assert event["request"] == recorded[event["sequence"]]["request"]
        if name is not None:
            assert event["request"] == "3-1732"


def test_texts_of_strangers_stay_texts(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are seen as written and nothing of them runs; put in as they are, the page's policy refuses them."""
    result, drawn = looked(RECORDINGS / LOST)
    evil = hostile(drawn, result)
    page = tmp_path / "page.html"
    page.write_text(render_html(*evil))
    browser.show(page, width=390, dark=False)

    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.images.length") == 0
    assert EVIL[:-1] in browser.run("document.querySelector('.why').textContent")
    assert browser.run(MEASURE) == []
    monkeypatch.setattr("longpoll_judge.show.page.as_data", lambda shown: msgspec.json.encode(shown).decode())
    page.write_text(render_html(*evil))
    browser.show(page, width=390, dark=False)
    assert any("Content Security Policy" in one for one in browser.complaints)


def test_paper_has_what_the_screen_has(browser: Browser, lost: Path) -> None:
    """In light colours, whatever the screen's are, and nothing wider than a sheet."""
    browser.show(lost, width=1_400, dark=True)
    browser.run(
        "addEventListener('beforeprint', () => { window.back = getComputedStyle(document.body).backgroundColor })"
    )
    paper = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])

    assert paper.startswith(b"%PDF")
    assert len(paper) > 20_000
    assert browser.run("window.back") == "rgb(255, 255, 255)"
    assert browser.run("document.documentElement.className") == ""

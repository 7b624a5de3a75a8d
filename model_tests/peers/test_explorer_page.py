"""The explorer in a real browser: clicks, keys, the address, the search, mutants, and the layout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from model_tests.peers.test_explorer import HOSTILE
from model_tests.support.browser import MEASURE, SCREENS, WATCH_CANVAS, Browser, open_browser

from longpoll_spec.bounds import named
from longpoll_spec.engines.manifest import pinned
from longpoll_spec.engines.tokens import replay
from longpoll_spec.mutants.explorer import explorer_of
from longpoll_spec.policy import preset
from longpoll_spec.render.story import story_of

pytestmark = [pytest.mark.peers, pytest.mark.long, pytest.mark.timeout(600)]
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
HAN: Final = re.compile(r"[\u4e00-\u9fff]")
FITS: Final = f"""
(() => {{
  const areas = [...document.querySelectorAll(".scroller")], bad = [];
  for (const area of areas) {{
    const box = area.getBoundingClientRect();
    const scrolls = getComputedStyle(area).overflowX === "auto";
    if (box.right > innerWidth + 1 || !scrolls) bad.push("an area cannot be scrolled");
  }}
  if (document.documentElement.scrollWidth > innerWidth) bad.push("the page is too wide");
  areas.forEach((area) => {{ area.firstElementChild.hidden = true }});
  bad.push(...{MEASURE.strip()});
  areas.forEach((area) => {{ area.firstElementChild.hidden = false }});
  return bad;
}})()
"""
"""A script that finds truncated content; two tables may be wider than the screen if they are in a scrolling area."""
SEARCHED: Final = """
new Promise((done) => {
  const progress = document.getElementById("progress");
  const look = () => progress.textContent.includes("depth") ? done() : requestAnimationFrame(look);
  look();
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer with the policy of Java 4.9."""
    made = tmp_path_factory.mktemp("explorer") / "explorer.html"
    made.write_text(explorer_of(preset("rocketmq-4.9"), partial(named, "tiny")))
    made.with_name("other.html").write_text("<!doctype html><title>Another page</title>")
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH_CANVAS)
        yield opened


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.call("Page.navigate", url="about:blank")
    browser.show(page, width=1_400, dark=False)
    return browser


def _click(browser: Browser, label: str) -> None:
    browser.run(f"document.querySelector('[data-action=\"{label}\"]').click()")


def _token(browser: Browser) -> str:
    return str(browser.run("location.hash.slice(1)"))


def _text(browser: Browser, where: str) -> str:
    return str(browser.run(f"document.querySelector('{where}').textContent"))


def _choose(browser: Browser, which: str, value: str) -> None:
    browser.run(f"{{ const box = document.getElementById('{which}'); box.value = '{value}';"
                " box.dispatchEvent(new Event('change')) }")  # fmt: skip


def test_six_clicks_lose_a_wakeup(opened: Browser) -> None:
    """Six clicks lose a wakeup. The page reports it, and the command line replays the page's address."""
    labels = [step.action.label for step in replay(LOST).steps if step.action]
    for label in labels:
        assert _text(opened, "#broken") == ""
        _click(opened, label)
    trace = replay(_token(opened))

    assert "its wakeup is lost" in _text(opened, "#broken")
    assert trace.property_name == "lost_by_hold"
    assert [step.action.label for step in trace.steps if step.action] == labels
    assert _text(opened, "#command") == f"longpoll explain {_token(opened)}"
    assert opened.run("document.querySelectorAll('#story li').length") == len(labels)
    assert opened.complaints == []


def test_the_reader_steps_back_and_forward_and_jumps(opened: Browser) -> None:
    for _ in range(3):
        opened.run("document.querySelector('#enabled button').click()")
    whole = _token(opened)
    opened.run("document.getElementById('back').click()")
    assert replay(_token(opened)).depth == 2
    opened.run("document.getElementById('on').click()")
    assert _token(opened) == whole
    opened.run("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Home', bubbles: true }))")
    assert replay(_token(opened)).depth == 0
    opened.run("document.querySelectorAll('#lanes button')[1].click()")
    assert replay(_token(opened)).depth == 2
    opened.run("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '1', bubbles: true }))")
    assert replay(_token(opened)).depth == 3


def _go_to(browser: Browser, fragment: str) -> None:
    browser.run(
        "new Promise((done) => { addEventListener('hashchange', done, { once: true });"
        f" location.hash = {json.dumps(fragment)} }})"
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_hostile_address_is_reported_in_the_readers_language(browser: Browser, page: Path, language: str) -> None:
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=f"{page.as_uri()}?lang={language}")
    browser.until("document.querySelector('#enabled button') !== null")
    shown = browser.run("document.getElementById('requests').textContent")
    images = "<img src=x onerror=document.title='mine'>"
    fragments = [token for token, _ in HOSTILE.values() if len(token) < 10_000]
    for fragment in [*fragments, f"{LOST}~%E0%A4%A", f"{LOST}~{images}", images, "%", f"{LOST}~"]:
        _go_to(browser, fragment)
        told = _text(browser, "#notice")
        assert told, fragment
        assert bool(HAN.search(told.partition(":")[2] or told)) == (language == "zh"), told
        assert not re.search("TypeError|RangeError|not a function|iterable|undefined", told), told
        assert browser.run("document.getElementById('requests').textContent") == shown
    assert browser.run("document.images.length") == 0
    assert "mine" not in browser.run("document.title")
    browser.run("document.querySelector('#enabled button').click()")
    assert _text(browser, "#notice") == ""
    assert replay(_token(browser)).depth == 1
    assert browser.complaints == []


def test_the_browsers_back_undoes_a_step(opened: Browser, page: Path) -> None:
    """Each step is an entry of the browser's history, so Back and Forward work, also from another page."""
    tokens = [_token(opened)]
    for _ in range(3):
        opened.run("document.querySelector('#enabled button').click()")
        tokens.append(_token(opened))
    for step, wanted in (("back", 2), ("back", 1), ("forward", 2), ("forward", 3)):
        opened.run(f"void setTimeout(() => history.{step}())")
        opened.until(
            f"location.hash === '#{tokens[wanted]}' && document.querySelectorAll('#story li').length === {wanted}"
        )
    opened.show(page.with_name("other.html"), width=1_400, dark=False)
    opened.run("void setTimeout(() => history.back())")
    opened.until(f"location.hash === '#{tokens[3]}' && document.querySelectorAll('#story li').length === 3")
    assert opened.complaints == []


TOLD: Final = """
[...document.querySelectorAll("#story li")].map((each) => each.firstChild.data)
"""
RUNS: Final = (
    LOST,
    "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9rZWVwzhApc3qbABISAgQGDA0BCA_s_R2J",
    "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKycXVldWVkX2J5X2RlYWRsaW5lzhApc3qVAgQGEhIj71jC",
    "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKgzhApc3qcAAIEAQgGCxISDA0QRVYIdA",
)
"""Tokens of lessons 1 to 3: wakeups lost by a hold and by a put-back, a late answer, and the scan that answers."""


@pytest.mark.parametrize("token", RUNS)
def test_a_step_is_described_as_explain_describes_it(opened: Browser, token: str) -> None:
    story = story_of(replay(token))
    names = {each.key: f"{each.name} ({each.java})" for each in story.participants}
    expected = [f"{names[each.source]} {each.sentence}" if each.source else each.sentence for each in story.scenes]
    _go_to(opened, token)

    assert opened.run(TOLD) == expected
    if story.wrong and "its wakeup is lost" in story.wrong[0]:
        alarm = _text(opened, "#broken li")
        assert alarm == f"{story.wrong[0].partition('lost.')[0]}lost."


def _press(browser: Browser, key: str, code: int, text: str = "") -> None:
    more = {"text": text} if text else {}
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)
        more = {}


def test_a_wakeup_is_lost_by_tab_and_enter_alone(opened: Browser) -> None:
    pressed = 0
    while not opened.run("document.activeElement.closest('#enabled') !== null"):
        _press(opened, "Tab", 9)
        pressed += 1
        assert pressed < TABS_MAX
    for label in [step.action.label for step in replay(LOST).steps if step.action]:
        assert opened.run("document.activeElement.closest('#enabled') !== null")
        while opened.run("document.activeElement.dataset.action") != label:
            _press(opened, "Tab", 9)
            pressed += 1
            assert pressed < TABS_MAX, label
        _press(opened, "Enter", 13, "\r")
    assert "its wakeup is lost" in _text(opened, "#broken")


TABS_MAX: Final = 20
MONKEY: Final = """
(() => {
  const chance = (count) => Math.floor(Math.random() * count), one = (all) => all[chance(all.length)];
  const choose = (box) => {
    if (!box || box.disabled || !box.options.length) return;
    box.value = one([...box.options]).value;
    box.dispatchEvent(new Event("change"));
  };
  const at = (name) => document.getElementById(name), all = (what) => [...document.querySelectorAll(what)];
  const press = (box) => { if (box && !box.disabled) box.click() };
  let drawn = SEED;
  Math.random = () => { drawn = (Math.imul(drawn, 1103515245) + 12345) >>> 0; return (drawn >>> 8) / (1 << 24) };
  const acts = [
    ...Array(6).fill(() => press(one(all("#enabled button")))),
    ...Array(4).fill(() => choose(one(all("#places select")))),
    ...["slip", "knob", "knob2", "policy", "text"].map((name) => () => choose(at(name))),
    ...["back", "on", "first", "play", "search", "stop", "mend"].map((name) => () => press(at(name))),
    ...["#places", "#lanes", ".found"].map((where) => () => press(one(all(`${where} button`)))),
    () => { location.hash = one(["lp1.x", "~~~", "LOST", "LOST~hold forgets to write phase", ""]) },
  ];
  for (let act = 0; act < ACTS; act += 1) one(acts)();
})()
"""
"""A script that clicks and chooses at random, determined by SEED."""
ACTS: Final = 150


@pytest.mark.parametrize("seed", range(8))
def test_random_clicks_and_keys_cause_no_error(opened: Browser, seed: int) -> None:
    script = MONKEY.replace("SEED", str(seed)).replace("ACTS", str(ACTS)).replace("LOST", LOST)
    opened.run(f"void {script.strip()}")
    opened.run("document.getElementById('first').click(); document.querySelector('#enabled button').click()")

    assert opened.complaints == []
    token, *broken = _token(opened).split("~")
    assert broken or (replay(token).depth, _text(opened, "#command")) == (1, f"longpoll explain {token}")
    assert opened.run("document.querySelectorAll('#story li').length") == 1
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_search_finds_the_pinned_results(opened: Browser) -> None:
    (entry,) = [each for each in pinned() if (each.policy, each.bounds) == ("rocketmq-4.9", "tiny")]
    opened.run("document.getElementById('search').click()")
    opened.run(SEARCHED)
    found = set(opened.run("[...document.querySelectorAll('.found')].map((each) => each.dataset.property)"))

    assert f"{entry.distinct_states:,} states, {entry.transitions:,} transitions, depth {entry.depth}" in _text(
        opened, "#progress"
    )
    assert found == set(entry.violated)
    opened.run("document.querySelector('[data-property=no_lost_wakeup] button').click()")
    assert replay(_token(opened)).property_name == "no_lost_wakeup"
    assert replay(_token(opened)).depth == entry.violated["no_lost_wakeup"]
    assert opened.complaints == []


def test_two_knobs_can_be_changed_together(opened: Browser) -> None:
    """The second list has only changes that add an effect to the first change, and the token has both changes."""
    first = "[...document.getElementById('knob').options].find((each) => each.text === '{}').value"
    _choose(opened, "knob", opened.run(first.format("recheck_after_hold=after_insert")))
    assert "new steps: recheck" in _text(opened, "#differs")
    another = "[...document.getElementById('knob2').options].map((each) => each.text)"
    assert "recheck=walk" in opened.run(another)
    assert "heap_entry=until_answered" not in opened.run(another)
    _choose(opened, "knob2", opened.run(first.format("recheck=walk").replace("'knob'", "'knob2'")))
    policy = replay(_token(opened)).model.policy

    assert (policy.recheck_after_hold, policy.recheck) == ("after_insert", "walk")
    assert "walk_start" in _text(opened, "#differs")
    token = _token(opened)
    _reload(opened)
    assert _token(opened) == token
    assert opened.run("document.getElementById('knob2').selectedOptions[0].text") in {
        "recheck=walk",
        "recheck_after_hold=after_insert",
    }
    _choose(opened, "knob2", opened.run("document.getElementById('knob').value"))
    assert replay(_token(opened)).model.policy.name.count("+") == 1
    assert opened.complaints == []


RELOAD: Final = "void setTimeout(() => { document.body.dataset.old = 'yes'; location.reload() })"
NEW: Final = "document.readyState === 'complete' && document.body !== null && document.body.dataset.old !== 'yes'"


def _reload(browser: Browser) -> None:
    browser.run(RELOAD)
    while not browser.run(NEW):
        pass  # Until the new page is loaded, the old page may answer.


def _hand(browser: Browser, text: str, place: str, value: str) -> None:
    number = browser.run(f"[...document.getElementById('text').options].find((each) => each.text === '{text}').value")
    _choose(browser, "text", number)
    box = f"document.querySelector('[data-place=\"{place}\"] select')"
    browser.run(f"{{ {box}.value = '{value}'; {box}.dispatchEvent(new Event('change')) }}")


def test_several_changes_by_hand_hold_at_once(opened: Browser) -> None:
    _hand(opened, "notify_end", "phase", "notify_end takes the other case for phase")
    opened.run(SEARCHED)
    one = _text(opened, "#progress")
    _hand(opened, "hold", "what its guard says of phase", "hold turns round what its guard says of phase")
    assert "notify_end takes the other case for phase; hold turns round" in _text(opened, "#changes")
    opened.run(SEARCHED)
    both = _text(opened, "#progress")
    assert both != one
    assert "catches your change" in both

    address = _token(opened)
    assert address.count("~") == 2
    _reload(opened)
    assert _token(opened) == address
    assert "hold turns round" in _text(opened, "#changes")
    _hand(opened, "hold", "what its guard says of phase", "")
    opened.run(SEARCHED)
    assert _text(opened, "#progress") == one
    opened.run("document.getElementById('mend').click()")
    assert _text(opened, "#changes") == ""
    assert "~" not in _token(opened)
    assert opened.complaints == []


ENGLISH_LEFT: Final = """
[...document.querySelectorAll("main h1, h2, p:not(#sizes):not(.small), label, button, caption, li, #enabled span")]
  .map((each) => [...each.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join(""))
  .filter((words) => /[a-z]+ [a-z]+ [a-z]+/i.test(words) && !/[\u4e00-\u9fff]/.test(words))
"""
"""A script that finds text without Chinese characters, except names."""


def test_the_page_is_read_in_chinese_and_keeps_its_run(opened: Browser) -> None:
    for _ in range(3):
        opened.run("document.querySelector('#enabled button').click()")
    token = _token(opened)
    assert opened.run(ENGLISH_LEFT) != []
    opened.run("void setTimeout(() => { const box = document.getElementById('language'); box.value = 'zh';"
               " box.dispatchEvent(new Event('change')) })")  # fmt: skip
    while opened.run("document.documentElement?.lang + document.readyState") != "zh-Hanscomplete":
        pass  # Until the Chinese page is loaded, the English page may answer.

    assert opened.run("location.search") == "?lang=zh"
    assert _token(opened) == token
    assert _text(opened, "#back") == "后退一步"
    assert opened.run(ENGLISH_LEFT) == []
    opened.run("document.getElementById('search').click()")
    opened.run(SEARCHED.replace("depth", "深度"))
    assert "违反了" in _text(opened, "#progress")
    assert opened.run(ENGLISH_LEFT) == []
    assert opened.complaints == []


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_no_content_is_truncated(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """No content is truncated at the start, or with a run and findings. The page requests no other file."""
    browser.call("Page.navigate", url="about:blank")
    browser.show(page, width=width, dark=dark)
    assert browser.run(FITS) == []
    asked = list(browser.addresses)
    for _ in range(9):
        browser.run("document.querySelector('#enabled button').click()")
    browser.run("document.getElementById('search').click()")
    browser.run(SEARCHED)

    assert browser.run(FITS) == []
    assert browser.complaints == []
    assert all(address == page.as_uri() for address in asked)
    unnamed = (
        "[...document.querySelectorAll('button, select')]"
        ".filter((each) => !(each.textContent.trim() || each.ariaLabel)).length"
    )
    assert browser.run(unnamed) == 0

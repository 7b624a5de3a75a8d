"""The judge's page draws findings to scale, escapes hostile texts, and fits into a browser window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import msgspec
import pytest
from model_tests.support.browser import MEASURE, SCREENS, WATCH_CANVAS, Browser, open_browser
from model_tests.support.judge.faults import FAULTS, plant
from model_tests.support.judge.histories import RECORDINGS
from model_tests.support.judge.recording import NoVictimError

from longpoll_judge.contract.result import Result
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.page import groups, render_html, rows, sentence

EVIL: Final = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\u202e"
NAMES: Final = frozenset({"source", "broker", "topic", "request", "connection", "group", "expression", "tag", "cause"})


class Page(HTMLParser):
    """Collects the tags, addresses and texts of a page. Invariant: `open` has the tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [tag] if tag != "meta" else []
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def lost() -> Result:
    return judge([RECORDINGS / "java-4.9.7-lost-wakeup"], engine="local")


def test_a_finding_is_drawn_to_scale(lost: Result) -> None:
    (finding,) = lost.findings
    drawn = {row.kind: row for row in rows(finding)}
    late, message = drawn["violated"], drawn[""]

    assert late.label == f"{finding.request}: request_received, answer_sent"
    assert message.label.endswith(": message_acknowledged")
    assert late.left + late.width == pytest.approx(100, abs=0.02)
    assert late.width > 98
    assert message.left + message.width < 2
    unanswered = [event for event in finding.evidence if event["event"] != "answer_sent"]
    other = msgspec.structs.replace(finding, evidence=unanswered, request="")
    (waiting,) = (row for row in rows(other) if row.kind)
    assert waiting.kind == "open"
    assert waiting.left + waiting.width == pytest.approx(100)


def test_the_page_lists_violations_first(lost: Result, clean: Path) -> None:
    text = render_html(lost)
    (group,) = groups(lost.findings)

    assert text.index("a wakeup was lost or late") < text.index("RocketMQ #7358") < text.index('class="row violated"')
    assert (group.clause, group.verdict, len(group.findings)) == ("pull.wake.prompt", "violated", 1)
    assert Page(text).addresses == []
    valid = judge([clean], engine="local")
    assert "nothing was found" in sentence(valid)
    assert 'class="row' not in render_html(valid)


def test_the_page_lists_what_was_observed_and_what_was_not_judged(lost: Result) -> None:
    plain = render_html(lost)
    note = {"clause": "evidence.not_judged", "count": 7, "why": "pulls with SQL92 subscriptions"}
    text = render_html(msgspec.structs.replace(lost, notes=[note], observations=lost.findings))

    assert ("Observations" in plain, "<h3>Notes" in plain) == (False, False)
    assert "<h3>Notes</h3>" in text
    assert "(7): pulls with SQL92 subscriptions" in text
    assert f"<li><code>{lost.findings[0].clause}</code> RACE / 0: " in text.split("<h3>Observations</h3>")[1]


def hostile(result: Result) -> Result:
    fields = dict.fromkeys(("topic", "why", "clause", "property", "tag"), EVIL)
    findings = [
        msgspec.structs.replace(
            one,
            **fields,
            request=one.request + EVIL,
            evidence=[{k: v + EVIL if k in NAMES else v for k, v in each.items()} for each in one.evidence],
        )
        for one in result.findings
    ]
    gap = {"clause": EVIL, "kind": EVIL, "where": EVIL, "count": 1, "why": EVIL}
    return msgspec.structs.replace(result, findings=findings, gaps=[gap])


def test_untrusted_texts_are_escaped(lost: Result) -> None:
    text = render_html(hostile(lost))
    page, harmless = Page(text), Page(render_html(lost))

    assert set(page.tags) == set(harmless.tags) | {"ul", "li"}
    assert "script" not in page.tags
    assert (page.addresses, page.open) == ([], [])
    assert EVIL.replace("\u202e", " ") in page.text
    assert '"event":"answer_sent"' in page.text
    assert "\u202e" not in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH_CANVAS)
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("screen", SCREENS)
def test_the_page_of_every_fault_fits(
    screen: tuple[int, bool], browser: Browser, lost: Result, clean: Path, tmp_path: Path
) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "meta.json").write_text('{"format_version":1,"sources":[]}')
    results = {"hostile": hostile(lost), "lost": lost, "nothing": judge([tmp_path / "nothing"], engine="local")}
    for name in list(FAULTS)[:: 1 if screen == SCREENS[-1] else 9]:
        with suppress(NoVictimError):
            plant(clean, name, tmp_path / name)
            results[name] = judge([tmp_path / name], engine="local")
    for name, result in results.items():
        page = tmp_path / f"{name}.html"
        page.write_text(render_html(result))
        browser.show(page, width=screen[0], dark=screen[1])
        browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert (name, browser.run(MEASURE), browser.complaints) == (name, [], [])
        assert browser.addresses == [page.as_uri()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("document.body.insertAdjacentHTML('beforeend', '<div style=\"width:3000px;height:9px\"></div>')", "too wide"),
        ("document.querySelector('.why').style.cssText = 'height:12px;overflow:hidden'", "cut off below"),
        (
            "document.querySelector('.row span').style.cssText = 'overflow:hidden;white-space:nowrap'",
            "cut off at its right",
        ),
        ("document.querySelector('h1').style.marginLeft = '-40px'", "lies outside"),
        (
            "document.querySelector('.rates td').style.cssText = 'display:block;overflow-wrap:anywhere;width:0'",
            "a word",
        ),
    ],
)
def test_an_overflowing_page_is_noticed(browser: Browser, lost: Result, tmp_path: Path, fault: str, told: str) -> None:
    (tmp_path / "page.html").write_text(render_html(lost))
    browser.show(tmp_path / "page.html", width=390, dark=False)
    assert browser.run(MEASURE) == []
    browser.run(f"void ({fault})")
    assert any(told in one for one in browser.run(MEASURE))

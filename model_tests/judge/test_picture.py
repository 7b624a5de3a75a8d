"""The judge's page: where things are drawn, which events are, and hostile texts stay texts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.support.judge.faults import plant
from model_tests.support.judge.histories import RECORDINGS

from longpoll_judge.columns.tables import Tables
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, Result
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.page import Bar, Drawn, Picture, as_data, gather, groups, picture, render_html, sentence

LOST: Final = "java-4.9.7-lost-wakeup"
EVIL: Final = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\u202e"


class Page(HTMLParser):
    """Collects the tags, addresses and script contents of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        self._is_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        """Leave a script."""
        self._is_script = self._is_script and tag != "script"

    def handle_data(self, data: str) -> None:
        """Note a script."""
        if self._is_script:
            self.scripts.append(data)


def looked(*paths: Path, pulls_max: int = 10_000) -> tuple[Result, Drawn]:
    """A judgement, and what its page draws."""
    drawn: list[Drawn] = []

    def look(result: Result, tables: Tables) -> None:
        drawn.append(gather(result, tables, pulls_max))

    result = judge(paths, engine="local", look=look)
    return result, drawn[0]


@pytest.fixture(scope="module")
def lost() -> tuple[Result, Drawn, Picture]:
    """The lost wakeup of Java 4.9.7, recorded by the proxy."""
    result, drawn = looked(RECORDINGS / LOST)
    return result, drawn, picture(result, drawn)


@pytest.fixture(scope="module")
def late(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Drawn, Picture]:
    """A simulated broker's history with an answer that is half a second late."""
    directory = tmp_path_factory.mktemp("late") / "history"
    plant(clean, "answer_delayed", directory)
    result, drawn = looked(directory)
    return result, drawn, picture(result, drawn)


def events_of(name: str) -> list[dict[str, Any]]:
    """A recording's events in file order."""
    lines = (RECORDINGS / name / "part-000000.ndjson").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_pull_has_its_bar_to_scale(lost: tuple[Result, Drawn, Picture]) -> None:
    """From its receipt to its answer in the record, each widened by what is uncertain."""
    _result, _drawn, shown = lost
    recorded = events_of(LOST)
    meta = json.loads((RECORDINGS / LOST / "meta.json").read_text())
    unsure_ms = meta["sources"][0]["uncertainty_ns"] / 1e6
    asked = {one["request"]: one for one in recorded if one["event"] == "request_received" and one.get("code") == 11}
    answered = {one["request"]: one for one in recorded if one["event"] == "answer_sent" and one["request"] in asked}
    lengths = {name: (answered[name]["before_ns"] - asked[name]["after_ns"]) / 1e6 for name in answered}

    assert {bar.request for bar in shown.bars} == set(asked)
    for bar in shown.bars:
        assert bar.end - bar.asked[0] == pytest.approx(lengths[bar.request] + 2 * unsure_ms, abs=0.002)


def test_the_lost_wakeup_overruns(lost: tuple[Result, Drawn, Picture]) -> None:
    """One bar alone is late, from 100 ms after its receipt on, and for as long as the finding says at least."""
    result, _drawn, shown = lost
    (bar,) = (bar for bar in shown.bars if bar.overrun is not None)
    least_ms = float(re.findall(r"answered ([\d.]+) ms", result.findings[0].why)[0])

    assert (bar.request, bar.verdict, bar.finding) == (result.findings[0].request, "violated", 0)
    assert bar.limit == bar.overrun
    assert bar.overrun is not None
    assert bar.answered is not None
    assert bar.answered[0] - bar.overrun == pytest.approx(least_ms - 100, abs=1)
    assert bar.may_be_held
    assert bar.held is None
    assert bar.deadline == pytest.approx(bar.asked[1] + 15_000, abs=0.002)


def test_a_late_answer_overruns_its_deadline() -> None:
    """The overrun begins after the deadline and its margin; recorded with Java 4.9.7."""
    result, drawn = looked(RECORDINGS / "java-4.9.7-late")
    finding = next(one for one in result.findings if one.property == ANSWERED_BY_DEADLINE)
    bar = next(bar for bar in picture(result, drawn).bars if bar.request == finding.request)

    assert bar.verdict == "violated"
    assert bar.deadline is not None
    assert bar.overrun is not None
    assert bar.overrun == pytest.approx(bar.deadline + result.thresholds["late_ms"], abs=0.002)
    assert bar.deadline < bar.overrun < bar.end


def test_a_broker_writes_when_a_pull_was_held(late: tuple[Result, Drawn, Picture]) -> None:
    """The held part lies within the bar, and nothing about it is left open."""
    _result, drawn, shown = late
    holds = {event["request"] for event in drawn.events if event["event"] == "hold"}
    held = [bar for bar in shown.bars if bar.held is not None]

    assert {bar.request for bar in held} == holds
    assert len(held) > 100
    assert not any(bar.may_be_held for bar in held)
    assert all(bar.asked[0] <= (bar.held or 0.0) <= bar.end for bar in held)


def test_no_two_bars_of_a_row_overlap(late: tuple[Result, Drawn, Picture]) -> None:
    """Nor do rows of two connections mix."""
    _result, _drawn, shown = late
    by_row: dict[int, list[Bar]] = {}
    for bar in shown.bars:
        by_row.setdefault(bar.row, []).append(bar)
        lane = shown.lanes[bar.lane]
        assert lane.row <= bar.row < lane.row + lane.rows
    assert any(len(mine) > 1 for mine in by_row.values())
    for mine in by_row.values():
        ordered = sorted(mine, key=lambda bar: bar.asked)
        assert all(one.end <= other.asked[0] for one, other in pairwise(ordered))


def test_a_clicked_event_has_its_line(lost: tuple[Result, Drawn, Picture]) -> None:
    """The lines of each bar and of each step are events of the record, with every field that these have."""
    _result, _drawn, shown = lost
    recorded = {one["sequence"]: one for one in events_of(LOST)}
    moments = {"after_ns", "before_ns"}
    told = [json.loads(line) for line in shown.lines]

    for one in told:
        assert {name: value for name, value in one.items() if name not in moments} == {
            name: value for name, value in recorded[one["sequence"]].items() if name not in moments
        }
    for bar in shown.bars:
        assert [told[line]["event"] for line in bar.lines] == ["request_received", "answer_sent"]
        assert {told[line]["request"] for line in bar.lines} == {bar.request}
    for steps in shown.queues:
        assert [end for _ms, end, _line in steps.points] == sorted({end for _ms, end, _line in steps.points})
        assert all(told[line]["event"] in {"message_acknowledged", "answer_sent"} for _ms, _end, line in steps.points)


def test_an_end_that_goes_back_is_seen(late: tuple[Result, Drawn, Picture]) -> None:
    result, drawn, shown = late
    ends = [steps.points for steps in shown.queues if len(steps.points) > 2]
    last = max((one for one in drawn.events if one["event"] == "make_visible"), key=lambda one: int(one["before_ns"]))
    back = {**last, "sequence": 10**9, "visible_end": 1, "before_ns": last["before_ns"] + 1}
    fallen = picture(result, Drawn([*drawn.events, back], drawn.pulls_in_all))

    assert ends
    assert all(one[1] < other[1] for points in ends for one, other in pairwise(points))
    assert any(steps.points[-1][1] == 1 for steps in fallen.queues)


def test_a_long_record_is_drawn_around_its_finding(
    late: tuple[Result, Drawn, Picture], clean: Path, tmp_path: Path
) -> None:
    """The pull of the finding is there, the others are the nearest in time, and all are counted."""
    _whole, all_drawn, all_shown = late
    plant(clean, "answer_delayed", tmp_path / "history")
    result, drawn = looked(tmp_path / "history", pulls_max=50)
    shown = picture(result, drawn)
    focus = next(bar for bar in all_shown.bars if bar.request == result.findings[0].request).asked[0]
    nearest = sorted(abs(bar.asked[0] - focus) for bar in all_shown.bars)

    assert len(shown.bars) == 50 < drawn.pulls_in_all == all_drawn.pulls_in_all == len(all_shown.bars)
    assert result.findings[0].request in {bar.request for bar in shown.bars}
    drawn_requests = {bar.request for bar in shown.bars}
    away = [abs(bar.asked[0] - focus) for bar in all_shown.bars if bar.request in drawn_requests]
    assert max(away) <= nearest[60]
    assert "50 of" in render_html(result, drawn)


def test_a_valid_history_has_nothing_red(clean: Path) -> None:
    result, drawn = looked(clean)
    shown = picture(result, drawn)

    assert result.verdict == "valid"
    assert "nothing was found" in sentence(result)
    assert shown.marks == []
    assert {bar.overrun for bar in shown.bars} == {None}
    assert {bar.finding for bar in shown.bars} == {-1}


def test_the_page_lists_what_was_observed_and_what_was_not_judged(lost: tuple[Result, Drawn, Picture]) -> None:
    result, drawn, _shown = lost
    plain = render_html(result, drawn)
    note = {"clause": "evidence.not_judged", "count": 7, "why": "pulls with SQL92 subscriptions"}
    more = msgspec.structs.replace(result, notes=[note], observations=result.findings)
    text = render_html(more, drawn)

    assert ("Observations" in plain, "Not judged" in plain) == (False, False)
    assert "<h3>Not judged</h3>" in text
    assert "(7): pulls with SQL92 subscriptions" in text
    assert f"<li><code>{result.findings[0].clause}</code> RACE / 0: " in text.split("<h3>Observations</h3>")[1]


def test_a_record_without_pulls_has_nothing_to_draw(tmp_path: Path, lost: tuple[Result, Drawn, Picture]) -> None:
    (tmp_path / "meta.json").write_text('{"format_version":1,"sources":[]}')
    nothing = render_html(*looked(tmp_path))
    result, drawn, _shown = lost

    assert "shows no pull" in nothing
    assert nothing.count("<section") - nothing.count(" hidden>") == 2
    assert "shows no pull" not in render_html(result, drawn)


def test_the_page_says_first_what_is_wrong(lost: tuple[Result, Drawn, Picture]) -> None:
    """And groups what was found by the line of the contract."""
    result, drawn, _shown = lost
    text = render_html(result, drawn)
    (group,) = groups(result.findings)

    assert text.index("a wakeup was lost or late") < text.index("RocketMQ #7358") < text.index('id="timeline"')
    assert (group.clause, group.verdict, len(group.findings)) == ("pull.wake.prompt", "violated", 1)
    assert Page(text).addresses == []


def hostile(drawn: Drawn, result: Result) -> tuple[Result, Drawn]:
    """The same with a hostile text wherever a stranger may write one."""
    names = {"source", "broker", "topic", "request", "connection", "group", "expression", "tag", "cause"}
    events = [{k: v + EVIL if k in names else v for k, v in one.items()} for one in drawn.events]
    findings = [
        msgspec.structs.replace(
            one,
            topic=EVIL,
            why=EVIL,
            clause=EVIL,
            property=EVIL,
            tag=EVIL,
            request=one.request + EVIL,
            evidence=[{k: v + EVIL if k in names else v for k, v in each.items()} for each in one.evidence],
        )
        for one in result.findings
    ]
    gap = {"clause": EVIL, "kind": EVIL, "where": EVIL, "count": 1, "why": EVIL}
    return msgspec.structs.replace(result, findings=findings, gaps=[gap]), Drawn(events, drawn.pulls_in_all)


def test_texts_of_strangers_stay_texts(lost: tuple[Result, Drawn, Picture]) -> None:
    """The tags are those of the harmless page, the script is the same, and the data still hold the text."""
    result, drawn, shown = lost
    evil_result, evil_drawn = hostile(drawn, result)
    text = render_html(evil_result, evil_drawn)
    page, harmless = Page(text), Page(render_html(result, drawn))

    assert set(page.tags) == set(harmless.tags) | {"ul", "li"}
    assert page.tags.count("script") == harmless.tags.count("script") == 2
    assert page.scripts[1] == harmless.scripts[1]
    assert page.addresses == []
    assert "\u202e" not in text
    data = json.loads(page.scripts[0])
    assert len(data["bars"]) == len(shown.bars)
    assert EVIL[:-1] in data["queues"][0]["name"]


def test_data_hold_nothing_that_html_looks_at(lost: tuple[Result, Drawn, Picture]) -> None:
    """And are the same JSON."""
    result, drawn, _shown = lost
    shown = picture(*hostile(drawn, result))
    text = as_data(shown)

    assert not set("<>&") & set(text)
    assert json.loads(text) == json.loads(msgspec.json.encode(shown))

"""Small histories, called stories, whose findings must name the expected clauses.

The stories are judged together, in buckets, while they grow, and alone.
"""

from __future__ import annotations

import random
from pathlib import Path
from shutil import rmtree
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.judge.histories import certain, follow_pieces
from model_tests.support.judge.stories import (
    LIMIT_MS,
    Story,
    clauses_by_story,
    clauses_of,
    stories,
    story,
    together,
    write_story,
)

from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import Result
from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge, judge_on
from longpoll_judge.show.evidence import write_evidence
from longpoll_spec.history import META_FILE, Event, Meta

FILES: Final = sorted((Path(__file__).parent / "stories").glob("*.txt"))
STORIES: Final = [one for file in FILES for one in stories(file)]
MIXED: Final = [one for one in STORIES if not {"policy", "alone"} & one.options.keys() and "broker" not in one.text]
CHAOS: Final = "What is found does not hang on the order of the events"
"""Title of a story in which the order of events decides which of several findings with one cause is reported."""
FIRST: Final = {clause: one for one in reversed(STORIES) for clause in one.expected}
ALONE: Final = [
    one for number, one in enumerate(STORIES) if not number % 10 or one not in MIXED or one in FIRST.values()
]
"""Stories that are judged one by one: all that cannot be combined, one story of each clause, and a tenth of the rest.
"""
EVIDENT: Final = [[one for one in ALONE if clause in one.expected][:2] for clause in FIRST]
GROWING: Final = [one for one in MIXED if "expire" not in one.text]
"""Stories that can be combined, except those with a step before its request, which a follower reports too early."""
LINKED: Final = "Connections that overlap are of one life"
"""Title of a story in which a third connection links two others, although its events are not in the evidence."""
MANY: Final = 12
FEW: Final = 5
"""The maximum number of stories in a history that is cut into windows of single events. Each window takes as long to
judge as a story."""


def judged(directory: Path) -> Result:
    return judge([directory], engine="local", wake_ms=LIMIT_MS, late_ms=LIMIT_MS)


@pytest.mark.parametrize("number", range(0, len(MIXED), MANY), ids=lambda number: f"{MIXED[number].file}-{number}")
def test_the_judge_reports_the_clauses_of_a_story(number: int, tmp_path: Path) -> None:
    several = MIXED[number : number + MANY]
    result = judged(write_parts(tmp_path, *together(several), []))

    for one, clauses in zip(several, clauses_by_story(result, len(several)), strict=True):
        assert clauses == sorted(one.expected), one.text


@pytest.mark.parametrize("number", range(0, len(ALONE), MANY), ids=lambda number: f"{ALONE[number].file}-{number}")
def test_each_story_has_its_verdict_and_sufficient_evidence(number: int, tmp_path: Path) -> None:
    for one in ALONE[number : number + MANY]:
        result = judged(write_story(one, tmp_path / "story"))
        _check_story(one, result)
        shows = one.title != LINKED and any(one in some for some in EVIDENT)
        certain = [each for each in result.findings if each.verdict == "violated" and each.meta]
        for each in certain if shows else ():
            rmtree(tmp_path / "alone", ignore_errors=True)
            write_evidence(tmp_path / "alone", [each])
            (directory,) = (tmp_path / "alone").iterdir()
            assert each.clause in {alone.clause for alone in judged(directory).findings}, one.text


def _check_story(one: Story, result: Result) -> None:
    requests = {"", *(event.get("request", "") for event in one.events)}

    assert clauses_of(result) == sorted(one.expected), one.text
    assert result.verdict == one.verdict, one.text
    for finding in result.findings:
        assert CLAUSE[finding.clause].property == finding.property
        assert finding.evidence
        assert finding.why
        assert finding.request in requests, one.text


@pytest.mark.parametrize(
    ("clause", "events", "shown"),
    [
        ("send.sequential", "send b @3; ack b queue_offset=6 @5", [("a", -1), ("a", 7), ("b", -1), ("b", 6)]),
        (
            "send.sequential",
            "send b source=t @3; ack b source=t queue_offset=6 @5",
            [("a", -1), ("a", 7), ("b", -1), ("b", 6)],
        ),
        ("send.batch.gapless", "ack a queue_offset=9 @2", [("a", -1), ("a", 7), ("a", 9)]),
    ],
)
def test_a_finding_about_two_messages_shows_both(
    clause: str, events: str, shown: list[tuple[str, int]], tmp_path: Path
) -> None:
    one = story(f"{clause}: send a @0; ack a queue_offset=7 @2; {events}")
    (finding,) = (each for each in judged(write_story(one, tmp_path)).findings if each.clause == clause)

    known = [msgspec.convert(each, Event) for each in finding.evidence]
    assert sorted((each.request, each.queue_offset) for each in known if each.request) == shown


@pytest.mark.parametrize(
    ("clause", "events", "told"),
    [
        ("message.one_value", "found p offsets=[3] ids=[907] @6", "ids 701 and 907"),
        (
            "send.acknowledged.identity",
            "send b ids=[907] @3; ack b ids=[808] queue_offset=4 @5",
            "id 808, body -1; listed are the ids [907]",
        ),
    ],
)
def test_a_finding_shows_the_ids_of_the_history(clause: str, events: str, told: str, tmp_path: Path) -> None:
    one = story(f"{clause}: send a ids=[701] @0; ack a ids=[701] queue_offset=3 @2; {events}")
    whys = [each.why for each in judged(write_story(one, tmp_path)).findings if each.clause == clause]
    assert [told in why for why in whys] == [True], whys


def test_a_source_with_a_specification_may_lower_its_visible_end(tmp_path: Path) -> None:
    """A specification can truncate a queue, so only the clauses about steps check the end that a hold reports."""
    one = next(each for each in STORIES if "pull.hold.read" in each.expected)
    directory = write_story(one, tmp_path)
    meta = msgspec.json.decode((directory / META_FILE).read_bytes())
    (directory / META_FILE).write_bytes(msgspec.json.encode(meta | {"policy": "strict", "law": {"requests": 2}}))

    assert clauses_of(judged(directory)) == ["law.step"]


def write_parts(directory: Path, meta: Meta, events: list[Event], borders: list[int]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    encoder = msgspec.json.Encoder()
    (directory / META_FILE).write_bytes(encoder.encode(meta))
    places = sorted({0, len(events), *(border % (len(events) + 1) for border in borders)})
    for number, start in enumerate(places[:-1]):
        lines = encoder.encode_lines(events[start : places[number + 1]])
        (directory / f"part-{number}.ndjson").write_bytes(lines)
    return directory


def findings_of(result: Result) -> list[str]:
    return sorted(msgspec.json.encode(finding).decode() for finding in result.findings)


@given(
    st.lists(st.sampled_from(MIXED), min_size=1, max_size=FEW),
    st.lists(st.integers(0, 10**6), max_size=8),
    st.tuples(
        st.sampled_from([1, 2, 3, 5, 40]),
        st.sampled_from(["stories", "time", "shuffled"]),
        st.randoms(use_true_random=False),
    ),
)
def test_buckets_parts_and_order_change_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    several: list[Story],
    borders: list[int],
    how: tuple[int, str, random.Random],
) -> None:
    """Combined stories give the same findings as single stories, whatever part or bucket an event is in."""
    (size, order, dice), (meta, events) = how, together(several)
    if order == "time":
        events.sort(key=lambda event: event.after_ns)
    elif order == "shuffled":
        dice.shuffle(events)
    directory = tmp_path_factory.getbasetemp() / "mixed"
    history = find([write_parts(directory, meta, events, borders)])
    engine = LocalEngine(threads=1, window_events=size)
    result = judge_on(engine, history, wake_ms=LIMIT_MS, late_ms=LIMIT_MS, say=lambda _stage: None)

    assert clauses_by_story(result, len(several)) == [sorted(one.expected) for one in several]
    whole = judged(write_parts(directory, meta, together(several)[1], []))
    assert findings_of(result) == findings_of(whole)
    assert (result.judged, result.shares, result.latency) == (whole.judged, whole.shares, whole.latency)


LONG: Final = [one for one in STORIES if len(one.events) > 7 and one.title != CHAOS]
FAR: Final = [
    *[one for one in LONG if one.title == "Retention may have removed what was passed over"][:2],
    *(one for one in STORIES if one.file == "windows_in_parts"),
]
"""Stories whose verdicts depend on events in a distant part of the history."""


@pytest.mark.parametrize("number", range(3))
def test_a_queue_cut_into_parts_has_the_same_findings(number: int, tmp_path: Path) -> None:
    """Each part has two events and the events that these two depend on, so the findings do not change."""
    for place, one in enumerate((*FAR, *LONG[::36])[number::3]):
        history = find([write_story(one, tmp_path / f"{place}")])
        whole, cut = (
            judge_on(LocalEngine(1, size), history, wake_ms=LIMIT_MS, late_ms=LIMIT_MS, say=lambda _stage: None)
            for size in (1_000, 2)
        )

        assert findings_of(cut) == findings_of(whole), one.text
        assert cut.observations == whole.observations, one.text
        assert (cut.verdict, cut.gaps, cut.notes) == (whole.verdict, whole.gaps, whole.notes)
        assert (cut.judged, cut.shares, cut.latency) == (whole.judged, whole.shares, whole.latency)


CUT: Final = (
    "commit.told.within?: reply other code=19 offset_min=0 offset_max=11 @0..1;",
    "commit.told.most: ask r0 @0..1; reply r0 offset=5 code=0 @10..11; ask r1 @2..3;",
    "commit.told.written?: update r0 commit_offset=3 @0..1; reply r0 code=0 @10..11; request_received r1",
    "unknown: send r @0..5; ack queue=1",
    "log.acknowledged.once: send a @0; ack a queue_offset=3 @9; send b @5;",
)
"""The beginnings of stories whose clauses compare two distant events, one of which a part of the history once lacked.
"""


@pytest.mark.parametrize(
    "several",
    [
        [*FAR, *(one for one in MIXED if one.text.startswith(CUT))],
        pytest.param(MIXED, marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
    ids=["distant events", "all stories"],
)
def test_a_part_for_each_event_gives_the_same_clauses(several: list[Story], tmp_path: Path) -> None:
    assert len(several) >= len(CUT)
    for first in range(0, len(several), MANY):
        mine = several[first : first + MANY]
        history = find([write_parts(tmp_path / f"{first}", *together(mine), [])])
        result = judge_on(LocalEngine(1, 1), history, wake_ms=LIMIT_MS, late_ms=LIMIT_MS, say=lambda _stage: None)
        for one, clauses in zip(mine, clauses_by_story(result, len(mine)), strict=True):
            assert clauses == sorted(one.expected), one.text


LINKED_ELSEWHERE: Final = story(
    "pull.min.never_falls: pull r0 offset=10 may_hold=false @0..1; "
    "none r0 offset_min=3 offset_max=10 offset_next=10 @2..3; pull r4 queue=1 timeout_ms=25 @4..5; "
    "pull r10 connection=d queue=2 may_hold=false @10..11; none r10 connection=d queue=2 @12..13; "
    "none r4 queue=1 @30..31; pull r40 connection=d offset=10 may_hold=false @40..41; "
    "none r40 connection=d offset_min=2 offset_max=10 offset_next=10 @42..43"
)
"""The lowest offset of queue 0 falls. Only answers from two other queues show that the broker was not restarted."""


@pytest.mark.parametrize(("border", "is_reversed"), [(border, border % 2 > 0) for border in range(9)])
def test_connections_link_queues_wherever_a_part_ends(tmp_path: Path, border: int, is_reversed: bool) -> None:
    """An answer also extends its connection's time if its request is in an earlier or later part."""
    meta, events = together([LINKED_ELSEWHERE])
    history = find([write_parts(tmp_path, meta, events[::-1] if is_reversed else events, [border])])
    engine = LocalEngine(threads=1, window_events=1)
    result = judge_on(engine, history, wake_ms=LIMIT_MS, late_ms=LIMIT_MS, say=lambda _stage: None)

    assert findings_of(result) == findings_of(judged(tmp_path))
    assert [one.clause for one in result.findings] == list(LINKED_ELSEWHERE.expected)


@pytest.mark.parametrize("number", range(0, len(GROWING), 100))
def test_a_growing_history_of_stories_has_the_same_findings(number: int, tmp_path: Path) -> None:
    several = GROWING[number : number + MANY]
    meta, events = together(several)
    events.sort(key=lambda event: event.after_ns)
    found = follow_pieces(
        write_parts(tmp_path, meta, events, []), 6, number, limits={"wake_ms": LIMIT_MS, "late_ms": LIMIT_MS}
    )

    assert clauses_by_story(found.whole, len(several)) == [sorted(one.expected) for one in several]
    assert {one.clause for one in found.told.values()} <= {clause for one in several for clause in one.expected} | {
        one.clause for one in certain(found.whole).values()
    }


def some_sends(dice: random.Random) -> Story:
    lines, at = list[str](), 0
    for number in range(12):
        at += dice.choice([0, 1, 2, 5])
        name, queue = f"r{number if dice.random() < 0.9 else 0}", dice.choice([0, 1])
        place = max(number // 2 + dice.choice([0] * 4 + [1, -1]), 0)
        read = at + dice.choice([-2, 4])
        lines += [f"send {name} queue={queue} @{at}..{at + dice.choice([0, 2])}"] * (dice.random() < 0.95)
        lines += [f"ack {name} queue={queue} queue_offset={place} @{at + dice.choice([-9, 1, 2, 9])}"] * (
            dice.random() < 0.9
        )
        lines += [f"reply {name} code=14 @{at + 2}", f"reply {name} code=14 @{at + 3}"] * (dice.random() < 0.1)
        lines += [f"found p{number} queue={queue} offsets=[{place},{place + 1}] offset_next=99 offset_max=99 @{read}"]
        lines += [f"append queue={queue} queue_offset={place} @{at + number / 100}"] * (dice.random() < 0.3)
    return story("valid: " + "; ".join(lines))


@pytest.mark.parametrize("seed", range(9))
def test_the_order_of_sends_in_the_files_changes_no_finding(seed: int, tmp_path: Path) -> None:
    """If several messages contradict a message, the judge reports the earliest, not the first that it read."""
    dice = random.Random(seed)
    one = some_sends(dice)
    events, found = one.told(), list[list[str]]()
    for _time in range(4):
        directory = write_parts(tmp_path, one.meta, events, [dice.randrange(len(events))])
        found.append(findings_of(judged(directory)))
        dice.shuffle(events)

    assert found[0]
    assert found[1:] == found[:1] * 3

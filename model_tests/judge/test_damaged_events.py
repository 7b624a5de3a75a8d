"""A damaged event may hide an event that happened, so the absence of an event after it proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.judge.histories import gap_kinds, judged, violated
from model_tests.support.judge.recording import MS, PULLS, Recording, change, load

from longpoll_spec.history import Event

QUERY, UPDATE = 14, 15


def damage(recording: Recording, name: str, fields: dict[str, Any], part: float = 0.4) -> None:
    """Damage the first event with this name after this part of the history; without such an event, damage a hold."""
    begin = int(part * len(recording.events))
    later = range(begin, len(recording.events))
    places = [n for kind in (name, "hold") for n in later if recording.events[n].event == kind]
    place = places[0]
    recording.events[place] = change(recording.events[place], **fields)


@pytest.mark.parametrize(
    ("name", "fields", "gap"),
    [
        ("append", {"event": "appended"}, "unknown event"),
        ("append", {"queue": -1}, "field missing"),
        ("append", {"queue_offset": -1}, "field missing"),
        ("append", {"topic": ""}, "field missing"),
        ("make_visible", {"event": "made_visible"}, "unknown event"),
        ("make_visible", {"visible_end": -1}, "field missing"),
        ("make_visible", {"queue": -1}, "field missing"),
        ("make_visible", {"topic": ""}, "field missing"),
        ("answer_sent", {"event": "answer"}, "unknown event"),
        ("answer_sent", {"event": ""}, "unknown event"),
        ("request_received", {"event": "request"}, "unknown event"),
        ("expire", {"event": "expired"}, "unknown event"),
        ("expire", {"request": ""}, "field missing"),
        ("hold", {"request": ""}, "field missing"),
        *((name, {"event": name, "request": ""}, "field missing") for name in ("recheck", "take", "keep")),
    ],
)
def test_a_damaged_event_causes_no_violation(
    clean: Path, tmp_path: Path, name: str, fields: dict[str, Any], gap: str
) -> None:
    recording = load(clean)
    damage(recording, name, fields)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert gap in gap_kinds(result)


def test_a_damaged_event_explains_no_other_violation(clean: Path, tmp_path: Path) -> None:
    """A pull that was never answered long before the damage remains a violation."""
    recording = load(clean)
    request, answer = next(iter(recording.exchanges()))
    recording.replace(answer)
    recording.events = [
        change(event, after_ns=event.after_ns + 10**10, before_ns=event.before_ns + 10**10)
        if event.after_ns > answer.after_ns + 2 * 10**9 or event.event == "source_stopped"
        else event
        for event in recording.events
    ]
    recording.events[-2] = change(recording.events[-2], event="nobody_knows")
    found = judged(tmp_path / "history", recording.events, recording.meta)

    assert request.request in {finding.request for finding in found.findings if finding.verdict == "violated"}


# -- answers and their requests --------------------------------------------------------------------------------


def early_refusal(recording: Recording) -> None:
    request, answer = next(pair for pair in recording.exchanges() if pair[1].code == 0)
    told = {"code": 2, "offsets": [], "offset_next": -1, "offset_min": -1, "offset_max": -1}
    early = {"after_ns": request.after_ns - 20 * MS, "before_ns": request.after_ns - 10 * MS}
    recording.replace(answer, change(answer, **told, **early))


def early_about_offsets(recording: Recording, code: int) -> None:
    later = recording.events[len(recording.events) // 2 :]
    request = next(one for one in later if one.event == "request_received")
    asked = Event(
        event="request_received",
        after_ns=request.after_ns,
        before_ns=request.before_ns,
        source=request.source,
        sequence=0,
        request="about-offsets",
        connection=request.connection,
        broker=request.broker,
        topic=request.topic,
        queue=request.queue,
        group="readers",
        code=code,
        commit_offset=0 if code == UPDATE else -1,
    )
    early = {"after_ns": request.after_ns - 20 * MS, "before_ns": request.after_ns - 10 * MS}
    told = change(asked, event="answer_sent", code=0, offset=0, group="", commit_offset=-1, **early)
    place = next(n for n, one in enumerate(recording.events) if one is request)
    events = [*recording.events[:place], told, asked, *recording.events[place:]]
    recording.events = [change(event, sequence=number) for number, event in enumerate(events)]


@pytest.mark.parametrize(
    "plant",
    [
        early_refusal,
        lambda recording: early_about_offsets(recording, QUERY),
        lambda recording: early_about_offsets(recording, UPDATE),
    ],
    ids=["refused send", "offset query", "offset update"],
)
def test_no_answer_comes_before_its_request(clean: Path, tmp_path: Path, plant: Callable[[Recording], None]) -> None:
    recording = load(clean)
    plant(recording)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert "answer.after_request" in {clause for clause, _why in violated(result)}


def test_an_answer_without_its_offset_is_damaged(clean: Path, tmp_path: Path) -> None:
    recording = load(clean)
    early_about_offsets(recording, QUERY)
    place = next(n for n, one in enumerate(recording.events) if one.request == "about-offsets")
    ends = dict.fromkeys(("offset_next", "offset_min", "offset_max"), 0)
    recording.events[place] = change(recording.events[place], offset=-1, **ends)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert "answer.after_request" not in {clause for clause, _why in violated(result)}


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("request_received", {"queue": 77}),
        ("answer_sent", {"topic": "another"}),
        ("answer_sent", {"broker": "another"}),
    ],
)
def test_a_pull_answered_for_another_queue_is_not_judged(
    clean: Path, tmp_path: Path, event: str, fields: dict[str, Any]
) -> None:
    """The pull counts as answered, but its queue is unknown, so it is reported as not judged."""
    recording = load(clean)
    request, answer = next(
        pair for n, pair in enumerate(recording.exchanges()) if n > 100 and pair[0].code in PULLS and pair[0].may_hold
    )
    old = request if event == "request_received" else answer
    place = next(n for n, one in enumerate(recording.events) if one is old)
    recording.events[place] = change(old, **fields)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert any("answers that name another queue than their requests" in gap["why"] for gap in result.gaps)

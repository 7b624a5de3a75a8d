"""A gap in the record, or a clock that was set back, makes exactly the findings that depend on it unknown."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.generate import SOURCE, simulated_meta
from model_tests.support.judge.histories import gap_kinds, judged, numbered, violated
from model_tests.support.judge.recording import MS, PULLS, Recording, change, load, moved

from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, ANSWERED_ONCE
from longpoll_judge.evidence.source_survey import CLOCK_STEP_NS, GAPS_MAX, gaps_of, survey_source
from longpoll_spec.history import Event

INSIDE = ("make_visible", "hold", "expire")


def seen_from_outside(recording: Recording) -> None:
    """Keep the events that a proxy sees: each append becomes its acknowledgement."""
    kept = [event for event in recording.events if event.event not in INSIDE]
    named = [change(each, event="message_acknowledged") if each.event == "append" else each for each in kept]
    recording.events = numbered(named)


def without(recording: Recording, first: int, count: int) -> None:
    del recording.events[first : first + count]


def declared(recording: Recording, first: int, count: int) -> None:
    lost = recording.events[first : first + count]
    first_ns, last_ns = min(event.after_ns for event in lost), max(event.before_ns for event in lost)
    told = Event(event="lost", after_ns=first_ns, before_ns=last_ns, source=SOURCE, sequence=0, lost_count=count)
    recording.events = numbered([*recording.events[:first], told, *recording.events[first + count :]])


def nothing(_recording: Recording) -> None:
    """Keep the history as seen from inside."""


@pytest.mark.parametrize(
    ("part", "lose", "seen"),
    [
        (0.0, without, nothing),
        (0.1, declared, nothing),
        (0.45, without, seen_from_outside),
        (0.8, declared, seen_from_outside),
    ],
)
def test_200_missing_events_cause_no_violation(
    clean: Path,
    tmp_path: Path,
    part: float,
    lose: Callable[[Recording, int, int], None],
    seen: Callable[[Recording], None],
) -> None:
    recording = load(clean)
    seen(recording)
    lose(recording, 1 + int(part * len(recording.events)), 200)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert gap_kinds(result) & {"sequence gap", "lost"}


@pytest.mark.parametrize(("kept", "seen"), [(0.2, nothing), (0.7, seen_from_outside)])
def test_a_record_that_breaks_off_is_reported(
    clean: Path, tmp_path: Path, kept: float, seen: Callable[[Recording], None]
) -> None:
    """A killed observer writes no source_stopped event. The missing event is a gap, even without open pulls."""
    recording = load(clean)
    seen(recording)
    recording.events = recording.events[: int(kept * len(recording.events))]
    result = judged(tmp_path / "killed", recording.events, recording.meta)
    whole = load(clean)
    idle = judged(tmp_path / "idle", whole.events[:-1], whole.meta)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert (idle.verdict, gap_kinds(idle), idle.findings) == ("unknown", {"source end"}, [])
    assert "breaks off without source_stopped" in idle.gaps[0]["why"]


def test_a_gap_at_another_time_explains_nothing(clean: Path, tmp_path: Path) -> None:
    """An unanswered pull at the beginning is a violation, although the record has a gap at its end."""
    recording = load(clean)
    FAULTS["answer_deleted"].apply(recording)
    last_ns = recording.events[-1].after_ns
    recording.events[-1] = change(recording.events[-1], after_ns=last_ns + 10**9, before_ns=last_ns + 10**9)
    without(recording, len(recording.events) - 40, 20)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert {finding.property for finding in result.findings if finding.verdict == "violated"} & {ANSWERED_BY_DEADLINE}
    assert "sequence gap" in gap_kinds(result)


def set_back(recording: Recording, places: list[float], step_ms: int) -> None:
    starts = [int(place * len(recording.events)) for place in places]
    for number, event in enumerate(recording.events):
        steps = sum(number >= start for start in starts)
        recording.events[number] = moved(event, -steps * step_ms * MS)


@pytest.mark.parametrize(
    ("places", "step_ms", "seen"),
    [
        ([0.5], 7_000, nothing),
        pytest.param([0.3, 0.6, 0.8], 2_000, seen_from_outside, marks=pytest.mark.long),
        ([0.1], 50_000, nothing),
    ],
)
def test_a_clock_set_back_causes_no_violation(
    clean: Path, tmp_path: Path, places: list[float], step_ms: int, seen: Callable[[Recording], None]
) -> None:
    """The sequence numbers show that the clock was set back, so the judge uses no time from this source."""
    recording = load(clean)
    seen(recording)
    set_back(recording, places, step_ms)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert "clock jump" in gap_kinds(result)


def test_a_finding_without_times_stays_certain(clean: Path, tmp_path: Path) -> None:
    recording = load(clean)
    FAULTS["answer_duplicated"].apply(recording)
    set_back(recording, [0.5], 5_000)
    found = judged(tmp_path / "history", recording.events, recording.meta).findings

    assert {finding.property for finding in found if finding.verdict == "violated"} == {ANSWERED_ONCE}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("uncertainty_ns", -1, "which is no width"),
        ("uncertainty_ns", -10_000_000, "which is no width"),
        ("uncertainty_ns", 1 << 62, "which is no width"),
        ("offset_ns", -(1 << 62), "out of range"),
        ("hold_limit", -7, "no number of pulls"),
        ("hold_limit", 1 << 62, "no number of pulls"),
    ],
)
def test_odd_numbers_of_a_source_are_damage(clean: Path, tmp_path: Path, field: str, value: int, says: str) -> None:
    """A negative uncertainty would shorten intervals, so it is reported as damage and not used."""
    meta = simulated_meta()
    odd = msgspec.structs.replace(meta, sources=[msgspec.structs.replace(meta.sources[0], **{field: value})])
    result = judged(tmp_path / "history", load(clean).events, odd)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert [says in gap["why"] and field in gap["why"] for gap in result.gaps if gap["kind"] == "damage"] == [True]


# -- connections that are not read ------------------------------------------------------------------------------------


def block(recording: Recording, answer: Event, direction: str, first_ns: int, last_ns: int) -> None:
    for name, moment_ns in (("blocked", first_ns), ("unblocked", last_ns)):
        place = next(
            (n for n, event in enumerate(recording.events) if event.after_ns > moment_ns), len(recording.events) - 1
        )
        told = Event(
            event=name,
            after_ns=moment_ns,
            before_ns=moment_ns,
            source=SOURCE,
            sequence=0,
            connection=answer.connection,
            direction=direction,
        )
        recording.events.insert(place, told)
    recording.events = numbered(recording.events)


def late_answer(clean: Path) -> tuple[Recording, Event]:
    recording = load(clean)
    before = {event.request for event in recording.events}
    FAULTS["wake_delayed"].apply(recording)
    delays = [
        (answer.after_ns - request.after_ns, answer) for request, answer in recording.exchanges() if answer.code == 0
    ]
    assert before
    return recording, max(delays, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("direction", ["answers", "requests"])
def test_a_client_that_does_not_read_causes_no_violation(clean: Path, tmp_path: Path, direction: str) -> None:
    """The client did not read, so the answer may have been sent in time, which the text of the finding says."""
    recording, answer = late_answer(clean)
    block(recording, answer, direction, answer.after_ns - 1_500 * MS, answer.after_ns - 10 * MS)
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert all("its connection was not read for a part of that time" in finding.why for finding in result.findings)


def test_a_block_at_another_time_explains_nothing(clean: Path, tmp_path: Path) -> None:
    """A connection blocked before the pull came, or another blocked connection, does not explain a late answer."""
    recording, answer = late_answer(clean)
    block(recording, answer, "answers", answer.after_ns - 6_000 * MS, answer.after_ns - 5_000 * MS)
    block(recording, change(answer, connection="other"), "answers", 0, answer.after_ns + 10**12)
    events = [event for event in recording.events if event.event != "unblocked" or event.connection != "other"]
    result = judged(tmp_path / "history", numbered(events), recording.meta)

    assert result.verdict == "invalid"


def test_answers_on_an_unread_connection_are_not_missing(clean: Path, tmp_path: Path) -> None:
    recording = load(clean)
    victim = next(answer.connection for _request, answer in recording.exchanges() if answer.cause == "expired")
    silent = [
        event
        for number, event in enumerate(recording.events)
        if event.connection != victim or event.event != "answer_sent" or number < 500
    ]
    pulls = [event for event in silent if event.connection == victim and event.code in PULLS]
    answered = {event.request for event in silent if event.event == "answer_sent"}
    left = [event for event in pulls if event.request not in answered][:1]
    events = [event for event in silent if event not in pulls or event.request in answered or event in left]
    recording.events = numbered(events)
    convicted = judged(tmp_path / "read", recording.events, recording.meta)
    first_ns = left[0].before_ns
    told = Event(
        event="blocked",
        after_ns=first_ns,
        before_ns=first_ns + MS,
        source=SOURCE,
        sequence=0,
        connection=victim,
        direction="answers",
    )
    recording.events = numbered([*recording.events[:-1], told, recording.events[-1]])
    result = judged(tmp_path / "unread", recording.events, recording.meta)

    assert convicted.verdict == "invalid"
    assert (result.verdict, violated(result)) == ("unknown", [])
    assert {"its connection was not read" in finding.why for finding in result.findings} == {True}


def test_too_many_gaps_are_merged() -> None:
    many = [(place * 10 + place % 7, place * 10 + place % 7 + 1) for place in range(3 * GAPS_MAX)]
    holes = gaps_of(many)

    assert len(holes) == GAPS_MAX
    for start, end in many:
        where = int(holes.ends.searchsorted(end))
        assert holes.starts[where] <= start <= end <= holes.ends[where]


@given(numbers=st.lists(st.integers(2, 9), min_size=1, max_size=9), shuffled=st.randoms())
def test_missing_and_repeated_numbers_are_seen_in_any_order(numbers: list[int], shuffled: random.Random) -> None:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shuffled.shuffle(numbers)
    told = np.array([(number, number * MS, number * MS) for number in numbers], dtype=np.int64)
    seen = survey_source(*told.T)

    assert [[run.first, run.last] for run in seen.runs] == runs
    assert [(run.first_after_ns, run.last_before_ns) for run in seen.runs] == [(a * MS, b * MS) for a, b in runs]


SECOND_NS = 1_000_000_000
MOMENTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=12)


@given(moments=MOMENTS | MOMENTS.map(lambda told: [(after_s, 0) for after_s, _width_s in told]), shuffled=st.randoms())
def test_the_largest_backward_step_of_a_source_is_measured(
    moments: list[tuple[int, int]], shuffled: random.Random
) -> None:
    told = [
        (number, after_s * SECOND_NS, (after_s + width_s) * SECOND_NS)
        for number, (after_s, width_s) in enumerate(moments)
    ]
    pairs = [(one, later) for place, later in enumerate(told) for one in told[:place]]
    back_ns = max((after_ns - later_before_ns for (_n, after_ns, _b), (_m, _a, later_before_ns) in pairs), default=0)
    late_ns = max((before_ns - later_after_ns for (_n, _a, before_ns), (_m, later_after_ns, _b) in pairs), default=0)
    shuffled.shuffle(told)
    seen = survey_source(*np.array(told, dtype=np.int64).T)

    assert seen.is_inverted is (back_ns > 0)
    assert seen.step_ns == (back_ns if back_ns > CLOCK_STEP_NS else 0)
    assert (seen.steps > 0) is (back_ns > CLOCK_STEP_NS)
    assert seen.disorder_ns == max(late_ns, 0)
    assert [(run.first, run.last) for run in seen.runs] == [(0, len(told) - 1)]
    assert (seen.first_ns, seen.last_ns) == (min(one[1] for one in told), max(one[1] for one in told))

"""A history that is judged by what is new in it: the sum is the judgement of the whole, or says that it may not be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.judge.one_queue import asked, told
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import (
    RECORDINGS,
    Followed,
    are_found,
    certain,
    follow_pieces,
    shown,
    simulated,
    table_of,
    written,
)
from msgspec.structs import replace

from longpoll_judge.columns.keys import request_keys
from longpoll_judge.contract.result import Result
from longpoll_judge.generate import simulated_meta
from longpoll_judge.read import growing_history
from longpoll_judge.read.schema import Damage
from longpoll_judge.read.source import InputSplit, read_split
from longpoll_judge.recording import NoVictimError, Recording, load
from longpoll_judge.run import follow as following
from longpoll_judge.run.follow import follow
from longpoll_judge.run.incremental import recent_events
from longpoll_judge.run.incremental.recent_events import CAME_AGAIN, TOO_MANY, Asked
from longpoll_judge.run.incremental.state_file import WRITTEN_ANEW, Parts
from longpoll_judge.run.pipeline import judge

QUICK = ("answer_deleted", "visible_too_soon", "next_wrong", "visible_moves_back", "append_missing", "events_lost")


def check(recording: Recording, directory: Path, pieces: int, seed: int) -> tuple[Followed, Result]:
    """Check that every finding is one of the whole, and that a sum that claims to be whole is."""
    whole = judge([written(recording, directory)], engine="local")
    found = follow_pieces(directory, pieces, seed, looks=0.3)
    if found.is_whole:
        assert shown(found.last) == shown(whole)
    assert are_found(found.told, whole)
    return found, whole


def test_a_history_without_a_fault_is_judged_once(tmp_path: Path) -> None:
    found, whole = check(simulated(1, 700), tmp_path / "history", 8, 1)

    assert found.is_whole
    assert whole.verdict == "valid"


@pytest.mark.parametrize("fault", QUICK)
def test_an_injected_fault_is_told_or_left_to_the_whole(fault: str, tmp_path: Path) -> None:
    """Every reported fault is one of the whole, and none is missed without a doubt."""
    recording = simulated(3, 1_000)
    FAULTS[fault].apply(recording)
    check(recording, tmp_path / "history", 6, 3)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_injected_fault_is_told_or_left_to_the_whole(seed: int, tmp_path: Path) -> None:
    sums, missed, count = 0, [], 0
    for number, (name, fault) in enumerate(FAULTS.items()):
        recording = simulated(seed, 2_500)
        try:
            fault.apply(recording)
            found, whole = check(recording, tmp_path / f"{number}", 25, seed)
        except (NoVictimError, pa.ArrowInvalid):
            continue
        missed += [name] if certain(whole).keys() - found.told.keys() else []
        sums, count = sums + found.is_whole, count + 1

    assert count > 70
    assert sums > 40
    assert len(missed) < 25, missed


@pytest.mark.long
@pytest.mark.parametrize("name", ["java-4.9.7-lost-wakeup", "java-5.5.0-lost-wakeup", "java-4.9.7-late", "strict"])
def test_real_recordings_are_told_of_rightly(name: str, tmp_path: Path) -> None:
    for seed in range(3):
        recording = load(RECORDINGS / name)
        found, whole = check(recording, tmp_path / "history", min(15, len(recording.events) - 1), seed)
        assert not found.is_whole
        assert found.told.keys() == certain(whole).keys()


def test_an_event_that_comes_late_is_a_doubt(tmp_path: Path) -> None:
    recording = simulated(5, 700)
    late = next(event for event in recording.events[200:] if event.event == "append")
    recording.events.remove(late)
    recording.events.insert(len(recording.events) - 20, late)
    found = follow_pieces(written(recording, tmp_path / "history"), 12, 5, looks=0)

    assert not found.is_whole
    assert any("late" in doubt for doubt in found.steps.growing.doubts)


def test_an_event_that_contradicts_the_log_is_a_doubt(tmp_path: Path) -> None:
    """The last append of a queue has the offset of its first."""
    recording = simulated(5, 700)
    places = [at for at, each in enumerate(recording.events) if (each.event, each.queue) == ("append", 0)]
    first = recording.events[places[0]].queue_offset
    recording.events[places[-1]] = replace(recording.events[places[-1]], queue_offset=first)
    found = follow_pieces(written(recording, tmp_path / "history"), 30, looks=0)

    assert not found.is_whole
    assert any("contradicts what came long before" in doubt for doubt in found.steps.growing.doubts)


@pytest.mark.long
def test_what_is_at_hand_does_not_grow(tmp_path: Path) -> None:
    """A few pieces of the log and of the requests are kept, however many have come."""
    found = follow_pieces(written(simulated(6, 2_000), tmp_path / "history"), 40, 6, looks=0)
    growing = found.steps.growing

    assert found.is_whole
    assert sum(len(piece.log) for piece in growing.window) < 0.7 * growing.survey.observers.appended
    assert len(growing.pending) < growing.survey.event_count / 10


def test_a_log_that_is_let_go_too_early_is_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests whose log is gone are left to the end, and never judged without it."""
    monkeypatch.setattr("longpoll_judge.run.incremental.queue_judge.LOG_EVENTS_MAX", 20)
    monkeypatch.setattr("longpoll_judge.run.incremental.queue_judge.PIECES_MIN", 1)
    found, whole = check(simulated(7, 400), tmp_path / "history", 20, 7)

    assert whole.verdict == "valid"
    assert found.told == {}


def test_sends_are_judged_beside_the_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of a send is reported while the history grows, and the sum is not final."""
    monkeypatch.setattr(recent_events, "FRESH_NS", 0)
    recording = simulated(4, 800)
    FAULTS["sends_inverted"].apply(recording)
    found, whole = check(recording, tmp_path / "history", 8, 1)
    monkeypatch.setattr(recent_events, "EVENTS_MAX", 200)
    fewer = follow_pieces(tmp_path / "history", 8, 1, looks=0.3)

    assert not found.is_whole
    for findings in (certain(whole), found.told):
        assert "send.sequential" in {one.clause for one in findings.values()}
    assert fewer.told.keys() <= found.told.keys()
    assert fewer.steps.growing.beside.recent.count <= 200 + 800 / 4


# -- a part that grows -------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[InputSplit]:
    """Every split that a follower reads as new; long histories begin at once."""
    found: list[InputSplit] = []

    def noted(part: InputSplit) -> tuple[pa.Table, list[Damage]]:
        found.append(part)
        return read_split(part)

    monkeypatch.setattr(growing_history, "read_split", noted)
    monkeypatch.setattr(following, "WHOLE_EVENTS", 0)
    return found


def followed(directory: Path, contents: Iterator[bytes | None]) -> tuple[Result, list[Result]]:
    """Follow a part while it gets each of the contents; returns the last result and all reported ones."""
    told: list[Result] = []

    def stops(_seconds: float) -> bool:
        try:
            content = next(contents)
        except StopIteration:
            return True
        if content is not None:
            (directory / "part-0.ndjson").write_bytes(content)
        return False

    last = follow([directory], engine="local", master=None, wake_ms=100, late_ms=50, tell=told.append, stops=stops)
    return last, told


def test_every_byte_is_read_once(reads: list[InputSplit], tmp_path: Path) -> None:
    """The follower goes on where it was, in the middle of a line too; its last word is that of the whole."""
    events = simulated(8, 700).events
    at = next(place for place, event in enumerate(events) if place > 350 and event.event == "answer_sent")
    events[at] = replace(events[at], offset_next=events[at].offset_next + 1)
    directory = written(Recording(events, simulated_meta()), tmp_path / "history")
    content = (directory / "part-0.ndjson").read_bytes()
    (directory / "part-0.ndjson").write_bytes(b"")
    ends = [*range(len(content) // 9, len(content), len(content) // 9), len(content)]
    last, told = followed(directory, (content[:end] for end in ends))
    whole = judge([directory], engine="local")

    assert (last.verdict, [one.id for one in last.findings]) == (whole.verdict, [one.id for one in whole.findings])
    assert last.findings[0].id in {one.id for result in told[:-1] for one in result.findings}
    assert len(reads) > 5
    assert [part.start for part in reads[1:]] == [part.end for part in reads[:-1]]
    assert reads[-1].end == len(content)


@pytest.mark.parametrize(
    ("how", "tell_s"), [("cut", following.TELL_S), ("shorter", 0.0), ("longer", following.TELL_S), ("longer", 0.0)]
)
def test_a_part_that_is_written_anew_is_noticed(
    how: str, tell_s: float, reads: list[InputSplit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower reports it, at the end of a look or in the middle of one; the end judges what is there."""
    monkeypatch.setattr(following, "TELL_S", tell_s)
    directory = written(simulated(9, 500), tmp_path / "history")
    part = directory / "part-0.ndjson"
    content = part.read_bytes()
    other = (written(simulated(10, 500), tmp_path / "other") / "part-0.ndjson").read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    now = {"cut": content[: half // 2], "shorter": other[: half // 2], "longer": other}[how]
    part.write_bytes(content[:half])
    last, told = followed(directory, iter([None, now, None]))

    assert reads
    assert not any(WRITTEN_ANEW in str(gap["why"]) for gap in told[1].gaps)
    assert any(WRITTEN_ANEW in str(gap["why"]) for gap in told[-1].gaps)
    whole = judge([directory], engine="local")
    assert (last.verdict, last.events) == (whole.verdict, whole.events)


@pytest.mark.parametrize("read", [0, 12], ids=["new", "read before"])
@pytest.mark.parametrize(
    ("now", "told"), [(b"two\n" * 9, [1, 0, 0]), (b"one\n" * 12, [0, 0, 0])], ids=["anew", "grown"]
)
def test_a_part_that_is_written_anew_is_noticed_once(now: bytes, told: list[int], read: int, tmp_path: Path) -> None:
    part = tmp_path / "part-0.ndjson"
    part.write_bytes(b"one\n" * 9)
    parts, before = Parts(), {str(part): read} if read else {}
    parts.note(before)
    parts.expect({str(part): 36}, before)
    part.write_bytes(now)

    assert [parts.note({str(part): end}) for end in (20, 28, 36)] == told


# -- identifiers that come again ---------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["", "7-", "a", "0", "7-0", "\n", "\u00e9"]), st.integers(0, 12)),
    st.sampled_from(["a", "7-", "9" * 25, "007", "x" * 300, "7-1 "]),
)


def requests(names: list[str], source: str = "s") -> pa.Table:
    """Requests with these identifiers, one after the other."""
    return table_of([asked(at, name, source=source) for at, name in enumerate(names)])


@settings(max_examples=12)
@given(pieces=st.lists(st.lists(st.tuples(st.sampled_from("st"), NAMES), max_size=12), max_size=6))
def test_what_is_remembered_is_the_set_of_identifiers(pieces: list[list[tuple[str, str]]]) -> None:
    known = Asked()
    seen: set[tuple[str, str]] = set()
    again: set[tuple[str, str]] = set()
    for piece in pieces:
        table = pa.concat_tables([requests([name], source) for source, name in piece] or [requests([])])
        before = set(again)
        for one in piece:
            again |= {one} & seen
            seen.add(one)
        assert known.add(table).get(CAME_AGAIN, 0) == len(again - before)
        kept = known.without(table)
        left = list(zip(kept["source"].to_pylist(), kept["request"].to_pylist(), strict=True))
        assert left == [one for one in piece if one not in again]
    steps = np.flatnonzero(known.text[1:] == known.text[:-1])
    assert (known.first <= known.last).all()
    assert (known.last[steps] + 1 < known.first[steps + 1]).all()


def test_numbers_in_a_row_are_one_span() -> None:
    """In whatever order they come, on any number of connections."""
    known, dice = Asked(), random.Random(1)
    names = [f"{connection}-{number}" for connection in range(3) for number in range(1, 200)]
    dice.shuffle(names)
    for start in range(0, len(names), 100):
        assert known.add(requests(names[start : start + 100])) == {}

    assert sorted(zip(known.first.tolist(), known.last.tolist(), strict=True)) == [(1, 199)] * 3


def test_too_many_to_remember_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once; none is remembered any more, and what came again before stays left out."""
    monkeypatch.setattr(recent_events, "SPANS_MAX", 3)
    known = Asked()
    told = [known.add(requests(names)) for names in (["a1", "b1", "a1"], ["c1", "d1"], ["e1", "a1"])]

    assert told == [{CAME_AGAIN: 1}, {TOO_MANY: 3}, {}]
    assert (len(known.first), len(known.again)) == (0, 1)
    assert known.without(requests(["a1", "c1"]))["request"].to_pylist() == ["c1"]


def test_of_a_request_that_came_again_the_log_stays() -> None:
    """Left out are the request, its answers and what was done with it."""
    known, rows = Asked(), [asked(0), told(1), asked(5), asked(6, "other")]
    table = table_of([*rows, told(2) | {"event": "message_acknowledged", "queue_offset": 1}])
    known.add(table)

    assert known.without(table)["event"].to_pylist() == ["request_received", "message_acknowledged"]
    assert known.again.tolist() == request_keys(table, np.array([0])).tolist()


def test_of_a_request_that_comes_again_while_it_is_open_nothing_is_told(tmp_path: Path) -> None:
    """The first is let go of too: its answers are, and it would look unanswered."""
    recording = simulated(3, 500)
    pulls = [event.request for event in recording.events if event.event == "request_received" and event.code == 11]
    names = dict(zip(pulls[1::2], pulls[::2], strict=False))
    changed = [replace(event, request=names.get(event.request, event.request)) for event in recording.events]
    found = follow_pieces(written(evolve(recording, events=changed), tmp_path / "history"), 6, 3)

    assert found.told == {}
    assert any(CAME_AGAIN in gap["why"] for gap in found.last.gaps)


@pytest.mark.parametrize(("is_other", "verdict"), [(False, "unknown"), (True, "invalid")])
def test_of_a_request_that_comes_again_long_after_nothing_is_told(
    *, is_other: bool, verdict: str, tmp_path: Path
) -> None:
    """Its answer may be the first one's, unless it names another queue, which only the whole tells."""
    recording = simulated(3, 600)
    pulls = [event for event in recording.events if event.event == "request_received" and event.code == 11]
    answered = {event.request for event in recording.events if event.event == "answer_sent"}
    first = pulls[0]
    last = [one.request for one in pulls if one.request in answered and (one.queue != first.queue) == is_other][-5]
    events = [replace(event, request=first.request) if event.request == last else event for event in recording.events]
    at = max(at for at, event in enumerate(events) if (event.request, event.event) == (first.request, "answer_sent"))
    events[at] = replace(events[at], offset_next=events[at].offset_next + 1_000)
    found, whole = check(evolve(recording, events=events), tmp_path / "history", 8, 3)

    assert whole.verdict == verdict
    assert (found.last.verdict, found.told, found.is_whole) == ("unknown", {}, False)
    assert any(CAME_AGAIN in gap["why"] for gap in found.last.gaps)

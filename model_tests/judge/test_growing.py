"""A history judged by what is new in it comes to what judging the whole comes to, or says that it may not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from model_tests.judge.test_recordings import RECORDINGS

from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.read import tail
from longpoll_judge.read.damage import Damage
from longpoll_judge.read.source import Slice, find, read_slice
from longpoll_judge.run import follow as following
from longpoll_judge.run.follow import Limits, Steps, follow
from longpoll_judge.run.growing import beside, recent
from longpoll_judge.run.growing.queues import Growing
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import Load, simulate, simulated_meta
from longpoll_judge.testing.plant import FAULTS
from longpoll_judge.testing.recording import NoVictimError, Recording, load
from longpoll_spec.history import META_FILE

ENCODE = msgspec.json.Encoder().encode
LIMITS = Limits(100.0, 50.0)
QUICK = (
    "answer_deleted",
    "next_wrong",
    "visible_past_the_log",
    "visible_too_soon",
    "visible_moves_back",
    "append_missing",
    "events_lost",
)


def simulated(seed: int, events: int = 1_200) -> Recording:
    """A history without a fault."""
    return Recording(list(simulate(Load(events=events, seed=seed, timeout_ms=60))), simulated_meta())


def written(recording: Recording, directory: Path) -> Path:
    """The history as files."""
    directory.mkdir(exist_ok=True)
    if recording.meta is not None:
        (directory / META_FILE).write_bytes(ENCODE(recording.meta))
    lines = b"".join(ENCODE(event) + b"\n" for event in recording.events)
    (directory / "part-0.ndjson").write_bytes(lines + recording.damaged_tail)
    return directory


def grown(directory: Path, pieces: int, seed: int) -> tuple[Result, bool, dict[str, Finding], Growing]:
    """Judge a history cut into pieces anywhere.

    The last result, whether nothing speaks against its being that of the whole, and what was certain at any time.
    """
    drawn = random.Random(seed)
    history = find([directory])
    read = [read_slice(part) for part in history.slices]
    table = pa.concat_tables([part for part, _damages in read])
    cuts = sorted(drawn.sample(range(1, len(table)), pieces - 1))
    told: dict[str, Finding] = {}
    growing = Growing(LIMITS.wake_ms, LIMITS.late_ms)
    steps = Steps(growing, LIMITS)
    for start, end in zip([0, *cuts], [*cuts, len(table)], strict=True):
        damages = [damage for _part, found in read for damage in found] if end == len(table) else []
        growing.add([table.slice(start, end - start)], damages, history)
        if drawn.random() < 0.3:
            told |= certain(steps.result(history))
    result = steps.result(history)
    attendance = growing.survey.attendance
    is_whole = not any(gap["why"].endswith("at the end") for gap in result.gaps)
    is_whole &= not (attendance.acknowledged or attendance.sends)
    return result, is_whole, told | certain(result), growing


def shown(result: Result) -> object:
    """What is compared of two results: everything but how long it took, and the evidence."""
    findings = sorted((one.id, one.clause, one.verdict, one.why, one.request) for one in result.findings)
    gaps = sorted(str(gap) for gap in result.gaps)
    numbers = (result.judged, result.shares, result.latency, result.rates, result.requests, result.queues)
    return result.verdict, findings, gaps, result.findings_left_out, numbers


def certain(result: Result) -> dict[str, Finding]:
    """By name, what is told of a result."""
    return {finding.id: finding for finding in result.findings if finding.verdict == "violated"}


def are_found(told: dict[str, Finding], whole: Result) -> bool:
    """Whether the whole finds all that was told; some of it may be part of what has the same cause there."""
    known = certain(whole)
    parts = {(part.clause, part.topic, part.queue) for one in known.values() for part in one.follows}
    return all(name in known or (one.clause, one.topic, one.queue) in parts for name, one in told.items())


def check(recording: Recording, directory: Path, pieces: int, seed: int) -> tuple[bool, Result, dict[str, Finding]]:
    """What is said to be the whole's is; nothing is told that the whole does not find."""
    whole = judge([written(recording, directory)], engine="local")
    result, is_whole, told, _growing = grown(directory, pieces, seed)
    if is_whole:
        assert shown(result) == shown(whole)
    assert are_found(told, whole)
    return is_whole, whole, told


@pytest.mark.parametrize("seed", [1, 2])
def test_a_history_without_a_fault_is_judged_once(seed: int, tmp_path: Path) -> None:
    """The sum of the pieces is the verdict on the whole, and it says so."""
    is_whole, whole, _told = check(simulated(seed), tmp_path / "history", 12, seed)

    assert is_whole
    assert whole.verdict == "valid"


@pytest.mark.parametrize("fault", QUICK)
def test_a_planted_fault_is_told_or_left_to_the_whole(fault: str, tmp_path: Path) -> None:
    """No fault is told that the whole does not have, and none is missed without a doubt."""
    recording = simulated(3)
    FAULTS[fault].apply(recording)
    check(recording, tmp_path / "history", 12, 3)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_planted_fault_is_told_or_left_to_the_whole(seed: int, tmp_path: Path) -> None:
    """Each kind there is; most are told before the end, all of pulls and logs are."""
    sums, missed, count = 0, [], 0
    for number, (name, fault) in enumerate(FAULTS.items()):
        recording = simulated(seed, 2_500)
        try:
            fault.apply(recording)
            is_whole, whole, told = check(recording, tmp_path / f"{number}", 25, seed)
        except (NoVictimError, pa.ArrowInvalid):
            continue
        missed += [name] if certain(whole).keys() - told.keys() else []
        sums, count = sums + is_whole, count + 1

    assert count > 70
    assert sums > 40
    assert len(missed) < 25, missed


@pytest.mark.long
@pytest.mark.parametrize("name", ["java-4.9.7-lost-wakeup", "java-5.5.0-lost-wakeup", "java-4.9.7-late", "strict"])
def test_real_recordings_are_told_of_rightly(name: str, tmp_path: Path) -> None:
    """From outside, with sends: whatever is told the whole finds too."""
    for seed in range(3):
        recording = load(RECORDINGS / name)
        pieces = min(15, len(recording.events) - 1)
        is_whole, whole, told = check(recording, tmp_path / "history", pieces, seed)
        assert not is_whole
        assert told.keys() == certain(whole).keys()


def test_planted_what_comes_late_is_a_doubt(tmp_path: Path) -> None:
    """An event of the log that comes long after its moment may change what was judged, and the sum says so."""
    recording = simulated(5)
    late = next(event for event in recording.events[300:] if event.event == "append")
    recording.events.remove(late)
    recording.events.insert(len(recording.events) - 20, late)
    _result, is_whole, _told, growing = grown(written(recording, tmp_path / "history"), 20, 5)

    assert not is_whole
    assert any("late" in doubt for doubt in growing.doubts)


def test_what_is_at_hand_does_not_grow(tmp_path: Path) -> None:
    """Of the log and of the requests a few pieces are kept, however many have come."""
    directory = written(simulated(6, 4_000), tmp_path / "history")
    _result, is_whole, _told, growing = grown(directory, 60, 6)
    at_hand = sum(len(piece.log) for piece in growing.window)

    assert is_whole
    assert at_hand < 0.3 * growing.survey.attendance.appended
    assert len(growing.pending) < growing.survey.event_count / 10


def test_planted_a_log_that_is_forgotten_too_early_is_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests whose log has been let go are left, and never judged without it."""
    monkeypatch.setattr("longpoll_judge.run.growing.queues.LOG_EVENTS_MAX", 20)
    monkeypatch.setattr("longpoll_judge.run.growing.queues.PIECES_MIN", 1)
    whole = judge([written(simulated(7), tmp_path / "history")], engine="local")
    result, is_whole, told, _growing = grown(tmp_path / "history", 60, 7)

    assert whole.verdict == "valid"
    assert not is_whole or shown(result) == shown(whole)
    assert told == {}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Slice]:
    """Every slice that a follower reads as new; long histories begin at once."""
    found: list[Slice] = []

    def noted(part: Slice) -> tuple[pa.Table, list[Damage]]:
        found.append(part)
        return read_slice(part)

    monkeypatch.setattr(tail, "read_slice", noted)
    monkeypatch.setattr(following, "WHOLE_EVENTS", 0)
    return found


def followed(directory: Path, content: bytes, cuts: Iterator[int]) -> tuple[Result, list[Result]]:
    """Follow a part while it grows to each of the cuts; the last result, and all that were told."""
    told: list[Result] = []
    part = directory / "part-0.ndjson"
    part.write_bytes(b"")
    place = 0

    def stops(_seconds: float) -> bool:
        nonlocal place
        end = next(cuts, None)
        if end is None:
            return True
        with part.open("ab") as file:
            file.write(content[place:end])
        place = end
        return False

    last = follow([directory], engine="local", master=None, wake_ms=100, late_ms=50, tell=told.append, stops=stops)
    return last, told


def test_every_byte_is_read_once(reads: list[Slice], tmp_path: Path) -> None:
    """The follower goes on where it was, in the middle of a line too; its last word is that of the whole."""
    events = simulated(8).events
    at = next(place for place, event in enumerate(events) if place > 600 and event.event == "answer_sent")
    events[at] = msgspec.structs.replace(events[at], offset_next=events[at].offset_next + 1)
    directory = written(Recording(events, simulated_meta()), tmp_path / "history")
    content = (directory / "part-0.ndjson").read_bytes()
    step = len(content) // 9
    last, told = followed(directory, content, iter([*range(step, len(content), step), len(content)]))
    whole = judge([directory], engine="local")

    assert (last.verdict, [one.id for one in last.findings]) == (whole.verdict, [one.id for one in whole.findings])
    assert last.findings[0].id in {one.id for result in told[:-1] for one in result.findings}
    assert len(reads) > 5
    assert [part.start for part in reads[1:]] == [part.end for part in reads[:-1]]
    assert reads[-1].end == len(content)


def test_what_is_sent_is_judged_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of a send is told while the history grows, and the sum does not pass for the whole."""
    monkeypatch.setattr(recent, "FRESH_NS", 0)
    recording = simulated(4)
    FAULTS["sends_inverted"].apply(recording)
    directory = written(recording, tmp_path / "history")
    whole = judge([directory], engine="local")
    _result, is_whole, told, _growing = grown(directory, 12, 1)
    monkeypatch.setattr(beside, "EVENTS_MAX", 200)
    _result, _is_whole, fewer, growing = grown(directory, 12, 1)

    assert "send.sequential" in {one.clause for one in certain(whole).values()}
    assert not is_whole
    assert are_found(told, whole)
    assert "send.sequential" in {one.clause for one in told.values()}
    assert fewer.keys() <= told.keys()
    assert growing.beside.recent.count <= 200 + 1_200 / 6


@pytest.mark.parametrize("tell_s", [following.TELL_S, 0.0], ids=["when it was read", "while it is read"])
@pytest.mark.parametrize("how", ["cut", "shorter", "longer"])
def test_a_part_that_is_written_anew_is_noticed(
    how: str, tell_s: float, reads: list[Slice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of it does not stand there any more: that is said, and the end judges what does.

    Where a look takes long it is told in the middle of it, and the part may be written anew there.
    """
    monkeypatch.setattr(following, "TELL_S", tell_s)
    directory = written(simulated(9), tmp_path / "history")
    part = directory / "part-0.ndjson"
    content = part.read_bytes()
    other = written(simulated(10), tmp_path / "other") / "part-0.ndjson"
    half = content.index(b"\n", len(content) // 2) + 1
    now = {"cut": content[: half // 2], "shorter": other.read_bytes()[: half // 2], "longer": other.read_bytes()}[how]
    part.write_bytes(content[:half])
    steps: Iterator[bytes | None] = iter([None, now, None])
    told: list[Result] = []

    def stops(_seconds: float) -> bool:
        try:
            step = next(steps)
        except StopIteration:
            return True
        if step is not None:
            part.write_bytes(step)
        return False

    last = follow([directory], engine="local", master=None, wake_ms=100, late_ms=50, tell=told.append, stops=stops)

    assert reads
    assert not any(following.WRITTEN_ANEW in str(gap["why"]) for gap in told[1].gaps)
    assert any(following.WRITTEN_ANEW in str(gap["why"]) for gap in told[-1].gaps)
    whole = judge([directory], engine="local")
    assert (last.verdict, last.events) == (whole.verdict, whole.events)


@pytest.mark.parametrize("read", [0, 12], ids=["new", "read before"])
@pytest.mark.parametrize(
    ("now", "told"), [(b"two\n" * 9, [1, 0, 0]), (b"one\n" * 12, [0, 0, 0])], ids=["anew", "grown"]
)
def test_a_part_that_is_written_anew_before_half_of_it_is_read_is_noticed_then(
    now: bytes, told: list[int], read: int, tmp_path: Path
) -> None:
    """And once: whoever stops there keeps the doubt, for what is kept of the part is then what stands there."""
    part = tmp_path / "part-0.ndjson"
    part.write_bytes(b"one\n" * 9)
    parts, before = following.Parts(), {str(part): read} if read else {}
    parts.note(before)
    parts.expect({str(part): 36}, before)
    part.write_bytes(now)

    assert [parts.note({str(part): end}) for end in (20, 28, 36)] == told

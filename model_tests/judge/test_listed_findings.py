"""A follower tells each certain finding once, all that is new, however long a history goes on and whatever kills it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from attrs import asdict, evolve, frozen
from model_tests.judge.test_commits import Kind, events_of
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import certain, follow_pieces, judged, lines_of, numbered, written
from model_tests.support.spec.cases import quick_if
from msgspec.structs import replace

from longpoll.views.follow import FindingReporter, Places, open_reporter
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.errors import CheckpointError, StreamNotReadableError
from longpoll_judge.generate import Load, simulate, simulated_meta
from longpoll_judge.read.files import absolute
from longpoll_judge.read.source import find
from longpoll_judge.recording import NoVictimError, Recording
from longpoll_judge.run import queue_verdict
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.incremental import queue_judge, recent_events
from longpoll_judge.run.incremental.state_file import STATE_FILE
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge, judge_on
from longpoll_judge.run.tally import NOT_TOLD, Latest, left_to_the_end
from longpoll_judge.show.findings_file import POSTED_FILE, RECENT_MAX, TOLD_FILE, Names, open_checkpoint, open_stream
from longpoll_judge.show.standing import standing
from longpoll_spec.history import Event

LIMITS = {"wake_ms": 100.0, "late_ms": 50.0}
CUTS = 5
REGROUPED = 39
"""A history whose first finding is told later as what follows from another."""
PIECES = 8
WRONG = 120


def faulty(seed: int) -> Recording:
    """A short history; of every four one has no fault."""
    recording = Recording(list(simulate(Load(events=400, timeout_ms=60, seed=seed))), simulated_meta())
    fault = list(FAULTS.values())[seed % len(FAULTS)]
    try:
        fault.apply(whole := Recording(list(recording.events), recording.meta))
    except NoVictimError:
        return recording
    return whole if seed % 4 else recording


@frozen
class Follower:
    """Follows one history, and may be killed between any two judgements, or while it writes a line."""

    history: Path
    places: Places

    def run(self, pieces: list[bytes]) -> Result:
        """Judge after each piece, and be gone; the last judgement."""
        with self.opened() as teller:
            for piece in pieces:
                with (self.history / "part-0.ndjson").open("ab") as part:
                    part.write(piece)
                result = judge([self.history], engine="local")
                teller.tell(result)
        return result

    def opened(self) -> AbstractContextManager[FindingReporter]:
        """The stream, opened as the command does."""
        return open_reporter(self.places, Progress([absolute(self.history)]), LIMITS, lambda _line: None)

    @property
    def told(self) -> list[Finding]:
        """The findings in the file, each line a whole one."""
        assert self.places.findings is not None
        return [msgspec.json.decode(line, type=Finding) for line in self.places.findings.read_bytes().splitlines()]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A checkpoint and a file of findings."""
    return Places(findings=tmp_path / "found.ndjson", checkpoint=tmp_path / "told")


def begun(tmp_path: Path, places: Places, seed: int) -> tuple[Follower, bytes]:
    """A follower of a history with nothing in it yet, and what comes."""
    recording = faulty(seed)
    written(Recording([], recording.meta), tmp_path / "history")
    return Follower(tmp_path / "history", places), lines_of(recording.events) + recording.damaged_tail


def tear(file: Path, chosen: random.Random) -> None:
    """Leave the file as a process does that is killed while it writes its last line or one more."""
    content = file.read_bytes()
    last = content.rfind(b"\n", 0, len(content) - 1) + 1
    file.write_bytes(content[: chosen.randrange(last, len(content) + 1)])


@pytest.mark.parametrize("seed", quick_if(range(200), lambda seed: seed in {1, 2, REGROUPED}))
def test_each_finding_is_told_once(tmp_path: Path, places: Places, seed: int) -> None:
    """Cut and killed anywhere: the file has what the whole has, and what now follows from one of these."""
    chosen = random.Random(seed)
    follower, content = begun(tmp_path, places, seed)
    ends = [content.rfind(b"\n", 0, chosen.randrange(len(content) + 1)) + 1 for _ in range(CUTS)]
    pieces = [content[start:end] for start, end in pairwise([0, *sorted(ends), len(content)])]
    while pieces:
        many = chosen.randint(1, len(pieces))
        follower.run(pieces[:many])
        del pieces[:many]
        if chosen.random() < 0.5:
            tear(chosen.choice([tmp_path / "found.ndjson", tmp_path / "told" / TOLD_FILE]), chosen)
    result = follower.run([b""])
    final = set(certain(result))
    names = [finding.id for finding in follower.told]

    assert len(names) == len(set(names))
    assert final <= set(names)
    assert [one for one in follower.told if one.id not in final and not follows(one, result)] == []


def follows(finding: Finding, result: Result) -> bool:
    """Whether the result has the finding as one that follows from another."""
    return any(
        more.clause == finding.clause and (not finding.request or finding.request in more.requests)
        for other in result.findings
        for more in other.follows
    )


def test_a_line_is_the_whole_finding_and_is_remembered(tmp_path: Path, places: Places) -> None:
    """With its evidence; by the file alone as well, and again where only the checkpoint has it."""
    for each in (places, Places(findings=tmp_path / "alone.ndjson")):
        follower, content = begun(tmp_path, each, 1)
        result = follower.run([content])
        follower.run([b""])
        assert len(follower.told) == 1
        assert follower.told == result.findings
        assert follower.told[0].evidence
    follower = Follower(tmp_path / "history", places)
    (tmp_path / "found.ndjson").write_bytes(b"")
    with follower.opened():
        pass
    assert follower.told == result.findings


@pytest.mark.parametrize("content", [b"hello\n", b'{"verdict":"valid"}', b'{"verdict":"valid"}\n', b"\n"])
def test_a_file_that_is_no_stream_of_findings_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    """It is neither added to nor cut."""
    file = tmp_path / "mine"
    file.write_bytes(content)
    with pytest.raises(StreamNotReadableError, match="name another file"), open_stream(file):
        pass

    assert file.read_bytes() == content


def test_a_stream_has_one_writer(tmp_path: Path, places: Places) -> None:
    """Neither another follower, nor this one by another name."""
    file = tmp_path / "found.ndjson"
    refused = pytest.raises(StreamNotReadableError, match="is added to already")
    with open_stream(file), refused, open_stream(file):
        pass
    same = evolve(places, findings=tmp_path / "told" / TOLD_FILE)
    with refused, Follower(tmp_path / "history", same).opened():
        pass


def test_a_torn_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    """After it the same finding is added again."""
    file = tmp_path / "found.ndjson"
    lines = [b'{"property":"p","id":"one"}', b'{"property":"p","id":"two"}']
    whole = b"".join(line + b"\n" for line in lines)
    for length in range(len(lines[0]) + 1, len(whole)):
        file.write_bytes(whole[:length])
        with open_stream(file) as stream:
            assert [stream.put(name, line) for name, line in zip(("one", "two"), lines, strict=True)] == [False, True]
        assert file.read_bytes() == whole


def test_a_checkpoint_is_of_one_judgement_and_one_process(tmp_path: Path) -> None:
    """Other histories, other thresholds, another process, and a directory of something else are refused."""
    directory = tmp_path / "told"

    def refused(match: str, paths: list[str], limits: dict[str, float]) -> None:
        with pytest.raises(CheckpointError, match=match), open_checkpoint(directory, paths, limits):
            pass

    with open_checkpoint(directory, ["/a"], LIMITS):
        refused("another process", ["/a"], LIMITS)
    for paths, limits in ((["/b"], LIMITS), (["/a"], {**LIMITS, "late_ms": 51.0})):
        refused("belongs to histories /a", paths, limits)
    with open_checkpoint(directory, ["/a"], LIMITS) as again:
        assert (again.told.path.name, again.posted.path.name) == (TOLD_FILE, POSTED_FILE)
    (directory / "checkpoint.json").write_bytes(b"{")
    refused("cannot be read", ["/a"], LIMITS)
    (directory / "checkpoint.json").unlink()
    refused("name another directory", ["/a"], LIMITS)


# -- the verdict so far ------------------------------------------------------------------------------------------------


def test_a_record_that_goes_on_is_valid_so_far(tmp_path: Path) -> None:
    """Open pulls and a missing end are what a record has that is still written; nothing else passes."""
    events = list(simulate(Load(events=300, timeout_ms=60)))
    again = [replace(event, source="broker-a#2") for event in events[:150]]
    so_far = standing(judged(tmp_path / "cut", events[:200]))
    whole = standing(judged(tmp_path / "whole", events))
    others = {
        "hole": [*events[:100], *events[101:200]],
        "nothing": [],
        "start": events[:1],
        "two": events[:200] + again,
    }
    found = {name: standing(judged(tmp_path / name, told)) for name, told in others.items()}

    assert (so_far.verdict, so_far.events) == ("valid so far", 200)
    assert so_far.open_pulls > 0
    assert so_far.sentence() == f"valid so far up to event 200; {so_far.open_pulls} pulls are still open"
    assert whole.sentence() == f"valid so far up to event {len(events)}"
    assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(others, "unknown")
    assert "misses" in found["hole"].why
    assert "no event" in found["nothing"].why


def test_a_violation_is_invalid_so_far(tmp_path: Path, places: Places) -> None:
    """Whatever else is open or missing."""
    follower, content = begun(tmp_path, places, 1)
    result = follower.run([content[: content.rfind(b"\n", 0, -200) + 1]])

    assert standing(result).verdict == "invalid"
    assert result.findings[0].clause in standing(result).sentence()


def test_what_only_the_end_tells_is_said_once(tmp_path: Path) -> None:
    """However often it is judged, and however its count changes."""
    result = judged(tmp_path / "history", simulate(Load(events=40, timeout_ms=60)))
    said: list[str] = []
    gap = {"clause": "", "kind": "damage", "source": "", "count": 1, "why": "a damaged line"}
    with open_reporter(Places(), Progress([absolute(tmp_path / "history")]), LIMITS, said.append) as teller:
        for counts in ({}, {"commits": 1}, {"commits": 2, "old pulls": 1}):
            left = [asdict(one) for one in left_to_the_end(counts)]
            teller.tell(replace(result, gaps=[gap, *left]))

    expected = ["reported only at the end: commits", "reported only at the end: old pulls"]
    assert [line for line in said if "at the end" in line] == expected


# -- more findings than are listed -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of one queue in which 120 answers say a wrong next offset, each some time after the one before."""
    events = list(simulate(Load(events=1_500, queues=1, consumers=("*",), timeout_ms=60)))
    answers = [place for place, event in enumerate(events) if event.event == "answer_sent"]
    for place in answers[5::2][:WRONG]:
        events[place] = replace(events[place], offset_next=events[place].offset_next + 1_000_000)
    return written(Recording(events, simulated_meta()), tmp_path_factory.mktemp("wrong") / "history")


def untold(result: Result) -> int:
    """How many findings a result says are not told."""
    return sum(gap["count"] for gap in result.gaps if gap["why"].endswith(NOT_TOLD))


@pytest.mark.parametrize("is_killed", [False, True])
def test_all_that_comes_slowly_is_told(*, is_killed: bool, history: Path, tmp_path: Path) -> None:
    """More than is ever listed at once, each when it is new, over restarts too."""
    found = follow_pieces(history, PIECES, kept=tmp_path / STATE_FILE if is_killed else None)

    assert len(found.told) == WRONG
    assert len(found.last.findings) == queue_verdict.FINDINGS_MAX
    assert found.last.findings_left_out >= WRONG - queue_verdict.FINDINGS_MAX
    assert untold(found.last) == 0


def test_more_than_can_be_told_at_once_is_counted(history: Path, tmp_path: Path) -> None:
    """To people, in the file and in the checkpoint, once for each number, over a restart too."""
    found = follow_pieces(history, 1)
    first, again = found.results
    count, said = WRONG - queue_verdict.FINDINGS_MAX, list[str]()
    places = Places(findings=tmp_path / "found.ndjson", checkpoint=tmp_path / "told")
    for _start in range(2):
        with open_reporter(places, Progress([absolute(history)]), LIMITS, said.append) as teller:
            teller.tell(first)
            teller.tell(again)
    lines = [msgspec.json.decode(line) for line in (tmp_path / "found.ndjson").read_bytes().splitlines()]

    assert len(certain(first)) == queue_verdict.FINDINGS_MAX
    assert untold(first) == untold(again) == count
    assert first.findings == again.findings
    assert [line["not_told"] for line in lines if "not_told" in line] == [count]
    assert len({line["id"] for line in lines}) == len(lines) == queue_verdict.FINDINGS_MAX + 1
    assert said.count(f"{count} {NOT_TOLD}") == 1


def test_what_goes_before_anybody_looks_is_counted(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longpoll_judge.run.tally.LOOKED_AT_MAX", 60)
    found = follow_pieces(history, PIECES, looks=0)

    assert untold(found.last) > 0
    assert len(found.told) + untold(found.last) == WRONG


def test_a_whole_lists_the_earliest(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few findings are at hand at a time."""

    def listed() -> tuple[list[Finding], int]:
        engine = LocalEngine(threads=1, window_events=300)
        result = judge_on(engine, find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
        return result.findings, result.findings_left_out

    whole = listed()
    monkeypatch.setattr("longpoll_judge.run.tally.LOOKED_AT_MAX", 55)
    assert listed() == whole


def ends_moved_back(events: list[Event]) -> Iterator[Event]:
    """Every sixth visible end is lower than it was: a fault of the log."""
    shown = [event for event in events if event.event == "make_visible"][3::6][:25]
    for event in events:
        yield replace(event, visible_end=event.visible_end - 2) if event in shown else event


def least_that_falls(events: list[Event]) -> Iterator[Event]:
    """Every sixth answer reports a least offset above that of the next."""
    answers = [event for event in events if event.event == "answer_sent"][3::6][:25]
    for event in events:
        yield replace(event, offset_min=event.offset_min + 5) if event in answers else event


def offsets_forgotten(_events: list[Event]) -> list[Event]:
    """A group commits more and more, and gets a lower offset each time."""
    kinds: list[Kind] = []
    for number in range(1, 26):
        kinds += [("pull", 10 * number, 100 * number, 100 * number + 1)]
        kinds += [("ask", 10 * number - 5, 100 * number + 50, 100 * number + 51)]
    kinds += [("pull", 300, 50_000, 50_001)]
    return numbered(sorted(events_of(kinds), key=lambda event: event.after_ns))


@pytest.mark.parametrize(
    ("wrong", "place", "clause"),
    [
        (ends_moved_back, (queue_judge, "LOGGED_MAX"), "log.visible.monotone"),
        pytest.param(least_that_falls, (recent_events, "FINDINGS_MAX"), "pull.min.never_falls", marks=pytest.mark.long),
        (offsets_forgotten, (recent_events, "FINDINGS_MAX"), "commit.told.kept"),
    ],
)
def test_what_is_found_beside_the_queues_goes_on_too(
    wrong: Callable[[list[Event]], Iterable[Event]],
    place: tuple[ModuleType, str],
    clause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of logs, of ends that fall, and of committed offsets, with a handful kept; each over restarts too."""
    monkeypatch.setattr(recent_events, "FRESH_NS", 0)
    monkeypatch.setattr(recent_events, "EVENTS_MAX", 150)
    plain = list(simulate(Load(events=700, queues=1, consumers=("*",), timeout_ms=60)))
    history = written(Recording(list(wrong(plain)), simulated_meta()), tmp_path / "history")
    whole = {name for name, one in certain(judge([history], engine="local")).items() if one.clause == clause}
    monkeypatch.setattr(*place, 6)
    found = follow_pieces(history, 10, kept=tmp_path / STATE_FILE)

    assert len(whole) > 15
    assert whole <= found.told.keys()
    assert len([one for one in found.last.findings if one.clause == clause]) <= 12


def test_the_latest_are_kept_and_what_nobody_saw_is_counted() -> None:
    latest = Latest[str, int]()
    for number, name in enumerate("abca"):
        latest.put(name, number, 3)
    assert list(latest.look()) == [1, 2, 0]

    for number, name in enumerate("defgh"):
        latest.put(name, number, 3)
    assert (list(latest.look()), latest.left_out) == ([2, 3, 4], 2)


def test_names_take_eight_bytes_each() -> None:
    """However many there are, each is known, and no other."""
    count = 5 * RECENT_MAX
    names = Names.of(f"n{number}" for number in range(count))
    names.add("n7")

    assert len(names) == count
    assert all(f"n{number}" in names for number in range(count))
    assert not any(f"m{number}" in names for number in range(count))
    assert names.nbytes <= 8 * count

"""A follower reports each certain finding once, however long a history grows and whenever it is killed."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from attrs import asdict, frozen
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.histories import certain, follow_pieces, judged, lines_of, written
from model_tests.support.judge.recording import NoVictimError, Recording
from model_tests.support.spec.cases import quick_if
from msgspec.structs import replace

from longpoll.views.follow import FindingReporter, Places, open_reporter
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.errors import StreamNotReadableError
from longpoll_judge.read.files import absolute
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.pipeline import judge
from longpoll_judge.run.tally import FINDINGS_MAX, NOT_TOLD, left_to_the_end
from longpoll_judge.show.findings_file import open_stream
from longpoll_judge.show.standing import standing

CUTS = 5
REGROUPED = 39
"""The seed of a history whose first finding is later reported as a consequence of another finding."""
PIECES = 8
WRONG = 120


def faulty(seed: int) -> Recording:
    recording = Recording(list(simulate(Load(events=400, timeout_ms=60, seed=seed))), simulated_meta())
    fault = list(FAULTS.values())[seed % len(FAULTS)]
    try:
        fault.apply(whole := Recording(list(recording.events), recording.meta))
    except NoVictimError:
        return recording
    return whole if seed % 4 else recording


@frozen
class Follower:
    """Follows one history, and may be killed between two judgements or while it writes a line."""

    history: Path
    places: Places

    def run(self, pieces: list[bytes]) -> Result:
        with self.opened() as teller:
            for piece in pieces:
                with (self.history / "part-0.ndjson").open("ab") as part:
                    part.write(piece)
                result = judge([self.history], engine="local")
                teller.tell(result)
        return result

    def opened(self) -> AbstractContextManager[FindingReporter]:
        return open_reporter(self.places, Progress([absolute(self.history)]), lambda _line: None)

    @property
    def told(self) -> list[Finding]:
        assert self.places.findings is not None
        return [msgspec.json.decode(line, type=Finding) for line in self.places.findings.read_bytes().splitlines()]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(findings=tmp_path / "found.ndjson")


def begun(tmp_path: Path, places: Places, seed: int) -> tuple[Follower, bytes]:
    recording = faulty(seed)
    written(Recording([], recording.meta), tmp_path / "history")
    return Follower(tmp_path / "history", places), lines_of(recording.events) + recording.damaged_tail


def tear(file: Path, chosen: random.Random) -> None:
    """Cut the file as if the process was killed while it wrote the last line, or while it wrote one more line."""
    content = file.read_bytes()
    last = content.rfind(b"\n", 0, len(content) - 1) + 1
    file.write_bytes(content[: chosen.randrange(last, len(content) + 1)])


@pytest.mark.parametrize("seed", quick_if(range(200), lambda seed: seed in {1, 2, REGROUPED}))
def test_each_finding_is_reported_once(tmp_path: Path, places: Places, seed: int) -> None:
    """With any cuts and kills, the file has the history's findings, and findings that later became consequences."""
    chosen = random.Random(seed)
    follower, content = begun(tmp_path, places, seed)
    ends = [content.rfind(b"\n", 0, chosen.randrange(len(content) + 1)) + 1 for _ in range(CUTS)]
    pieces = [content[start:end] for start, end in pairwise([0, *sorted(ends), len(content)])]
    while pieces:
        many = chosen.randint(1, len(pieces))
        follower.run(pieces[:many])
        del pieces[:many]
        if chosen.random() < 0.5:
            tear(tmp_path / "found.ndjson", chosen)
    result = follower.run([b""])
    final = set(certain(result))
    names = [finding.id for finding in follower.told]

    assert len(names) == len(set(names))
    assert final <= set(names)
    assert [one for one in follower.told if one.id not in final and not follows(one, result)] == []


def follows(finding: Finding, result: Result) -> bool:
    return any(
        more.clause == finding.clause and (not finding.request or finding.request in more.requests)
        for other in result.findings
        for more in other.follows
    )


def test_a_line_has_the_whole_finding_and_is_written_once(tmp_path: Path, places: Places) -> None:
    follower, content = begun(tmp_path, places, 1)
    result = follower.run([content])
    follower.run([b""])

    assert len(follower.told) == 1
    assert follower.told == result.findings
    assert follower.told[0].evidence


@pytest.mark.parametrize("content", [b"hello\n", b'{"verdict":"valid"}', b'{"verdict":"valid"}\n', b"\n"])
def test_a_file_without_findings_is_not_changed(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine"
    file.write_bytes(content)
    with pytest.raises(StreamNotReadableError, match="name another file"), open_stream(file):
        pass

    assert file.read_bytes() == content


def test_a_stream_has_one_writer(tmp_path: Path) -> None:
    file = tmp_path / "found.ndjson"
    refused = pytest.raises(StreamNotReadableError, match="is added to already")
    with open_stream(file), refused, open_stream(file):
        pass


def test_an_incomplete_line_is_cut_off_and_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "found.ndjson"
    lines = [b'{"property":"p","id":"one"}', b'{"property":"p","id":"two"}']
    whole = b"".join(line + b"\n" for line in lines)
    for length in range(len(lines[0]) + 1, len(whole)):
        file.write_bytes(whole[:length])
        with open_stream(file) as stream:
            assert [stream.put(name, line) for name, line in zip(("one", "two"), lines, strict=True)] == [False, True]
        assert file.read_bytes() == whole


# -- the verdict so far ------------------------------------------------------------------------------------------------


def test_a_growing_record_is_valid_so_far(tmp_path: Path) -> None:
    """While a record is written, open pulls and a missing end are normal. Any other gap makes the verdict unknown."""
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
    follower, content = begun(tmp_path, places, 1)
    result = follower.run([content[: content.rfind(b"\n", 0, -200) + 1]])

    assert standing(result).verdict == "invalid"
    assert result.findings[0].clause in standing(result).sentence()


def test_checks_left_to_the_end_are_announced_once(tmp_path: Path) -> None:
    result = judged(tmp_path / "history", simulate(Load(events=40, timeout_ms=60)))
    said: list[str] = []
    gap = {"clause": "", "kind": "damage", "source": "", "count": 1, "why": "a damaged line"}
    with open_reporter(Places(), Progress([absolute(tmp_path / "history")]), said.append) as teller:
        for counts in ({}, {"commits": 1}, {"commits": 2, "old pulls": 1}):
            left = [asdict(one) for one in left_to_the_end(counts)]
            teller.tell(replace(result, gaps=[gap, *left]))

    expected = ["reported only at the end: commits", "reported only at the end: old pulls"]
    assert [line for line in said if "at the end" in line] == expected


# -- more findings than are listed -------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> Path:
    events = list(simulate(Load(events=1_500, queues=1, consumers=("*",), timeout_ms=60)))
    answers = [place for place, event in enumerate(events) if event.event == "answer_sent"]
    for place in answers[5::2][:WRONG]:
        events[place] = replace(events[place], offset_next=events[place].offset_next + 1_000_000)
    return written(Recording(events, simulated_meta()), tmp_path / "history")


def untold(result: Result) -> int:
    return sum(gap["count"] for gap in result.gaps if gap["why"].endswith(NOT_TOLD))


def test_findings_that_come_slowly_are_all_reported(history: Path) -> None:
    found = follow_pieces(history, PIECES)

    assert len(found.told) == WRONG
    assert len(found.last.findings) == FINDINGS_MAX
    assert found.last.findings_left_out >= WRONG - FINDINGS_MAX
    assert untold(found.last) == 0


def test_findings_beyond_the_limit_are_counted(history: Path, tmp_path: Path) -> None:
    found = follow_pieces(history, 1)
    count, said = untold(found.last), list[str]()
    places = Places(findings=tmp_path / "found.ndjson")
    for _start in range(2):
        with open_reporter(places, Progress([absolute(history)]), said.append) as teller:
            teller.tell(found.last)
            teller.tell(found.last)
    lines = [msgspec.json.decode(line) for line in (tmp_path / "found.ndjson").read_bytes().splitlines()]

    assert len(certain(found.last)) == FINDINGS_MAX
    assert count == WRONG - len(found.told) > 0
    assert [line["not_told"] for line in lines if "not_told" in line] == [count]
    assert len({line["id"] for line in lines}) == len(lines) == FINDINGS_MAX + 1
    assert said.count(f"{count} {NOT_TOLD}") == 1

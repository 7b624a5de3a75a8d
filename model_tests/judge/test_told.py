"""Who follows a history is told each certain finding once, however it is cut, and whatever kills the follower."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from attrs import asdict, evolve

from longpoll.shown.following.tell import Places, Teller, open_teller
from longpoll_judge.contract import identity
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.errors import CheckpointError, StreamNotReadableError
from longpoll_judge.read.files import absolute
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.growing.told import left_to_the_end
from longpoll_judge.run.job import judge
from longpoll_judge.show import stream as stream_module
from longpoll_judge.show.checkpoint import POSTED_FILE, TOLD_FILE, open_checkpoint
from longpoll_judge.show.standing import standing
from longpoll_judge.show.stream import open_stream
from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write
from longpoll_judge.testing.plant import FAULTS
from longpoll_judge.testing.recording import NoVictimError, load
from longpoll_spec.history import META_FILE, Event
from longpoll_spec.testing.cases import quick_if

LIMITS = {"wake_ms": 100.0, "late_ms": 50.0}
CUTS = 5
HISTORIES = 200
QUICK = 4
"""Of the histories, those that each run looks at."""
REGROUPED = 39
"""A history whose first finding is told later as what follows from another."""
TWO_CLAUSES = 6
"""A history in which more events show another clause that the same answer breaks."""
ENCODE = msgspec.json.Encoder().encode


def lines_of(events: list[Event]) -> bytes:
    """As a recorder writes them."""
    return b"".join(ENCODE(event) + b"\n" for event in events)


def simulated(directory: Path, seed: int) -> bytes:
    """A history of one part without its content, and that content: of every four histories one has no fault."""
    directory.mkdir()
    (directory / META_FILE).write_bytes(ENCODE(simulated_meta()))
    part = directory / "part-0.ndjson"
    part.write_bytes(lines_of(list(simulate(Load(events=400, timeout_ms=60, seed=seed)))))
    names = list(FAULTS)
    if seed % 4:
        recording = load(directory)
        try:
            FAULTS[names[seed % len(names)]].apply(recording)
        except NoVictimError:
            return _taken(part)
        part.unlink()
        write(directory, recording.events, recording.meta)
    return _taken(next(directory.glob("part-*"), part))


def _taken(part: Path) -> bytes:
    """What a part holds; the file is left empty. A fault may leave none."""
    content = part.read_bytes() if part.exists() else b""
    part.write_bytes(b"")
    return content


class Follower:
    """Follows one history, and may be killed between any two judgements, or while it writes a line."""

    def __init__(self, history: Path, places: Places) -> None:
        self.history, self.places = history, places

    def judged(self) -> Result:
        """What the judge says of what is there."""
        return judge([self.history], engine="local")

    def run(self, pieces: list[bytes]) -> Result:
        """Judge after each piece, and be gone; the last judgement."""
        result = None
        with self.opened() as teller:
            for piece in pieces:
                with next(self.history.glob("part-*")).open("ab") as part:
                    part.write(piece)
                result = self.judged()
                teller.tell(result)
        assert result is not None, "there is a piece"
        return result

    def opened(self) -> AbstractContextManager[Teller]:
        """What tells, as the command opens it."""
        return open_teller(self.places, Progress([absolute(self.history)]), LIMITS, lambda _line: None)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A checkpoint and a file of findings."""
    return Places(findings=tmp_path / "found.ndjson", checkpoint=tmp_path / "told")


def found_in(file: Path) -> list[Finding]:
    """The findings of a file, each line a whole one."""
    return [msgspec.json.decode(line, type=Finding) for line in file.read_bytes().splitlines()]


def tear(file: Path, chosen: random.Random) -> None:
    """Leave the file as a process does that is killed while it writes its last line or one more."""
    content = file.read_bytes()
    last = content.rfind(b"\n", 0, len(content) - 1) + 1
    file.write_bytes(content[: chosen.randrange(last, len(content) + 1)])


def followed(tmp_path: Path, places: Places, seed: int) -> tuple[list[Finding], Result]:
    """Grow one history at random places, with a kill after any piece; what was told, and the verdict on all of it."""
    chosen = random.Random(seed)
    follower = Follower(tmp_path / "history", places)
    content = simulated(follower.history, seed)
    ends = [content.rfind(b"\n", 0, chosen.randrange(len(content) + 1)) + 1 for _ in range(CUTS)]
    pieces = [content[start:end] for start, end in pairwise([0, *sorted(ends), len(content)])]
    assert places.findings is not None
    assert places.checkpoint is not None
    while pieces:
        many = chosen.randint(1, len(pieces))
        result = follower.run(pieces[:many])
        del pieces[:many]
        if chosen.random() < 0.5:
            tear(chosen.choice([places.findings, places.checkpoint / TOLD_FILE]), chosen)
    result = follower.run([b""])
    return found_in(places.findings), result


def follows_from(finding: Finding, result: Result) -> bool:
    """Whether the result tells of the finding as what has the cause of another."""
    return any(
        more.clause == finding.clause and (not finding.request or finding.request in more.requests)
        for other in result.findings
        for more in other.follows
    )


@pytest.mark.parametrize("seed", quick_if(range(HISTORIES), lambda seed: seed < QUICK or seed == REGROUPED))
def test_each_finding_is_told_once(tmp_path: Path, places: Places, seed: int) -> None:
    """The file has what the judge says of the whole history in one piece, and what is now part of one of these."""
    told, result = followed(tmp_path, places, seed)
    whole = judge([tmp_path / "history"], engine="local")
    final = {finding.id for finding in whole.findings if finding.verdict == "violated"}
    names = [finding.id for finding in told]

    assert (result.verdict, result.findings) == (whole.verdict, whole.findings)
    assert len(names) == len(set(names))
    assert final <= set(names)
    assert [each.id for each in told if each.id not in final and not follows_from(each, whole)] == []


def test_planted_a_name_by_clause_tells_one_answer_twice(
    tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer breaks may show as one clause first and as another later: one fault, one name."""
    monkeypatch.setattr(identity, "ANSWERS", frozenset())
    follower = Follower(tmp_path / "history", places)
    content = simulated(follower.history, TWO_CLAUSES)
    end = content.rfind(b"\n", 0, len(content) // 10 + 300) + 1
    follower.run([content[:end], content[end:]])
    assert places.findings is not None

    assert [finding.request for finding in found_in(places.findings)] == ["r7", "r7"]


def test_a_file_without_a_checkpoint_remembers_by_itself(tmp_path: Path) -> None:
    """What it holds is not added again."""
    places = Places(findings=tmp_path / "found.ndjson")
    told, result = _told_twice(tmp_path, places)

    assert [finding.id for finding in told] == [finding.id for finding in result.findings]
    assert len(told) == 1


def _told_twice(tmp_path: Path, places: Places) -> tuple[list[Finding], Result]:
    follower = Follower(tmp_path / "history", places)
    content = simulated(follower.history, 1)
    follower.run([content])
    result = follower.run([b""])
    assert places.findings is not None
    return found_in(places.findings), result


def test_a_finding_has_all_that_the_report_has(tmp_path: Path, places: Places) -> None:
    """Its line is the finding as `--json` gives it, with its evidence."""
    told, result = _told_twice(tmp_path, places)

    assert told == result.findings
    assert told[0].evidence
    assert told[0].meta


def test_what_only_the_checkpoint_has_is_told_at_the_next_start(tmp_path: Path, places: Places) -> None:
    """A process may be killed after the one and before the other."""
    told, _result = _told_twice(tmp_path, places)
    assert places.findings is not None
    places.findings.write_bytes(b"")
    with Follower(tmp_path / "history", places).opened():
        pass

    assert found_in(places.findings) == told


@pytest.mark.parametrize("content", [b"hello\n", b'{"verdict":"valid"}', b'{"verdict":"valid"}\n', b"\n", b"hello"])
def test_what_is_no_stream_of_findings_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    """Somebody's file is neither added to nor cut."""
    file = tmp_path / "mine"
    file.write_bytes(content)
    with pytest.raises(StreamNotReadableError, match="name another file"), open_stream(file):
        pass

    assert file.read_bytes() == content


def test_nobody_else_adds_to_the_file_meanwhile(tmp_path: Path, places: Places) -> None:
    """Neither another follower, nor this one by another name: each would write what the other has."""
    file = tmp_path / "found.ndjson"
    with open_stream(file), pytest.raises(StreamNotReadableError, match="is added to already"), open_stream(file):
        pass
    assert places.checkpoint is not None
    same = evolve(places, findings=places.checkpoint / TOLD_FILE)
    refused = pytest.raises(StreamNotReadableError, match="is added to already")
    with refused, Follower(tmp_path / "history", same).opened():
        pass


def test_a_torn_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    """After it the same finding is added anew."""
    file = tmp_path / "found.ndjson"
    lines = [b'{"property":"p","id":"one"}', b'{"property":"p","id":"two"}']
    whole = b"".join(line + b"\n" for line in lines)
    for length in range(len(lines[0]) + 1, len(whole)):
        file.write_bytes(whole[:length])
        with open_stream(file) as stream:
            assert [stream.put(name, line) for name, line in zip(("one", "two"), lines, strict=True)] == [False, True]
        assert file.read_bytes() == whole


def test_planted_a_torn_line_that_stays_spoils_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing were cut off, the line after it would be none."""
    file = tmp_path / "found.ndjson"
    file.write_bytes(b'{"property":"p","i')
    monkeypatch.setattr(stream_module, "_read", lambda path: (set(), path.stat().st_size))
    with open_stream(file) as stream:
        stream.put("one", b'{"property":"p","id":"one"}')

    with pytest.raises(msgspec.DecodeError):
        found_in(file)


def test_a_checkpoint_is_of_one_judgement_and_one_process(tmp_path: Path) -> None:
    """Other histories, other thresholds, another process, and a directory of something else are refused."""
    directory = tmp_path / "told"
    with (
        open_checkpoint(directory, ["/a"], LIMITS),
        pytest.raises(CheckpointError, match="another process"),
        open_checkpoint(directory, ["/a"], LIMITS),
    ):
        pass
    for paths, limits in ((["/b"], LIMITS), (["/a"], {**LIMITS, "late_ms": 51.0})):
        with pytest.raises(CheckpointError, match="is of histories /a"), open_checkpoint(directory, paths, limits):
            pass
    with open_checkpoint(directory, ["/a"], LIMITS) as again:
        assert again.told.path.name == TOLD_FILE
        assert again.posted.path.name == POSTED_FILE
    (directory / "checkpoint.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match="cannot be read"), open_checkpoint(directory, ["/a"], LIMITS):
        pass
    (directory / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match="name another"), open_checkpoint(directory, ["/a"], LIMITS):
        pass


def cut_off(tmp_path: Path, events: list[Event]) -> Result:
    """The judgement of some events as a history."""
    directory = tmp_path / "cut"
    directory.mkdir(exist_ok=True)
    (directory / META_FILE).write_bytes(ENCODE(simulated_meta()))
    (directory / "part-0.ndjson").write_bytes(lines_of(events))
    return judge([directory], engine="local")


def test_a_record_that_goes_on_is_valid_so_far(tmp_path: Path) -> None:
    """Open pulls and a missing end are what a record has that is still written; nothing else is let pass."""
    events = list(simulate(Load(events=300, timeout_ms=60)))
    so_far = standing(cut_off(tmp_path, events[:200]))
    assert (so_far.verdict, so_far.events) == ("valid so far", 200)
    assert so_far.open_pulls > 0
    assert so_far.sentence() == f"valid so far up to event 200; {so_far.open_pulls} pulls are still open"
    assert standing(cut_off(tmp_path, events)).sentence() == f"valid so far up to event {len(events)}"


def test_what_is_missing_for_good_leaves_it_unknown(tmp_path: Path) -> None:
    """A number that is missing, nothing to judge, and a second source without an end."""
    events = list(simulate(Load(events=300, timeout_ms=60)))
    hole = standing(cut_off(tmp_path, [*events[:100], *events[101:200]]))
    nothing = standing(cut_off(tmp_path, []))
    alone = standing(cut_off(tmp_path, events[:1]))
    again = [msgspec.structs.replace(event, source="broker-a#2") for event in events[:150]]
    two = standing(cut_off(tmp_path, [*events[:200], *again]))

    assert [each.verdict for each in (hole, nothing, alone, two)] == ["unknown"] * 4
    assert "misses" in hole.why
    assert "no event" in nothing.why


def test_a_violation_is_invalid_so_far(tmp_path: Path, places: Places) -> None:
    """Whatever else is open or missing."""
    follower = Follower(tmp_path / "history", places)
    content = simulated(follower.history, 1)
    result = follower.run([content[: content.rfind(b"\n", 0, -200) + 1]])
    so_far = standing(result)

    assert so_far.verdict == "invalid"
    assert result.findings[0].clause in so_far.sentence()


def test_what_is_told_at_the_end_only_is_said_once(tmp_path: Path) -> None:
    """However often it is judged, and however the count changes; and what else is missing is not among it."""
    directory = tmp_path / "history"
    directory.mkdir()
    write(directory, simulate(Load(events=40, timeout_ms=60)), simulated_meta())
    said: list[str] = []
    result = judge([directory], engine="local")
    gap = {"clause": "", "kind": "damage", "source": "", "count": 1, "why": "a damaged line"}
    with open_teller(Places(), Progress([absolute(directory)]), LIMITS, said.append) as teller:
        for counts in ({}, {"commits": 1}, {"commits": 2, "old pulls": 1}):
            left = [asdict(one) for one in left_to_the_end(counts)]
            teller.tell(msgspec.structs.replace(result, gaps=[gap, *left]))

    assert [line for line in said if "at the end" in line] == [
        "reported only at the end: commits", "reported only at the end: old pulls",
    ]  # fmt: skip

"""Who follows a history is told of all that is new, however long it goes on and however much there was before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from model_tests.judge.test_commits import Kind, events_of
from model_tests.judge.test_growing import LIMITS, certain, followed, written

from longpoll.shown.following.tell import Places, open_teller
from longpoll_judge.contract.result import Result
from longpoll_judge.read.files import absolute
from longpoll_judge.read.source import History, find, read_slice
from longpoll_judge.run import verdict
from longpoll_judge.run.follow import Progress, Steps, follow
from longpoll_judge.run.growing import beside, logged, offsets, queues, recent
from longpoll_judge.run.growing.kept import STATE_FILE
from longpoll_judge.run.growing.latest import Latest
from longpoll_judge.run.growing.told import NOT_TOLD, Picked
from longpoll_judge.run.job import judge
from longpoll_judge.run.tally import Tally
from longpoll_judge.show.names import RECENT_MAX, Names
from longpoll_judge.testing.generate import Load, simulate, simulated_meta
from longpoll_judge.testing.recording import Recording
from longpoll_spec.history import Event

FAULTS = 120
PIECES = 8
ALL = 1_000_000


def wrong_answers() -> list[Event]:
    """A history of one queue in which 120 answers say a wrong next offset, each some time after the one before."""
    events = list(simulate(Load(events=1_500, queues=1, consumers=("*",), timeout_ms=60)))
    answers = [place for place, event in enumerate(events) if event.event == "answer_sent"]
    for place in answers[5::2][:FAULTS]:
        events[place] = msgspec.structs.replace(events[place], offset_next=events[place].offset_next + 1_000_000)
    return events


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """The history of wrong answers."""
    return written(Recording(wrong_answers(), simulated_meta()), tmp_path / "history")


@pytest.fixture
def every(history: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of all findings of that history, which are more than a result lists."""
    with monkeypatch.context() as patched:
        patched.setattr(verdict, "FINDINGS_MAX", ALL)
        names = set(certain(judge([history], engine="local")))
    assert len(names) == FAULTS
    return names


def pieces_of(directory: Path, pieces: int = PIECES) -> tuple[History, list[pa.Table]]:
    """A history, and its events in pieces that come one after the other."""
    found = find([directory])
    table = pa.concat_tables([read_slice(part)[0] for part in found.slices])
    size = -(-len(table) // pieces)
    return found, [table.slice(start, size) for start in range(0, len(table), size)]


def told(directory: Path, kept: Path | None = None, pieces: int = PIECES) -> tuple[set[str], Result, Steps]:
    """The names that were told, judged after each piece; where something is `kept`, each by a new follower."""
    found, tables = pieces_of(directory, pieces)
    steps = Steps.begun(LIMITS, kept)
    results: list[Result] = []
    for table in tables:
        steps.growing.add([table], [], found)
        results.append(steps.result(found))
        if kept is not None:
            steps.keep(is_last=True)
            steps = Steps.begun(LIMITS, kept)
    return {name for result in results for name in certain(result)}, results[-1], steps


def untold(result: Result) -> int:
    """How many findings a result says are not told."""
    return sum(gap["count"] for gap in result.gaps if gap["why"].endswith(NOT_TOLD))


@pytest.mark.parametrize("is_killed", [False, True])
def test_all_that_comes_slowly_is_told(*, is_killed: bool, history: Path, every: set[str], tmp_path: Path) -> None:
    """More than is ever listed at once, each when it is new, over restarts too; the list stays as long as it was."""
    names, result, _steps = told(history, tmp_path / STATE_FILE if is_killed else None)

    assert names == every
    assert len(result.findings) == verdict.FINDINGS_MAX
    assert result.findings_left_out >= len(every) - verdict.FINDINGS_MAX
    assert untold(result) == 0


def test_a_short_history_tells_all_as_well(history: Path, every: set[str]) -> None:
    """It is judged by what is new in it from there on; the verdict at the end is that of the whole."""
    content = (history / "part-0.ndjson").read_bytes()
    cuts = iter([*range(0, len(content), len(content) // PIECES), len(content)])
    last, results = followed(history, content, cuts)
    whole = judge([history], engine="local")

    assert {name for result in results for name in certain(result)} == every
    assert (last.verdict, last.findings, last.findings_left_out) == (
        whole.verdict,
        whole.findings,
        whole.findings_left_out,
    )
    assert not any(map(untold, [last, *results]))


def test_more_than_can_be_told_at_once_is_counted(history: Path, every: set[str]) -> None:
    """All at once: as many as are listed are told, and the others are counted; nobody counts them twice."""
    found, (table,) = pieces_of(history, 1)
    steps = Steps.begun(LIMITS, None)
    steps.growing.add([table], [], found)
    first, again = steps.result(found), steps.result(found)

    assert len(certain(first)) == verdict.FINDINGS_MAX
    assert untold(first) == untold(again) == len(every) - verdict.FINDINGS_MAX
    assert first.findings == again.findings


def test_what_goes_before_anybody_looks_is_counted(
    history: Path, every: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer are at hand than come between two looks: each is told or counted, whatever the pieces are."""
    monkeypatch.setattr("longpoll_judge.run.tally.LOOKED_AT_MAX", 60)
    found, tables = pieces_of(history)
    steps = Steps.begun(LIMITS, None)
    results: list[Result] = []
    for number, table in enumerate(tables, 1):
        steps.growing.add([table], [], found)
        if number in {PIECES - 2, PIECES}:
            results.append(steps.result(found))
    names = {name for result in results for name in certain(result)}

    assert untold(results[-1]) > 0
    assert len(names) + untold(results[-1]) == len(every)


def test_planted_who_keeps_the_earliest_alone_goes_silent(
    history: Path, every: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is picked for the whole, and what is kept for it, tells of nothing that comes later."""

    def earliest(picked: Picked, group: list[object]) -> list[object]:
        assert picked
        return group[: verdict.FINDINGS_MAX]

    with monkeypatch.context() as patched:
        patched.setattr(Picked, "_of_group", earliest)
        assert len(told(history)[0]) < len(every) // 2 + 10
    monkeypatch.setattr("longpoll_judge.run.tally.LOOKED_AT_MAX", 55)
    growing = queues.Growing(100.0, 50.0)
    growing.tally = Tally()
    assert len(_told_by(growing, history)) < len(every)


def _told_by(growing: queues.Growing, directory: Path) -> set[str]:
    found, tables = pieces_of(directory)
    steps = Steps(growing, LIMITS)
    names: set[str] = set()
    for table in tables:
        steps.growing.add([table], [], found)
        names |= set(certain(steps.result(found)))
    return names


def ends_moved_back(events: list[Event]) -> Iterator[Event]:
    """Every sixth visible end is lower than it was: a fault of the log."""
    shown = [event for event in events if event.event == "make_visible"][3::6][:25]
    for event in events:
        yield msgspec.structs.replace(event, visible_end=event.visible_end - 2) if event in shown else event


def least_that_falls(events: list[Event]) -> Iterator[Event]:
    """Every sixth answer tells of a least offset that the next one falls below."""
    answers = [event for event in events if event.event == "answer_sent"][3::6][:25]
    for event in events:
        yield msgspec.structs.replace(event, offset_min=event.offset_min + 5) if event in answers else event


def offsets_forgotten(_events: list[Event]) -> Iterator[Event]:
    """A group commits more and more, and is told of less each time."""
    kinds: list[Kind] = []
    for number in range(1, 26):
        kinds += [("pull", 10 * number, 100 * number, 100 * number + 1)]
        kinds += [("ask", 10 * number - 5, 100 * number + 50, 100 * number + 51)]
    kinds += [("pull", 300, 50_000, 50_001)]
    events = sorted(events_of(kinds), key=lambda event: event.after_ns)
    return (msgspec.structs.replace(event, sequence=number) for number, event in enumerate(events))


@pytest.mark.parametrize(
    ("wrong", "place", "clause"),
    [
        (ends_moved_back, (logged, "LOGGED_MAX"), "log.visible.monotone"),
        (least_that_falls, (beside, "FINDINGS_MAX"), "pull.min.never_falls"),
        (offsets_forgotten, (offsets, "FINDINGS_MAX"), "commit.told.least"),
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
    monkeypatch.setattr(recent, "FRESH_NS", 0)
    monkeypatch.setattr(beside, "EVENTS_MAX", 150)
    plain = list(simulate(Load(events=1_500, queues=1, consumers=("*",), timeout_ms=60)))
    history = written(Recording(list(wrong(plain)), simulated_meta()), tmp_path / "history")
    whole = {name for name, one in certain(judge([history], engine="local")).items() if one.clause == clause}
    monkeypatch.setattr(*place, 6)
    names, result, _steps = told(history, tmp_path / STATE_FILE, 12)

    assert len(whole) > 20
    assert whole <= names
    assert len([one for one in result.findings if one.clause == clause]) <= 12


def test_the_latest_are_kept_and_what_nobody_saw_is_counted() -> None:
    """As many as may be; what is found again stays, and as it was; what was looked at goes without a word."""
    latest = Latest[str, int]()
    for number, name in enumerate("abca"):
        latest.put(name, number, 3)
    assert list(latest.look()) == [1, 2, 0]

    for number, name in enumerate("defgh"):
        latest.put(name, number, 3)
    assert (list(latest.look()), latest.left_out) == ([2, 3, 4], 2)


def test_names_take_eight_bytes_each() -> None:
    """However many there are, each is known, and no other; most of them in no more than their checksum."""
    count = 5 * RECENT_MAX
    names = Names.of(f"n{number}" for number in range(count))
    names.add("n7")

    assert len(names) == count
    assert all(f"n{number}" in names for number in range(count))
    assert not any(f"m{number}" in names for number in range(count))
    assert names.nbytes <= 8 * count


def test_a_line_says_how_many_are_not_told(history: Path, every: set[str], tmp_path: Path) -> None:
    """To people, in the file and in the checkpoint, once for each number, over a restart too."""
    found, (table,) = pieces_of(history, 1)
    steps = Steps.begun(LIMITS, None)
    steps.growing.add([table], [], found)
    result, said = steps.result(found), list[str]()
    places = Places(findings=tmp_path / "found.ndjson", checkpoint=tmp_path / "told")
    for _start in range(2):
        progress = Progress([absolute(history)])
        with open_teller(places, progress, LIMITS.named(), said.append) as teller:
            teller.tell(result)
            teller.tell(result)
    assert places.findings is not None
    lines = [msgspec.json.decode(line) for line in places.findings.read_bytes().splitlines()]
    count = len(every) - verdict.FINDINGS_MAX

    assert [line["not_told"] for line in lines if "not_told" in line] == [count]
    assert len({line["id"] for line in lines}) == len(lines) == verdict.FINDINGS_MAX + 1
    assert said.count(f"{count} {NOT_TOLD}") == 1

"""How many pulls are held at once is told while a history grows, as judging the whole finds it, with little at hand."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.judge.test_growing import LIMITS, certain, shown, simulated, written
from model_tests.judge.test_holds import meta_with

from longpoll_judge.contract.result import HOLD_LIMIT_KEPT, Finding, Result
from longpoll_judge.read.source import find, read_slice
from longpoll_judge.run.follow import Steps
from longpoll_judge.run.growing import held
from longpoll_judge.run.growing.kept import STATE_FILE
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import BROKER, SOURCE
from longpoll_judge.testing.recording import Recording
from longpoll_spec.history import Event

PIECES: Final = 9
US: Final = 1_000
MS: Final = 1_000_000
PULLS: Final = 60
SMALL_PULLS: Final = 24
SMALL_SEED: Final = 2
SMALL: Final = [(8, True), (9, False)]
"""The highest limit that such a crowd breaks, and the one above (`limits_of`)."""


def held_events(chance: random.Random, pulls: int) -> Iterator[dict[str, Any]]:
    """What some pulls go through in a hold table, each event between two moments; anything may take a pull out."""
    for number in range(pulls):
        at = chance.randrange(2_000) * MS
        place: dict[str, Any] = {"topic": "T", "queue": 0, "request": f"r{number}", "connection": f"c{number}"}
        asked = {"code": 11, "may_hold": True, "timeout_ms": 500, "expression": "*", "expression_type": "TAG"}

        def moment(least_ms: float, most_ms: float) -> dict[str, int]:
            nonlocal at
            at += int(chance.uniform(least_ms, most_ms) * MS)
            return {"after_ns": at, "before_ns": at + chance.choice((0, 5 * US, 20 * MS))}

        yield {"event": "request_received", **moment(0, 1), **place, **asked, "offset": 0, "count_max": 32}
        place.pop("connection")
        yield {"event": "hold", **moment(0, 1), **place, "visible_end": 0}
        for _walk in range(chance.choice((0, 0, 1, 3))):
            kind = chance.choice(("recheck", "take"))
            yield {"event": kind, **moment(1, 200), **place, "visible_end": 0}
            if kind == "take":
                yield {"event": "keep", **moment(0, 30), **place, "visible_end": 0}
        end = chance.choice(("take", "expire", "run", "close"))
        if end == "close":
            yield {"event": "connection_closed", **moment(1, 300), "connection": f"c{number}"}
        else:
            yield {"event": end, **moment(1, 300), **place, "visible_end": 0}
        told = {"code": 19, "offset_next": 0, "offset_min": 0, "offset_max": 0, "cause": "expired"}
        yield {"event": "answer_sent", **moment(0, 5), **place, **told}


def crowd(seed: int, pulls: int = PULLS) -> list[Event]:
    """A record of a hold table, in the order in which it was written."""
    chance = random.Random(seed)
    made = sorted(held_events(chance, pulls), key=lambda event: int(event["before_ns"]))
    first, last = {"after_ns": -1, "before_ns": -1}, {"after_ns": 10**10, "before_ns": 10**10}
    made = [{"event": "source_started", **first}, *made, {"event": "source_stopped", **last}]
    return [Event(**fields, source=SOURCE, broker=BROKER, sequence=number) for number, fields in enumerate(made)]


def about_limits(result: Result) -> list[Finding]:
    """What is said of limits."""
    return [one for one in result.findings if one.property == HOLD_LIMIT_KEPT]


def grown(directory: Path, seed: int, kept: Path | None, pieces: int = PIECES) -> tuple[dict[str, Finding], Result]:
    """Follow in pieces, each time by another follower if something is `kept`; what was certain, and the last result."""
    history = find([directory])
    (table,) = [read_slice(part)[0] for part in history.slices]
    cuts = sorted(random.Random(seed).sample(range(1, len(table)), pieces - 1))
    steps, told = Steps.begun(LIMITS, kept), dict[str, Finding]()
    for start, end in zip([0, *cuts], [*cuts, len(table)], strict=True):
        steps.growing.add([table.slice(start, end - start)], [], history)
        told |= certain(steps.result(history))
        if kept is not None:
            steps.keep(is_last=True)
            steps = Steps.begun(LIMITS, kept)
    return told, steps.result(history)


def limited(events: list[Event], limit: int, directory: Path) -> Path:
    """A history of a broker that promises a limit."""
    return written(Recording(events, meta_with(limit)), directory)


def limits_of(events: list[Event], directory: Path) -> tuple[int, int]:
    """The highest limit that is certainly broken, and the least that is not."""
    kept = bisect.bisect(range(PULLS), 0, key=lambda limit: 0 if is_broken(events, limit, directory) else 1)
    return kept - 1, kept


def is_broken(events: list[Event], limit: int, directory: Path) -> bool:
    """Whether the whole certainly breaks the limit."""
    found = about_limits(judge([limited(events, limit, directory)], engine="local"))
    return any(one.verdict == "violated" for one in found)


def check(history: Path, seed: int, kept: Path | None, pieces: int = PIECES) -> bool:
    """Whether the limit is broken; told while it grows as the whole tells it, and nothing is left to the end."""
    whole = about_limits(judge([history], engine="local"))
    told, last = grown(history, seed, kept, pieces)
    mine = {name: one for name, one in told.items() if one.property == HOLD_LIMIT_KEPT}

    assert [one.id for one in about_limits(last)] == [one.id for one in whole]
    assert [one.why for one in about_limits(last)] == [one.why for one in whole]
    assert mine.keys() == {one.id for one in whole if one.verdict == "violated"}
    assert not [gap for gap in last.gaps if "held" in str(gap["why"]) or "limit" in str(gap["why"])]
    return bool(mine)


@pytest.mark.parametrize(("limit", "is_over"), SMALL)
def test_a_small_crowd_is_told_as_the_whole_tells_it(limit: int, is_over: bool, tmp_path: Path) -> None:
    """Of the highest limit that it breaks, and of the one above."""
    assert check(limited(crowd(SMALL_SEED, SMALL_PULLS), limit, tmp_path / "history"), SMALL_SEED, None, 3) is is_over


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_a_crowd_is_told_as_the_whole_tells_it(seed: int, tmp_path: Path) -> None:
    """Of a limit that is just broken, and of one that is just kept, by one follower and by one killed each time."""
    events, history = crowd(seed), tmp_path / "history"
    for is_over, limit in zip((True, False), limits_of(events, tmp_path / "found"), strict=True):
        for kept in (None, tmp_path / f"{limit}{STATE_FILE}"):
            assert check(limited(events, limit, history), seed, kept) is is_over


@pytest.mark.parametrize("limit", [5, 12])
def test_a_history_without_a_fault_is_the_whole_with_a_limit_too(limit: int, tmp_path: Path) -> None:
    """A promise alone keeps nobody from saying `valid`; one that is broken is told, and of which pulls it says."""
    history = limited(simulated(1).events, limit, tmp_path / "history")
    whole = judge([history], engine="local")
    told, last = grown(history, 1, None)

    assert shown(last) == shown(whole)
    assert whole.verdict == ("valid" if limit == 12 else "invalid")
    assert told.keys() == certain(whole).keys()


def test_it_is_told_before_the_end(tmp_path: Path) -> None:
    """As soon as nothing that may come yet can excuse it; and its evidence is a history that shows it again."""
    events = simulated(2).events
    history = limited(events, 5, tmp_path / "history")
    (table,) = [read_slice(part)[0] for part in find([history]).slices]
    steps = Steps.begun(LIMITS, None)
    steps.growing.add([table.slice(0, len(table) // 3)], [], find([history]))
    (finding,) = steps.result(find([history])).findings
    excerpt = tmp_path / "excerpt"
    excerpt.mkdir()
    (excerpt / "meta.json").write_bytes(msgspec.json.encode(finding.meta))
    (excerpt / "part-0.ndjson").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in finding.evidence))

    assert finding.clause == "hold.limit.kept"
    assert [one.clause for one in judge([excerpt], engine="local").findings] == ["hold.limit.kept"]


def test_little_is_at_hand(tmp_path: Path) -> None:
    """The pulls that are open, and not those that were."""
    history = find([limited(simulated(3, 2_000).events, 12, tmp_path / "history")])
    (table,) = [read_slice(part)[0] for part in history.slices]
    steps, most = Steps.begun(LIMITS, None), 0
    for start in range(0, len(table), 200):
        steps.growing.add([table.slice(start, 200)], [], history)
        most = max(most, len(steps.growing.beside.held.events))

    assert 0 < most < 600


def left_to_the_end(result: Result) -> str:
    """What only the end tells, as text."""
    return " ".join(str(gap["why"]) for gap in result.gaps if str(gap["why"]).endswith("at the end"))


@pytest.mark.long
def test_what_is_not_counted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold without its request, one that nothing is heard of for long, and too many of them."""
    events = crowd(1)
    without = [one for one in events if one.event != "request_received" or one.request != "r7"]
    again = [msgspec.structs.replace(one, sequence=number) for number, one in enumerate(without)]
    _told, last = grown(limited(again, PULLS, tmp_path / "without"), 1, None)
    assert "whose request is not at hand" in left_to_the_end(last)
    history = limited(events, PULLS, tmp_path / "history")
    with monkeypatch.context() as patched:
        patched.setattr(held, "OPEN_NS", 10 * MS)
        assert "held for more than ten minutes" in left_to_the_end(grown(history, 1, None)[1])
    monkeypatch.setattr(held, "EVENTS_MAX", 10)
    assert "too many pulls open to count" in left_to_the_end(grown(history, 1, None)[1])


@pytest.mark.long
def test_planted_who_forgets_whom_it_holds_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a pull that nobody answered were let go with its piece, no crowd would be seen."""
    history = limited(simulated(2).events[:160], 5, tmp_path / "history")
    clause = "hold.limit.kept"
    assert clause in {one.clause for one in grown(history, 2, None, 40)[0].values()}
    monkeypatch.setattr(held, "OPEN_NS", -(10**12))
    assert clause not in {one.clause for one in grown(history, 2, None, 40)[0].values()}

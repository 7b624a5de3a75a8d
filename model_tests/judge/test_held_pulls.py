"""How many pulls are held at once while a history grows: what is counted, what is at hand, and the same from files."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from model_tests.judge.test_holds import meta_with
from model_tests.support.judge.histories import certain, follow_pieces, shown, simulated, written

from longpoll_judge.evidence.survey import SourceFacts
from longpoll_judge.read.schema import EVENT_SCHEMA, fill
from longpoll_judge.recording import Recording
from longpoll_judge.rules.holding import BEGINS, ENDS
from longpoll_judge.rules.queue_columns import MS
from longpoll_judge.run.incremental import held_pulls
from longpoll_judge.run.incremental.held_pulls import CLOSED_NS, OPEN_NS, Held
from longpoll_judge.run.incremental.state_file import STATE_FILE
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import Event, Meta

CLOSED_MS: Final = CLOSED_NS // MS
OPEN_MS: Final = OPEN_NS // MS
STRANGE: Final = "a pull that is held, and whose request is not at hand"
LONG: Final = "a pull that is held for more than ten minutes"
OVER: Final = "a limit that a source promises, with too many pulls open to count"
PULL: Final = 11
WALKS: Final = 80
CLOSED_SHARE: Final = 0.3
OVER_ANY: Final = 99
Told = dict[str, Any]


def told(name: str, request: str, at_ms: int, **fields: Any) -> Told:
    """An event of a pull, on a separate connection."""
    place: Told = {"topic": "T", "queue": 0, "connection": f"c{request}", "visible_end": 0, "source": "s"}
    code: Told = {"code": PULL} if name == "request_received" else {}
    moments: Told = {"after_ns": at_ms * MS, "before_ns": at_ms * MS, "sequence": at_ms, "request": request}
    event = Event(event=name, broker="b", **(moments | place | code | fields))
    return {name: getattr(event, name) for name in event.__struct_fields__}


def asked(request: str, at_ms: int = 1) -> Told:
    """A pull that came."""
    return told("request_received", request, at_ms)


def closed(request: str, at_ms: int, **fields: Any) -> Told:
    """The close of a pull's connection."""
    return told("connection_closed", "", at_ms, **({"connection": f"c{request}"} | fields))


class Grown:
    """The events in memory of a source that promises to hold at most one pull."""

    def __init__(self, *, is_steady: bool = True, limits: dict[str, int] | None = None) -> None:
        self.held, self.is_steady = Held(), is_steady
        self.limits = {"s": 1} if limits is None else limits

    def add(self, *events: Told, settled_ms: int) -> dict[str, int]:
        """Take what came up to now; what only the end can tell."""
        last_ns = max(event["before_ns"] for event in events) + MS
        facts = {name: SourceFacts(last_ns, None, is_steady=self.is_steady) for name in ("s", "t")}
        context: Any = SimpleNamespace(sources=facts, asks=lambda _clause: True)
        seen = {name: SimpleNamespace(holds=9) for name in ("s", "t")}
        survey: Any = SimpleNamespace(sources=seen, excerpts={})
        table = pa.Table.from_pylist(list(events), EVENT_SCHEMA)
        return self.held.add(table, self.limits, context, survey, settled_ms * MS)

    @property
    def at_hand(self) -> list[tuple[str, str]]:
        """Of each event its pull, or the connection that closed, and its name."""
        rows = fill(self.held.events).select(["event", "request", "connection"]).to_pylist()
        return [(row["request"] or row["connection"], row["event"]) for row in rows]

    @property
    def is_violated(self) -> bool:
        """Whether too many were certainly held."""
        return [one.verdict for one in self.held.findings()] == ["violated"]


def pulls_at_hand(*pieces: tuple[tuple[Told, ...], int]) -> list[str]:
    """The pulls of which anything is at hand after some pieces, each with its settled moment."""
    grown = Grown()
    for events, settled_ms in pieces:
        grown.add(*events, settled_ms=settled_ms)
    return sorted({name for name, event in grown.at_hand if event != "connection_closed"})


# -- what is counted -------------------------------------------------------------------------------------------------


def test_two_that_are_held_at_once_are_one_too_many() -> None:
    """Together or one piece later, as long as the first has not gone."""
    both = (asked("1"), told("hold", "1", 2), asked("2", 3), told("hold", "2", 4))
    at_once = Grown()
    at_once.add(*both, settled_ms=0)
    later = Grown()
    later.add(*both[:2], settled_ms=3)
    later.add(*both[2:], settled_ms=4)
    gone = Grown()
    gone.add(*both[:2], told("answer_sent", "1", 3), settled_ms=0)
    gone.add(asked("2", 4), told("hold", "2", 5), settled_ms=0)

    assert at_once.is_violated
    assert later.is_violated
    assert not gone.is_violated


def test_closes_of_its_own_source_take_a_pull_out() -> None:
    """Another source may call a connection by the same name."""
    events = (asked("1"), told("hold", "1", 2), asked("2", 5), told("hold", "2", 6))
    own, other = Grown(limits={"s": 1, "t": 1}), Grown(limits={"s": 1, "t": 1})
    own.add(*events, closed("1", 4), settled_ms=0)
    other.add(*events, closed("1", 4, source="t"), settled_ms=0)

    assert not own.is_violated
    assert other.is_violated


def test_what_is_not_certain_goes_with_its_pulls() -> None:
    grown = Grown(is_steady=False)
    grown.add(asked("1"), told("hold", "1", 2), asked("2", 3), told("hold", "2", 4), settled_ms=0)
    assert [one.verdict for one in grown.held.findings()] == ["unknown"]
    assert not grown.held.found
    grown.add(told("answer_sent", "1", 5), told("answer_sent", "2", 5), settled_ms=6)
    grown.add(asked("3", 7), settled_ms=6)
    assert list(grown.held.findings()) == []


def test_a_pull_that_is_taken_and_kept_twice_is_held_in_between() -> None:
    """Only of a pull that was put there once the first that takes it out ends all."""
    grown = Grown()
    walked = (told("hold", "1", 2), told("take", "1", 3), told("keep", "1", 4), told("take", "1", 9))
    grown.add(asked("1"), *walked, asked("2", 5), told("hold", "2", 6), settled_ms=0)
    assert grown.is_violated


def _walk(chance: random.Random) -> list[Told]:
    """Events of two pulls, in any order and number."""
    walked: list[Told] = []
    for request in ("1", "2"):
        walked.append(asked(request, chance.randint(0, 3)))
        names = chance.choices((*BEGINS, *ENDS, "recheck"), k=chance.randint(1, 5))
        walked += [told(name, request, chance.randint(1, 9)) for name in names]
        walked += [closed(request, chance.randint(1, 9))] if chance.random() < CLOSED_SHARE else []
    return [{**event, "sequence": number} for number, event in enumerate(walked)]


def _is_convicted(walked: list[Told]) -> bool:
    grown = Grown()
    grown.add(*walked, settled_ms=0)
    return grown.is_violated


def test_whoever_is_convicted_by_counting_is_over_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pulls in any order: the verdict is the same where each is counted, whatever the bound is."""
    walks = [_walk(random.Random(seed)) for seed in range(WALKS)]
    by_bound = [_is_convicted(walked) for walked in walks]
    monkeypatch.setattr(held_pulls._Pulls, "most", lambda _self, _pulls, _last_ns: OVER_ANY)
    by_counting = [_is_convicted(walked) for walked in walks]

    assert by_bound == by_counting
    assert WALKS // 10 < sum(by_counting) < WALKS // 2


# -- what is at hand -------------------------------------------------------------------------------------------------


def test_nothing_is_at_hand_where_nothing_is_promised() -> None:
    """And nothing is left to the end, whether events of pulls came or none."""
    grown = Grown(limits={})
    assert grown.add(asked("1"), told("hold", "1", 2), settled_ms=0) == {}
    assert grown.at_hand == []
    assert Grown().add(told("append", "", 1), settled_ms=0) == {}
    assert Grown().add(asked("1"), told("hold", "1", 2), settled_ms=3) == {}


@pytest.mark.parametrize(("answered_ms", "is_kept"), [(9, False), (10, True), (11, True)])
def test_a_pull_that_was_answered_is_kept_until_that_is_settled(answered_ms: int, is_kept: bool) -> None:
    """A hold may be reported after its answer; a hold without one is kept."""
    events = (asked("1"), told("answer_sent", "1", answered_ms))
    assert pulls_at_hand((events, 10)) == (["1"] if is_kept else [])
    assert pulls_at_hand((events, 0), ((asked("2", 12),), 10)) == (["1", "2"] if is_kept else ["2"])
    assert pulls_at_hand(((asked("1"),), 10)) == ["1"]


def test_a_pull_that_was_held_and_answered_is_let_go() -> None:
    """Once it is settled; one that is held still is kept."""
    walked = (asked("1"), told("hold", "1", 2), asked("2"), told("hold", "2", 2))
    assert pulls_at_hand(((*walked, told("take", "1", 3), told("answer_sent", "1", 4)), 5)) == ["2"]
    assert pulls_at_hand(((*walked, told("take", "1", 3), told("answer_sent", "1", 4)), 4)) == ["1", "2"]


def test_a_hold_without_its_request_is_left_to_the_end() -> None:
    assert Grown().add(told("hold", "1", 5), settled_ms=5) == {}
    assert Grown().add(told("hold", "1", 5), asked("2", 5), settled_ms=6) == {STRANGE: 1}
    assert pulls_at_hand(((told("hold", "1", 5), asked("2", 5)), 6)) == ["2"]
    grown = Grown()
    grown.add(told("hold", "1", 5), settled_ms=5)
    assert grown.add(told("take", "1", 6), settled_ms=9) == {STRANGE: 1}


@pytest.mark.parametrize(("more_ms", "is_left"), [(0, False), (1, True)])
def test_a_pull_that_is_held_for_ten_minutes_is_left_to_the_end(more_ms: int, is_left: bool) -> None:
    grown = Grown()
    left = grown.add(asked("1"), told("hold", "1", 2), asked("2", 2), settled_ms=2 + OPEN_MS + more_ms)
    assert left == ({LONG: 1} if is_left else {})
    assert {name for name, _event in grown.at_hand} == (set() if is_left else {"1", "2"})


@pytest.mark.parametrize(("closed_ms", "is_kept"), [(9, False), (10, True)])
def test_a_pull_goes_some_time_after_its_connection(closed_ms: int, is_kept: bool) -> None:
    events = (asked("1"), told("hold", "1", 2), closed("1", closed_ms), asked("2"), told("hold", "2", 2))
    grown = Grown(limits={"s": 2})
    grown.add(*events, settled_ms=10 + CLOSED_MS)
    assert ("1", "hold") in grown.at_hand if is_kept else ("1", "hold") not in grown.at_hand
    assert ("c1", "connection_closed") in grown.at_hand if is_kept else ("c1", "connection_closed") not in grown.at_hand
    assert ("2", "hold") in grown.at_hand


def test_a_pull_that_was_held_after_the_close_stays() -> None:
    """Up to the close it goes with it."""
    for held_ms, is_kept in ((5, False), (6, True)):
        events = (asked("1"), closed("1", 5), told("hold", "1", held_ms))
        assert pulls_at_hand((events, 6 + CLOSED_MS)) == (["1"] if is_kept else [])


def test_a_pull_on_an_open_connection_is_no_pull_on_a_closed_one() -> None:
    """Whether it was held or not."""
    events = (asked("1"), asked("2"), told("hold", "2", 2), closed("9", 1))
    assert pulls_at_hand((events, 10 + CLOSED_MS)) == ["1", "2"]


@pytest.mark.parametrize(("pulls", "is_over"), [(3, False), (4, True)])
def test_too_many_that_are_open_are_left_to_the_end(pulls: int, is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is at hand any more, nor is what was not certain told."""
    monkeypatch.setattr(held_pulls, "EVENTS_MAX", 3)
    grown = Grown()
    left = grown.add(*(asked(str(number)) for number in range(pulls)), settled_ms=0)
    assert left == ({OVER: 1} if is_over else {})
    assert len(grown.at_hand) == (0 if is_over else pulls)
    grown.add(asked("9", 2), told("take", "9", 3), settled_ms=0)
    assert grown.held.is_over
    assert grown.at_hand == []
    assert grown.add(asked("8", 4), settled_ms=0) == {}
    assert grown.at_hand == []


# -- from files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "verdict", "is_killed"), [(5, "invalid", False), (5, "invalid", True), (12, "valid", False)]
)
def test_a_promise_leaves_the_sum_the_whole(limit: int, verdict: str, is_killed: bool, tmp_path: Path) -> None:
    """A broken promise is reported early, and its evidence is a history that shows it again."""
    history = written(Recording(simulated(1, 800).events, meta_with(limit)), tmp_path / "history")
    whole = judge([history], engine="local")
    found = follow_pieces(history, 5, 1, kept=tmp_path / STATE_FILE if is_killed else None)

    assert shown(found.last) == shown(whole)
    assert whole.verdict == verdict
    assert found.told.keys() == certain(whole).keys()
    for finding in found.results[-2].findings:
        assert finding.clause == "hold.limit.kept"
        events, meta = [Event(**one) for one in finding.evidence], msgspec.convert(finding.meta, Meta)
        excerpt = written(Recording(events, meta), tmp_path / "excerpt")
        assert [one.clause for one in judge([excerpt], engine="local").findings] == ["hold.limit.kept"]

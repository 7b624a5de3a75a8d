"""Which pulls are certainly held at a time, by the events of one source."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import msgspec
import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.raw_client import RawClient, pull_fields
from model_tests.support.judge.histories import judged

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_table import HoldLimit
from longpoll_judge.contract.result import HOLD_LIMIT_KEPT, Finding, Result
from longpoll_judge.evidence.source_survey import RecordGaps, gaps_of
from longpoll_judge.evidence.survey import SourceFacts
from longpoll_judge.generate import BROKER, SOURCE, simulated_meta
from longpoll_judge.rules.holding import judge_holds, judge_source
from longpoll_judge.rules.queue_columns import MS
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event, Meta

END_NS: Final = 1000
Told = dict[str, Any]


def told(name: str, request: str, after_ns: int, before_ns: int | None = None, **fields: Any) -> Told:
    """An event of a pull, on a separate connection, at a time or in an interval."""
    moments: Any = {"after_ns": after_ns, "before_ns": after_ns if before_ns is None else before_ns}
    place: Told = {"topic": f"T{request}", "queue": int(request or 0), "connection": f"c{request}", "visible_end": 0}
    event = Event(event=name, source="s", broker="b", sequence=after_ns, request=request, **moments, **(place | fields))
    return {name: getattr(event, name) for name in event.__struct_fields__}


def found(*events: Told, limit: int = 1, holes: RecordGaps | None = None, is_steady: bool = True) -> Finding | None:
    """The finding, of a source that goes on until `END_NS`."""
    return judge_source(events, limit, SourceFacts(END_NS, None, holes or gaps_of(()), is_steady))


def is_counted(*events: Told) -> bool:
    """Whether pull 1 is certainly held at 100, after these events: a second one then is one too many."""
    return found(*events, told("hold", "2", 100)) is not None


# -- one pull --------------------------------------------------------------------------------------------------------


def test_a_pull_is_held_from_the_end_of_its_hold() -> None:
    """And not before it certainly came, nor after the end of the record."""
    assert is_counted(told("hold", "1", 1, 99))
    assert is_counted(told("hold", "1", 1, 100))
    assert not is_counted(told("hold", "1", 1, 100), told("take", "1", 100))
    assert not is_counted(told("request_received", "1", 1, 200), told("hold", "1", 50), told("take", "1", 150))
    assert is_counted(told("request_received", "1", 1, 100), told("hold", "1", 50), told("take", "1", 150))
    assert not is_counted(told("request_received", "1", 1, END_NS), told("hold", "1", 50))


@pytest.mark.parametrize("name", ["take", "expire", "run", "stop", "answer_sent"])
def test_a_pull_may_be_gone_from_the_beginning_of_what_takes_it_out(name: str) -> None:
    """From then on it is not counted, and a put-back counts again only when it certainly came after that."""
    gone = [told("hold", "1", 1), told(name, "1", 50, 60)]
    assert not is_counted(*gone)
    assert not is_counted(*gone, told("keep", "1", 60))
    assert is_counted(*gone, told("keep", "1", 61))
    assert is_counted(told("hold", "1", 1), told(name, "1", 101))
    assert not is_counted(told("hold", "1", 1), told(name, "1", 20, 90), told(name, "1", 30, 40), told("keep", "1", 80))


def test_a_pull_is_gone_with_its_connection() -> None:
    close = told("connection_closed", "", 50, 60, connection="c1")
    assert not is_counted(told("hold", "1", 1), close)
    assert not is_counted(told("hold", "1", 1, connection=""), told("recheck", "1", 2), close)
    assert not is_counted(told("request_received", "1", 1), told("hold", "1", 2, connection=""), close)
    assert is_counted(told("hold", "1", 1), told("connection_closed", "", 50, 60, connection="c9"))
    assert is_counted(told("hold", "1", 1, connection=""), told("connection_closed", "", 50, connection=""))
    assert not is_counted(close, told("hold", "1", 60))
    assert is_counted(close, told("hold", "1", 61))
    assert is_counted(told("connection_closed", "", 50, 60, connection="c9"), told("hold", "1", 60))


def test_a_recheck_takes_out_whom_it_finds_something_for() -> None:
    """It may have seen more than the hold did, unless both tell the same end; of a pull put back it tells nothing."""
    for visible_end, stays in ((4, False), (5, True), (6, False), (-1, False)):
        held = told("hold", "1", 1, visible_end=5)
        assert is_counted(held, told("recheck", "1", 50, visible_end=visible_end)) is stays
    assert not is_counted(told("hold", "1", 1, visible_end=-1), told("recheck", "1", 50, visible_end=-1))
    put_back = [told("hold", "1", 1), told("take", "1", 2), told("keep", "1", 3, visible_end=5)]
    assert not is_counted(*put_back, told("recheck", "1", 50, visible_end=5))
    assert is_counted(told("recheck", "1", 1, 60, visible_end=9), told("hold", "1", 50))


def test_the_first_hold_of_a_pull_counts() -> None:
    assert is_counted(told("hold", "1", 1), told("hold", "1", 50, 200))
    assert is_counted(told("request_received", "1", 1), told("request_received", "1", 2, 200), told("hold", "1", 3))


def test_a_pull_that_was_perhaps_never_held_makes_no_room_for_another() -> None:
    """It was taken out while its hold may not have ended."""
    never = told("hold", "3", 5, 300), told("take", "3", 6)
    for is_steady in (True, False):
        events = (told("hold", "1", 1), *never, told("hold", "2", 100), told("take", "2", 200))
        assert found(*events, is_steady=is_steady) is not None


def test_events_are_counted_in_the_order_of_their_moments() -> None:
    assert found(told("hold", "2", 100), told("take", "1", 50), told("hold", "1", 1)) is None


# -- too many --------------------------------------------------------------------------------------------------------


def test_a_finding_names_what_is_held_when_it_is_too_many_first() -> None:
    """The last of them is at fault; with what took each out."""
    finding = found(
        told("hold", "1", 1 * MS, 2 * MS), told("hold", "2", 3 * MS, 9 * MS), told("hold", "3", 5 * MS, 6 * MS),
        told("take", "1", 20 * MS), told("hold", "4", 30 * MS), limit=2,
    )  # fmt: skip
    assert finding is None  # the record ends before any of them
    events = (told("hold", "1", 1, 2), told("hold", "2", 3, 9), told("hold", "3", 5, 6))
    finding = found(*events, told("take", "1", 20), told("hold", "4", 30), limit=2)
    assert finding is not None
    assert (finding.clause, finding.verdict) == ("hold.limit.kept", "violated")
    assert (finding.request, finding.topic, finding.queue) == ("3", "T3", 3)
    assert (finding.window_start_ms, finding.window_end_ms) == (1 / MS, 9 / MS)
    assert "3 pulls were held at once" in finding.why
    names = [(event["event"], event["request"]) for event in finding.evidence]
    assert names == [("hold", "1"), ("take", "1"), ("hold", "2"), ("hold", "3")]
    assert found(*events, limit=3) is None


def test_one_that_goes_makes_room_for_one_that_comes_at_that_moment() -> None:
    """And is not among those that are too many then."""
    gone = [told("hold", "1", 1), told("take", "1", 50)]
    assert found(*gone, told("hold", "2", 50)) is None
    finding = found(*gone, told("hold", "2", 50), told("hold", "3", 50))
    assert finding is not None
    assert {event["request"] for event in finding.evidence} == {"2", "3"}


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"holes": gaps_of([(50, 60)])}, "unknown"),
        ({"holes": gaps_of([(200, 300)])}, "violated"),
        ({"is_steady": False}, "unknown"),
    ],
)
def test_what_may_have_gone_unseen_is_not_certain(options: dict[str, Any], verdict: str) -> None:
    """In a hole of the record, or by a clock whose moments order nothing."""
    finding = found(told("hold", "1", 1), told("hold", "2", 100), **options)
    assert finding is not None
    assert finding.verdict == verdict


def test_a_source_of_which_nothing_is_told_is_not_counted() -> None:
    history: Any = SimpleNamespace(hold_limits={"silent": 0}, splits=[])
    survey: Any = SimpleNamespace(sources={}, excerpts=())
    context: Any = SimpleNamespace(sources={})
    assert judge_holds(history, survey, context) == []


# -- from a history ----------------------------------------------------------------------------------------------------

LIMIT: Final = 2


def meta_with(limit: int) -> Meta:
    """The meta file of a broker that promises to hold no more than that."""
    meta = simulated_meta()
    return msgspec.structs.replace(meta, sources=[msgspec.structs.replace(meta.sources[0], hold_limit=limit)])


@pytest.mark.parametrize(
    ("between", "verdicts"),
    [
        ([], ["violated"]),
        ([("lost", 2, "")], ["unknown"]),
        ([("lost", 900, "")], ["violated"]),
        ([("take", 2, "r1")], []),
    ],
)
def test_one_too_many_is_found_in_a_history(
    between: list[tuple[str, int, str]], verdicts: list[str], tmp_path: Path
) -> None:
    """The third of two is found, with all three; one may have ended unseen where an event was lost, or was taken."""
    holds = [("hold", number, f"r{number}") for number in (1, 2, 3)]
    told = [("source_started", 0, ""), *holds, *between, ("source_stopped", 1_000, "")]
    events = []
    for number, (name, at, request) in enumerate(sorted(told, key=lambda one: one[1])):
        place = {"topic": "T", "queue": 0, "request": request, "connection": f"c{request}", "visible_end": 0}
        fields = place if request else {"lost_count": 1} if name == "lost" else {}
        moment: Any = {"after_ns": at * MS, "before_ns": at * MS, "sequence": number}
        events.append(Event(event=name, source=SOURCE, broker=BROKER, **moment, **fields))
    found = [one for one in judged(tmp_path, events, meta_with(LIMIT)).findings if one.property == HOLD_LIMIT_KEPT]

    assert [one.verdict for one in found] == verdicts
    assert [[event["request"] for event in one.shown()] for one in found] == [["r1", "r2", "r3"]] * len(verdicts)


def crowded(directory: Path) -> Result:
    """Four pulls at a broker that promises to hold two."""
    config = attrs.evolve(BrokerConfig(), held_count_max=LIMIT)
    options: dict[str, Any] = {"config": config, "store_config": SMALL_STORE}
    history = directory / "history"
    with (
        Broker.start(RealRuntime(), str(directory / "store"), record_directory=str(history), **options) as broker,
        RawClient(broker.address) as client,
    ):
        fields = {"topic": "T", "defaultTopic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        made = client.reply(client.send(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        assert made is not None
        for _ in range(2 * LIMIT):
            client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=60_000))
        # What is answered after the pulls was asked after they were held.
        assert client.reply(client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})) is not None
    return judge([history], engine="local")


def test_a_broker_keeps_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strict broker answers who finds no room; one whose table always has room is found."""
    right = crowded(tmp_path / "right")
    monkeypatch.setattr(HoldLimit, "take", lambda _room: True)
    wrong = crowded(tmp_path / "wrong")

    assert right.findings == []
    assert [finding.property for finding in wrong.findings] == [HOLD_LIMIT_KEPT]
    assert f"hold at most {LIMIT}" in wrong.findings[0].why

"""A broker that holds more pulls than it promises is found from inside, and never by what is not certain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.hold import Room
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.raw_client import RawClient, pull_fields
from longpoll_judge.contract.result import HOLD_LIMIT_KEPT, Finding, Result
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import BROKER, SOURCE, simulated_meta, write
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event, Meta

LIMIT: Final = 2
Step = tuple[str, int, float, float]
"""An event, the number of its pull, and after and before which millisecond it happened."""


def meta_with(limit: int) -> Meta:
    """The meta file of a broker that promises to hold no more than that."""
    meta = simulated_meta()
    return msgspec.structs.replace(meta, sources=[msgspec.structs.replace(meta.sources[0], hold_limit=limit)])


def judged(directory: Path, steps: list[Step], *, limit: int = LIMIT, lost_ns: int = -1) -> list[Finding]:
    """The findings about the limit in these steps; the source says that it lost an event at `lost_ns`."""
    made: list[dict[str, Any]] = [{"event": "source_started", "after_ns": 0, "before_ns": 0}]
    for name, number, after_ms, before_ms in steps:
        moment = {"after_ns": int(after_ms * 1e6), "before_ns": int(before_ms * 1e6)}
        place = {"topic": "T", "queue": 0, "request": f"r{number}", "connection": f"c{number}", "visible_end": 0}
        made.append({"event": name, **moment, **place})
    made += [{"event": "lost", "after_ns": lost_ns, "before_ns": lost_ns, "lost_count": 1}] if lost_ns >= 0 else []
    made.append({"event": "source_stopped", "after_ns": 10**9, "before_ns": 10**9})
    events = [Event(**fields, source=SOURCE, sequence=at, broker=BROKER) for at, fields in enumerate(made)]
    write(directory, events, meta_with(limit))
    found = judge([directory], engine="local").findings
    return [finding for finding in found if finding.property == HOLD_LIMIT_KEPT]


HELD: Final[list[Step]] = [("hold", number, number, number + 0.1) for number in range(1, 4)]


def test_one_too_many_is_found_where_it_comes(tmp_path: Path) -> None:
    """The third of two is found; the window ends with its hold, and all three are shown."""
    (finding,) = judged(tmp_path / "history", [*HELD, ("hold", 4, 5, 5.1)])

    assert (finding.verdict, finding.request) == ("violated", "r3")
    assert [event["request"] for event in finding.shown()] == ["r1", "r2", "r3"]
    assert "3 pulls were held at once" in finding.why


@pytest.mark.parametrize(
    "between",
    [
        [("take", 1, 2.2, 2.3)],
        [("expire", 1, 2.2, 2.3)],
        [("run", 1, 2.2, 3.5)],
        [("answer_sent", 1, 2.2, 3.5)],
        [("connection_closed", 1, 2.2, 3.5)],
        [("stop", 1, 2.2, 2.3)],
        [("take", 1, 2.2, 2.3), ("keep", 1, 2.9, 4.0), ("take", 1, 4.1, 4.2)],
    ],
    ids=lambda between: between[-1][0] if len(between) == 1 else "kept too late",
)
def test_what_may_have_left_is_not_counted(tmp_path: Path, between: list[Step]) -> None:
    """Whatever may have taken a pull out of the table before the third came leaves room for it."""
    assert judged(tmp_path / "history", [*HELD, *between, ("take", 2, 3.05, 3.06)]) == []


@pytest.mark.parametrize("between", [[("recheck", 1, 1.2, 1.3)], [("take", 1, 2.2, 2.3), ("keep", 1, 2.4, 2.5)]])
def test_what_stays_is_counted(tmp_path: Path, between: list[Step]) -> None:
    """A recheck that found nothing, and a walker that put the pull back, change nothing."""
    assert len(judged(tmp_path / "history", [*HELD, *between])) == 1


def test_without_a_promise_nothing_is_broken(tmp_path: Path) -> None:
    """A source that declares no limit, or a large one, is not counted."""
    assert judged(tmp_path / "none", HELD, limit=-1) == []
    assert judged(tmp_path / "large", HELD, limit=3) == []


@pytest.mark.parametrize(("lost_ns", "verdict"), [(2_500_000, "unknown"), (900_000_000, "violated")])
def test_what_may_have_left_unseen_is_not_certain(tmp_path: Path, lost_ns: int, verdict: str) -> None:
    """An event that was lost while the pulls were held may have ended one; one lost long after may not."""
    assert [each.verdict for each in judged(tmp_path / "lost", HELD, lost_ns=lost_ns)] == [verdict]


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
    monkeypatch.setattr(Room, "take", lambda _room: True)
    wrong = crowded(tmp_path / "wrong")

    assert right.findings == []
    assert [finding.property for finding in wrong.findings] == [HOLD_LIMIT_KEPT]
    assert f"hold at most {LIMIT}" in wrong.findings[0].why

"""Which pulls are certainly held at a time, by the events of one source."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.raw_client import RawClient, pull_fields
from model_tests.support.judge.generate import BROKER, SOURCE, simulated_meta
from model_tests.support.judge.histories import judged

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_table import HoldLimit
from longpoll_judge.contract.result import HOLD_LIMIT_KEPT, Result
from longpoll_judge.kernel.pulls import MS
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event, Meta

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

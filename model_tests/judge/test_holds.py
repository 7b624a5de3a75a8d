"""A broker that holds more pulls than its policy permits is reported. `stories/hold_limit.txt` has the histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from model_tests.judge.test_stories import STORIES
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.raw_client import RawClient, pull_fields
from model_tests.support.judge.stories import write_story

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_table import HoldLimit
from longpoll_judge.contract.result import HOLD_LIMIT_KEPT, Result
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime

LIMIT: Final = 2


def crowded(directory: Path) -> Result:
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
        # The broker answers this request only after the pulls were held.
        assert client.reply(client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})) is not None
    return judge([history], engine="local")


def test_a_broker_keeps_its_hold_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strict broker answers a pull at once if the table is full; a broker without a limit is reported."""
    right = crowded(tmp_path / "right")
    monkeypatch.setattr(HoldLimit, "take", lambda _room: True)
    wrong = crowded(tmp_path / "wrong")

    assert right.findings == []
    assert [finding.property for finding in wrong.findings] == [HOLD_LIMIT_KEPT]
    assert f"hold at most {LIMIT}" in wrong.findings[0].why


def test_the_finding_shows_all_held_pulls(tmp_path: Path) -> None:
    (one, *_others) = (one for one in STORIES if one.title.startswith("The third of two"))
    (finding,) = judge([write_story(one, tmp_path)], engine="local").findings
    assert [event["request"] for event in finding.shown()] == ["1", "2", "3"]

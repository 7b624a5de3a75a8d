"""Findings about offset queries whose answer is older than the offset that the group had committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.judge.test_stories import STORIES
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_message
from model_tests.support.judge.convert import convert
from model_tests.support.judge.histories import judged
from model_tests.support.judge.recording import load
from model_tests.support.judge.stories import write_story

from longpoll_broker.broker import Broker
from longpoll_judge.contract.result import COMMIT_NEVER_REGRESSES
from longpoll_judge.run.pipeline import judge
from longpoll_observe.observer import Observer
from longpoll_protocol.codes import CommandFlag, PullSysFlag, RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import Policy, preset

OF_COMMITS: Final = [one for one in STORIES if one.title == "An older commit over a newer one"]


@pytest.mark.parametrize("number", range(len(OF_COMMITS)))
def test_a_finding_names_the_commit_the_query_and_its_answer(tmp_path: Path, number: int) -> None:
    directory = write_story(OF_COMMITS[number], tmp_path / "history")
    result = judge([directory], engine="local")
    (finding,) = result.findings

    assert (finding.property, finding.verdict, finding.topic) == (COMMIT_NEVER_REGRESSES, "violated", "T")
    assert "was told offset" in finding.why
    assert [event["event"] for event in finding.shown()] == ["request_received", "answer_sent"] * 2
    convert(directory, tmp_path / "parquet", into="parquet")
    assert judge([tmp_path / "parquet"], engine="local").findings == result.findings


def test_a_lost_commit_may_explain_a_lower_offset(tmp_path: Path) -> None:
    """If the record lacks events, a commit may be among the missing events, so the verdict is unknown."""
    *events, last = OF_COMMITS[-1].told()
    last = msgspec.structs.replace(last, sequence=last.sequence + 4)
    result = judged(tmp_path / "history", [*events, last], OF_COMMITS[-1].meta)

    assert [finding.verdict for finding in result.findings] == ["unknown"]


def drive(address: tuple[str, int], *, deletes: bool) -> None:
    """Commit offset 2, then offset 1, both by pulls, and query the offset. Another group uses one-way commits."""
    with RawClient(address) as client:
        for number in range(3):
            send_message(client, "T", b"%d" % number)
        for offset in (2, 1):
            fields = pull_fields("T", 0) | {"commitOffset": str(offset), "sysFlag": str(_COMMITS)}
            assert client.reply(client.send(RequestCode.PULL_MESSAGE, fields)) is not None
        asked = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
        other = asked | {"consumerGroup": "H", "commitOffset": "3"}
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, other, flag=CommandFlag.ONE_WAY)
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, other | {"commitOffset": "-1"}, flag=CommandFlag.ONE_WAY)
        # A proxy records wide intervals, so the next event may have come before the commit.
        for number in range(30):
            send_message(client, "U", b"%d" % number)
        if deletes:
            fields = {"groupName": "G", "removeOffset": "true"}
            assert client.reply(client.send(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)) is not None
        assert client.reply(client.send(RequestCode.QUERY_CONSUMER_OFFSET, asked)) is not None


_COMMITS: Final = int(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION)


@pytest.mark.parametrize(
    ("policy", "deletes", "observed"),
    [(preset("strict"), False, False), (preset("rocketmq-4.9"), False, False), (preset("strict"), True, True)],
    ids=["strict", "4.9", "strict, proxy, group deleted"],
)
def test_a_client_may_commit_a_lower_offset(tmp_path: Path, policy: Policy, deletes: bool, observed: bool) -> None:
    """RocketMQ 4.9 stores the later, lower offset; the strict policy keeps the higher one. Neither is a violation."""
    history = tmp_path / "history"
    inside = {} if observed else {"record_directory": str(history)}
    options: dict[str, Any] = {"policy": policy, "store_config": SMALL_STORE, **inside}
    with Broker.start(RealRuntime(), str(tmp_path / "store"), **options) as broker:
        if observed:
            with Observer.start(RealRuntime(), brokers=[broker.address], record_directory=str(history)) as observer:
                (door,) = observer.doors.values()
                drive(door, deletes=deletes)
        else:
            drive(broker.address, deletes=deletes)
    result = judge([history], engine="local")

    said = [event for event in load(history).events if event.group == "H"]
    assert [(event.code, event.commit_offset, event.request) for event in said] == [(15, 3, ""), (15, -1, "")]
    assert (result.verdict, result.findings) == ("valid", [])

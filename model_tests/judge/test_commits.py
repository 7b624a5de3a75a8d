"""Findings about offsets older than a group committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_message
from model_tests.support.judge.convert import convert
from model_tests.support.judge.generate import BROKER, SOURCE
from model_tests.support.judge.histories import judged
from model_tests.support.judge.recording import load

from longpoll_broker.broker import Broker
from longpoll_judge.contract.result import COMMIT_NEVER_REGRESSES
from longpoll_judge.run.pipeline import judge
from longpoll_observe.observer import Observer
from longpoll_protocol.codes import CommandFlag, PullSysFlag, RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event
from longpoll_spec.policy import Policy, preset

MS: Final = 1_000_000
PLACE: Final = {"broker": BROKER, "topic": "T", "queue": 0, "connection": "1"}
Kind = tuple[str, int, int, int]
"""What is asked: `pull`, `explicit`, `one_way`, `ask` or `reset`; its offset; when it is received and answered, ms."""


def events_of(kinds: list[Kind]) -> list[Event]:
    """The exchanges as events; `ask` gets the offset."""
    made: list[dict[str, Any]] = []
    for number, (kind, offset, received_ms, answered_ms) in enumerate(kinds):
        code = {"pull": 11, "ask": 14, "reset": 207}.get(kind, 15)
        request = "" if kind in {"one_way", "reset"} else f"r{number}"
        asked = {"event": "request_received", "code": code, "group": "G", "after_ns": received_ms * MS}
        if kind == "pull":
            asked |= {"offset": 0, "expression": "*", "expression_type": "TAG", "count_max": 32}
        made.append(asked | PLACE | {"request": request} | ({"commit_offset": offset} if code not in {14, 207} else {}))
        told = {"offset": offset} if kind == "ask" else {"offset_next": 0, "offset_min": 0, "offset_max": 0}
        answer_code = 19 if kind == "pull" else 0
        if request:
            answer = {"event": "answer_sent", "code": answer_code, "after_ns": answered_ms * MS}
            made.append(answer | PLACE | {"request": request} | (told if kind != "explicit" else {}))
    ends = [{"event": "source_started", "after_ns": 0}, {"event": "source_stopped", "after_ns": 10**6 * MS}]
    return [
        Event(**{"before_ns": fields["after_ns"] + 1, **fields}, source=SOURCE, sequence=number)
        for number, fields in enumerate([ends[0], *made, ends[1]])
    ]


REGRESSIONS: Final[dict[str, list[Kind]]] = {
    "a pull's older commit": [("pull", 5, 1, 4), ("pull", 9, 2, 3), ("ask", 5, 10, 11)],
    "after an explicit one": [("pull", 5, 1, 4), ("explicit", 9, 2, 3), ("ask", 5, 10, 11)],
    "put back before, not after": [("explicit", 5, 1, 2), ("pull", 9, 3, 4), ("ask", 5, 10, 11)],
    "forgotten": [("pull", 9, 1, 2), ("ask", 0, 10, 11)],
}
RIGHT: Final[dict[str, list[Kind]]] = {
    "the greatest": [("pull", 5, 1, 3), ("pull", 9, 1, 2), ("ask", 9, 10, 11)],
    "put back by itself": [("pull", 9, 1, 2), ("explicit", 5, 3, 4), ("ask", 5, 10, 11)],
    "put back, then a pull": [("pull", 9, 1, 2), ("explicit", 3, 3, 4), ("pull", 5, 5, 6), ("ask", 5, 10, 11)],
    "put back with a later pull": [("pull", 9, 1, 2), ("pull", 5, 3, 4), ("ask", 5, 10, 11)],
    "put back with a pull of the same moment": [("pull", 9, 1, 2), ("pull", 5, 1, 3), ("ask", 5, 10, 11)],
    "put back after an explicit one": [("explicit", 9, 1, 2), ("pull", 5, 3, 4), ("ask", 5, 10, 11)],
    "put back one way": [("pull", 9, 3, 4), ("one_way", 5, 1, 1), ("ask", 5, 10, 11)],
    "asked meanwhile": [("pull", 9, 5, 20), ("ask", 5, 10, 11)],
    "put back meanwhile": [("explicit", 5, 1, 20), ("pull", 9, 3, 4), ("ask", 5, 10, 11)],
    "deleted meanwhile": [("pull", 9, 1, 2), ("reset", 0, 5, 5), ("ask", 0, 10, 11)],
    "another group's": [("ask", 5, 10, 11)],
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_offset_that_its_group_put_back_is_right(tmp_path: Path, name: str) -> None:
    assert judged(tmp_path / "history", events_of(RIGHT[name])).findings == []


@pytest.mark.parametrize("name", REGRESSIONS)
def test_an_older_commit_over_a_newer_one_is_found(tmp_path: Path, name: str) -> None:
    """The finding names the commit, the query and its answer, and it is the only one."""
    result = judged(tmp_path / "history", events_of(REGRESSIONS[name]))
    (finding,) = result.findings

    assert (finding.property, finding.verdict, finding.topic) == (COMMIT_NEVER_REGRESSES, "violated", "T")
    assert "was told offset" in finding.why
    assert [event["event"] for event in finding.shown()] == ["request_received", "answer_sent"] * 2
    assert finding.window_end_ms - finding.window_start_ms == pytest.approx(
        10 if name == "forgotten" else 8 if name == "put back before, not after" else 9, abs=0.01
    )


def test_parquet_says_the_same(tmp_path: Path) -> None:
    """Of a Parquet history only the columns that are needed are read, and the finding is the same."""
    told = judged(tmp_path / "history", events_of(REGRESSIONS["forgotten"])).findings
    convert(tmp_path / "history", tmp_path / "parquet", into="parquet")

    assert told
    assert judge([tmp_path / "parquet"], engine="local").findings == told


def test_what_was_lost_may_have_put_it_back(tmp_path: Path) -> None:
    """Where events are missing an explicit commit may be among them: unknown."""
    events = events_of(REGRESSIONS["forgotten"])
    last = msgspec.structs.replace(events[-1], sequence=events[-1].sequence + 4)

    assert [finding.verdict for finding in judged(tmp_path / "history", [*events[:-1], last]).findings] == ["unknown"]


def drive(address: tuple[str, int], *, deletes: bool) -> None:
    """Commit 2 with a pull, then 1 with another, and ask; another group commits one way, and may be deleted."""
    with RawClient(address) as client:
        for number in range(3):
            send_message(client, "T", b"%d" % number)
        for offset in (2, 1):
            fields = pull_fields("T", 0) | {"commitOffset": str(offset), "sysFlag": str(_COMMITS)}
            assert client.reply(client.send(RequestCode.PULL_MESSAGE, fields)) is not None
        asked = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
        other = asked | {"consumerGroup": "H", "commitOffset": "3"}
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, other, flag=CommandFlag.ONE_WAY)
        # A proxy knows its moments only so well: what comes right after the commit may have come before it.
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
    ids=["strict", "4.9", "deleted, observed"],
)
def test_a_client_may_put_its_own_offset_back(tmp_path: Path, policy: Policy, deletes: bool, observed: bool) -> None:
    """4.9 obeys the later pull, which commits less, and strict does not; deleting the group is neither's fault."""
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
    assert [(event.code, event.commit_offset, event.request) for event in said] == [(15, 3, "")]
    assert (result.verdict, result.findings) == ("valid", [])

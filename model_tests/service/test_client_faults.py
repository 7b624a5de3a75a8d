"""A consumer whose broker goes away, moves its offset, or answers nonsense: nothing is lost, and the log says why."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import ConsumerConfig, Producer, PullConsumer, StartAt
from longpoll_client.consume import puller, sharing
from longpoll_protocol.bodies import BrokerData, ConsumerList, HeartbeatData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_runtime.real import RealRuntime

PATIENCE_S = 10.0
RUNTIME = RealRuntime()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again after 20 ms instead of 3 s."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    monkeypatch.setattr(sharing, "RETRY_S", 0.02)


def poll_one(consuming: PullConsumer) -> bytes:
    """The body of the next message."""
    (message,) = consuming.poll(PATIENCE_S, 1)
    return message.body


def test_a_consumer_survives_its_brokers_restart(tmp_path: Path) -> None:
    """It pulls on where it was, joins its group again, and gets what is sent afterwards exactly once."""
    store = str(tmp_path / "store")
    config = ConsumerConfig("G", start_at=StartAt.FIRST, rebalance_s=0.2)
    with Broker.start(RUNTIME, store) as broker:
        address, name_server = broker.address, broker.name_server_address
        with Producer(RUNTIME, "{}:{}".format(*name_server)) as producer:
            producer.send("T", b"before", queue_id=0)
        consuming = PullConsumer(RUNTIME, "{}:{}".format(*name_server), config)
        consuming.subscribe("T")
        consuming.start()
        assert poll_one(consuming) == b"before"
        consuming.commit()
    with Broker.start(RUNTIME, store, listen=address, name_server=name_server) as broker:
        with Producer(RUNTIME, "{}:{}".format(*name_server)) as producer:
            producer.send("T", b"after", queue_id=0)
        assert poll_one(consuming) == b"after"
        consuming.commit()
        pause = threading.Event()
        for _attempt in range(int(PATIENCE_S / 0.02)):
            if broker.shared.clients.client_ids("G"):
                break
            pause.wait(0.02)
        assert broker.shared.clients.client_ids("G") == [consuming._member.client_id]
        assert len(consuming.queues) == 4
        consuming.close()


class PullScript:
    """Name server and broker in one: one queue, whose pulls are answered in turn by the functions given."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self._clients: list[str] = []
        self.address = ""
        self.pulled_offsets: list[int] = []
        self.stored_offsets: list[int] = []
        self.used_up = threading.Event()

    def __call__(self, peer: Peer, command: Command) -> None:
        """Answer whatever a consumer asks."""
        code = command.code
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = TopicRouteData(
                broker_datas=[BrokerData(broker_name="b", broker_addrs={0: self.address})],
                queue_datas=[QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)],
            )
            peer.answer(command, body=route.encode())
        elif code == RequestCode.HEART_BEAT:
            self._clients = [HeartbeatData.decode(command.body).client_id]
            peer.answer(command)
        elif code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            peer.answer(command, body=ConsumerList(consumer_id_list=self._clients).encode())
        elif code == RequestCode.QUERY_CONSUMER_OFFSET:
            peer.answer(command, fields=OffsetResponseHeader(offset=5).encode())
        elif code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.stored_offsets.append(UpdateConsumerOffsetRequestHeader.decode(command.ext_fields).commit_offset)
            peer.answer(command)
        elif code == RequestCode.PULL_MESSAGE:
            self.pulled_offsets.append(PullMessageRequestHeader.decode(command.ext_fields).queue_offset)
            if self._answers:
                self._answers.pop(0)(peer, command)
            else:
                self.used_up.set()
        else:
            peer.answer(command)


def result(code: int, offset_next: int, body: bytes = b"") -> Any:
    """A pull's answer."""
    fields = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=offset_next, min_offset=0, max_offset=100
    ).encode()
    return lambda peer, command: peer.answer(command, code, fields, body)


def run_script(script: PullScript) -> None:
    """Consume from the script until its answers are used up."""
    with ScriptedServer(script) as server:
        script.address = server.address
        with PullConsumer(RUNTIME, server.address, ConsumerConfig("G")) as consuming:
            consuming.subscribe("T")
            consuming.start()
            assert script.used_up.wait(PATIENCE_S)
            assert consuming.poll(0.0) == []


def test_a_moved_offset_is_followed_and_stored(caplog: pytest.LogCaptureFixture) -> None:
    """21 says where the queue goes on; 20 and 19 may move the offset too."""
    script = PullScript(
        result(ResponseCode.PULL_OFFSET_MOVED, 40),
        result(ResponseCode.PULL_RETRY_IMMEDIATELY, 45),
        result(ResponseCode.PULL_NOT_FOUND, 45),
    )
    with caplog.at_level(logging.WARNING):
        run_script(script)
    assert script.pulled_offsets == [5, 40, 45, 45]
    assert script.stored_offsets == [45]
    assert "the offset is moved to 40" in caplog.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (result(ResponseCode.SUBSCRIPTION_NOT_EXIST, 9), "the broker says 24"),
        (result(ResponseCode.FLOW_CONTROL, 9), "the broker says 215"),
        (result(ResponseCode.SUCCESS, 9, b"\x00" * 100), "is damaged"),
        (result(ResponseCode.SUCCESS, 9, b"\x01"), "expected a record"),
        (lambda peer, command: peer.answer(command, 19), "'suggestWhichBrokerId'"),
        (lambda peer, command: peer.answer(command, 19, {"suggestWhichBrokerId": "x"}), "not a whole number"),
        (lambda peer, _command: peer.send_bytes(b"\xff" * 8), "violates the protocol"),
        (lambda peer, _command: peer.close(), "closed the connection"),
    ],
)
def test_a_pull_that_fails_is_tried_again_from_the_same_offset(
    answer: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is skipped, nothing is stored, and one line says what came."""
    script = PullScript(answer)
    with caplog.at_level(logging.WARNING):
        run_script(script)
    assert script.pulled_offsets == [5, 5]
    assert script.stored_offsets == []
    assert words in caplog.text


def test_planted_a_puller_that_trusts_a_failed_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the next offset of a refused pull skips messages: the second pull shows it."""
    monkeypatch.setattr(puller, "_RESULTS", frozenset({*puller._RESULTS, ResponseCode.SUBSCRIPTION_NOT_EXIST}))
    script = PullScript(result(ResponseCode.SUBSCRIPTION_NOT_EXIST, 9))
    run_script(script)
    assert script.pulled_offsets == [5, 9]

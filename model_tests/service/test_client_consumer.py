"""Producers and consumers against the embedded broker, and against servers that misbehave."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.scripted_server import Peer, ScriptedServer

from longpoll_broker.broker import Broker
from longpoll_client import Producer, PullConsumer, ReceivedMessage, StartAt
from longpoll_client.consume import member, puller
from longpoll_client.errors import ClientError, NoRouteError, RefusedError, UnreachableError
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import BrokerData, ConsumerList, HeartbeatData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

PATIENCE_S = 10.0
RUNTIME = RealRuntime()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    with Broker.start(RUNTIME, str(tmp_path / "store")) as broker:
        yield "{}:{}".format(*broker.name_server_address)


@contextmanager
def consuming(name_server: str, group: str, expression: str = "*", **config: Any) -> Iterator[PullConsumer]:
    """A started pull consumer of topic T that begins at the first message."""
    options: dict[str, Any] = {"start_at": "first"} | config
    with PullConsumer(
        name_server, topics={"T": expression}, **member_options(MemberConfig(group=group, **options))
    ) as consumer:
        yield consumer


def take(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """So many messages, or what came before nothing did for a while; the last ones not committed."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        messages = consumer.poll(PATIENCE_S, count - len(found))
        if not messages:
            break
        found += messages
    return found


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def parity(number: int) -> str:
    return "even" if number % 2 == 0 else "odd"


def test_each_message_comes_once_with_everything_in_its_queues_order(name_server: str) -> None:
    with Producer(name_server) as producer:
        sent = {
            producer.send(
                "T",
                b"body-%d" % number,
                tag="even" if number % 2 == 0 else "odd",
                keys=f"k{number}",
                properties={"n": str(number)},
            ).msg_id: number
            for number in range(300)
        }
        with consuming(name_server, "G") as consumer:
            found = take(consumer, 300)
            assert consumer.poll(0.1) == []
    assert Counter(sent[message.msg_id] for message in found) == Counter(range(300))
    for message in found:
        number = sent[message.msg_id]
        assert (message.body, message.tag, message.keys) == (b"body-%d" % number, parity(number), (f"k{number}",))
        assert message.properties["n"] == str(number)
    for queue_id in {message.queue_id for message in found}:
        offsets = [message.queue_offset for message in found if message.queue_id == queue_id]
        assert offsets == list(range(len(offsets)))


def test_a_held_pull_is_woken_by_a_send(name_server: str) -> None:
    """The hold would last 15 s."""
    with Producer(name_server) as producer, consuming_after_first(producer, name_server) as consumer:
        for number in range(20):
            producer.send("T", b"%d" % number)
            assert bodies(take(consumer, 1)) == [b"%d" % number]


@contextmanager
def consuming_after_first(producer: Producer, name_server: str) -> Iterator[PullConsumer]:
    """A consumer that has already taken one message, so that the topic is there and every queue is pulled."""
    producer.send("T", b"first")
    with consuming(name_server, "G") as consumer:
        assert bodies(take(consumer, 1)) == [b"first"]
        yield consumer


def test_the_client_filters_exactly_what_the_broker_filters_by_hash(name_server: str) -> None:
    """Aa and BB have the same hash, so the broker sends both."""
    with Producer(name_server) as producer:
        for tag in ("Aa", "BB", "C", "Aa"):
            producer.send("T", tag.encode(), tag=tag, queue_id=0)
        with consuming(name_server, "G", "Aa || C") as consumer:
            assert (bodies(take(consumer, 3)), consumer.poll(0.1)) == ([b"Aa", b"C", b"Aa"], [])


@pytest.mark.parametrize(("start_at", "wanted"), [("first", b"old"), ("last", b"new")])
def test_where_to_begin(name_server: str, start_at: StartAt, wanted: bytes) -> None:
    with Producer(name_server) as producer:
        producer.send("T", b"old", queue_id=0)
        with consuming(name_server, "G", start_at=start_at) as consumer:
            producer.send("T", b"new", queue_id=0)
            assert bodies(take(consumer, 1)) == [wanted]


def test_one_way_sends_arrive(name_server: str) -> None:
    with Producer(name_server) as producer, consuming_after_first(producer, name_server) as consumer:
        msg_id = producer.send_one_way("T", b"one way", tag="t")
        (message,) = take(consumer, 1)
        assert (message.msg_id, message.body, message.tag) == (msg_id, b"one way", "t")


def test_an_unknown_topic_has_no_route(name_server: str) -> None:
    with (
        pytest.raises(NoRouteError, match="'T' is unknown to the name server"),
        consuming(name_server, "G", waits_for_topics=False),
    ):
        pytest.fail("a consumer of an unknown topic started")


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", ":9876"])
def test_a_wrong_address_is_the_users_mistake(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Producer(address)


@pytest.mark.parametrize(
    ("topic", "body", "properties", "words"),
    [
        ("../x", b"", {}, "not allowed"),
        ("", b"", {}, "not allowed"),
        ("t" * 128, b"", {}, "not allowed"),
        ("T", bytes(4 * 1024 * 1024 + 1), {}, "over the limit"),
        ("T", b"", {"TAGS": "x"}, "reserved for the client"),
        ("T", b"", {"a": "b\x01"}, "separate"),
        ("T", b"", {"a": "b" * 32_768}, "over the limit"),
    ],
)
def test_a_message_that_no_broker_takes_is_refused_before_it_is_sent(
    topic: str, body: bytes, properties: dict[str, str], words: str
) -> None:
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(server.address) as producer, pytest.raises(ConfigError, match=words):
            producer.send(topic, body, properties=properties)
        assert server.received == []


def route_to(address: str, *, queue_count: int = 2) -> bytes:
    """A route of one broker at this address."""
    return TopicRouteData(
        broker_datas=[BrokerData(broker_name="b", broker_addrs={0: address})],
        queue_datas=[QueueData(broker_name="b", read_queue_nums=queue_count, write_queue_nums=queue_count, perm=6)],
    ).encode()


class OneBroker:
    """Name server and broker in one scripted server: knows TBW102 only, and sends as told."""

    def __init__(self, *send_codes: int | None) -> None:
        self._send_codes = list(send_codes)
        self.address = ""
        self.queue_ids: list[int] = []

    @contextmanager
    def producing(self) -> Iterator[Producer]:
        with ScriptedServer(self) as server, Producer(server.address) as producer:
            self.address = server.address
            yield producer

    def __call__(self, peer: Peer, command: Command) -> None:
        """Answer a route or a send; None closes the connection."""
        fields = command.ext_fields or {}
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            known = fields["topic"] == "TBW102"
            code = ResponseCode.SUCCESS if known else ResponseCode.TOPIC_NOT_EXIST
            peer.answer(command, code, body=route_to(self.address, queue_count=8) if known else b"")
            return
        header = SendMessageRequestHeaderV2.decode(fields)
        self.queue_ids.append(header.queue_id)
        send_code = self._send_codes.pop(0)
        if send_code is None:
            peer.close()
            return
        stored = SendMessageResponseHeader(msg_id="id", queue_id=header.queue_id, queue_offset=7)
        peer.answer(command, send_code, stored.encode())


def test_sends_that_fail_or_need_a_route() -> None:
    broker = OneBroker(0, 0, 0, 0, 0)
    with broker.producing() as producer:
        results = [producer.send("T", b"x") for _number in range(5)]
    assert broker.queue_ids == [0, 1, 2, 3, 0]
    assert {(result.queue_offset, result.broker_msg_id) for result in results} == {(7, "id")}
    broker = OneBroker(None, None, 0, None, None, None)
    with broker.producing() as producer:
        assert producer.send("T", b"x").queue.queue_id == 2
        with pytest.raises(ClientError, match="SEND_MESSAGE_V2"):
            producer.send("T", b"x")
    assert len(broker.queue_ids) == 6
    broker = OneBroker(ResponseCode.MESSAGE_ILLEGAL)
    with broker.producing() as producer, pytest.raises(RefusedError, match="'T': the broker says 13") as caught:
        producer.send("T", b"x")
    assert (caught.value.code, len(broker.queue_ids)) == (13, 1)
    with ScriptedServer(lambda _peer, _command: None) as server:
        address = server.address
    with Producer(address) as producer, pytest.raises(UnreachableError, match=address):
        producer.send("T", b"x")


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE])
def test_stored_but_not_yet_safe_is_told(code: ResponseCode) -> None:
    broker = OneBroker(code)
    with broker.producing() as producer:
        assert producer.send("T", b"x").code == code


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"brokerDatas":7,"queueDatas":[]}'])
def test_a_route_that_cannot_be_read_is_an_error_of_the_client(body: bytes) -> None:
    def answer(peer: Peer, command: Command) -> None:
        peer.answer(command, body=body)

    with (
        ScriptedServer(answer) as server,
        Producer(server.address) as producer,
        pytest.raises(ClientError, match="route of topic"),
    ):
        producer.send("T", b"x")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again after 20 ms instead of 3 s."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    monkeypatch.setattr(member, "RETRY_S", 0.02)


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
        code = command.code
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC and (command.ext_fields or {})["topic"].startswith("%RETRY%"):
            peer.answer(command, ResponseCode.TOPIC_NOT_EXIST)
        elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
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
    fields = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=offset_next, min_offset=0, max_offset=100
    ).encode()
    return lambda peer, command: peer.answer(command, code, fields, body)


def run_script(script: PullScript) -> None:
    """Consume from the script until its answers are used up."""
    with ScriptedServer(script) as server:
        script.address = server.address
        with PullConsumer(server.address, group="G", topics="T", start_at="stored") as consuming:
            assert script.used_up.wait(PATIENCE_S)
            assert consuming.poll(0.0) == []


def test_a_moved_offset_is_followed_and_stored(caplog: pytest.LogCaptureFixture) -> None:
    """21 gives the next offset; 19 and 20 may move it too."""
    script = PullScript(
        result(ResponseCode.PULL_OFFSET_MOVED, 40),
        result(ResponseCode.PULL_RETRY_IMMEDIATELY, 45),
        result(ResponseCode.PULL_NOT_FOUND, 45),
    )
    with caplog.at_level(logging.WARNING):
        run_script(script)
    assert (script.pulled_offsets, script.stored_offsets) == ([5, 40, 45, 45], [45])
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
    script = PullScript(answer)
    with caplog.at_level(logging.WARNING):
        run_script(script)
    assert (script.pulled_offsets, script.stored_offsets) == ([5, 5], [])
    assert words in caplog.text

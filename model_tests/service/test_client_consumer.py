"""Producers and consumers against the embedded broker, and against servers that misbehave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.scripted_server import Peer, ScriptedServer

from longpoll_broker.broker import Broker
from longpoll_client import Producer, PullConsumer, ReceivedMessage
from longpoll_client.errors import ClientError, NoRouteError
from longpoll_client.settings import MemberConfig
from longpoll_protocol.frames import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

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
        msg_id = producer.send_one_way("T", b"one way", tag="t")
        (message,) = take(consumer, 1)
        assert (message.msg_id, message.body, message.tag) == (msg_id, b"one way", "t")


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

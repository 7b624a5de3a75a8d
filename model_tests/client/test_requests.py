"""Requests and replies: who asks gets what the consumer of its message answers, or an error in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import ConsumerConfig, ConsumeStatus, OutgoingMessage, Producer, PushConsumer, ReceivedMessage
from longpoll_client.errors import ClientError, ConnectionLostError, LifecycleError, RefusedError, ReplyTimeoutError
from longpoll_client.instance import ClientInstance
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME: Final = RealRuntime()
PATIENCE_S: Final = 10.0
SHORT_S: Final = 0.2
SILENT: Final = b"say nothing"


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That of an embedded broker."""
    directory = str(tmp_path_factory.mktemp("requests") / "store")
    with Broker.start(RUNTIME, directory, store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


class Service:
    """Consumes a topic and replies to each message with its body backwards, but to one."""

    def __init__(self, name_server: str, topic: str) -> None:
        self.asked: list[ReceivedMessage] = []
        self.refused: list[ClientError] = []
        self.replier = Producer(RUNTIME, name_server, "repliers")
        self.consumer = PushConsumer(RUNTIME, name_server, ConsumerConfig("service"), self.listen)
        self.consumer.subscribe(topic)
        self.consumer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.consumer.close()
        self.replier.close()

    def listen(self, messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        """Answer the requests."""
        for message in messages:
            self.asked.append(message)
            if message.body != SILENT:
                try:
                    self.replier.reply(message, message.body[::-1])
                except ClientError as error:
                    self.refused.append(error)
        return ConsumeStatus.SUCCESS


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """A topic of the test's own."""
    with new_topic(name_server, 2) as made:
        yield made


@pytest.fixture
def service(name_server: str, topic: str) -> Iterator[Service]:
    """It consumes the topic."""
    with Service(name_server, topic) as found:
        yield found


def test_each_request_gets_its_own_reply(name_server: str, topic: str, service: Service) -> None:
    """From eight threads at once, also packed ones; the reply has the request's number and is in no queue."""
    bodies = [b"%d" % number * (1 + 5000 * (number % 2)) for number in range(10, 40)]
    found: dict[bytes, ReceivedMessage] = {}
    with Producer(RUNTIME, name_server, "askers") as producer:

        def ask(part: list[bytes]) -> None:
            for body in part:
                found[body] = producer.request(topic, body, keys="k", timeout_s=PATIENCE_S)

        threads = [threading.Thread(target=ask, args=(bodies[first::8],)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {body: reply.body for body, reply in found.items()} == {body: body[::-1] for body in bodies}
    numbers = {message.body: message.properties["CORRELATION_ID"] for message in service.asked}
    for body, reply in found.items():
        assert reply.properties["CORRELATION_ID"] == numbers[body]
        assert (reply.topic, reply.queue_offset) == ("DefaultCluster_REPLY_TOPIC", -1)
        assert reply.properties["MSG_TYPE"] == "reply"
    assert len(set(numbers.values())) == len(bodies)
    assert service.refused == []


def test_a_request_without_a_reply_ends_in_time(name_server: str, topic: str, service: Service) -> None:
    """With an error of its own; a reply that comes after it changes nothing and is acknowledged."""
    with Producer(RUNTIME, name_server, "askers") as producer:
        with pytest.raises(ReplyTimeoutError, match=r"no reply within 0\.2 s"):
            producer.request(topic, SILENT, timeout_s=SHORT_S)
        wait_until(lambda: bool(service.asked))
        assert service.asked[0].properties["TTL"] == "200"
        service.replier.reply(service.asked[0], b"late")
        assert producer.request(topic, b"next", timeout_s=PATIENCE_S).body == b"txen"


def test_a_callback_gets_the_reply_or_the_error_once(name_server: str, topic: str, service: Service) -> None:
    """A callback that raises harms nobody; closing ends what waits."""
    got: list[ReceivedMessage | ClientError] = []

    def receive(outcome: ReceivedMessage | ClientError) -> None:
        got.append(outcome)
        raise ValueError("planted")

    producer = Producer(RUNTIME, name_server, "askers")
    with producer:
        producer.request_async(topic, OutgoingMessage(b"ab"), receive, timeout_s=PATIENCE_S)
        wait_until(lambda: len(got) == 1)
        producer.request_async(topic, OutgoingMessage(SILENT), receive, timeout_s=SHORT_S)
        wait_until(lambda: len(got) == 2)
        producer.request_async(topic, OutgoingMessage(SILENT), receive, timeout_s=PATIENCE_S)
    assert isinstance(got[0], ReceivedMessage)
    assert got[0].body == b"ba"
    assert isinstance(got[1], ReplyTimeoutError)
    assert isinstance(got[2], ConnectionLostError)
    assert len(got) == 3
    with pytest.raises(LifecycleError):
        producer.request(topic, b"x")


def test_who_asked_and_is_gone_gets_no_reply(name_server: str, topic: str, service: Service) -> None:
    """Who replies is told, after its tries; a message that is no request is a mistake."""
    with Producer(RUNTIME, name_server, "askers") as producer, pytest.raises(ReplyTimeoutError):
        producer.request(topic, SILENT, timeout_s=SHORT_S)
    wait_until(lambda: bool(service.asked))
    with pytest.raises(RefusedError, match=r"channel of <.*> not found"):
        service.replier.reply(service.asked[0], b"x")
    with Producer(RUNTIME, name_server) as producer:
        producer.send(topic, SILENT)
    wait_until(lambda: len(service.asked) == 2)
    with pytest.raises(ConfigError, match="not a request"):
        service.replier.reply(service.asked[1], b"x")


def test_what_cannot_wait_for_replies_says_so(name_server: str, topic: str) -> None:
    """A producer with another client's connections; and a request that cannot even be sent is forgotten."""
    got: list[object] = []
    borrowing = Producer(RUNTIME, name_server, instance=ClientInstance(RUNTIME, name_server))
    with borrowing, pytest.raises(ConfigError, match="cannot wait for replies"):
        borrowing.request(topic, b"x")
    with Producer(RUNTIME, name_server) as producer:
        with pytest.raises(ConfigError, match="reserved for the client"):
            producer.request_async(topic, OutgoingMessage(b"x", properties={"KEYS": "k"}), got.append)
        assert producer._requests is not None
        assert producer._requests._waiting == {}
    assert got == []


def test_requests_go_on_after_the_broker_was_restarted(tmp_path: Path) -> None:
    """The broker of a new connection is told anew who asks."""
    with ExitStack() as stack:
        store = str(tmp_path / "store")
        broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE)
        address, names = broker.address, broker.name_server_address
        name_server = "{}:{}".format(*names)
        producer = stack.enter_context(Producer(RUNTIME, name_server, "askers"))
        with new_topic(name_server, 1) as topic:
            pass
        service = stack.enter_context(Service(name_server, topic))
        assert producer.request(topic, b"ab", timeout_s=PATIENCE_S).body == b"ba"
        broker.stop()
        again = Broker.start(RUNTIME, store, store_config=SMALL_STORE, listen=address, name_server=names)
        stack.callback(again.stop)
        assert producer.request(topic, b"cd", timeout_s=PATIENCE_S).body == b"dc"
        assert len(service.asked) >= 2

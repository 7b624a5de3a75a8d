"""Requests and replies, on threads and on an event loop: each request gets its reply, or an error in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.client import PATIENCE_S, RUNTIME, Clients, from_first, run

from longpoll_broker.broker import Broker
from longpoll_client import (
    AsyncProducer,
    AsyncPushConsumer,
    ReceivedMessage,
    Retry,
)
from longpoll_client.consume import puller
from longpoll_client.errors import ClientError, ConnectionLostError, LifecycleError, RefusedError, ReplyTimeoutError
from longpoll_spec.errors import ConfigError

SHORT_S: Final = 0.2
SILENT: Final = b"no reply"


class Service:
    """Consumes a topic and replies to each message but one with its body backwards."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self.asked: list[ReceivedMessage] = []
        self.refused: list[ClientError] = []
        self.replier = clients.producer("repliers")
        self.consumer = clients.push(from_first(f"service-{topic}"), self.listen)
        self.consumer.subscribe(topic)
        self.consumer.start()

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """Reply to the requests."""
        for message in messages:
            self.asked.append(message)
            if message.body != SILENT:
                try:
                    self.replier.reply(message, message.body[::-1])
                except ClientError as error:
                    self.refused.append(error)
        return None


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """A topic of the test's own."""
    with new_topic(name_server, 2) as made:
        yield made


@pytest.fixture
def service(clients: Clients, topic: str) -> Service:
    """It consumes the topic."""
    return Service(clients, topic)


def test_each_request_gets_its_own_reply(clients: Clients, topic: str, service: Service) -> None:
    """From eight threads at once, also compressed; the reply has the request's number and is in no queue."""
    bodies = [b"%d" % number * (1 + 5000 * (number % 2)) for number in range(10, 40)]
    found: dict[bytes, ReceivedMessage] = {}
    producer = clients.producer("askers")

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


def test_a_request_without_a_reply_ends_in_time(clients: Clients, topic: str, service: Service) -> None:
    """A reply that comes later changes nothing and is acknowledged."""
    producer = clients.producer("askers")
    with pytest.raises(ReplyTimeoutError, match=r"no reply within 0\.2 s"):
        producer.request(topic, SILENT, timeout_s=SHORT_S)
    wait_until(lambda: bool(service.asked))
    assert service.asked[0].properties["TTL"] == "200"
    service.replier.reply(service.asked[0], b"late")
    assert producer.request(topic, b"next", timeout_s=PATIENCE_S).body == b"txen"


def test_a_callback_gets_the_reply_or_the_error_once(clients: Clients, topic: str, service: Service) -> None:
    """A callback that raises stops nothing; a request that cannot be sent is forgotten; closing ends the others."""
    got: list[Any] = []

    def receive(outcome: ReceivedMessage | ClientError) -> None:
        got.append(outcome)
        raise ValueError("planted")

    producer = clients.producer("askers")
    producer.request_nowait(topic, b"ab", callback=receive, timeout_s=PATIENCE_S)
    wait_until(lambda: len(got) == 1)
    producer.request_nowait(topic, SILENT, callback=receive, timeout_s=SHORT_S)
    wait_until(lambda: len(got) == 2)
    for wrong in ({"KEYS": "k"}, {"": "no name"}):
        with pytest.raises(ConfigError):
            producer.request_nowait(topic, b"x", callback=receive, properties=wrong)
    assert producer._requests._waiting == {}
    producer.request_nowait(topic, SILENT, callback=receive, timeout_s=PATIENCE_S)
    wait_until(lambda: len(service.asked) == 3)
    producer.close()
    assert [type(outcome) for outcome in got] == [ReceivedMessage, ReplyTimeoutError, ConnectionLostError]
    assert got[0].body == b"ba"
    with pytest.raises(LifecycleError):
        producer.request(topic, b"x")
    with pytest.raises(LifecycleError):
        producer.request_nowait(topic, b"x", callback=receive)


def test_who_asked_and_is_gone_gets_no_reply(clients: Clients, topic: str, service: Service) -> None:
    """The replier gets an error after its tries; replying to a plain message is a mistake."""
    producer = clients.producer("askers")
    with pytest.raises(ReplyTimeoutError):
        producer.request(topic, SILENT, timeout_s=SHORT_S)
    producer.close()
    wait_until(lambda: bool(service.asked))
    with pytest.raises(RefusedError, match=r"channel of <.*> not found"):
        service.replier.reply(service.asked[0], b"x")
    clients.producer().send(topic, SILENT)
    wait_until(lambda: len(service.asked) == 2)
    with pytest.raises(ConfigError, match="not a request"):
        service.replier.reply(service.asked[1], b"x")


def test_a_request_that_is_cancelled_or_closed_under_is_forgotten(name_server: str, topic: str) -> None:
    """On an event loop; the close ends it with an error."""

    async def story() -> None:
        arrived = asyncio.Event()

        async def listen(_messages: Sequence[ReceivedMessage]) -> Retry | None:
            arrived.set()
            return None

        service = AsyncPushConsumer(
            name_server, topics=topic, listener=listen, **member_options(from_first(f"G-{topic}"))
        )
        asking = AsyncProducer(name_server, group="askers")
        async with service:
            assert asking._requests is not None
            for ends_by_close in (False, True):
                waiting = asyncio.create_task(asking.request(topic, SILENT, timeout_s=PATIENCE_S))
                await arrived.wait()
                arrived.clear()
                if ends_by_close:
                    await asking.close()
                    with pytest.raises(ConnectionLostError, match="before a reply came"):
                        await waiting
                else:
                    waiting.cancel()
                    await asyncio.wait([waiting])
                assert asking._requests._waiting == {}

    run(story)


def test_requests_go_on_after_the_broker_was_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tells the broker of a new connection again who asks."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    with ExitStack() as stack:
        store = str(tmp_path / "store")
        broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE)
        stack.callback(broker.stop)
        address, names = broker.address, broker.name_server_address
        clients = Clients("{}:{}".format(*names), stack, is_loop=False)
        producer = clients.producer("askers")
        with new_topic(clients.name_server, 1) as topic:
            service = Service(clients, topic)
            assert producer.request(topic, b"ab", timeout_s=PATIENCE_S).body == b"ba"
            broker.stop()
            stack.callback(
                Broker.start(RUNTIME, store, store_config=SMALL_STORE, listen=address, name_server=names).stop
            )
            assert producer.request(topic, b"cd", timeout_s=PATIENCE_S).body == b"dc"
            assert len(service.asked) >= 2

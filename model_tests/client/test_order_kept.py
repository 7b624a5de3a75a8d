"""In order: a queue that leaves its listener and comes back, and one that is locked while its member closes.

Which queues are whose is said by `allocate` here, so that they come and go when a test wants it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    AsyncPushConsumer,
    ConsumerConfig,
    ConsumeStatus,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.consume.workers import Answer
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
PATIENCE_S: Final = 10.0
LOOKS: Final = 5
"""So often queues are shared anew until what is to happen would have happened."""


class Share:
    """How many queues of its topic a member is given, and how often it has asked."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.looks = 0

    def __call__(
        self, _client_id: str, _members: Iterable[str], queues: Iterable[MessageQueue]
    ) -> tuple[MessageQueue, ...]:
        """As `ConsumerConfig.allocate`."""
        found = tuple(queues)
        if found[0].topic.startswith("%RETRY%"):
            return ()
        self.looks += 1
        return found[: self.count]


class Held:
    """A listener that holds the first message back until `go`, and what it saw of itself."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.bodies: list[bytes] = []
        self.running = self.running_max = 0

    def listen(self, messages: Sequence[ReceivedMessage]) -> Answer:
        """On threads."""
        self._begin(messages)
        assert self.go.wait(PATIENCE_S)
        self.running -= 1
        return ConsumeStatus.SUCCESS

    async def listen_on_loop(self, messages: Sequence[ReceivedMessage]) -> Answer:
        """The same as a coroutine."""
        self._begin(messages)
        assert await asyncio.to_thread(self.go.wait, PATIENCE_S)
        self.running -= 1
        return ConsumeStatus.SUCCESS

    def _begin(self, messages: Sequence[ReceivedMessage]) -> None:
        self.bodies.append(messages[0].body)
        self.running += 1
        self.running_max = max(self.running_max, self.running)


def config(group: str, share: Share) -> ConsumerConfig:
    """One that looks often which queues are its own."""
    return ConsumerConfig(
        group, start_at=StartAt.FIRST, rebalance_s=0.02, thread_count=2, close_timeout_s=PATIENCE_S, allocate=share
    )


class Loop:
    """A consumer of an event loop with a thread of its own, used as one on threads."""

    def __init__(self, name_server: str, share: Share, held: Held, group: str, topic: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._consumer = AsyncPushConsumer(
            RUNTIME, name_server, config(group, share), held.listen_on_loop, is_orderly=True
        )
        self._consumer.subscribe(topic)

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Those that it has now."""
        return self._consumer.queues

    def start(self) -> None:
        """Join."""
        asyncio.run_coroutine_threadsafe(self._consumer.start(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        """Leave, and end the loop."""
        asyncio.run_coroutine_threadsafe(self._consumer.close(), self._loop).result(2 * PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def consumer_of(kind: str, name_server: str, share: Share, held: Held, topic: str) -> PushConsumer | Loop:
    """One of the topic's group."""
    group = f"in-order-{topic}"
    if kind == "loop":
        return Loop(name_server, share, held, group, topic)
    consumer = PushConsumer(RUNTIME, name_server, config(group, share), held.listen, is_orderly=True)
    consumer.subscribe(topic)
    return consumer


each_kind = pytest.mark.parametrize("kind", ["threads", "loop"])


def own(consumer: PushConsumer | Loop, topic: str) -> int:
    """How many queues of the topic it has."""
    return sum(queue.topic == topic for queue in consumer.queues)


@each_kind
def test_a_queue_that_comes_back_waits_for_who_has_its_messages(name_server: str, topic: str, kind: str) -> None:
    """The second listener was given the first one's message beside it, and lost the lock when the first one ended."""
    share, held = Share(1), Held()
    with Producer(RUNTIME, name_server) as producer:
        for body in (b"1", b"2", b"3"):
            producer.send(topic, body)
    consumer = consumer_of(kind, name_server, share, held, topic)
    consumer.start()
    try:
        wait_until(lambda: held.running == 1)
        share.count = 0
        wait_until(lambda: own(consumer, topic) == 0)
        share.count, looks = 1, share.looks
        wait_until(lambda: share.looks >= looks + LOOKS or held.running > 1)
        assert own(consumer, topic) == 0
        held.go.set()
        # The first one counted for nobody any more when its listener had it: it comes once more.
        wait_until(lambda: held.bodies == [b"1", b"1", b"2", b"3"])
        assert held.running_max == 1
    finally:
        held.go.set()
        consumer.close()


@each_kind
def test_a_member_that_closes_keeps_no_queue_that_it_could_not_begin(name_server: str, kind: str) -> None:
    """It was given a second one while it waited for its listener: the next member had it a minute later."""
    with new_topic(name_server, 2) as topic:
        share, held = Share(1), Held()
        with Producer(RUNTIME, name_server) as producer:
            producer.send(topic, b"1", queue_id=0)
        consumer = consumer_of(kind, name_server, share, held, topic)
        consumer.start()
        closing = threading.Thread(target=consumer.close)
        try:
            wait_until(lambda: held.running == 1)
            closing.start()
            wait_until(lambda: is_closed(consumer))
            share.count, looks = 2, share.looks
            wait_until(lambda: share.looks >= looks + LOOKS)
        finally:
            held.go.set()
            closing.join()
        following = consumer_of(kind, name_server, Share(2), held, topic)
        following.start()
        try:
            wait_until(lambda: own(following, topic) == 2)
            assert held.bodies == [b"1"]
        finally:
            following.close()


def is_closed(consumer: PushConsumer | Loop) -> bool:
    """Whether it was told to close."""
    found = consumer._consumer if isinstance(consumer, Loop) else consumer
    return found._member.lifecycle.is_closed

"""Kafka: fetches of confluent-kafka read a topic from an offset. Share groups: `kafka_share`.

Promised by kafka.apache.org/documentation (design; `fetch.min.bytes`, `fetch.max.wait.ms`): a fetch gets the messages
from an offset on, in order, and waits if there are no messages. The client fetches in the background, so the client
keeps the deadline of a poll.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

from attrs import frozen
from confluent_kafka import Consumer, KafkaException, TopicPartition

from longpoll_kit.subject import Polled
from longpoll_kit.subjects.kafka_topics import CALL_S, FETCH_MS, Topics, bodies_of

MESSAGES_MAX: Final = 500
IDLE_MAX: Final = 8


@frozen
class Fetch:
    """A poll: its consumer, the topic and offset that it reads, and its timeout."""

    consumer: Any
    queue: str
    offset: int
    wait_s: float = 0.0


class FetchSubject(Topics):
    """Consumers that read a topic from an offset. The kit reuses consumers, because each has several threads."""

    semantics = "offsets"

    def __init__(self, url: str, mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the broker does not answer."""
        super().__init__(url, mode)
        self._lock = threading.Lock()
        self._idle: list[Fetch] = []
        """Consumers without a poll, with what each fetches next."""

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Fetch:
        """Let an idle or new consumer fetch from an offset."""
        self.use(queue)
        offset = position or 0
        with self._lock:
            ready = [each for each in self._idle if (each.queue, each.offset) == (queue, offset)]
            usable = ready or (self._idle[:1] if len(self._idle) >= IDLE_MAX else [])
            for each in usable[:1]:
                self._idle.remove(each)
        more = {"group.id": "kit", "enable.auto.commit": False, "auto.offset.reset": "error"}
        more |= {"fetch.min.bytes": 1, "fetch.wait.max.ms": FETCH_MS}
        consumer = usable[0].consumer if usable else Consumer(self.config | more)
        self.consumers.add(consumer)
        if not ready:
            consumer.assign([TopicPartition(queue, 0, offset)])
            with suppress(KafkaException):  # The consumer may not know a new topic yet, but will learn about it soon.
                # After this call, the consumer has found the partition's broker.
                consumer.get_watermark_offsets(TopicPartition(queue, 0), CALL_S)
        return Fetch(consumer, queue, offset, timeout_ms / 1_000)

    def finish_poll(self, handle: Fetch) -> Polled:
        """Wait for messages until the poll's deadline."""
        messages = handle.consumer.consume(1, handle.wait_s)
        messages += handle.consumer.consume(MESSAGES_MAX, 0) if messages else []
        bodies = bodies_of(messages)
        reached = messages[-1].offset() + 1 if messages else handle.offset
        with self._lock:
            self._idle.append(Fetch(handle.consumer, handle.queue, reached))
        return Polled(bodies, position_next=reached if bodies else None)

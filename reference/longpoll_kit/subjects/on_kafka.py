"""Kafka: topics of one partition as queues, by fetches of confluent-kafka.

Promised by kafka.apache.org/documentation (design; `fetch.min.bytes`, `fetch.max.wait.ms`): a fetch from an offset gets
the messages from there on in order, and otherwise waits. Acknowledged messages survive a restart of a sole broker.
The client fetches in the background, so the deadline of a poll is the client's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from longpoll_kit.errors import ServiceError
from longpoll_kit.subject import LongPollSubject, Polled, Semantics
from longpoll_kit.subjects.addresses import local_process

PORT: Final = 9_092
CALL_S: Final = 10
MESSAGES_MAX: Final = 500
IDLE_MAX: Final = 8
FETCH_MS: Final = 100
"""A consumer that is used again first waits for the fetch that the broker still holds for it."""


@frozen
class Fetch:
    """A poll: its consumer, and when its time is up."""

    consumer: Any
    queue: str
    offset: int
    wait_s: float


class KafkaSubject(LongPollSubject):
    """The topics of a cluster; `close` deletes them. Consumers are used again, because each has threads of its own."""

    MODES: Final[Mapping[str, Semantics]] = {"fetch": "offsets"}
    semantics = "offsets"
    durable = True
    gone = (KafkaException, TimeoutError)

    def __init__(self, url: str, _mode: str) -> None:
        """Connect; raises one of `gone`."""
        split = urlsplit(url)
        host, port = split.hostname or "127.0.0.1", split.port or PORT
        self.process_id = local_process(host, port)
        self._config: dict[str, Any] = {"bootstrap.servers": f"{host}:{port}", "log_level": 0}
        self._admin = AdminClient(self._config)
        self._admin.list_topics(timeout=CALL_S)
        self._producer = Producer(self._config | {"linger.ms": 0, "acks": "all", "message.timeout.ms": CALL_S * 1_000})
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._idle: dict[tuple[str, int], list[Any]] = {}

    def publish(self, queue: str, body: bytes) -> None:
        """Produce a message, and wait for its acknowledgement."""
        self._use(queue)
        errors: list[Any] = []
        self._producer.produce(queue, body, partition=0, on_delivery=lambda error, _message: errors.append(error))
        self._producer.flush(2 * CALL_S)
        if not errors or errors[0] is not None:  # a KafkaError cannot be compared with None
            raise ServiceError(f"a message was not acknowledged: {errors[0].str() if errors else 'no answer'}")

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Fetch:
        """Let an idle or new consumer fetch from an offset."""
        self._use(queue)
        offset = position or 0
        with self._lock:
            at_hand = self._idle.pop((queue, offset), [])
            consumer = at_hand.pop() if at_hand else None
            self._idle |= {(queue, offset): at_hand} if at_hand else {}
        if consumer is not None:
            return Fetch(consumer, queue, offset, timeout_ms / 1_000)  # it fetches from there already
        with self._lock:
            others = next(iter(self._idle), None) if len(self._idle) >= IDLE_MAX else None
            consumer = self._idle[others].pop() if others else None
            if others and not self._idle[others]:
                del self._idle[others]
        consumer = consumer or Consumer(
            self._config
            | {
                "group.id": "kit",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.min.bytes": 1,
                "fetch.wait.max.ms": FETCH_MS,
            }
        )
        consumer.assign([TopicPartition(queue, 0, offset)])
        with suppress(KafkaException):  # a new topic, which it finds in a moment
            consumer.get_watermark_offsets(TopicPartition(queue, 0), CALL_S)  # it has found the partition's broker
        return Fetch(consumer, queue, offset, timeout_ms / 1_000)

    def finish_poll(self, handle: Fetch) -> Polled:
        """Wait for messages."""
        messages = handle.consumer.consume(1, handle.wait_s)
        messages += handle.consumer.consume(MESSAGES_MAX, 0) if messages else []
        with self._lock:
            reached = messages[-1].offset() + 1 if messages and not messages[-1].error() else handle.offset
            self._idle.setdefault((handle.queue, reached), []).append(handle.consumer)
        wrong = [message.error() for message in messages if message.error()]
        if wrong:
            raise ServiceError(f"a fetch from offset {handle.offset} got {wrong[0].str()}")
        if not messages:
            return Polled()
        return Polled([message.value() for message in messages], position_next=messages[-1].offset() + 1)

    def close(self) -> None:
        """Close the consumers, and delete the topics."""
        for consumer in (each for some in self._idle.values() for each in some):
            consumer.close()
        for done in self._admin.delete_topics(list(self._topics)).values() if self._topics else ():
            done.result(CALL_S)

    def _use(self, queue: str) -> None:
        with self._lock:
            if queue in self._topics:
                return
            if queue not in self._admin.list_topics(timeout=CALL_S).topics:
                made = self._admin.create_topics([NewTopic(queue, num_partitions=1, replication_factor=1)])
                made[queue].result(CALL_S)
            self._topics.add(queue)

"""Kafka's share groups: topics as queues that deliver each message to one consumer (Kafka 4.2, or 4.1 as a preview).

Promised by kafka.apache.org/documentation (design, share groups; KIP-932): a message is delivered at least once and in
any order, and again when its consumer does not acknowledge it within `group.share.record.lock.duration.ms`. A consumer
may subscribe to several topics, and a group has at most `group.share.max.size` consumers.

The test sets the shortest lock that the broker allows. Each poll uses its own consumer, because after an empty poll the
client continues to fetch, and a message that it fetches is locked for all other consumers.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka
from attrs import define

from longpoll_kit.errors import ServiceError, SubjectError
from longpoll_kit.subject import Polled
from longpoll_kit.subjects.kafka_topics import CALL_S, FETCH_MS, Topics, bodies_of

NEEDED: Final = "use Kafka 4.2 or later, or enable share groups in Kafka 4.1"
LOCK_MS: Final = 3_000
"""The time limit for an acknowledgement; a broker may require a longer limit."""
LOOK_MS: Final = 50
LOOKS_MAX: Final = 3
"""How often to check whether a consumer got its partitions. If it got none, another consumer joins, because a share
group assigns a new topic only to consumers that join later."""
JOINS_MAX: Final = 100
OTHERS: Final = 8
"""How many consumers the group must allow in addition to the largest number of waiting polls, for example to read
another queue."""


@define(eq=False)
class Share:
    """A poll: its consumer keeps the received messages locked until they are acknowledged."""

    consumer: Any
    wait_s: float
    messages: Any = ()


class ShareSubject(Topics):
    """Consumers of one share group."""

    semantics = "consuming"
    order = "none"
    client_ends_wait = True

    def __init__(self, url: str, mode: str) -> None:
        """Connect, and configure the group. Raises one of the exceptions in `gone` if the broker does not answer."""
        super().__init__(url, mode)
        if not hasattr(confluent_kafka, "ShareConsumer"):
            raise SubjectError("this confluent-kafka has no share groups; install confluent-kafka 2.16 or later")
        limits = self.broker_settings()
        if "group.share.max.size" not in limits:
            raise SubjectError(f"{url} has no share groups; {NEEDED}")
        self.redelivery_ms = max(LOCK_MS, int(limits["group.share.min.record.lock.duration.ms"]))
        self.polls_max = int(limits["group.share.max.size"]) - OTHERS
        self._group = f"kit-{uuid.uuid4().hex}"
        lock = {"share.record.lock.duration.ms": str(self.redelivery_ms)}
        self.set_up_group(self._group, {"share.auto.offset.reset": "earliest"} | lock)

    def start_poll(self, queue: str, position: None, timeout_ms: int) -> Share:
        """Let a new consumer join the group. The consumer fetches only in `finish_poll`."""
        return self.start_poll_of([queue], [position], timeout_ms)

    def start_poll_of(self, queues: Sequence[str], positions: Sequence[None], timeout_ms: int) -> Share:  # noqa: ARG002 - the group has them
        """Let a new consumer of several topics join the group."""
        for queue in queues:
            self.use(queue)
        for _ in range(JOINS_MAX):
            consumer = self._joined(list(queues))
            if consumer is not None:
                return Share(consumer, timeout_ms / 1_000)
        raise ServiceError(f"no consumer of a share group is given {', '.join(queues)}")

    def _joined(self, queues: list[str]) -> Any:
        """Return a consumer with the partition of each topic, or None if it did not get the partitions soon."""
        counts = [0]
        own: dict[str, Any] = {"group.id": self._group, "share.acknowledgement.mode": "explicit"}
        own |= {"fetch.wait.max.ms": FETCH_MS, "statistics.interval.ms": LOOK_MS}
        own["stats_cb"] = lambda told: counts.append(json.loads(told)["cgrp"]["assignment_size"])
        consumer = confluent_kafka.ShareConsumer(self.config | own)
        consumer.subscribe(queues)
        for _ in range(LOOKS_MAX):
            threading.Event().wait(LOOK_MS / 1_000)
            consumer.commit_async()  # This call delivers the statistics without a fetch.
            if counts[-1] == len(queues):
                self.consumers.add(consumer)
                return consumer
        try:
            consumer.poll(0)  # This call raises the consumer's error.
        except confluent_kafka.KafkaException as error:
            raise ServiceError(f"no consumer joins a share group: {error.args[0].str()}; {NEEDED}") from None
        finally:
            consumer.close()
        return None

    def finish_poll(self, handle: Share) -> Polled:
        """Wait for a message. If none arrives, leave the group."""
        handle.messages = handle.consumer.poll(handle.wait_s)
        if not handle.messages:
            self._end(handle)
        return Polled(bodies_of(handle.messages))

    def acknowledge(self, handle: Share) -> None:
        """Accept the messages and leave the group, which releases further messages that the consumer fetched."""
        for message in handle.messages:
            handle.consumer.acknowledge(message)
        handle.consumer.commit_sync(CALL_S)
        self._end(handle)

    def _end(self, poll: Share) -> None:
        # Drop the reference, because the client supports only about 1,000 consumers.
        consumer, poll.consumer = poll.consumer, None
        self.consumers.discard(consumer)
        consumer.close()

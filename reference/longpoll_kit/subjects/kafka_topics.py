"""Topics of one partition as queues, created and written with confluent-kafka; `on_kafka` and `kafka_share` read them.

Promised by kafka.apache.org/documentation (design): acknowledged messages survive a restart of a single broker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from longpoll_kit.errors import ServiceError
from longpoll_kit.subject import LongPollSubject
from longpoll_kit.subjects.addresses import MadeOnce, address_of, local_process

PORT: Final = 9_092
CALL_S: Final = 10
QUIET: Final = logging.getLogger(__name__)
QUIET.disabled = True  # Turn logging off, because the client also raises the errors that it logs.
FETCH_MS: Final = 100
"""The longest time for which the broker holds a fetch. The test waits for a consumer's last fetch before it reuses or
closes the consumer."""


class Topics(LongPollSubject):
    """The topics to which the kit publishes; `close` deletes them."""

    durable = True
    gone = (KafkaException, TimeoutError)

    def __init__(self, url: str, _mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the broker does not answer."""
        host, port = address_of(url, PORT)
        self.process_id = local_process(host, port)
        self.config: dict[str, Any] = {"bootstrap.servers": f"{host}:{port}", "log_level": 0, "logger": QUIET}
        self.admin = AdminClient(self.config)
        self.admin.list_topics(timeout=CALL_S)
        self._producer = Producer(self.config | {"linger.ms": 0, "acks": "all", "message.timeout.ms": CALL_S * 1_000})
        self.use = MadeOnce(self._create)
        self.consumers: set[Any] = set()

    def publish(self, queue: str, body: bytes) -> None:
        """Produce a message, and wait for its acknowledgement."""
        self.use(queue)
        errors: list[Any] = []
        self._producer.produce(queue, body, partition=0, on_delivery=lambda error, _message: errors.append(error))
        self._producer.flush(2 * CALL_S)
        if not errors or errors[0] is not None:  # A KafkaError cannot be compared with None by `==`.
            raise ServiceError(f"a message was not acknowledged: {errors[0].str() if errors else 'no answer'}")

    def close(self) -> None:
        """Close the consumers, and delete the topics."""
        for consumer in self.consumers:
            consumer.close()
        for done in self.admin.delete_topics(list(self.use.made)).values() if self.use.made else ():
            done.result(CALL_S)

    def broker_settings(self) -> dict[str, str]:
        """The settings of a broker."""
        broker = next(iter(self.admin.list_topics(timeout=CALL_S).brokers))
        (told,) = self.admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]).values()
        return {name: entry.value for name, entry in told.result(CALL_S).items()}

    def set_up_group(self, group: str, settings: Mapping[str, str]) -> None:
        """Change settings of a group."""
        entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in settings.items()]
        changed = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        (done,) = self.admin.incremental_alter_configs([changed]).values()
        done.result(CALL_S)

    def _create(self, topic: str) -> None:
        if topic not in self.admin.list_topics(timeout=CALL_S).topics:
            self.admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(CALL_S)


def bodies_of(messages: Any) -> list[bytes]:
    """The bodies of the messages that a consumer returned. Raises ServiceError if the consumer returned an error."""
    for wrong in (message.error() for message in messages):
        if wrong is not None:
            raise ServiceError(f"a consumer got {wrong.str()}")
    return [message.value() for message in messages]

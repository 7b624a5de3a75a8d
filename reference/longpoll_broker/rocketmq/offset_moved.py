"""Stores an event message for each pull that 4.9 redirects to another offset.

Source: `PullMessageProcessor.generateOffsetMovedEvent`, `OffsetMovedEvent.java` 4.9.7.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from attrs import define

from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.send.append import Appender
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.properties import DELAY, KEYS, TAGS, java_hash, write_properties
from longpoll_runtime import Runtime

log = logging.getLogger(__name__)

OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"


@define(slots=True, eq=False)
class OffsetMovedEvents:
    """Stores the event messages; callable from any thread."""

    runtime: Runtime
    appender: Appender
    broker_name: str
    host: bytes
    """The broker's address in the format of a stored message."""

    def tell(self, pull: Pull, offset_new: int) -> None:
        """Store an event for a pull that was redirected to `offset_new`; an error is only logged, as in RocketMQ."""
        event = {
            "consumerGroup": pull.group,
            "messageQueue": {"brokerName": self.broker_name, "queueId": pull.queue_id, "topic": pull.topic},
            "offsetNew": offset_new,
            "offsetRequest": pull.offset,
        }
        message = MessageToStore(
            topic=OFFSET_MOVED_TOPIC,
            queue_id=0,
            body=msgspec.json.encode(event),
            properties=write_properties({TAGS: pull.group, DELAY: "0", KEYS: pull.group}),
            tags_code=java_hash(pull.group),
            born_ms=self.runtime.unix_ms(),
            born_host=self.host,
            store_host=self.host,
        )
        try:
            self.appender.append(message, pull.group)
        except (MessageRefusedError, OSError) as error:
            log.warning("the event of a moved offset of group %s is not stored: %s", pull.group[:64], error)

"""Creates the messages to store from send requests: their properties and their topic.

A delayed message goes to the schedule topic, a prepared one to the half topic, and one with too many retries to the
dead-letter topic. Checks and answers: see `send.send_processor`. Batches: see `send.batches`.

Source: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.java` 4.9.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.io.channel import Channel
from longpoll_broker.send.append import HALF_TOPIC, TRANSACTION_MASK, delayed, moved
from longpoll_broker.send.inner_queues import InnerQueues, SendRefusedError
from longpoll_broker.send.timer_messages import drop_timer, has_timer, timer_message
from longpoll_broker.shared.timer_offsets import TimerOffsets
from longpoll_broker.shared.topics import FAQ, Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.frame import Buffer
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.message import RecallHandle
from longpoll_protocol.names import DEAD_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from longpoll_protocol.properties import (
    CLUSTER,
    DELAY,
    DELAY_LEVELS_MS,
    INNER_OFFSETS,
    INNER_QUEUES,
    PREPARED,
    REAL_TOPIC,
    REGION,
    TAGS,
    TIMER_OUT_MS,
    TRACE,
    TRANSACTION_ID,
    UNIQUE_KEY,
    WAIT,
    read_properties,
    write_properties,
)
from longpoll_protocol.tags import tags_code
from longpoll_runtime import Runtime

REGION_NAME: Final = "DefaultRegion"
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
_tags_code: Final = lru_cache(maxsize=256)(tags_code)
"""Cached, because producers use a few tags again and again."""


@define(slots=True, eq=False)
class MessageBuilder:
    """Callable from any thread."""

    runtime: Runtime
    cluster_name: str
    topics: Topics
    groups: Groups
    store_host: bytes
    """The broker's address as in records."""
    traits: Traits = STRICT_TRAITS
    inner_queues: InnerQueues | None = None
    """Checks the additional queues of a message; None when multi-dispatch is off."""
    broker_name: str = ""
    timers: TimerOffsets = field(factory=TimerOffsets)
    level_count: int = len(DELAY_LEVELS_MS)
    """Number of delay levels."""
    _next_key: itertools.count[int] = field(factory=itertools.count, init=False)
    added_properties: bytes = field(init=False)
    """The stored properties of a message that arrived without any."""

    def __attrs_post_init__(self) -> None:
        self.added_properties = write_properties({CLUSTER: self.cluster_name}, self.traits.properties_form)

    def of_request(
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: Buffer,
        properties: dict[str, str],
    ) -> MessageToStore:
        """Create the message for one send, with its final topic; raises SendRefusedError. Updates `properties`."""
        message = self.message(
            channel, header, queue_id, body, self.stored(properties), properties.get(TAGS, ""), header.flag
        )
        if header.topic.startswith(RETRY_PREFIX):
            message = self._dead_if_tried_out(channel, message, header, properties)
        if DELAY in properties or PREPARED in properties or (self.traits.serves_timers and has_timer(properties)):
            return self._elsewhere(message, properties)
        if self.inner_queues is not None and INNER_QUEUES in properties:
            return self.inner_queues.named(message, properties)
        return message

    def message(  # noqa: PLR0917 - the parts of one message
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: Buffer,
        properties: bytes,
        tag: str,
        flag: int,
    ) -> MessageToStore:
        """Create a message with these stored properties; `flag` is the message's, not the request's."""
        return MessageToStore(
            topic=header.topic,
            queue_id=queue_id,
            body=body if isinstance(body, (bytes, memoryview)) else bytes(body),
            properties=properties,
            tags_code=_tags_code(tag),
            born_ms=header.born_timestamp,
            born_host=channel.host_bytes,
            store_host=self.store_host,
            flag=flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )

    def properties(self, header: SendMessageRequestHeader) -> dict[str, str]:
        """A message's properties with those that the broker adds, in the order of Java's map."""
        properties = self.without_offsets(header.properties)
        if self.traits.stores_region:
            properties[REGION] = REGION_NAME
            properties[TRACE] = "true"
            if UNIQUE_KEY not in properties:
                properties[UNIQUE_KEY] = self._unique_key()
        properties[CLUSTER] = self.cluster_name
        return properties

    def stored(self, properties: dict[str, str]) -> bytes:
        """Encode properties as they are stored."""
        if len(properties) == 1:
            # Only the broker's own.
            return self.added_properties
        # A message that takes a detour through another topic keeps WAIT, as in Java.
        without = "" if self.traits.stores_wait else WAIT
        return write_properties(properties, self.traits.properties_form, without=without)

    def without_offsets(self, text: str | None) -> dict[str, str]:
        """The properties of a request without offsets in additional queues, which only the store assigns.

        After a crash the store trusts this property.
        """
        properties = read_properties(text)
        if self.inner_queues is not None:
            properties.pop(INNER_OFFSETS, None)
        return properties

    def _unique_key(self) -> str:
        """Create a key unique in this store: host, time and a counter, in the 32 digits of Java's."""
        count = next(self._next_key)
        return f"{self.store_host.hex()}{self.runtime.unix_ms():012x}{count & 0xFFFF:04x}".upper()[-32:].rjust(32, "0")

    def _dead_if_tried_out(
        self, channel: Channel, message: MessageToStore, header: SendMessageRequestHeader, properties: dict[str, str]
    ) -> MessageToStore:
        """Returns the retry message, or one for the dead letters after too many tries (`handleRetryAndDLQ`)."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self.groups.find(name, channel)
        if group is None:
            raise SendRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}"
            )
        retries_max = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # Greater than, not equal: the client has counted this try already.
        if message.reconsume_times <= retries_max:
            return message
        dead = self.topics.make_retry(DEAD_PREFIX + name, 1, channel=channel)
        if dead is None:
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{DEAD_PREFIX}{name[:128]}] not exist")
        dead_message = replace(message, topic=dead.topic_name, queue_id=0)
        if not self.traits.marks_dead_letters:
            return dead_message
        properties[DELAY] = "-1"
        return replace(dead_message, properties=write_properties(properties, self.traits.properties_form))

    def _elsewhere(self, message: MessageToStore, properties: dict[str, str]) -> MessageToStore:
        """Move a prepared message to the half topic and a delayed one to the schedule topic; others stay.

        Raises SendRefusedError for a level that is not a number.
        """
        form = self.traits.properties_form
        if properties.get(PREPARED, "").lower() == "true":
            if self.traits.names_transactions and UNIQUE_KEY in properties:
                properties[TRANSACTION_ID] = properties[UNIQUE_KEY]
            half = moved(message, properties, HALF_TOPIC, 0, form)
            return replace(half, sys_flag=half.sys_flag & ~TRANSACTION_MASK)
        level = self.level(properties)
        if level > 0:
            if self.traits.serves_timers:
                drop_timer(properties)
            return delayed(message, properties, level, form, level_count=self.level_count)
        if not self.traits.serves_timers:
            return message
        return timer_message(message, properties, form, self.runtime.unix_ms(), is_full=self.timers.is_full)

    def recall_handle(self, message: MessageToStore, properties: Mapping[str, str]) -> str | None:
        """Returns the handle by which a producer recalls a timed message; None for any other message."""
        topic = properties.get(REAL_TOPIC, "")
        if message.topic != TIMER_TOPIC or topic.startswith(RETRY_PREFIX):
            return None
        time_ms = str(int(properties[TIMER_OUT_MS]) + 1)
        return RecallHandle(topic, self.broker_name, time_ms, properties.get(UNIQUE_KEY, "")).encode()

    @staticmethod
    def level(properties: dict[str, str]) -> int:
        """The requested delay level, 0 for none; raises SendRefusedError if it is not a number."""
        level = properties.get(DELAY, "0")
        if not _LEVEL.fullmatch(level):
            told = f"the delay level {level[:40]!r} is not a whole number"
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, told, tells_region=False)
        return int(level)

"""Creates the messages to store from send requests: their properties and their topic.

A delayed message goes to the schedule topic, a prepared message to the half topic, and a message with too many retries
to the dead-letter topic. A timed message of 5.x waits in `rmq_sys_wheel_timer`, with its own topic and queue as
properties. A delay level takes precedence over a delay in seconds, then a delay in milliseconds, then a delivery time.
A time in the past is ignored. `INNER_MULTI_DISPATCH` names additional queues, except in retry, delayed and prepared
messages.

Checks and answers: see `send.send_processor`. Delivery of timed messages: see `rocketmq.timers`.

Sources: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.java`, `MultiDispatch.java`, the `LmqConsumeQueue`
limits of `DefaultMessageStore.java` 4.9; `HookUtils.handleScheduleMessage` 5.5.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Self

from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import BrokerError
from longpoll_broker.io.channel import Channel
from longpoll_broker.send.append import HALF_TOPIC, TRANSACTION_MASK, delayed, moved
from longpoll_broker.shared.queues import NewQueues
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.timer_offsets import TimerOffsets
from longpoll_broker.shared.topics import FAQ, Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.consume_queue import SEPARATOR, inner_queue_id
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.frames import Buffer
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.message import PROPERTIES_SIZE_MAX, RecallHandle
from longpoll_protocol.names import DEAD_PREFIX, LMQ_PREFIX, RETRY_PREFIX, TIMER_TOPIC, queue_name_problem
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
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_RECALLED_KEY,
    TRACE,
    TRANSACTION_ID,
    UNIQUE_KEY,
    WAIT,
    PropertiesForm,
    read_properties,
    tags_code,
    write_properties,
)
from longpoll_runtime import Lock, Runtime

NAME_COUNT_MAX: Final = 128
"""Maximum additional queues of one message. In RocketMQ only the size of the properties limits their number."""


TEXT_SIZE_MAX: Final = 2 * PROPERTIES_SIZE_MAX
"""Maximum characters of a request's properties. A record has less room, but some properties are not stored."""


def check_text(text: str | None) -> None:
    """Raise MessageRefusedError if the text of the properties is certainly too long to store."""
    if text is not None and len(text) > TEXT_SIZE_MAX:
        told = f"the properties have {len(text)} characters, at most {PROPERTIES_SIZE_MAX} bytes are allowed"
        raise MessageRefusedError(told)


class SendRefusedError(BrokerError):
    """Raised if a check before the store refuses a send; `code` is the response code.

    The answer names the region, except where RocketMQ throws an exception instead (`tells_region`).
    """

    def __init__(self, code: int, remark: str, *, tells_region: bool = True) -> None:
        super().__init__(remark)
        self.code = code
        self.tells_region = tells_region


@define(slots=True, eq=False)
class InnerQueues:
    """Checks the additional queues that messages name; callable from any thread.

    The quota counts all light topics that were ever written.
    """

    store: MessageStore
    light: bool
    """`enableLmq`: a topic whose name begins with `%LMQ%` has one queue."""
    light_count_max: int
    queues: NewQueues
    guard: Lock
    """Protects the quota."""
    quota: Quota = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.quota = Quota("light queues", self.light_count_max)
        for topic, _queue_id in self.store.queues():
            if topic.startswith(LMQ_PREFIX):
                self.quota.take(topic)

    @classmethod
    def of(cls, store: MessageStore, config: StoreConfig, queues: NewQueues, guard: Lock) -> Self | None:
        """Create the service for these settings; returns None if multi-dispatch is off."""
        if not config.multi_dispatch:
            return None
        return cls(store, config.light_queues, config.light_queue_count_max, queues, guard)

    def named(self, message: MessageToStore, properties: dict[str, str], channel: Channel) -> MessageToStore:
        """Returns the message with its additional queues; raises SendRefusedError if one of the queues is illegal."""
        if message.topic.startswith(RETRY_PREFIX):
            return message
        names = properties[INNER_QUEUES].split(SEPARATOR)
        if len(names) > NAME_COUNT_MAX or len(set(names)) < len(names):
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(names)} inner queues: up to {NAME_COUNT_MAX} different ones are allowed",
            )
        for name in names:
            problem = queue_name_problem(name)
            if problem is not None:
                raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"inner queue {name[:128]!r}: {problem}")
        places = tuple((name, inner_queue_id(name, message.queue_id, light=self.light)) for name in names)
        if (message.topic, message.queue_id) in places:
            # If the message's own queue is named, RocketMQ lists the message twice at one offset and leaves the next
            # offset empty.
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"inner queue {message.topic} is the message's own topic; name only other queues",
            )
        self._count(names, channel)
        count(self.queues, places, channel)
        return replace(message, inner_queues=places)

    def _count(self, names: Iterable[str], channel: Channel) -> None:
        light = [name for name in names if self.light and name.startswith(LMQ_PREFIX)]
        with self.guard:
            is_full = not all(self.quota.take(name, channel) for name in light)
        if is_full:
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED] there are too many light queues; maxLmqConsumeQueueNum is "
                f"{self.light_count_max}",
            )


def count(queues: NewQueues, places: Iterable[tuple[str, int]], channel: Channel) -> None:
    """Count the queues that a send is about to create; raises SendRefusedError if there would be too many queues."""
    if not queues.take(places, channel):
        told = f"there are {queues.quota.used} queues already; delete a topic first, or use fewer queues"
        raise SendRefusedError(ResponseCode.SYSTEM_ERROR, told)


DELAY_MS_MAX: Final = 3 * 24 * 3_600_000
"""`timerMaxDelaySec`, in ms: a delivery time may be at most this far in the future."""
PRECISION_MS: Final = 1000
"""`timerPrecisionMs`: messages are delivered in whole seconds."""
ILLEGAL: Final = (
    f"timer message illegal, the delay time should not be bigger than the max delay {DELAY_MS_MAX}ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)
WISHES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties that set a delivery time, in order of precedence."""
_WISHES: Final = frozenset(WISHES)
TIME_SIZE_MAX: Final = 15
"""Maximum digits of a delivery time."""
WAITING_SIZE_MAX: Final = PROPERTIES_SIZE_MAX - sum(
    len(name) + TIME_SIZE_MAX + 2 for name in (TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS)
)
"""Maximum bytes of a waiting message's properties, so that the two properties that delivery adds fit."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def has_timer(properties: Mapping[str, str]) -> bool:
    """Whether a message asks for a delivery time."""
    return not _WISHES.isdisjoint(properties) and TIMER_OUT_MS not in properties


def drop_timer(properties: dict[str, str]) -> None:
    """Remove the properties that ask for a delivery time."""
    for name in WISHES:
        properties.pop(name, None)


def timer_message(
    message: MessageToStore, properties: dict[str, str], form: PropertiesForm, now_ms: int, *, is_full: bool = False
) -> MessageToStore:
    """Returns a message with a delivery time in the form in which it waits, and any other message unchanged.

    Updates `properties`. Raises SendRefusedError if the time is not a number or too far away, if the properties would
    be too long for delivery, or if too many messages wait (`is_full`).
    """
    if not has_timer(properties) or message.topic == TIMER_TOPIC:
        return message
    deliver_ms = _wished(properties, now_ms)
    if deliver_ms <= now_ms:
        if TIMER_RECALLED_KEY in properties:
            raise _illegal()
        return message
    if deliver_ms - now_ms > DELAY_MS_MAX:
        raise _illegal()
    if is_full:
        raise SendRefusedError(ResponseCode.SYSTEM_ERROR, "timer message is under flow control: too many are waiting")
    # `TIMER_OUT_MS` is the last whole second before the delivery time.
    properties[TIMER_OUT_MS] = str((deliver_ms - 1) // PRECISION_MS * PRECISION_MS)
    waiting = moved(message, properties, TIMER_TOPIC, 0, form)
    size = len(waiting.properties)
    if size > WAITING_SIZE_MAX:
        told = f"the message is illegal: the properties have {size} bytes, and of a message that waits at most"
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{told} {WAITING_SIZE_MAX} are allowed")
    return waiting


def _wished(properties: Mapping[str, str], now_ms: int) -> int:
    """Returns the delivery time, ms; raises SendRefusedError if the time is not a number or too far away."""
    name = next(name for name in WISHES if name in properties)
    text = properties[name]
    if not _NUMBER.fullmatch(text):
        raise _illegal()
    value = int(text)
    if name == TIMER_DELIVER_MS:
        return value
    return now_ms + value * (1000 if name == TIMER_DELAY_SEC else 1)


def _illegal() -> SendRefusedError:
    return SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)


REGION_NAME: Final = "DefaultRegion"
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
_tags_code: Final = lru_cache(maxsize=256)(tags_code)
"""The result is cached, because producers use the same few tags again and again."""


@define(slots=True, eq=False)
class MessageBuilder:
    """Creates the messages to store from requests; callable from any thread."""

    runtime: Runtime
    cluster_name: str
    topics: Topics
    groups: Groups
    store_host: bytes
    """The broker's address in the format of a stored message."""
    traits: Traits = STRICT_TRAITS
    inner_queues: InnerQueues | None = None
    """Checks the additional queues of a message; None if multi-dispatch is off."""
    broker_name: str = ""
    timers: TimerOffsets = field(factory=TimerOffsets)
    level_count: int = len(DELAY_LEVELS_MS)
    queues: NewQueues = field(kw_only=True)
    """Limits the number of queues that sends may create."""
    _next_key: itertools.count[int] = field(factory=itertools.count, init=False)
    added_properties: bytes = field(init=False)
    """The stored properties of a message that was sent without properties."""

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
            return self.inner_queues.named(message, properties, channel)
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
        """Create a message with these stored properties; `flag` is the flag of the message, not of the request."""
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
        """Returns a message's properties and the properties that the broker adds, in the order of RocketMQ's map."""
        properties = self.without_offsets(header.properties)
        if self.traits.stores_region:
            properties[REGION] = REGION_NAME
            properties[TRACE] = "true"
            if UNIQUE_KEY not in properties:
                properties[UNIQUE_KEY] = self._unique_key()
        properties[CLUSTER] = self.cluster_name
        return properties

    def stored(self, properties: dict[str, str]) -> bytes:
        """Encode properties in the stored format."""
        if len(properties) == 1:
            # The sender gave no properties, so the message has only the properties that the broker adds.
            return self.added_properties
        # As in RocketMQ, a message that first goes through another topic keeps the property WAIT.
        without = "" if self.traits.stores_wait else WAIT
        return write_properties(properties, self.traits.properties_form, without=without)

    def without_offsets(self, text: str | None) -> dict[str, str]:
        """Parse a request's properties, and drop the offsets in additional queues, because only the store assigns them.

        Recovery trusts the property with these offsets. Raises MessageRefusedError for a text that is too long.
        """
        if not text:
            return {}
        check_text(text)
        properties = read_properties(text)
        if self.inner_queues is not None:
            properties.pop(INNER_OFFSETS, None)
        return properties

    def _unique_key(self) -> str:
        """Create a key that is unique in this store from host, time and a counter, in 32 digits as in RocketMQ."""
        count = next(self._next_key)
        return f"{self.store_host.hex()}{self.runtime.unix_ms():012x}{count & 0xFFFF:04x}".upper()[-32:].rjust(32, "0")

    def _dead_if_tried_out(
        self, channel: Channel, message: MessageToStore, header: SendMessageRequestHeader, properties: dict[str, str]
    ) -> MessageToStore:
        """Returns the retry message or, after too many retries, the dead-letter message (`handleRetryAndDLQ`)."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self.groups.find(name, channel)
        if group is None:
            raise SendRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}"
            )
        retries_max = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # Only a greater number exceeds the limit, because the client has already counted this retry.
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
        """Move a prepared message to the half topic, and a delayed message to the schedule topic.

        A message that is neither prepared nor delayed stays unchanged. Raises SendRefusedError if the delay level is
        not a number.
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
        """Returns the requested delay level, or 0 without one; raises SendRefusedError if the level is not a number."""
        level = properties.get(DELAY, "0")
        if not _LEVEL.fullmatch(level):
            told = f"the delay level {level[:40]!r} is not a whole number"
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, told, tells_region=False)
        return int(level)

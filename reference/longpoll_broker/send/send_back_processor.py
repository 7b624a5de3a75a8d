"""Serves code 36: a consumer sends a failed message back, to get it again later or to move it to the dead letters.

Delays: see `rocketmq.delay_levels`. Source: `AbstractSendMessageProcessor.consumerSendMsgBack` 4.9.
"""

from __future__ import annotations

import itertools
from typing import Final

from attrs import define, field
from msgspec import structs

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, refuse, serves
from longpoll_broker.send.append import Appender, delayed
from longpoll_broker.send.durability import Durability
from longpoll_broker.shared.topics import FAQ, GroupConfig, Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.frames import EMPTY, Command
from longpoll_protocol.headers import ConsumerSendMsgBackRequestHeader
from longpoll_protocol.log_record import Record, as_int32
from longpoll_protocol.names import DEAD_PREFIX, PERM_WRITE, RETRY_PREFIX
from longpoll_protocol.properties import (
    DELAY,
    DELAY_LEVELS_MS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TAGS,
    WAIT,
    java_hash,
    read_properties,
    write_properties,
)

LEVEL_OF_FIRST_RETRY: Final = 3
"""Delay level of the first retry if the consumer gives no level; each later retry adds one."""


@define(slots=True, eq=False)
class SendBackProcessor(Serving):
    """The processor of CONSUMER_SEND_MSG_BACK (code 36)."""

    config: BrokerConfig
    topics: Topics
    groups: Groups
    store: MessageStore
    appender: Appender
    durability: Durability
    store_host: bytes
    traits: Traits = STRICT_TRAITS
    level_count: int = len(DELAY_LEVELS_MS)
    _next_queue: itertools.count[int] = field(factory=itertools.count, init=False)

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:  # noqa: PLR0911 - one return a check
        """Code 36: store the message again for the group."""
        header = ConsumerSendMsgBackRequestHeader.decode(command.ext_fields)
        group = self.groups.find(header.group, channel)
        if group is None:
            return answer(
                command,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group} {FAQ}",
            )
        if not self.config.permission & PERM_WRITE:
            return answer(
                command,
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.config.broker_name}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return answer(command, ResponseCode.SUCCESS)
        retry_topic = RETRY_PREFIX + header.group
        topic = self.topics.make_retry(retry_topic, group.retry_queue_nums, channel=channel)
        if topic is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"topic[{retry_topic[:128]}] not exist")
        if not topic.perm & PERM_WRITE:
            return answer(command, ResponseCode.NO_PERMISSION, f"the topic[{retry_topic}] sending message is forbidden")
        record = self.store.read_record(header.offset)
        if record is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        if not self.appender.may_copy(channel, record.size):
            told = "too much was sent back; try again later, or send it to the retry topic"
            return answer(command, ResponseCode.SYSTEM_BUSY, told)
        try:
            parts = self._put(channel, command, header, group, record)
        except (MessageRefusedError, OSError) as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the message could not be stored: {error}")
        return self._answered(channel, command, parts, retry_topic, outbox)

    def _answered(
        self, channel: Channel, command: Command, parts: Parts, retry_topic: str, outbox: Outbox
    ) -> Parts | None:
        """Returns the answer, or None if the answer follows when new topics are saved.

        As in RocketMQ, the answer does not wait until the message is durable, because a retry message loses the
        property that requests this wait.
        """
        names = {retry_topic, DEAD_PREFIX + retry_topic.removeprefix(RETRY_PREFIX)}
        if names.isdisjoint(self.topics.unsaved):
            return parts
        command = structs.replace(command, body=EMPTY)

        def done(code: int, done_outbox: Outbox) -> None:
            kept = parts if code == ResponseCode.SUCCESS else answer(command, code, "the topic could not be saved")
            refuse(channel, command, kept, done_outbox)

        self.durability.submit(None, done, self.appender.runtime.lock(), outbox, wants_topics=True)
        return None

    def _put(
        self,
        channel: Channel,
        command: Command,
        header: ConsumerSendMsgBackRequestHeader,
        group: GroupConfig,
        record: Record,
    ) -> Parts:
        retries_max = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        level = header.delay_level
        if record.reconsume_times >= retries_max or level < 0:
            level = 0
            topic_name, queue_id = DEAD_PREFIX + header.group, 0
            if self.topics.make_retry(topic_name, 1, channel=channel) is None:
                return answer(command, ResponseCode.SYSTEM_ERROR, f"topic[{topic_name[:128]}] not exist")
        else:
            level = level or as_int32(LEVEL_OF_FIRST_RETRY + record.reconsume_times)
            topic_name, queue_id = RETRY_PREFIX + header.group, next(self._next_queue) % group.retry_queue_nums
        properties = _properties(record, level)
        message = self._message(record, topic_name, queue_id, properties)
        if level > 0:
            message = delayed(message, properties, level, self.traits.properties_form, level_count=self.level_count)
        self.appender.append(message, properties.get(TAGS, ""))
        if self.appender.statistics is not None:
            self.appender.statistics.count_back(properties[RETRY_TOPIC], header.group)
        return answer(command, ResponseCode.SUCCESS)

    def _message(self, record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> MessageToStore:
        tag = properties.get(TAGS, "")
        return MessageToStore(
            topic=topic,
            queue_id=queue_id,
            body=bytes(record.body),
            properties=write_properties(properties, self.traits.properties_form),
            tags_code=java_hash(tag) if tag else 0,
            born_ms=record.born_ms,
            born_host=record.born_host,
            store_host=self.store_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=as_int32(record.reconsume_times + 1),
        )


def _properties(record: Record, level: int) -> dict[str, str]:
    """Returns the record's properties plus the properties of a retry, in the order of RocketMQ's map."""
    properties = read_properties(record.properties.decode("utf-8", "surrogatepass"))
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties[WAIT] = "false"
    properties[DELAY] = str(level)
    properties.setdefault(ORIGIN_MESSAGE_ID, f"{record.store_host.hex().upper()}{record.physical_offset:016X}")
    return properties

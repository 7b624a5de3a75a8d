"""Tells how far queues and groups are: 202, 208, 300, 321.

Leaves out who the members of a group are (`connection_processor`). Source: `AdminBrokerProcessor.java` 4.9.7:
`getTopicStatsInfo`, `getConsumeStats`, `queryTopicConsumeByWho`, `queryConsumeQueue`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from attrs import define

from longpoll_broker.core.tables.offsets import Offsets
from longpoll_broker.core.tables.statistics import GROUP_GET_NUMS, Statistics
from longpoll_broker.core.tables.subscription import Clients, Subscription
from longpoll_broker.core.tables.topics import TopicConfig, Topics
from longpoll_broker.service.io.channel import Channel, Outbox, Parts
from longpoll_broker.service.io.processors import Serving, answer, serves
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.bodies import (
    ConsumeQueueData,
    GroupList,
    MessageQueue,
    QueryConsumeQueueResponseBody,
    SubscriptionData,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from longpoll_protocol.queue_table import encode_by_queue
from longpoll_runtime import Lock

TOLD_QUEUE_COUNT_MAX: Final = 10_000
"""Most queues that one answer tells of: each costs a look into its files."""
TOLD_GROUP_COUNT_MAX: Final = 10_000
"""Most groups of one answer."""
ENTRY_COUNT_MAX: Final = 1000
"""Most entries of a queue in one answer; `mqadmin queryCq` asks for 10."""


@define(slots=True, eq=False)
class ProgressProcessor(Serving):
    """The processors."""

    topics: Topics
    offsets: Offsets
    store: MessageStore
    clients: Clients
    lock: Lock
    """Guards `clients`."""
    statistics: Statistics
    broker_name: str

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """202: where each queue of a topic begins and ends, and when its last message was stored; 17 without topic."""
        name = GetTopicStatsInfoRequestHeader.decode(command.ext_fields).topic
        topic = self.topics.get(name)
        if topic is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist")
        table = {}
        for queue_id in range(topic.write_queue_nums):
            start, end = self.store.ends(name, queue_id)
            stored_ms = self.store.store_ms_of(name, queue_id, end - 1) if end > 0 else None
            row = {"minOffset": start, "maxOffset": end, "lastUpdateTimestamp": stored_ms or 0}
            table[self._queue(name, queue_id)] = row
        return answer(command, ResponseCode.SUCCESS, body=_body({"offsetTable": encode_by_queue(table)}))

    @serves(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """208: how far a group is in each queue of a topic, or of all; a topic that is not there is passed over."""
        header = GetConsumeStatsRequestHeader.decode(command.ext_fields)
        group = header.consumer_group
        topics = self._consumed(group, header.topic)
        count = sum(topic.read_queue_nums for topic in topics)
        if count > TOLD_QUEUE_COUNT_MAX:
            limit = f"over the limit of {TOLD_QUEUE_COUNT_MAX}: ask for one topic"
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the group has {count} queues, {limit}")
        table, tps = {}, 0.0
        for topic in topics:
            found = self.statistics.snapshots(GROUP_GET_NUMS, f"{topic.topic_name}@{group}")
            tps += 0.0 if found is None else found["statsMinute"].tps
            for queue_id in range(topic.read_queue_nums):
                table[self._queue(topic.topic_name, queue_id)] = self._progress(topic.topic_name, group, queue_id)
        body = {"consumeTps": tps, "offsetTable": encode_by_queue(table)}
        return answer(command, ResponseCode.SUCCESS, body=_body(body))

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """300: the groups that want a topic now, or have stored offsets of it."""
        topic = QueryTopicConsumeByWhoRequestHeader.decode(command.ext_fields).topic
        with self.lock:
            groups = set(self.clients.of_topic(topic))
        groups.update(self.offsets.groups_of(topic))
        if len(groups) > TOLD_GROUP_COUNT_MAX:
            limit = f"over the limit of {TOLD_GROUP_COUNT_MAX} for one answer"
            return answer(command, ResponseCode.SYSTEM_ERROR, f"{len(groups)} groups consume the topic, {limit}")
        return answer(command, ResponseCode.SUCCESS, body=GroupList(group_list=sorted(groups)).encode())

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    def queue_entries(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """321: entries of a queue; 0 with a remark and no body when there is none at the index, as in RocketMQ."""
        header = QueryConsumeQueueRequestHeader.decode(command.ext_fields)
        name, queue_id = header.topic, header.queue_id
        topic = self.topics.get(name)
        place = f"{queue_id}@{name[:127]}"
        if topic is None or not 0 <= queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            return answer(command, ResponseCode.SYSTEM_ERROR, f"{place} is not exist!")
        last = header.index + min(header.count, ENTRY_COUNT_MAX)
        entries = []
        for offset in range(max(header.index, 0), last):
            unit = self.store.unit(name, queue_id, offset)
            if unit is None:
                break
            entries.append(ConsumeQueueData(physic_offset=unit[0], physic_size=unit[1], tags_code=unit[2]))
        if not entries:
            return answer(command, ResponseCode.SUCCESS, f"Index {header.index} of {place} is not exist!")
        start, end = self.store.ends(name, queue_id)
        subscription, filter_text = self._filter(header.consumer_group, name)
        body = QueryConsumeQueueResponseBody(
            subscription_data=subscription,
            filter_data=filter_text,
            queue_data=entries,
            max_queue_index=end,
            min_queue_index=start,
        )
        return answer(command, ResponseCode.SUCCESS, body=body.encode())

    def _consumed(self, group: str, topic: str | None) -> list[TopicConfig]:
        """The topics to tell of; of a group with live members only those that it wants."""
        names = [topic] if topic is not None and topic.strip() else self.offsets.topics_of(group)
        with self.lock:
            live = self.clients.group(group)
            wanted = set() if live is None else set(live.subscriptions)
        found = [self.topics.get(name) for name in names if not wanted or name in wanted]
        return [config for config in found if config is not None]

    def _progress(self, topic: str, group: str, queue_id: int) -> dict[str, int]:
        consumed = max(self.offsets.query(topic, group, queue_id) or 0, 0)
        stored_ms = self.store.store_ms_of(topic, queue_id, consumed - 1) if consumed else None
        end = self.store.visible_end(topic, queue_id)
        return {"brokerOffset": end, "consumerOffset": consumed, "lastTimestamp": stored_ms or 0}

    def _filter(self, group: str | None, topic: str) -> tuple[SubscriptionData | None, str | None]:
        """What a group wants of a topic, and what is said of its filter."""
        if group is None:
            return None, None
        with self.lock:
            live = self.clients.group(group)
            found = None if live is None else live.subscriptions.get(topic)
        if found is None:
            return None, f"{group[:255]}@{topic[:127]} is not online!"
        return subscription_data(found), "null"

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self.broker_name, queue_id=queue_id)


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """A subscription as its client said it."""
    tags = subscription.tags
    names = tags.expression.split("||") if subscription.is_by_tag and not tags.all_tags else []
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=tags.expression,
        expression_type=tags.expression_type,
        sub_version=subscription.sub_version,
        class_filter_mode=subscription.class_filter,
        tags_set=frozenset(name.strip() for name in names if name.strip()),
        code_set=tags.codes,
    )


def _body(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(content)

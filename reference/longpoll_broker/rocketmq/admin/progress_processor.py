"""Reports the progress of queues and groups (202, 208, 300, 303, 317, 321, 343), and copies a group's offsets (314).

Members: see `client_processor`. Source: `AdminBrokerProcessor.java` 4.9.7: `getTopicStatsInfo`, `getConsumeStats`,
`queryTopicConsumeByWho`, `queryConsumeQueue`, `queryConsumeTimeSpan`, `cloneGroupOffset`,
`fetchAllConsumeStatsInBroker`; 343 of 5.x: `queryTopicsByConsumer`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, serves
from longpoll_broker.rocketmq.admin.client_processor import subscription_data
from longpoll_broker.shared.offsets import OFFSETS_FULL, Offsets
from longpoll_broker.shared.statistics import GROUP_GET_NUMS, Statistics
from longpoll_broker.shared.subscription import Clients
from longpoll_broker.shared.topics import Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.admin_headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from longpoll_protocol.bodies import (
    ConsumeQueueData,
    GroupList,
    MessageQueue,
    QueryConsumeQueueResponseBody,
    SubscriptionData,
    TopicList,
    encode_by_queue,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_runtime import Lock

TOLD_QUEUE_COUNT_MAX: Final = 10_000
"""Maximum queues in one answer, because each queue needs a file read."""
TOLD_GROUP_COUNT_MAX: Final = 10_000
"""Maximum groups in one answer."""
TURN_COUNT: Final = 500
"""Number of queues, topics and groups visited before other connections are served, which takes about 5 ms."""
ENTRY_COUNT_MAX: Final = 1000
"""Maximum entries of a queue in one answer; `mqadmin queryCq` asks for 10."""


@define(slots=True, eq=False)
class ProgressProcessor(Serving):
    """The processors for the progress of queues and groups."""

    topics: Topics
    offsets: Offsets
    store: MessageStore
    clients: Clients
    lock: Lock
    """Protects `clients`."""
    statistics: Statistics
    broker_name: str
    groups: Groups
    address: str
    """HOST:PORT of the broker."""
    now_ms: Callable[[], int]
    """Returns the wall clock's time, ms."""
    traits: Traits = STRICT_TRAITS

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 202: return each queue's offsets, and the store time of its last message.

        Answers with TOPIC_NOT_EXIST (17) for an unknown topic.
        """
        name = GetTopicStatsInfoRequestHeader.decode(command.ext_fields).topic
        topic = self.topics.get(name)
        if topic is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist")
        table = {}
        for queue_id in range(topic.write_queue_nums):
            if queue_id and queue_id % TURN_COUNT == 0:
                yield
            start, end = self.store.ends(name, queue_id)
            stored_ms = self.store.store_ms_of(name, queue_id, end - 1) if end > 0 else None
            row = {"minOffset": start, "maxOffset": end, "lastUpdateTimestamp": stored_ms or 0}
            table[self._queue(name, queue_id)] = row
        return answer(command, ResponseCode.SUCCESS, body=_body({"offsetTable": encode_by_queue(table)}))

    @serves(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 208: return a group's progress in each queue of a topic or of all topics; skips unknown topics."""
        header = GetConsumeStatsRequestHeader.decode(command.ext_fields)
        group = header.consumer_group
        topics = yield from self._consumed(group, header.topic)
        count = sum(topic.read_queue_nums for topic in topics)
        if count > TOLD_QUEUE_COUNT_MAX:
            limit = f"over the limit of {TOLD_QUEUE_COUNT_MAX}: ask for one topic"
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the group has {count} queues, {limit}")
        table: dict[MessageQueue, dict[str, int]] = {}
        tps, looked = 0.0, 0
        for topic in topics:
            tps += self._tps(topic.topic_name, group)
            table |= yield from self._progress_of(topic.topic_name, group, topic.read_queue_nums)
            looked += 1 + topic.read_queue_nums
            if looked >= TURN_COUNT:
                yield
                looked = 0
        body = {"consumeTps": tps, "offsetTable": encode_by_queue(table)}
        return answer(command, ResponseCode.SUCCESS, body=_body(body))

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 300: return the groups that subscribe to a topic or have committed an offset in it."""
        topic = QueryTopicConsumeByWhoRequestHeader.decode(command.ext_fields).topic
        stored = yield from self.offsets.groups_of(topic)
        with self.lock:
            groups = set(self.clients.of_topic(topic))
        groups.update(stored[: TOLD_GROUP_COUNT_MAX + 1])
        if len(groups) > TOLD_GROUP_COUNT_MAX:
            limit = f"over the limit of {TOLD_GROUP_COUNT_MAX} for one answer"
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the groups that consume the topic are {limit}")
        return answer(command, ResponseCode.SUCCESS, body=GroupList(group_list=sorted(groups)).encode())

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_spans(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 303: return the store times of each queue's first message, last message and last consumed message.

        Answers with TOPIC_NOT_EXIST (17) for an unknown topic.
        """
        header = QueryConsumeTimeSpanRequestHeader.decode(command.ext_fields)
        topic = self.topics.get(header.topic)
        if topic is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:127]}] not exist")
        spans = []
        for queue_id in range(topic.write_queue_nums):
            if queue_id and queue_id % TURN_COUNT == 0:
                yield
            spans.append(self._time_span(header.topic, header.group, queue_id))
        return answer(command, ResponseCode.SUCCESS, body=_body({"consumeTimeSpanSet": spans}))

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 314: copy another group's offsets; succeeds even if that group has no offsets."""
        header = CloneGroupOffsetRequestHeader.decode(command.ext_fields)
        topic, group = header.topic, header.src_group
        if len(header.dest_group) > self.groups.size_max:
            told = f"the group's name is longer than {self.groups.size_max} characters"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        # If no topic is given, RocketMQ visits every topic but copies no offsets.
        if topic is None:
            return answer(command, ResponseCode.SUCCESS)
        consumed = yield from self._consumed(group, topic)
        is_wanted = consumed or (header.offline and self.topics.get(topic))
        if is_wanted and not self.offsets.clone(topic, group, header.dest_group, channel):
            return answer(command, ResponseCode.SYSTEM_ERROR, OFFSETS_FULL)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 317: return for every known group what code 208 returns for one group."""
        is_order = GetConsumeStatsInBrokerHeader.decode(command.ext_fields).is_order
        found: list[dict[str, list[dict[str, Any]]]] = []
        count = total = inflight = looked = 0
        groups = self.groups.by_name.copy()
        if len(groups) > TOLD_GROUP_COUNT_MAX:
            limit = f"over the limit of {TOLD_GROUP_COUNT_MAX}: ask for one group (208)"
            return answer(command, ResponseCode.SYSTEM_ERROR, f"there are {len(groups)} groups, {limit}")
        topics_by_group = yield from self.offsets.topics_by_group(groups)
        for group, names in sorted(topics_by_group.items()):
            rows = []
            for topic in self._wanted(group, names):
                if is_order and not topic.order:
                    continue
                count += topic.write_queue_nums
                if count > TOLD_QUEUE_COUNT_MAX:
                    limit = f"over the limit of {TOLD_QUEUE_COUNT_MAX}: ask for one group (208)"
                    return answer(command, ResponseCode.SYSTEM_ERROR, f"the groups have {count} queues, {limit}")
                table = yield from self._progress_of(topic.topic_name, group, topic.write_queue_nums)
                total += sum(row["brokerOffset"] - row["consumerOffset"] for row in table.values())
                inflight += sum(
                    row.get("pullOffset", row["consumerOffset"]) - row["consumerOffset"] for row in table.values()
                )
                rows.append({"consumeTps": self._tps(topic.topic_name, group), "offsetTable": encode_by_queue(table)})
                looked += 1 + topic.write_queue_nums
            found.append({group: rows})
            looked += 1
            if looked >= TURN_COUNT:
                yield
                looked = 0
        told = {"brokerAddr": self.address, "consumeStatsList": found, "totalDiff": total}
        told |= {"totalInflightDiff": inflight} if self.traits.tells_pull_offsets else {}
        return answer(command, ResponseCode.SUCCESS, body=_body(told))

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 343: return the topics in which a group has committed offsets."""
        group = QueryTopicsByConsumerRequestHeader.decode(command.ext_fields).group
        names = yield from self.offsets.topics_of(group)
        if len(names) > TOLD_GROUP_COUNT_MAX:
            limit = f"over the limit of {TOLD_GROUP_COUNT_MAX} for one answer"
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the group has {len(names)} topics, {limit}")
        body = TopicList(topic_list=sorted(names), broker_addr=self.address).encode()
        return answer(command, ResponseCode.SUCCESS, body=body)

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    def queue_entries(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 321: return entries of a consume queue.

        If the queue does not have these entries, the answer has code 0 and a remark but no body, as in RocketMQ.
        """
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

    def _consumed(self, group: str, topic: str | None) -> Generator[None, None, list[TopicConfig]]:
        """Returns the topics to report: if the group has live members, only the topics to which it subscribes."""
        if topic is not None and topic.strip():
            return self._wanted(group, [topic])
        return self._wanted(group, (yield from self.offsets.topics_of(group)))

    def _wanted(self, group: str, names: Iterable[str]) -> list[TopicConfig]:
        """Returns the existing topics with these names.

        If the group has live members, only the topics to which it subscribes are returned.
        """
        with self.lock:
            live = self.clients.group(group)
            wanted = set() if live is None else set(live.subscriptions)
        found = [self.topics.get(name) for name in names if not wanted or name in wanted]
        return [config for config in found if config is not None]

    def _tps(self, topic: str, group: str) -> float:
        """Returns the messages of a topic that a group got per second in the last minute."""
        found = self.statistics.snapshots(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if found is None else found["statsMinute"].tps

    def _time_span(self, topic: str, group: str, queue_id: int) -> dict[str, Any]:
        start, end = self.store.ends(topic, queue_id)
        consumed = self.offsets.query(topic, group, queue_id)
        consumed = -1 if consumed is None else consumed
        first_ms, last_ms = (self._stored_ms(topic, queue_id, offset) for offset in (start, end - 1))
        consumed_ms = self._stored_ms(topic, queue_id, consumed - 1) if consumed > 0 else first_ms
        behind_ms = self.now_ms() - self._stored_ms(topic, queue_id, consumed) if consumed < end else 0
        times = {"minTimeStamp": first_ms, "maxTimeStamp": last_ms, "consumeTimeStamp": consumed_ms}
        texts = {f"{name}Str": _text_of(time_ms) for name, time_ms in times.items()}
        return {"messageQueue": self._queue(topic, queue_id), "delayTime": behind_ms, **times, **texts}

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        found = self.store.store_ms_of(topic, queue_id, offset) if offset >= 0 else None
        return -1 if found is None else found

    def _progress_of(
        self, topic: str, group: str, queue_count: int
    ) -> Generator[None, None, dict[MessageQueue, dict[str, int]]]:
        found = {}
        for queue_id in range(queue_count):
            if queue_id and queue_id % TURN_COUNT == 0:
                yield
            found[self._queue(topic, queue_id)] = self._progress(topic, group, queue_id)
        return found

    def _progress(self, topic: str, group: str, queue_id: int) -> dict[str, int]:
        consumed = max(self.offsets.query(topic, group, queue_id) or 0, 0)
        stored_ms = self.store.store_ms_of(topic, queue_id, consumed - 1) if consumed else None
        end = self.store.visible_end(topic, queue_id)
        told = {"brokerOffset": end, "consumerOffset": consumed, "lastTimestamp": stored_ms or 0}
        if not self.traits.tells_pull_offsets:
            return told
        pulled = self.offsets.pulled_to(topic, group, queue_id)
        return told | {"pullOffset": consumed if pulled is None else max(pulled, consumed)}

    def _filter(self, group: str | None, topic: str) -> tuple[SubscriptionData | None, str | None]:
        """Returns a group's subscription to a topic, and a remark about its filter."""
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


def _text_of(time_ms: int) -> str:
    """Format a time as RocketMQ's tools do, in the local time zone."""
    when = dt.datetime.fromtimestamp(time_ms // 1000).astimezone()
    return f"{when:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03}"


def _body(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(content)

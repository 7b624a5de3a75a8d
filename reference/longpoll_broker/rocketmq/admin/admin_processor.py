"""Serves queries of offsets and messages, and changes of topics and groups.

Codes 14, 15, 17, 29 to 33, 200, 201, 207, 215. Deleting a topic removes its queues; as in RocketMQ, its messages stay
in the log. Queries by key: see `rocketmq.admin.query_processor`.

Source: `ConsumerManageProcessor.java`, `AdminBrokerProcessor.java`, `QueryMessageProcessor.java` 4.9; answers as seen
on 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.rocketmq.tables.time_search import offset_at
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.topic_attributes import AttributeRefusedError, read_changes
from longpoll_broker.shared.topics import QUEUE_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import WhenSaved
from longpoll_protocol.admin_headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from longpoll_protocol.bodies import load_json
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from longpoll_protocol.names import FILTER_TYPES, group_problem, name_problem

CONFLICT: Final = "The topic[{}] is conflict with system topic."
_BOOT_FIRST: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


@define(slots=True, eq=False)
class AdminProcessor(Serving):
    """The processors of offsets, messages, topics and groups."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    store: MessageStore
    topic_deleted: Callable[[str, Outbox], None]
    """Called after a topic's deletion."""
    when_saved: WhenSaved
    traits: Traits = STRICT_TRAITS

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """14: return the group's offset; 0 for a new group if the queue's first message still exists; else 22."""
        header = QueryConsumerOffsetRequestHeader.decode(command.ext_fields)
        offset = self.offsets.query(header.topic, header.consumer_group, header.queue_id)
        if offset is None or offset < 0:
            problem = self._no_offset(header)
            if problem is not None:
                return answer(command, ResponseCode.QUERY_NOT_FOUND, problem)
            offset = 0
        return self._offset(command, offset)

    def _no_offset(self, header: QueryConsumerOffsetRequestHeader) -> str | None:
        """Returns why a group without an offset does not get 0; None if it does."""
        topic, queue_id = header.topic, header.queue_id
        if self.traits.zero_for_stored_only:
            if header.set_zero_if_not_found is False:
                return "Not found, do not set to zero, maybe this group boot first"
            if self.store.unit(topic, queue_id, 0) is None:
                return _BOOT_FIRST
        return _BOOT_FIRST if self.store.visible_start(topic, queue_id) > 0 else None

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_offset(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """15: store the group's offset, whatever it is."""
        if self.traits.commits_of_known_only:
            refusal = self._unknown(command)
            if refusal is not None:
                return refusal
        header = UpdateConsumerOffsetRequestHeader.decode(command.ext_fields)
        for kind, name in (("group", header.consumer_group), ("topic", header.topic)):
            if len(name) > self.groups.size_max:
                return answer(command, ResponseCode.SYSTEM_ERROR, self._too_long(kind))
        stored = self.offsets.commit(
            header.topic, header.consumer_group, header.queue_id, header.commit_offset, channel=channel
        )
        if not stored:
            return answer(command, ResponseCode.SYSTEM_ERROR, "too many offsets are stored; this one is not")
        return answer(command, ResponseCode.SUCCESS)

    def _unknown(self, command: Command) -> Parts | None:
        """Returns the refusal of an incomplete offset, or one with an unknown group or topic; checked first."""
        fields = command.ext_fields or {}
        group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
        if group not in self.groups.by_name:
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:255]} not exist!")
        if self.topics.get(topic) is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic[:127]} not exist!")
        for field, name in (("queueId", "QueueId"), ("commitOffset", "Offset")):
            if field not in fields:
                return answer(command, ResponseCode.INVALID_PARAMETER, f"{name} is null, topic is {topic}")
        return None

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """29: return the offset stored nearest to a time."""
        header = SearchOffsetRequestHeader.decode(command.ext_fields)
        topic, queue_id = header.topic, header.queue_id
        if not self.traits.searches_by_boundary:
            return self._offset(command, self.store.offset_by_time(topic, queue_id, header.timestamp))
        found = offset_at(
            self.store.visible_start(topic, queue_id),
            self.store.visible_end(topic, queue_id),
            lambda offset: self.store.store_ms_of(topic, queue_id, offset),
            header.timestamp,
            upper=(header.boundary_type or "").upper() == "UPPER",
        )
        return self._offset(command, found)

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """30: return the queue's visible end."""
        header = GetMaxOffsetRequestHeader.decode(command.ext_fields)
        return self._offset(command, self.store.visible_end(header.topic, header.queue_id))

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """31: return the queue's visible start."""
        header = GetMinOffsetRequestHeader.decode(command.ext_fields)
        return self._offset(command, self.store.visible_start(header.topic, header.queue_id))

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_time(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """32: return the store time of the queue's first message, ms; -1 without one."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(command.ext_fields)
        start = self.store.visible_start(header.topic, header.queue_id)
        stored_ms = self.store.store_ms_of(header.topic, header.queue_id, start)
        return answer(command, ResponseCode.SUCCESS, None, {"timestamp": str(-1 if stored_ms is None else stored_ms)})

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """33: return the record at a physical offset."""
        offset = ViewMessageRequestHeader.decode(command.ext_fields).offset
        record = self.store.record_at(offset) if offset >= 0 else None
        if record is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return answer(command, ResponseCode.SUCCESS, None, None, record)

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def put_topic(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """17: create or change a topic; answered when saved."""
        header = CreateTopicRequestHeader.decode(command.ext_fields)
        problem = name_problem(header.topic)
        counts = (header.read_queue_nums, header.write_queue_nums)
        if problem is None and self.topics.is_system(header.topic):
            problem = CONFLICT.format(header.topic)
        if problem is not None:
            return answer(command, self.traits.bad_parameter_code, problem)
        if header.topic_filter_type not in FILTER_TYPES:
            return answer(
                command, ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type[:40]}] value invalid"
            )
        if not all(0 <= count <= QUEUE_COUNT_MAX for count in counts):
            problem = f"the topic has {max(counts)} queues, from 0 to {QUEUE_COUNT_MAX} are allowed"
            return answer(command, ResponseCode.SYSTEM_ERROR, problem)
        topic = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
        )
        try:
            topic = self.topics.with_attributes(topic, read_changes(header.attributes))
        except AttributeRefusedError as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(error))
        if not self.topics.put(topic, channel):
            return answer(command, ResponseCode.SYSTEM_ERROR, "there are too many topics; delete one first")
        # Java's reply carries this text even on success.
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS, "not set any response code"))

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete_topic(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """215: delete a topic with its queues and offsets; success for an unknown one."""
        name = DeleteTopicRequestHeader.decode(command.ext_fields).topic
        problem = name_problem(name) if self.traits.checks_deleted_names or not name.strip() else None
        if problem is None and self.topics.is_system(name):
            problem = CONFLICT.format(name)
        if problem is not None:
            return answer(command, self.traits.bad_parameter_code, problem)
        # Hide the topic first, so that sends and pulls in between are refused.
        self.topics.remove(name)
        self.store.begin_deletion(name)
        # From here on the topic is gone, even if the disk keeps its queues, so its pulls must be answered.
        self.topic_deleted(name, outbox)
        return self.when_saved(
            channel, command, answer(command, ResponseCode.SUCCESS), partial(self._finish_deletion, name)
        )

    def _finish_deletion(self, topic: str) -> None:
        """Do the slow part of a deletion; raises OSError."""
        if not self.traits.offsets_outlive_topics:
            self.offsets.forget_topic(topic)
        self.store.finish_deletion(topic)

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def put_group(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """200: create or change a group; answered when saved."""
        body = bytes(command.body)
        if body.strip() in self.traits.null_bodies:
            return answer(command, ResponseCode.SUCCESS)
        try:
            told = load_json(body)
            if self.traits.validates_groups and isinstance(told, dict):
                told.setdefault("groupName", "")
            group = msgspec.convert(told, GroupConfig, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HeaderError("SubscriptionGroupConfig", "body", f"cannot be read: {error}") from None
        problem = group_problem(group.group_name) if self.traits.validates_groups else None
        if problem is not None:
            return answer(command, ResponseCode.INVALID_PARAMETER, problem)
        if len(group.group_name) > self.groups.size_max:
            return answer(command, ResponseCode.SYSTEM_ERROR, self._too_long("group"))
        if not self.groups.put(group, channel):
            return answer(command, ResponseCode.SYSTEM_ERROR, "there are too many groups; delete one first")
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS))

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete_group(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """207: delete a group, and its offsets if this version's field is true."""
        header = DeleteSubscriptionGroupRequestHeader.decode(command.ext_fields)
        self.groups.remove(header.group_name)
        asked = {"removeOffset": header.remove_offset, "cleanOffset": header.clean_offset}
        forgets = any(asked[field] for field in self.traits.removes_offsets_by)
        work = partial(self.offsets.forget_group, header.group_name) if forgets else None
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS), work)

    def _too_long(self, kind: str) -> str:
        return f"the {kind}'s name is longer than {self.groups.size_max} characters"

    @staticmethod
    def _offset(command: Command, offset: int) -> Parts:
        return answer(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})

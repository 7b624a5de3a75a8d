"""Creates and changes topics (17, 18) and groups (200, 225), deletes them (215, 207), and returns them (351, 352).

A list is created completely or not at all, as far as checks can tell in advance. Deleting a topic removes its queues;
as in RocketMQ, its messages stay in the log.

Source: `AdminBrokerProcessor.java` 4.9 and, for lists and queries, 5.5; answers as seen on 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.queues import NewQueues
from longpoll_broker.shared.topics import (
    QUEUE_COUNT_MAX,
    AttributeRefusedError,
    GroupConfig,
    Groups,
    TopicConfig,
    Topics,
    read_changes,
)
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import WhenSaved
from longpoll_protocol.admin_headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from longpoll_protocol.bodies import KIND_SIZE_MAX, VALUE_COUNT_MAX, Body, check_size, load_json
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.names import FILTER_TYPES, group_problem, name_problem

LIST_COUNT_MAX: Final = 5_000
"""Maximum topics or groups in one request."""
NOT_SET: Final = "not set any response code"
"""The remark in RocketMQ's answer to the creation of a topic; RocketMQ sends this remark even on success."""
_GROUP_OF_5: Final[dict[str, Any]] = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
}
"""The fields of a group that exist only in 5.x, with their default values."""


@define(slots=True, eq=False)
class TopicProcessor(Serving):
    """The processors for topics and groups."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    queues: NewQueues
    store: MessageStore
    topic_deleted: Callable[[str, Outbox], None]
    """Called with a topic's name after its deletion."""
    when_saved: WhenSaved
    traits: Traits = STRICT_TRAITS

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def put_topic(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """Code 17: create or change a topic; the answer is sent when the topic is saved."""
        header = CreateTopicRequestHeader.decode(command.ext_fields)
        topic = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
        )
        problem = self._name_problem(topic.topic_name)
        if problem is not None:
            return answer(command, self.traits.bad_parameter_code, problem)
        if topic.topic_filter_type not in FILTER_TYPES:
            problem = f"topicFilterType = [{topic.topic_filter_type[:40]}] value invalid"
        problem = problem or _count_problem(topic)
        if problem is not None:
            return answer(command, ResponseCode.SYSTEM_ERROR, problem)
        try:
            topic = self.topics.with_attributes(topic, read_changes(header.attributes))
        except AttributeRefusedError as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(error))
        return self._put_topics(channel, command, [topic])

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def put_topics(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """Code 18: create or change topics; the answer is sent when all topics are saved."""
        wanted = CreateTopicListRequestBody.decode(command.body).topic_config_list
        for topic in wanted:
            problem = self._name_problem(topic.topic_name) or _count_problem(topic)
            if problem is None and topic.topic_filter_type not in FILTER_TYPES:
                kinds = ", ".join(sorted(FILTER_TYPES))
                problem = f"topicFilterType {topic.topic_filter_type[:40]!r} is none of {kinds}"
            if problem is not None:
                return answer(command, self.traits.bad_parameter_code, problem)
        try:
            wanted = [self.topics.with_attributes(topic, topic.attributes or {}) for topic in wanted]
        except AttributeRefusedError as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(error))
        return self._put_topics(channel, command, wanted)

    def _put_topics(self, channel: Channel, command: Command, topics: Sequence[TopicConfig]) -> Parts | None:
        if not all(self.topics.put(topic, channel) for topic in topics):
            return answer(command, ResponseCode.SYSTEM_ERROR, "there are too many topics; delete one first")
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS, NOT_SET))

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete_topic(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Code 215: delete a topic with its queues and offsets; also answers with success for an unknown topic."""
        name = DeleteTopicRequestHeader.decode(command.ext_fields).topic
        problem = self._name_problem(name, checks_form=self.traits.checks_deleted_names or not name.strip())
        if problem is not None:
            return answer(command, self.traits.bad_parameter_code, problem)
        # The topic is hidden before the deletion, so that sends and pulls are refused during the deletion.
        self.topics.remove(name)
        self.store.begin_deletion(name)
        self.queues.forget_topic(name)
        # The topic is deleted now, even if its queues are still on disk, so its held pulls must be answered.
        self.topic_deleted(name, outbox)
        work = partial(self._finish_deletion, name)
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS), work)

    def _finish_deletion(self, topic: str) -> None:
        """Do the slow part of a deletion; raises OSError."""
        if not self.traits.offsets_outlive_topics:
            self.offsets.forget_topic(topic)
        self.store.finish_deletion(topic)

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def put_group(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """Code 200: create or change a group; the answer is sent when the group is saved."""
        body = bytes(command.body)
        if body.strip() in self.traits.null_bodies:
            return answer(command, ResponseCode.SUCCESS)
        check_size("SubscriptionGroupConfig", "body", body, KIND_SIZE_MAX)
        try:
            told = load_json(body)
            if self.traits.validates_groups and isinstance(told, dict):
                told.setdefault("groupName", "")
            group = msgspec.convert(told, GroupConfig, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HeaderError("SubscriptionGroupConfig", "body", f"cannot be read: {error}") from None
        return self._put_groups(channel, command, [group])

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def put_groups(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """Code 225: create or change groups; the answer is sent when all groups are saved."""
        return self._put_groups(channel, command, SubscriptionGroupList.decode(command.body).group_config_list)

    def _put_groups(self, channel: Channel, command: Command, groups: Sequence[GroupConfig]) -> Parts | None:
        for group in groups:
            problem = group_problem(group.group_name) if self.traits.validates_groups else None
            if problem is None and len(group.group_name) > self.groups.size_max:
                problem = f"the group's name is longer than {self.groups.size_max} characters"
            if problem is not None:
                return answer(command, self.traits.bad_parameter_code, problem)
        if not all(self.groups.put(group, channel) for group in groups):
            return answer(command, ResponseCode.SYSTEM_ERROR, "there are too many groups; delete one first")
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS))

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete_group(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """Code 207: delete a group, and also its offsets if the request asks for that (`Traits.removes_offsets_by`)."""
        header = DeleteSubscriptionGroupRequestHeader.decode(command.ext_fields)
        self.groups.remove(header.group_name)
        asked = {"removeOffset": header.remove_offset, "cleanOffset": header.clean_offset}
        forgets = any(asked[field] for field in self.traits.removes_offsets_by)
        work = partial(self.offsets.forget_group, header.group_name) if forgets else None
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS), work)

    @serves(RequestCode.GET_TOPIC_CONFIG)
    def topic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 351: return a topic's settings; answers with TOPIC_NOT_EXIST (17) for an unknown topic."""
        name = GetTopicConfigRequestHeader.decode(command.ext_fields).topic
        found = self.topics.get(name)
        if found is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:127]}")
        told = {**msgspec.to_builtins(found), "attributes": found.attributes or {}}
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(told))

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def group(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 352: return a group's settings; answers with code 26 if the group is unknown and not created on use."""
        name = GetSubscriptionGroupConfigRequestHeader.decode(command.ext_fields).group
        found = self.groups.find(name, channel)
        if found is None:
            told = f"No group in this broker. group: {name[:255]}"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, told)
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(msgspec.to_builtins(found) | _GROUP_OF_5))

    def _name_problem(self, name: str, *, checks_form: bool = True) -> str | None:
        problem = name_problem(name) if checks_form else None
        if problem is None and self.topics.is_system(name):
            problem = f"The topic[{name}] is conflict with system topic."
        return problem


def _count_problem(topic: TopicConfig) -> str | None:
    counts = (topic.read_queue_nums, topic.write_queue_nums)
    if all(0 <= count <= QUEUE_COUNT_MAX for count in counts):
        return None
    return f"the topic has {max(counts)} queues, from 0 to {QUEUE_COUNT_MAX} are allowed"


class CreateTopicListRequestBody(Body):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (code 18)."""

    value_count_max = VALUE_COUNT_MAX
    topic_config_list: Annotated[list[TopicConfig], msgspec.Meta(max_length=LIST_COUNT_MAX)] = msgspec.field(
        default_factory=list
    )


class SubscriptionGroupList(Body):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (code 225)."""

    value_count_max = VALUE_COUNT_MAX
    group_config_list: Annotated[list[GroupConfig], msgspec.Meta(max_length=LIST_COUNT_MAX)] = msgspec.field(
        default_factory=list
    )

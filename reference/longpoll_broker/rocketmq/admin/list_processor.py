"""Serves 5.x's requests that create lists of topics or groups (18, 225) or return one (351, 352).

A list is created completely or not at all, as far as checks can tell in advance. Requests of 4.9: see
`admin_processor`.

Source: `AdminBrokerProcessor.java` 5.5: `updateAndCreateTopicList`, `updateAndCreateSubscriptionGroupList`,
`getTopicConfig`, `getSubscriptionGroup`; answers as seen on 5.5.0.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.rocketmq.admin.admin_processor import CONFLICT
from longpoll_broker.shared.topic_attributes import AttributeRefusedError
from longpoll_broker.shared.topics import QUEUE_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.upkeep.config_files import WhenSaved
from longpoll_protocol.admin_headers import GetSubscriptionGroupConfigRequestHeader, GetTopicConfigRequestHeader
from longpoll_protocol.bodies import load_json
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Buffer, Command
from longpoll_protocol.names import FILTER_TYPES, group_problem, name_problem

LIST_COUNT_MAX: Final = 5_000
"""Maximum topics or groups of one request."""
NOT_SET: Final = "not set any response code"
"""Text of Java's answer to a created topic, even on success."""
_GROUP_OF_5: Final[dict[str, Any]] = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
}
"""Additional fields of a group in 5.x, with default values."""
Config = TypeVar("Config", TopicConfig, GroupConfig)


@define(slots=True, eq=False)
class ListProcessor(Serving):
    """The processors."""

    topics: Topics
    groups: Groups
    when_saved: WhenSaved
    traits: Traits = STRICT_TRAITS

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def put_topics(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """18: create or change topics; answered when saved."""
        wanted = _list(command.body, "topicConfigList", TopicConfig)
        for topic in wanted:
            problem = self._topic_problem(topic)
            if problem is not None:
                return answer(command, self.traits.bad_parameter_code, problem)
        try:
            wanted = [self.topics.with_attributes(topic, topic.attributes or {}) for topic in wanted]
        except AttributeRefusedError as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(error))
        if not all(self.topics.put(topic, channel) for topic in wanted):
            return answer(command, ResponseCode.SYSTEM_ERROR, "there are too many topics; delete one first")
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS, NOT_SET))

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def put_groups(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """225: create or change groups; answered when saved."""
        wanted = _list(command.body, "groupConfigList", GroupConfig)
        for group in wanted:
            problem = self._group_problem(group.group_name)
            if problem is not None:
                return answer(command, self.traits.bad_parameter_code, problem)
        if not all(self.groups.put(group, channel) for group in wanted):
            return answer(command, ResponseCode.SYSTEM_ERROR, "there are too many groups; delete one first")
        return self.when_saved(channel, command, answer(command, ResponseCode.SUCCESS))

    @serves(RequestCode.GET_TOPIC_CONFIG)
    def topic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """351: return a topic's settings; 17 if it does not exist."""
        name = GetTopicConfigRequestHeader.decode(command.ext_fields).topic
        found = self.topics.get(name)
        if found is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:127]}")
        told = {**msgspec.to_builtins(found), "attributes": found.attributes or {}}
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(told))

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def group(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """352: return a group's settings; created if groups are created on use, else 26."""
        name = GetSubscriptionGroupConfigRequestHeader.decode(command.ext_fields).group
        found = self.groups.find(name, channel)
        if found is None:
            told = f"No group in this broker. group: {name[:255]}"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, told)
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(msgspec.to_builtins(found) | _GROUP_OF_5))

    def _topic_problem(self, topic: TopicConfig) -> str | None:
        problem = name_problem(topic.topic_name)
        if problem is None and self.topics.is_system(topic.topic_name):
            problem = CONFLICT.format(topic.topic_name)
        counts = (topic.read_queue_nums, topic.write_queue_nums)
        if problem is None and not all(0 <= count <= QUEUE_COUNT_MAX for count in counts):
            problem = f"the topic has {max(counts)} queues, from 0 to {QUEUE_COUNT_MAX} are allowed"
        if problem is None and topic.topic_filter_type not in FILTER_TYPES:
            problem = f"topicFilterType {topic.topic_filter_type[:40]!r} is none of {', '.join(sorted(FILTER_TYPES))}"
        return problem

    def _group_problem(self, name: str) -> str | None:
        problem = group_problem(name) if self.traits.validates_groups else None
        if problem is None and len(name) > self.groups.size_max:
            problem = f"the group's name is longer than {self.groups.size_max} characters"
        return problem


def _list(body: Buffer, name: str, kind: type[Config]) -> list[Config]:
    """Parse the list of this name in a body; raises HeaderError."""
    try:
        found = msgspec.convert(load_json(body), dict[str, list[dict[str, Any]] | None], strict=False).get(name) or []
        told = [msgspec.convert(each, kind, strict=False) for each in found]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderError("ListRequestBody", name, f"cannot be read: {error}") from None
    if len(told) > LIST_COUNT_MAX:
        raise HeaderError("ListRequestBody", name, f"has {len(told)} entries, over the limit of {LIST_COUNT_MAX}")
    return told

"""Headers of routes, topics and groups, and of what administrators ask of them.

Source: `GetRouteInfoRequestHeader.java`, `CreateTopicRequestHeader.java`, `DeleteTopicRequestHeader.java`,
`DeleteSubscriptionGroupRequestHeader.java`, `NotifyMinBrokerIdChangeRequestHeader.java`,
`GetTopicStatsInfoRequestHeader.java`, `GetConsumeStatsRequestHeader.java`, `QueryConsumeQueueRequestHeader.java` and
others beside them.
"""

from __future__ import annotations

from longpoll_protocol.codes import Permission
from longpoll_protocol.headers.base import Header, Int32, Int64


class GetRouteInfoRequestHeader(Header):
    """105 GET_ROUTEINFO_BY_TOPIC, to a name server; the reply's body is a `TopicRouteData`."""

    topic: str
    accept_standard_json_only: bool | None = None
    """Whether broker ids must be quoted; ours always are."""


class CreateTopicRequestHeader(Header):
    """17 UPDATE_AND_CREATE_TOPIC: make a topic or change it."""

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = int(Permission.READ | Permission.WRITE)
    """`Permission` bits."""
    topic_filter_type: str = "SINGLE_TAG"
    """Or `MULTI_TAG`; no broker does anything with it. Java's refuse a request without it."""
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    """Of 5.x: `+NAME=VALUE` and `-NAME`, joined by commas."""


class DeleteTopicRequestHeader(Header):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    remove_offset: bool = False
    """Of 4.9: the group's offsets go with it."""
    clean_offset: bool = False
    """The same of 5.x."""


class ViewBrokerStatsDataRequestHeader(Header):
    """315 VIEW_BROKER_STATS_DATA: sum, rate and average of one statistic over the last minute, hour and day."""

    stats_name: str
    """For instance `GROUP_GET_NUMS`."""
    stats_key: str
    """For instance `topic@group`."""


class NotifyMinBrokerIdChangeRequestHeader(Header):
    """905 NOTIFY_MIN_BROKER_ID_CHANGE of 5.x: the lowest id of a broker name's living members."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class GetTopicStatsInfoRequestHeader(Header):
    """202 GET_TOPIC_STATS_INFO: first and next offset of each queue of a topic; the reply's body is by queue."""

    topic: str


class GetConsumerConnectionListRequestHeader(Header):
    """203 GET_CONSUMER_CONNECTION_LIST: a group's members; the reply's body is a `ConsumerConnection`."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(Header):
    """204 GET_PRODUCER_CONNECTION_LIST: a producer group's members; the reply's body is a `ProducerConnection`."""

    producer_group: str


class GetConsumeStatsRequestHeader(Header):
    """208 GET_CONSUME_STATS: how far a group is in each queue; the reply's body is by queue."""

    consumer_group: str
    topic: str | None = None
    """Without it, of every topic that the group has stored an offset of."""


class QueryTopicConsumeByWhoRequestHeader(Header):
    """300 QUERY_TOPIC_CONSUME_BY_WHO: the groups of a topic; the reply's body is a `GroupList`."""

    topic: str


class QueryConsumeQueueRequestHeader(Header):
    """321 QUERY_CONSUME_QUEUE: entries of a queue; the reply's body is a `QueryConsumeQueueResponseBody`."""

    topic: str
    queue_id: Int32
    index: Int64
    """The first entry's offset."""
    count: Int32
    consumer_group: str | None = None
    """Whose subscription is to be told, too."""


class QueryConsumeTimeSpanRequestHeader(Header):
    """303 QUERY_CONSUME_TIME_SPAN: when the messages of each queue were stored, and the last one that a group got."""

    topic: str
    group: str


class CloneGroupOffsetRequestHeader(Header):
    """314 CLONE_GROUP_OFFSET: a group begins where another one is."""

    src_group: str
    dest_group: str
    topic: str | None = None
    """Without it, of every topic that the group has stored an offset of; then RocketMQ copies nothing."""
    offline: bool = False
    """Also of a topic that the group's members do not want."""


class GetConsumeStatsInBrokerHeader(Header):
    """317 GET_BROKER_CONSUME_STATS: how far every group is in every topic."""

    is_order: bool = False
    """Of ordered topics only."""


class QueryTopicsByConsumerRequestHeader(Header):
    """343 QUERY_TOPICS_BY_CONSUMER: the topics that a group has stored offsets of; the reply's body is a list."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(Header):
    """345 QUERY_SUBSCRIPTION_BY_CONSUMER: what a group wants of a topic now."""

    group: str
    topic: str


class GetTopicConfigRequestHeader(Header):
    """351 GET_TOPIC_CONFIG: one topic's settings."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(Header):
    """352 GET_SUBSCRIPTIONGROUP_CONFIG: one group's settings; the group is made, if groups are made on use."""

    group: str


class DeliveredResponseHeader(Header):
    """The reply to 45 and 60. Ours alone: RocketMQ's has no fields, and what it tells may be ahead of a slave's log."""

    log_end: Int64 | None = None
    """The physical offset before which everything stands that was delivered by then."""
    first_offset: Int64 | None = None
    """Of 60: the queue offset of the first message that waits, or is not read yet."""


class GetBrokerConfigResponseHeader(Header):
    """The reply to 26; the body has a setting a line, `key=value`."""

    version: str
    """JSON of a `DataVersion`."""

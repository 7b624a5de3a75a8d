"""Headers of routes, topics and groups.

Source: `GetRouteInfoRequestHeader.java`, `CreateTopicRequestHeader.java`, `DeleteTopicRequestHeader.java`,
`DeleteSubscriptionGroupRequestHeader.java`, `NotifyMinBrokerIdChangeRequestHeader.java`.
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


class DeleteTopicRequestHeader(Header):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    remove_offset: bool = False


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

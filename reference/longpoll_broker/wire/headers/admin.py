"""Headers of routes, topics and groups.

Source: `GetRouteInfoRequestHeader.java`, `CreateTopicRequestHeader.java`, `DeleteTopicRequestHeader.java`,
`DeleteSubscriptionGroupRequestHeader.java`.
"""

from __future__ import annotations

from longpoll_broker.wire.codes import Permission
from longpoll_broker.wire.headers.base import Header, Int32


class GetRouteInfoRequestHeader(Header, frozen=True, kw_only=True):
    """105 GET_ROUTEINFO_BY_TOPIC, to a name server; the reply's body is a `TopicRouteData`."""

    topic: str
    accept_standard_json_only: bool | None = None
    """Whether broker ids must be quoted; ours always are."""


class CreateTopicRequestHeader(Header, frozen=True, kw_only=True):
    """17 UPDATE_AND_CREATE_TOPIC: make a topic or change it."""

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = int(Permission.READ | Permission.WRITE)
    """`Permission` bits."""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False


class DeleteTopicRequestHeader(Header, frozen=True, kw_only=True):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str


class DeleteSubscriptionGroupRequestHeader(Header, frozen=True, kw_only=True):
    """207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    remove_offset: bool = False

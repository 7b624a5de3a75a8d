"""Headers of offsets: a group's offsets, a queue's begin and end, and searches by time.

Source: `QueryConsumerOffsetRequestHeader.java`, `UpdateConsumerOffsetRequestHeader.java`,
`SearchOffsetRequestHeader.java`, `GetMaxOffsetRequestHeader.java`, `GetMinOffsetRequestHeader.java`,
`GetEarliestMsgStoretimeRequestHeader.java` and their responses.
"""

from __future__ import annotations

from longpoll_protocol.headers.base import Header, Int32, Int64


class QueryConsumerOffsetRequestHeader(Header):
    """14 QUERY_CONSUMER_OFFSET: the group's stored offset; QUERY_NOT_FOUND without one."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    """Only 5.x uses it."""


class UpdateConsumerOffsetRequestHeader(Header):
    """15 UPDATE_CONSUMER_OFFSET: store the group's offset."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetRequestHeader(Header):
    """29 SEARCH_OFFSET_BY_TIMESTAMP: the first offset stored at or after a time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    """Milliseconds since 1970."""
    boundary_type: str | None = None
    """LOWER or UPPER; 4.9.7 ignores it."""


class GetMaxOffsetRequestHeader(Header):
    """30 GET_MAX_OFFSET: the queue's visible end."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffsetRequestHeader(Header):
    """31 GET_MIN_OFFSET: the queue's visible start."""

    topic: str
    queue_id: Int32


class OffsetResponseHeader(Header):
    """The reply to 14, 29, 30 and 31."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(Header):
    """32 GET_EARLIEST_MSG_STORETIME: the store time of the queue's first message."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Header):
    """The reply to 32."""

    timestamp: Int64
    """Milliseconds since 1970; -1 when the queue is empty or unknown."""

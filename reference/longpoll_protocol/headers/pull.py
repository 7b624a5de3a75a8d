"""Headers of requests that read messages: pull, view by position, query by key.

Source: `PullMessageRequestHeader.java`, `PullMessageResponseHeader.java`, `ViewMessageRequestHeader.java`,
`QueryMessageRequestHeader.java`, `QueryMessageResponseHeader.java`.
"""

from __future__ import annotations

from longpoll_protocol.codes import PullSysFlag
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.headers.base import Header, Int32, Int64

_COMMIT_OFFSET = PullSysFlag.COMMIT_OFFSET.value
_SUSPEND = PullSysFlag.SUSPEND.value
_SUBSCRIPTION = PullSysFlag.SUBSCRIPTION.value


class PullMessageRequestHeader(Header):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE: messages of one queue from an offset on.

    The last three numbers are required only if `sysFlag` uses them, as seen on real brokers.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    """First offset to return."""
    max_msg_nums: Int32
    sys_flag: Int32
    """`PullSysFlag` bits; see the properties below."""
    commit_offset: Int64 | None = None
    """With COMMIT_OFFSET: the group's offset in this queue, to be stored."""
    suspend_timeout_millis: Int64 | None = None
    """With SUSPEND: how long the request may be held."""
    sub_version: Int64 | None = None
    """Without SUBSCRIPTION: the version of the heartbeat's subscription."""
    subscription: str | None = None
    """With SUBSCRIPTION: the filter expression; absent or empty is "*"."""
    expression_type: str | None = None
    """TAG (also when absent) or SQL92."""
    max_msg_bytes: Int32 | None = None
    bname: str | None = None
    """The broker's name, sent by 5.x clients."""

    @property
    def has_commit_offset(self) -> bool:
        """Whether `commit_offset` is to be stored."""
        return self.sys_flag & _COMMIT_OFFSET != 0

    @property
    def may_hold(self) -> bool:
        """Whether the request may be held if there is nothing to return."""
        return self.sys_flag & _SUSPEND != 0

    @property
    def has_subscription(self) -> bool:
        """Whether the filter is in the request, not in the heartbeat."""
        return self.sys_flag & _SUBSCRIPTION != 0

    def check(self) -> None:
        """Check that the numbers required by `sysFlag` are present; raises HeaderError."""
        sys_flag = self.sys_flag
        if self.commit_offset is None and sys_flag & _COMMIT_OFFSET:
            raise HeaderError("PullMessageRequestHeader", "commitOffset", "is missing")
        if self.suspend_timeout_millis is None and sys_flag & _SUSPEND:
            raise HeaderError("PullMessageRequestHeader", "suspendTimeoutMillis", "is missing")
        if self.sub_version is None and not sys_flag & _SUBSCRIPTION:
            raise HeaderError("PullMessageRequestHeader", "subVersion", "is missing")


class PullMessageResponseHeader(Header):
    """The reply to 11 and 361 when accepted: codes 0, 19, 20 and 21; the body is concatenated records."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class ViewMessageRequestHeader(Header):
    """33 VIEW_MESSAGE_BY_ID: the message at a log position; the reply's body is its record."""

    offset: Int64
    """Physical offset in the commit log, bytes."""


class QueryMessageRequestHeader(Header):
    """12 QUERY_MESSAGE: messages with a key; the reply's body is records."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryMessageResponseHeader(Header):
    """The reply to 12; the body is records."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64

"""Headers of clients that join, leave and share queues; 34, 41 and 42 have only bodies (`bodies`).

Source: `UnregisterClientRequestHeader.java`, `GetConsumerListByGroupRequestHeader.java`,
`NotifyConsumerIdsChangedRequestHeader.java`, `ResetOffsetRequestHeader.java`, `GetConsumerStatusRequestHeader.java`,
`GetConsumerRunningInfoRequestHeader.java`, `ConsumeMessageDirectlyResultRequestHeader.java`.
"""

from __future__ import annotations

from msgspec import field

from longpoll_protocol.headers.base import Header, Int32, Int64


class UnregisterClientRequestHeader(Header):
    """35 UNREGISTER_CLIENT: leave these groups."""

    client_id: str = field(default="", name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Header):
    """38 GET_CONSUMER_LIST_BY_GROUP: the client ids of a group; the reply's body is a `ConsumerList`."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header):
    """40 NOTIFY_CONSUMER_IDS_CHANGED, broker to client, one-way: rebalance now."""

    consumer_group: str


class ResetOffsetRequestHeader(Header):
    """222 INVOKE_BROKER_TO_RESET_OFFSET, and 220 RESET_CONSUMER_CLIENT_OFFSET to clients, one-way: change offsets.

    The body of 220 and of the reply to 222 has an `offsetTable` by queue.
    """

    topic: str
    group: str
    timestamp: Int64
    """Milliseconds since 1970; -1: the end."""
    is_force: bool = False
    """Whether queues may move forward."""
    queue_id: Int32 | None = None
    """In 5.x: only this queue; negative: every queue."""
    offset: Int64 | None = None
    """In 5.x, with a queue: use this offset instead of a time's; -1: none."""


class GetConsumerStatusRequestHeader(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and 221 GET_CONSUMER_STATUS_FROM_CLIENT to members: members' offsets.

    The reply to 221 has a `messageQueueTable` by queue in its body, that to 223 a `consumerTable` of those by client.
    """

    topic: str
    group: str
    client_addr: str | None = None
    """Client id of the only member to ask (223); absent: all members."""


class GetConsumerRunningInfoRequestHeader(Header):
    """307 GET_CONSUMER_RUNNING_INFO: a member's state; the reply's body is a `ConsumerRunningInfo`, by queue."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False
    """Whether to include its threads' stacks."""


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """309 CONSUME_MESSAGE_DIRECTLY: let a member consume one message, which the broker puts into the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str = ""
    broker_name: str | None = None

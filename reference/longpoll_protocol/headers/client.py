"""Headers of clients coming, going and sharing queues; 34 HEART_BEAT and 41 and 42 have bodies only (`bodies`).

Source: `UnregisterClientRequestHeader.java`, `GetConsumerListByGroupRequestHeader.java`,
`NotifyConsumerIdsChangedRequestHeader.java`.
"""

from __future__ import annotations

from msgspec import field

from longpoll_protocol.headers.base import Header


class UnregisterClientRequestHeader(Header):
    """35 UNREGISTER_CLIENT: the client leaves these groups."""

    client_id: str = field(default="", name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Header):
    """38 GET_CONSUMER_LIST_BY_GROUP: the client ids of a group; the reply's body is a `ConsumerList`."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header):
    """40 NOTIFY_CONSUMER_IDS_CHANGED, broker to client, one-way: rebalance now."""

    consumer_group: str

"""Headers of brokers' and administrators' requests to name servers; 304 GET_SYSTEM_TOPIC_LIST_FROM_NS has none.

Source: `RegisterBrokerRequestHeader.java`, `UnRegisterBrokerRequestHeader.java`, `QueryDataVersionRequestHeader.java`,
`PutKVConfigRequestHeader.java`, `WipeWritePermOfBrokerRequestHeader.java`, `GetTopicsByClusterRequestHeader.java`,
`DeleteTopicFromNamesrvRequestHeader.java`, similar ones, and their responses.
"""

from __future__ import annotations

from longpoll_protocol.headers.base import Header, Int32, Int64


class RegisterBrokerRequestHeader(Header):
    """103 REGISTER_BROKER: register a broker; the body is its topic table."""

    broker_name: str
    broker_addr: str
    """HOST:PORT."""
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    """Whether the body is deflated (`compressedRegister`)."""
    body_crc32: Int32 = 0
    """CRC-32 of the body without its top bit; 0: absent."""


class RegisterBrokerResponseHeader(Header):
    """The reply to 103, with a slave's master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    """104 UNREGISTER_BROKER: remove a broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(Header):
    """322 QUERY_DATA_VERSION: whether the name server has the broker's current topics; the body is their version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """The reply to 322; the body is the name server's version, if any."""

    changed: bool


class PutKVConfigRequestHeader(Header):
    """100 PUT_KV_CONFIG: store a setting."""

    namespace: str
    """For instance `ORDER_TOPIC_CONFIG`."""
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    """101 GET_KV_CONFIG: one setting; 22 if it does not exist."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """The reply to 101."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(Header):
    """219 GET_KVLIST_BY_NAMESPACE: all settings of a namespace, a `KVTable`; 22 without any."""

    namespace: str


class DeleteKVConfigRequestHeader(Header):
    """102 DELETE_KV_CONFIG: remove a setting."""

    namespace: str
    key: str


class WipeWritePermOfBrokerRequestHeader(Header):
    """205 WIPE_WRITE_PERM_OF_BROKER: routes stop leading producers to a broker."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    """The reply to 205."""

    wipe_topic_count: Int32
    """Number of the broker's topics."""


class AddWritePermOfBrokerRequestHeader(Header):
    """327 ADD_WRITE_PERM_OF_BROKER: make the broker's topics readable and writable in routes."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    """The reply to 327."""

    add_topic_count: Int32
    """Number of the broker's topics."""


class DeleteTopicFromNamesrvRequestHeader(Header):
    """216 DELETE_TOPIC_IN_NAMESRV: remove a topic's route, until a broker registers it again."""

    topic: str = ""
    """Without it, nothing is removed."""
    cluster_name: str | None = None
    """From 4.9.7 on: only for this cluster's brokers."""


class GetTopicsByClusterRequestHeader(Header):
    """224 GET_TOPICS_BY_CLUSTER: the topics of a cluster's brokers; the reply's body is a `TopicList`."""

    cluster: str

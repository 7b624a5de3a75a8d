"""Headers of what brokers and administrators tell name servers; 304 GET_SYSTEM_TOPIC_LIST_FROM_NS has none.

Source: `RegisterBrokerRequestHeader.java`, `UnRegisterBrokerRequestHeader.java`, `QueryDataVersionRequestHeader.java`,
`PutKVConfigRequestHeader.java`, `WipeWritePermOfBrokerRequestHeader.java`, `GetTopicsByClusterRequestHeader.java`,
`DeleteTopicFromNamesrvRequestHeader.java`, others beside them, and their responses.
"""

from __future__ import annotations

from longpoll_protocol.headers.base import Header, Int32, Int64


class RegisterBrokerRequestHeader(Header):
    """103 REGISTER_BROKER: a broker says where it is; the body is its table of topics."""

    broker_name: str
    broker_addr: str
    """HOST:PORT."""
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    """Whether the body is deflated (`compressedRegister`)."""
    body_crc32: Int32 = 0
    """CRC-32 of the body less its top bit; 0: not said."""


class RegisterBrokerResponseHeader(Header):
    """The reply to 103; it names a slave's master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    """104 UNREGISTER_BROKER: a broker leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(Header):
    """322 QUERY_DATA_VERSION: whether the name server has the broker's present topics; the body is their version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """The reply to 322; the body is the version that the name server has, if any."""

    changed: bool


class PutKVConfigRequestHeader(Header):
    """100 PUT_KV_CONFIG: keep a setting."""

    namespace: str
    """For instance `ORDER_TOPIC_CONFIG`."""
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    """101 GET_KV_CONFIG: one setting; 22 when there is none."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """The reply to 101."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(Header):
    """219 GET_KVLIST_BY_NAMESPACE: all settings of a namespace, a `KVTable`; 22 when there is none."""

    namespace: str


class DeleteKVConfigRequestHeader(Header):
    """102 DELETE_KV_CONFIG: forget a setting."""

    namespace: str
    key: str


class WipeWritePermOfBrokerRequestHeader(Header):
    """205 WIPE_WRITE_PERM_OF_BROKER: no route leads producers to a broker any more."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    """The reply to 205."""

    wipe_topic_count: Int32
    """How many topics the broker has."""


class AddWritePermOfBrokerRequestHeader(Header):
    """327 ADD_WRITE_PERM_OF_BROKER: routes say that the broker's topics may be read and written."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    """The reply to 327."""

    add_topic_count: Int32
    """How many topics the broker has."""


class DeleteTopicFromNamesrvRequestHeader(Header):
    """216 DELETE_TOPIC_IN_NAMESRV: forget a topic's route, until a broker registers with the topic again."""

    topic: str = ""
    """Without it there is nothing to forget."""
    cluster_name: str | None = None
    """Of 4.9.7 and later: at this cluster's brokers only."""


class GetTopicsByClusterRequestHeader(Header):
    """224 GET_TOPICS_BY_CLUSTER: the topics of a cluster's brokers; the reply's body is a `TopicList`."""

    cluster: str

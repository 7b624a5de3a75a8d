"""Headers of requests about routes, topics, groups, accounts and name servers.

The classes have RocketMQ's names, and most are in its packages `common/protocol/header` and
`common/protocol/header/namesrv`. The request GET_SYSTEM_TOPIC_LIST_FROM_NS (304) has no header.
"""

from __future__ import annotations

from longpoll_protocol.codes import Permission
from longpoll_protocol.headers import Header, Int32, Int64


class GetRouteInfoRequestHeader(Header):
    """105 GET_ROUTEINFO_BY_TOPIC, to a name server; the reply's body is a `TopicRouteData`."""

    topic: str
    accept_standard_json_only: bool | None = None
    """Whether the client can read only JSON with quoted broker ids. This broker always quotes broker ids."""


class CreateTopicRequestHeader(Header):
    """17 UPDATE_AND_CREATE_TOPIC: create or change a topic."""

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = int(Permission.READ | Permission.WRITE)
    """`Permission` bits."""
    topic_filter_type: str = "SINGLE_TAG"
    """`SINGLE_TAG` or `MULTI_TAG`. Brokers ignore the value, but Java's brokers refuse a request without a value."""
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    """In 5.x, changed attributes of the topic: `+NAME=VALUE` or `-NAME`, joined by commas."""


class DeleteTopicRequestHeader(Header):
    """215 DELETE_TOPIC_IN_BROKER: delete a topic."""

    topic: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """207 DELETE_SUBSCRIPTIONGROUP: delete a consumer group."""

    group_name: str
    remove_offset: bool = False
    """Whether to delete the group's offsets too, on 4.9."""
    clean_offset: bool = False
    """Whether to delete the group's offsets too, on 5.x."""


class ViewBrokerStatsDataRequestHeader(Header):
    """315 VIEW_BROKER_STATS_DATA: sum, rate and average of one statistic over the last minute, hour and day."""

    stats_name: str
    """The name of the statistic, such as `GROUP_GET_NUMS`."""
    stats_key: str
    """The key for which the broker counts the statistic, such as `topic@group`."""


class NotifyMinBrokerIdChangeRequestHeader(Header):
    """905 NOTIFY_MIN_BROKER_ID_CHANGE of 5.x: the lowest id of the running brokers that share a name."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class GetTopicStatsInfoRequestHeader(Header):
    """202 GET_TOPIC_STATS_INFO: the reply's body maps each queue of a topic to its first and next offset."""

    topic: str


class GetConsumerConnectionListRequestHeader(Header):
    """203 GET_CONSUMER_CONNECTION_LIST: a group's members; the reply's body is a `ConsumerConnection`."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(Header):
    """204 GET_PRODUCER_CONNECTION_LIST: a producer group's members; the reply's body is a `ProducerConnection`."""

    producer_group: str


class GetConsumeStatsRequestHeader(Header):
    """208 GET_CONSUME_STATS: the reply's body maps each queue to a group's progress in it."""

    consumer_group: str
    topic: str | None = None
    """The topic; if the topic is absent, the reply covers every topic in which the group has offsets."""


class QueryTopicConsumeByWhoRequestHeader(Header):
    """300 QUERY_TOPIC_CONSUME_BY_WHO: the groups of a topic; the reply's body is a `GroupList`."""

    topic: str


class QueryConsumeQueueRequestHeader(Header):
    """321 QUERY_CONSUME_QUEUE: entries of a queue; the reply's body is a `QueryConsumeQueueResponseBody`."""

    topic: str
    queue_id: Int32
    index: Int64
    """The queue offset of the first entry to return."""
    count: Int32
    consumer_group: str | None = None
    """The group whose subscription the reply must contain; None if the reply must contain no subscription."""


class QueryConsumeTimeSpanRequestHeader(Header):
    """303 QUERY_CONSUME_TIME_SPAN: the store times of each queue's first, last and last consumed message."""

    topic: str
    group: str


class CloneGroupOffsetRequestHeader(Header):
    """314 CLONE_GROUP_OFFSET: copy one group's offsets to another group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    """The topic; if the topic is absent, the broker copies nothing, as in RocketMQ."""
    offline: bool = False
    """Whether to copy the offsets even if no member of the source group subscribes to the topic."""


class GetConsumeStatsInBrokerHeader(Header):
    """317 GET_BROKER_CONSUME_STATS: every group's progress in every topic."""

    is_order: bool = False
    """Whether to return ordered topics only."""


class QueryTopicsByConsumerRequestHeader(Header):
    """343 QUERY_TOPICS_BY_CONSUMER: the topics in which a group has offsets; the reply's body is a list."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(Header):
    """345 QUERY_SUBSCRIPTION_BY_CONSUMER: a group's current subscription to a topic."""

    group: str
    topic: str


class GetTopicConfigRequestHeader(Header):
    """351 GET_TOPIC_CONFIG: one topic's settings."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(Header):
    """352 GET_SUBSCRIPTIONGROUP_CONFIG: one group's settings; group auto-creation creates a missing group."""

    group: str


class GetBrokerConfigResponseHeader(Header):
    """The reply to 26 (GET_BROKER_CONFIG); the body has one `key=value` per line."""

    version: str
    """A `DataVersion` as JSON."""


class CreateAccessConfigRequestHeader(Header):
    """50 UPDATE_AND_CREATE_ACL_CONFIG: create or change an account; an absent field keeps its value."""

    access_key: str
    secret_key: str | None = None
    """The secret, which is required even if the account exists."""
    white_remote_address: str | None = None
    admin: bool = False
    """Whether the account is an administrator. If the field is absent, the account loses this right."""
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """The complete list of the account's topic permissions, each as NAME=RIGHT, separated by commas."""
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header):
    """51 DELETE_ACL_CONFIG: remove an account."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: replace the global allow-list."""

    global_white_addrs: str
    """The addresses, separated by commas."""
    acl_file_full_path: str | None = None
    """The path of the account file to change; an empty path means the broker's first account file."""


class GetBrokerAclConfigResponseHeader(Header):
    """The reply to 52 (GET_BROKER_CLUSTER_ACL_INFO): the version of a broker's accounts."""

    version: str
    """A `DataVersion` as JSON."""
    all_acl_file_version: str | None = None
    """A JSON object that maps the path of each file to its version."""
    broker_name: str
    broker_addr: str
    cluster_name: str


class RegisterBrokerRequestHeader(Header):
    """103 REGISTER_BROKER: register a broker; the body is its topic table."""

    broker_name: str
    broker_addr: str
    """The broker's address for clients, as HOST:PORT."""
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    """Whether the body is compressed with deflate (`compressedRegister`)."""
    body_crc32: Int32 = 0
    """The CRC-32 of the body with the highest bit cleared, or 0 if the sender did not compute it."""


class RegisterBrokerResponseHeader(Header):
    """The reply to 103 (REGISTER_BROKER), which tells a slave where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    """104 UNREGISTER_BROKER: remove a broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(Header):
    """322 QUERY_DATA_VERSION: ask if the name server has the broker's current topics; the body is their version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """The reply to 322 (QUERY_DATA_VERSION); the body is the version that the name server has, if it has one."""

    changed: bool


class PutKVConfigRequestHeader(Header):
    """100 PUT_KV_CONFIG: store a setting."""

    namespace: str
    """The namespace of the setting, such as `ORDER_TOPIC_CONFIG`."""
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    """101 GET_KV_CONFIG: one setting; the reply has code 22 if the setting does not exist."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """The reply to 101 (GET_KV_CONFIG)."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(Header):
    """219 GET_KVLIST_BY_NAMESPACE: all settings of a namespace, as a `KVTable`; code 22 if the namespace has none."""

    namespace: str


class DeleteKVConfigRequestHeader(Header):
    """102 DELETE_KV_CONFIG: remove a setting."""

    namespace: str
    key: str


class WipeWritePermOfBrokerRequestHeader(Header):
    """205 WIPE_WRITE_PERM_OF_BROKER: make a broker's topics read-only in routes, so that producers avoid the broker."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    """The reply to 205 (WIPE_WRITE_PERM_OF_BROKER)."""

    wipe_topic_count: Int32
    """The number of the broker's topics."""


class AddWritePermOfBrokerRequestHeader(Header):
    """327 ADD_WRITE_PERM_OF_BROKER: make the broker's topics readable and writable in routes."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    """The reply to 327 (ADD_WRITE_PERM_OF_BROKER)."""

    add_topic_count: Int32
    """The number of the broker's topics."""


class DeleteTopicFromNamesrvRequestHeader(Header):
    """216 DELETE_TOPIC_IN_NAMESRV: remove a topic's route, until a broker registers it again."""

    topic: str = ""
    """The topic; if it is empty, nothing is removed."""
    cluster_name: str | None = None
    """From 4.9.7 on: the cluster whose brokers lose the topic. If the field is absent, all brokers lose the topic."""


class GetTopicsByClusterRequestHeader(Header):
    """224 GET_TOPICS_BY_CLUSTER: the topics of a cluster's brokers; the reply's body is a `TopicList`."""

    cluster: str

"""JSON bodies, such as heartbeats, routes and lists of consumers, and the binary body of GET_TIMER_CHECK_POINT (60).

Decoding accepts the forms that Java, Go, C++ and Node clients write: unknown keys, nulls, numbers as text, enum names
(Java) or ordinals (C++), and unquoted integer keys (fastjson). Encoding writes quoted keys and enum names, which all
these clients read.

For records see `log_record`, and for batches see `message`.

Source: `common/protocol/heartbeat/*.java`, `common/protocol/route/*.java`, `GetConsumerListByGroupResponseBody.java`.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import msgspec
from attrs import frozen
from msgspec import UNSET, Meta, UnsetType, field

from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Buffer
from longpoll_protocol.sizes import KIB, MIB
from longpoll_spec.tables import TabledStruct

ITEM_COUNT_MAX: Final = 10_000
"""Maximum number of groups, subscriptions or queues in one list of a body. Real clients send at most a few hundred."""
SUBSCRIPTION_COUNT_MAX: Final = 2_500
"""Maximum number of subscriptions in a client's group, which is low because a broker replaces all of them at once."""
BODY_SIZE_MAX: Final = 4 * MIB
"""Maximum bytes of a JSON body, which is enough for 10,000 queues of 400 bytes each."""
KIND_SIZE_MAX: Final = 128 * KIB
"""Maximum bytes of a body that is parsed leniently, which takes about 20 ms at this size."""
VALUE_COUNT_MAX: Final = 100_000
"""Maximum number of values in a request's body, counted by commas. Parsing this many values takes about 25 ms. A body
with 10,000 queues has 30,000 values."""
SETTINGS_SIZE_MAX: Final = 64 * KIB
"""Maximum bytes of a body with `key=value` lines."""
EXPRESSION_SIZE_MAX: Final = 64 * 1024
"""Maximum characters of a subscription's expression, because brokers store it. Pulls have the same limit (`hold.pull`).
"""
NAME_SIZE_MAX: Final = 255
"""Maximum characters of an expression's type, because brokers store the type with the expression."""

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Item = TypeVar("Item")
Items = Annotated[list[Item], Meta(max_length=ITEM_COUNT_MAX)]


class ConsumeType(enum.Enum):
    """How a consumer gets its messages.

    The members are in Java's order, because C++ clients send their ordinals.
    """

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(enum.Enum):
    """Whether every consumer of a group gets each message, or only one of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    """Where a group without a stored offset starts."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


_ENUMS: Final[dict[str, type[enum.Enum]]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}
"""Maps a JSON key to the enum of its values."""


_NULL: Final = b"null"
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
Kind = TypeVar("Kind", bound="Body")


class Body(TabledStruct, rename="camel"):
    """A body that is one JSON object."""

    value_count_max: ClassVar[int] = BODY_SIZE_MAX
    """Maximum number of values, counted by commas. Bodies that any client may send have a lower limit."""

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Decode a body; raises HeaderError, which names the part that cannot be read."""
        check_size(cls.__name__, "body", body, BODY_SIZE_MAX)
        if bytes(body).count(b",") > cls.value_count_max:
            raise HeaderError(cls.__name__, "body", f"has over {cls.value_count_max} values; send less at a time")
        is_small = len(body) <= KIND_SIZE_MAX
        try:
            # A body in Java's form decodes ten times as fast, so try that first. A small body with a null needs
            # `_tidied`, because null means an absent key.
            if not is_small or _NULL not in bytes(body):
                read: Self = _decoder(cls).decode(body)
                return read
        except _UNREADABLE as error:
            if not is_small:
                raise HeaderError(cls.__name__, "body", f"cannot be read: {error}") from None
        try:
            return msgspec.convert(_tidied(load_json(body)), cls, strict=False)
        except _UNREADABLE as error:
            raise HeaderError(cls.__name__, "body", f"cannot be read: {error}") from None

    def encode(self) -> bytes:
        """Encode the body as JSON with quoted keys."""
        return msgspec.json.encode(self)


def check_size(kind: str, name: str, body: Buffer, size_max: int) -> None:
    """Raise HeaderError if a body has more than `size_max` bytes."""
    if len(body) > size_max:
        raise HeaderError(kind, name, f"has {len(body)} bytes, over the limit of {size_max}")


class SubscriptionData(Body):
    """A group's subscription to one topic."""

    topic: str
    sub_string: Annotated[str, Meta(max_length=EXPRESSION_SIZE_MAX)] = ""
    """The filter expression. If a tag expression is absent, every message passes."""
    expression_type: Annotated[str, Meta(max_length=NAME_SIZE_MAX)] = "TAG"
    sub_version: Int64 = 0
    """The client's clock when it subscribed, in milliseconds, so that a later subscription replaces an earlier one. C++
    clients send this number as text."""
    class_filter_mode: bool = False
    """Whether a filter server filters the messages, in which case brokers deliver all of them."""
    tags_set: Annotated[frozenset[str], Meta(max_length=ITEM_COUNT_MAX)] = frozenset()
    """The tags of the expression. C++ clients omit this field, so read the expression instead."""
    code_set: Annotated[frozenset[Int32], Meta(max_length=ITEM_COUNT_MAX)] = frozenset()
    """The hashes of the tags, which C++ clients omit."""


class ProducerData(Body):
    """A producer group of a client."""

    group_name: str


class ConsumerData(Body):
    """A consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    unit_mode: bool = False
    subscription_data_set: Annotated[list[SubscriptionData], Meta(max_length=SUBSCRIPTION_COUNT_MAX)] = field(
        default_factory=list
    )


class HeartbeatData(Body):
    """34 HEART_BEAT: the client's id, its producer groups, and its consumer groups with subscriptions."""

    value_count_max = VALUE_COUNT_MAX
    client_id: str = field(default="", name="clientID")
    producer_data_set: Items[ProducerData] = field(default_factory=list)
    consumer_data_set: Items[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    """A hash of the subscriptions, from 5.x clients that may omit them; otherwise 0."""
    without_sub: bool = False
    """Whether the client omitted its subscriptions, because the broker knows those with this fingerprint."""


class CheckClientData(Body):
    """46 CHECK_CLIENT_CONFIG: whether the broker can serve a subscription (`CheckClientRequestBody`)."""

    value_count_max = VALUE_COUNT_MAX
    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class QueueData(Body):
    """The queue counts of a topic on one broker."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    """`Permission` bits."""
    topic_sys_flag: Int32 = 0


class BrokerData(Body):
    """The addresses of a broker by broker id; 0 is the master."""

    cluster: str = ""
    broker_name: str
    broker_addrs: dict[int, str]
    """Maps each broker id to host:port."""
    enable_acting_master: bool | UnsetType = UNSET
    """In 5.x: whether a slave may act as the master of the brokers that share its name."""


class TopicRouteData(Body):
    """105 GET_ROUTEINFO_BY_TOPIC: the brokers and queues of a topic."""

    broker_datas: Items[BrokerData]
    queue_datas: Items[QueueData]
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)


class TopicList(Body):
    """206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER: the names of all topics."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class DataVersion(Body):
    """The version of a broker's table, which is the body of QUERY_DATA_VERSION (322) and a part of other bodies."""

    counter: Int64 = 0
    timestamp: Int64 = 0
    """Milliseconds since 1970."""

    def as_pair(self) -> tuple[int, int]:
        """The counter and the timestamp, which identify the version."""
        return self.counter, self.timestamp


class TopicTable(Body):
    """All topics of a broker (`TopicConfigSerializeWrapper`)."""

    topic_config_table: dict[str, Any] = field(default_factory=dict)
    """Maps each topic to its settings, as in RocketMQ's file `topics.json`."""
    data_version: DataVersion = field(default_factory=DataVersion)


class RegisterBody(Body):
    """103 REGISTER_BROKER: the topics and filter servers of a broker."""

    topic_config_serialize_wrapper: TopicTable = field(default_factory=TopicTable)
    filter_server_list: list[str] = field(default_factory=list)


class GroupTable(Body):
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all consumer groups of a broker (`SubscriptionGroupWrapper`)."""

    subscription_group_table: dict[str, Any] = field(default_factory=dict)
    """Maps each group to its settings, as in RocketMQ's file `subscriptionGroup.json`."""
    data_version: DataVersion = field(default_factory=DataVersion)


class ClusterInfo(Body):
    """106 GET_BROKER_CLUSTER_INFO: the addresses of every broker, by name, and the broker names of each cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class Connection(Body):
    """One connected client of a group."""

    client_id: str
    client_addr: str
    """HOST:PORT."""
    language: str
    """A name from `LANGUAGES`."""
    version: Int32


class ConsumerConnection(Body):
    """The reply to 203 (GET_CONSUMER_CONNECTION_LIST): a group's members and subscriptions."""

    connection_set: list[Connection]
    subscription_table: dict[str, SubscriptionData]
    """Maps each topic to the group's subscription."""
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere


class ProducerConnection(Body):
    """The reply to 204 (GET_PRODUCER_CONNECTION_LIST): a producer group's members."""

    connection_set: list[Connection]


class GroupList(Body):
    """The reply to 300 (QUERY_TOPIC_CONSUME_BY_WHO): the groups that subscribe to a topic or have offsets in it."""

    group_list: list[str]


class ConsumeQueueData(Body):
    """One entry of a queue."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """The reply to 321 (QUERY_CONSUME_QUEUE): entries of a queue, and the queue's first and last offset."""

    subscription_data: SubscriptionData | None
    filter_data: str | None
    queue_data: list[ConsumeQueueData]
    max_queue_index: Int64
    min_queue_index: Int64


class DelayTable(Body):
    """The reply to 45 (GET_ALL_DELAY_OFFSET): the next offset of each delay level (`DelayOffsetSerializeWrapper`)."""

    offset_table: dict[int, int]


class TimerCount(Body):
    """The number of a topic's waiting messages, and the time when this number last changed (`TimerMetrics.Metric`)."""

    count: Int64
    time_stamp: Int64
    """Milliseconds since 1970."""


class StateVersion(DataVersion):
    """A table's version in the form of 5.x."""

    state_version: Int64 = 0
    """The version of the controller; always 0, because this broker has no controller."""


class TimerCountTable(Body):
    """The reply to 61 (GET_TIMER_METRICS): the number of waiting timed messages by topic."""

    data_version: StateVersion = field(default_factory=StateVersion)
    timing_count: dict[str, TimerCount] = field(default_factory=dict)


class FollowingStatus(Body):
    """The state of a slave's replication (`HAClientRuntimeInfo`). A master sends zeros, and so does this broker."""

    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_addr: str | None = None
    master_flush_offset: Int64 = 0
    max_offset: Int64 = 0
    """The end of the slave's log, in bytes."""
    transferred_byte_in_second: Int64 = 0


class HAStatus(Body):
    """The reply to 907 (GET_BROKER_HA_STATUS): the state of a master or a slave (`HARuntimeInfo`)."""

    ha_client_runtime_info: FollowingStatus = field(default_factory=FollowingStatus)
    ha_connection_info: tuple[()] = ()
    in_sync_slave_nums: Int32 = 0
    master: bool = True
    master_commit_log_max_offset: Int64 = 0


class OffsetTable(Body):
    """The reply to 43 (GET_ALL_CONSUMER_OFFSET): every group's offsets, by `topic@group` and queue.

    Source: `ConsumerOffsetSerializeWrapper`.
    """

    offset_table: dict[str, dict[int, int]]


class KVTable(Body):
    """The reply to 28 (GET_BROKER_RUNTIME_INFO): the state of a broker, as text values by name."""

    table: dict[str, str]


class ConsumerList(Body):
    """38 GET_CONSUMER_LIST_BY_GROUP: the clients of a group."""

    consumer_id_list: Items[str]


class MessageQueue(Body, order=True):
    """One queue of a topic. Queues are ordered as by `MessageQueue.compareTo`: by topic, broker and number."""

    topic: str
    broker_name: str
    queue_id: Int32


class QueryAssignmentRequestBody(Body):
    """400 QUERY_ASSIGNMENT: which queues of a topic are assigned to this member of a group."""

    value_count_max = VALUE_COUNT_MAX
    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str = "AVG"
    message_model: MessageModel = MessageModel.CLUSTERING


class MessageQueueAssignment(Body, kw_only=False):
    """One assigned queue, and how the member gets the queue's messages."""

    message_queue: MessageQueue
    mode: str = "PULL"
    """A name of `MessageRequestMode`, such as `PULL`."""


class QueryAssignmentResponseBody(Body, kw_only=False):
    """The reply to 400 (QUERY_ASSIGNMENT)."""

    message_queue_assignments: list[MessageQueueAssignment]


class LockBatchRequest(Body):
    """41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ: the queues that a client locks or unlocks."""

    value_count_max = VALUE_COUNT_MAX
    consumer_group: str
    client_id: str
    mq_set: Items[MessageQueue] = field(default_factory=list)


class LockBatchResponse(Body):
    """The reply to 41 (LOCK_BATCH_MQ): the locked queues."""

    lock_ok_mq_set: Items[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


class PlainAccessConfig(Body):
    """One account, as in `plain_acl.yml`."""

    access_key: str
    secret_key: str
    white_remote_address: str | UnsetType = UNSET
    admin: bool = False
    default_topic_perm: str | UnsetType = UNSET
    default_group_perm: str | UnsetType = UNSET
    topic_perms: list[str] | UnsetType = UNSET
    group_perms: list[str] | UnsetType = UNSET


class ClusterAclConfig(Body):
    """The reply to 54 (GET_BROKER_CLUSTER_ACL_CONFIG): all accounts of a broker, with their secrets.

    Source: `GetBrokerClusterAclConfigResponseBody`.
    """

    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list)


# Matches a string, which is skipped, or an unquoted key. An unclosed string ends with the text, because otherwise the
# regex would try each of its quotes as the start of another string.
_STRING: Final = rb'("(?>[^"\\]+|\\.)*+(?:"|\\?\Z))'
_STRING_OR_BARE_KEY: Final = re.compile(_STRING + rb"|([{,]\s*+)(-?[0-9]{1,20})(\s*+:)", re.DOTALL)


def read_settings(body: bytes, request: str) -> dict[str, str]:
    """Parse a body of settings, with one `key=value` per line; raises HeaderError with the request's name.

    UPDATE_BROKER_CONFIG (25) and UPDATE_NAMESRV_CONFIG (318) have such a body. Empty lines and lines that begin with #
    are skipped. Source: `MixAll.string2Properties`.
    """
    if len(body) > SETTINGS_SIZE_MAX:
        raise HeaderError(request, "body", f"has {len(body)} bytes, over the limit of {SETTINGS_SIZE_MAX}")
    found = {}
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise HeaderError(request, "body", f"cannot be read: {error}") from None
    for line in lines:
        key, equals, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        if not equals:
            raise HeaderError(request, "body", f"has a line that is not key=value: {line[:80]!r}")
        found[key] = value
    return found


def load_json(body: Buffer) -> Any:
    """Parse JSON whose integer keys may be unquoted, as fastjson writes them.

    Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return msgspec.json.decode(_STRING_OR_BARE_KEY.sub(_quote, bytes(body)))


def _quote(found: re.Match[bytes]) -> bytes:
    if found[1] is not None:
        return found[1]
    return b"".join((found[2], b'"', found[3], b'"', found[4]))


@cache
def _decoder(kind: type[Kind]) -> msgspec.json.Decoder[Kind]:
    return msgspec.json.Decoder(kind, strict=False)


def _tidied(value: Any) -> Any:
    """Remove keys whose value is null, because null means absent, and replace ordinals of enums by names."""
    if isinstance(value, list):
        return [_tidied(item) for item in value if item is not None]
    if not isinstance(value, dict):
        return value
    return {
        name: _enum_name(_ENUMS[name], item) if name in _ENUMS else _tidied(item)
        for name, item in value.items()
        if item is not None
    }


def _enum_name(kind: type[enum.Enum], value: Any) -> Any:
    ordinal = int(value) if isinstance(value, str) and re.fullmatch("[0-9]", value) else value
    members = list(kind)
    if isinstance(ordinal, int) and 0 <= ordinal < len(members):
        return members[ordinal].value
    return value


_OLD: Final = struct.Struct(">4q")
_WHOLE: Final = struct.Struct(">7q")


@frozen
class TimerCheckpoint:
    """The reply to 60 (GET_TIMER_CHECK_POINT): the timer's progress on a broker (`TimerCheckpoint.java` 5.5).

    Offset  Size  What (big-endian, signed)
    0       8     the second that is delivered next, ms; earlier ones are complete
    8       8     durable end of the file `timerlog`; our broker has no such file
    16      8     the next queue offset of waiting messages that the sender will read
    24      8     the next queue offset of waiting messages that its master will read
    32      24    version: state, ms, counter; absent in 5.0
    """

    next_ms: int
    """The second whose messages are delivered next, in milliseconds since 1970."""
    read_offset: int
    """The queue offset of the next waiting message that the master will read."""

    def encode(self) -> bytes:
        """Encode the body as a broker of 5.x does."""
        return _WHOLE.pack(self.next_ms, 0, self.read_offset, self.read_offset, 0, 0, 0)

    @classmethod
    def decode(cls, body: Buffer) -> TimerCheckpoint:
        """Decode a body; raises HeaderError if it is too short or has impossible values."""
        if len(body) < _OLD.size:
            raise HeaderError("TimerCheckpoint", "body", f"has {len(body)} bytes, not {_OLD.size} or more")
        next_ms, _flushed, _own, read_offset = _OLD.unpack_from(body)
        if next_ms < 0 or read_offset < 0:
            raise HeaderError(
                "TimerCheckpoint", "body", f"has time {next_ms} and offset {read_offset}; both must be at least 0"
            )
        return cls(next_ms, read_offset)


# Matches a string, which is skipped, or an object without nested objects that is used as a key.
_STRING_OR_KEY: Final = re.compile(_STRING + rb'|(\{(?>[^{}"]+|"(?>[^"\\]+|\\.)*+")*+\})(?=\s*+:)', re.DOTALL)


def encode_by_queue(table: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    """Encode a map from queues to values as fastjson does, with each queue as a JSON object in the place of a key."""
    rows = (msgspec.json.encode(queue) + b":" + msgspec.json.encode(row) for queue, row in table.items())
    return msgspec.Raw(b"{" + b",".join(rows) + b"}")


def decode_by_queue(body: Buffer, name: str) -> dict[MessageQueue, Any]:
    """Decode the member `name` of a body: a map from queues to values, or a C++ client's list of queues with offsets.

    Raises HeaderError.
    """
    check_size("QueueTable", name, body, BODY_SIZE_MAX)
    try:
        content = msgspec.convert(load_json(_STRING_OR_KEY.sub(_quoted, bytes(body))), dict[str, Any])
        table = content.get(name) or {}
        if isinstance(table, list):
            rows = [(msgspec.convert(row, MessageQueue, strict=False), row.get("offset")) for row in table]
        else:
            keys = msgspec.convert(table, dict[str, Any])
            rows = [(msgspec.json.decode(key, type=MessageQueue, strict=False), row) for key, row in keys.items()]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HeaderError("QueueTable", name, f"cannot be read: {error}") from None
    if len(rows) > ITEM_COUNT_MAX:
        raise HeaderError("QueueTable", name, f"has {len(rows)} queues, over the limit of {ITEM_COUNT_MAX}")
    return dict(rows)


def _quoted(found: re.Match[bytes]) -> bytes:
    if found[1] is not None:
        return found[1]
    return msgspec.json.encode(found[2].decode())

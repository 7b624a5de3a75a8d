"""Headers of requests that read and store messages, and of requests about offsets and clients, with their codec.

A missing or invalid field raises `HeaderError` with the field's name. Numbers are parsed as by Java's `parseInt` and
`parseLong`, and booleans as by `parseBoolean`, but "1.0" and "1e3" are also accepted as integers and "1" as true. The
codec does not check whether a value makes sense, such as a queue id. `admin_headers` has the other headers.

Source: `RemotingCommand.decodeCommandCustomHeader`. The classes have RocketMQ's names. A field is required if 4.9.7 and
5.5.0 were observed to require it, although their annotations require more fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, field, inspect
from msgspec.structs import astuple

from longpoll_protocol.codes import PullSysFlag
from longpoll_protocol.errors import HeaderError
from longpoll_spec.tables import TabledStruct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# Twenty digits exceed any int64, so a longer text is out of range, and converting it would only take time.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_PLACE: Final = re.compile(r"required field `([^`]+)`|\$\.(\w+)")


class Header(TabledStruct, rename="camel", gc=False):
    """Base class of the headers, which give a command's extension fields names and types.

    Each subclass corresponds to a class of RocketMQ.
    """

    @classmethod
    def decode(cls, fields: Mapping[str, str] | None) -> Self:
        """Decode the extension fields of a command, and ignore unknown fields; raises HeaderError."""
        given = {} if fields is None else fields
        try:
            # The conversion is not strict, because numbers arrive as text.
            header = msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError:
            header = cls._decode_as_java(given)
        header.check()
        return header

    def check(self) -> None:
        """Check conditions that involve several fields; raises HeaderError. Most headers have no such condition."""

    def encode(self) -> dict[str, str]:
        """Encode the fields as text. A field that is None is left out, as in Java."""
        fields = {}
        for name, value in zip(self.__struct_encode_fields__, astuple(self), strict=True):
            if value.__class__ is int:
                fields[name] = str(value)
            elif value is not None:
                fields[name] = value if value.__class__ is str else _text(value)
        return fields

    @classmethod
    def _decode_as_java(cls, fields: Mapping[str, str]) -> Self:
        """Decode fields that the fast decoder refused, and raise HeaderError for a faulty field.

        Numbers such as "+1" and "007" are accepted. Any text is accepted for a boolean, and only "true" is true.
        """
        values: dict[str, Any] = dict(fields)
        numbers, booleans = _kinds(cls)
        for name in numbers & fields.keys():
            if not _NUMBER.fullmatch(fields[name]):
                raise HeaderError(cls.__name__, name, f"is not a whole number: {fields[name][:40]!r}")
            values[name] = int(fields[name])
        for name in booleans & fields.keys():
            values[name] = fields[name].lower() == "true"
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            name = _name_at_fault(error)
            problem = f"is out of range: {fields[name][:40]!r}" if name in fields else "is missing"
            raise HeaderError(cls.__name__, name, problem) from None


class EmptyHeader(Header):
    """The header of a reply with no fields, which is `{}` on the wire. Other replies have no header."""


@cache
def _kinds(header: type[Header]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the wire names of the integer fields and of the boolean fields of a header."""
    described = inspect.type_info(header)
    assert isinstance(described, inspect.StructType), described
    numbers, booleans = set(), set()
    for each in described.fields:
        types = each.type.types if isinstance(each.type, inspect.UnionType) else (each.type,)
        if any(isinstance(kind, inspect.IntType) for kind in types):
            numbers.add(each.encode_name)
        if any(isinstance(kind, inspect.BoolType) for kind in types):
            booleans.add(each.encode_name)
    return frozenset(numbers), frozenset(booleans)


def _name_at_fault(error: msgspec.ValidationError) -> str:
    """Returns the field's wire name from the text of a msgspec error."""
    place = _PLACE.search(str(error))
    assert place is not None, error
    return place[1] or place[2]


def _text(value: object) -> str:
    if value.__class__ is bool:
        return "true" if value else "false"
    return str(value)


_COMMIT_OFFSET = PullSysFlag.COMMIT_OFFSET.value
_SUSPEND = PullSysFlag.SUSPEND.value
_SUBSCRIPTION = PullSysFlag.SUBSCRIPTION.value


class PullMessageRequestHeader(Header):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE: messages of one queue from an offset on.

    As was observed on real brokers, `commitOffset`, `suspendTimeoutMillis` and `subVersion` are required only if
    `sysFlag` uses them.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    """The first queue offset to return."""
    max_msg_nums: Int32
    sys_flag: Int32
    """The bits of `PullSysFlag`, which the properties of this class read."""
    commit_offset: Int64 | None = None
    """With COMMIT_OFFSET: the offset to be stored for the group in this queue."""
    suspend_timeout_millis: Int64 | None = None
    """With SUSPEND: the milliseconds for which the broker may hold the request."""
    sub_version: Int64 | None = None
    """Without SUBSCRIPTION: the version of the subscription in the client's heartbeat, which the broker must use."""
    subscription: str | None = None
    """With SUBSCRIPTION: the filter expression. An absent or empty expression counts as "*"."""
    expression_type: str | None = None
    """The type of the expression, TAG or SQL92. An absent type counts as TAG."""
    max_msg_bytes: Int32 | None = None
    bname: str | None = None
    """The broker's name, sent by 5.x clients."""

    @property
    def has_commit_offset(self) -> bool:
        """Whether the broker must store `commit_offset`."""
        return self.sys_flag & _COMMIT_OFFSET != 0

    @property
    def may_hold(self) -> bool:
        """Whether the broker may hold the request if it finds no messages."""
        return self.sys_flag & _SUSPEND != 0

    @property
    def has_subscription(self) -> bool:
        """Whether the filter is in this request, and not in the heartbeat."""
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
    """The reply to 11 and 361 (pulls) if the request is accepted (code 0, 19, 20 or 21); the body is records."""

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
    """The physical offset of the message in the commit log, in bytes."""


class QueryMessageRequestHeader(Header):
    """12 QUERY_MESSAGE: messages with a key; the reply's body is records."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class SendMessageRequestHeader(Header):
    """10 SEND_MESSAGE: one message; the body of the request is the body of the message."""

    producer_group: str | None = None
    topic: str = ""
    """The topic. If the topic is absent or empty, the broker answers that the topic is blank."""
    default_topic: str | None = None
    """The topic whose settings a created topic gets, usually `TBW102`."""
    default_topic_queue_nums: Int32 | None = None
    """The number of queues of the topic, if this send creates it."""
    queue_id: Int32
    """The queue; if it is negative, the broker chooses one."""
    sys_flag: Int32
    """`MessageSysFlag` bits."""
    born_timestamp: Int64
    """The time of the send by the producer's clock, in milliseconds since 1970."""
    flag: Int32
    """A number that the user chooses and that is stored with the message."""
    properties: str | None = None
    """The properties as text (`properties`)."""
    reconsume_times: Int32 | None = None
    """How often a consumer has sent the message back."""
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    """Whether the body is a batch of messages, even if the request code is for single messages."""
    bname: str | None = None
    """The broker's name, sent by 5.x clients."""


class SendMessageRequestHeaderV2(SendMessageRequestHeader):
    """310 SEND_MESSAGE_V2 and 320 SEND_BATCH_MESSAGE: the fields of the base class, under one-letter names."""

    producer_group: str | None = field(default=None, name="a")
    topic: str = field(default="", name="b")
    default_topic: str | None = field(default=None, name="c")
    default_topic_queue_nums: Int32 | None = field(default=None, name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: Int32 | None = field(default=None, name="j")
    unit_mode: bool = field(default=False, name="k")
    max_reconsume_times: Int32 | None = field(default=None, name="l")
    batch: bool = field(default=False, name="m")
    bname: str | None = field(default=None, name="n")


class ReplyMessageRequestHeader(SendMessageRequestHeader):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT: a reply message for a requester; the body is the body of this message."""

    born_host: str | None = None
    """The host:port of the client that replies."""
    store_host: str | None = None
    """The host:port of the broker."""
    store_timestamp: Int64
    """The time when the broker received the reply, in milliseconds since 1970."""


class SendMessageResponseHeader(Header):
    """The reply to 10, 310 and 320 (sends). Never omit this header, because Java clients require its fields."""

    msg_id: str
    """The id of the message; for a batch, the ids of all messages, joined by commas."""
    queue_id: Int32
    queue_offset: Int64
    """The queue offset of the message; for a batch, of its first message."""
    transaction_id: str | None = None
    msg_region: str | None = field(default=None, name="MSG_REGION")
    trace_on: str | None = field(default=None, name="TRACE_ON")


class ConsumerSendMsgBackRequestHeader(Header):
    """36 CONSUMER_SEND_MSG_BACK: deliver the message at this log position to the group again, later."""

    offset: Int64
    """Physical offset of the message in the commit log, bytes."""
    group: str
    delay_level: Int32
    """The delay level. 0 means the number of earlier send-backs plus three, and a negative level makes the message a
    dead letter."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class CheckTransactionStateRequestHeader(Header):
    """39 CHECK_TRANSACTION_STATE: ask how a transaction ended; the body is the prepared message as a record."""

    tran_state_table_offset: Int64
    """The queue offset of the message in the half topic, which the client's END_TRANSACTION (37) must contain."""
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class EndTransactionRequestHeader(Header):
    """37 END_TRANSACTION: commit or roll back a prepared message."""

    producer_group: str
    tran_state_table_offset: Int64
    """The queue offset of the prepared message in the half topic."""
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """The value of `MessageSysFlag.TRANSACTION_COMMIT` or `TRANSACTION_ROLLBACK`, or 0 if the outcome is unknown."""
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None


class RecallMessageRequestHeader(Header):
    """370 RECALL_MESSAGE of 5.x: recall a timed message before its delivery."""

    topic: str = ""
    recall_handle: str = ""
    """The handle that the broker returned in its answer to the send."""
    producer_group: str | None = None


class QueryConsumerOffsetRequestHeader(Header):
    """14 QUERY_CONSUMER_OFFSET: the group's stored offset; the reply has QUERY_NOT_FOUND if no offset is stored."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    """Whether the answer may be 0 instead of an error if there is no offset; only 5.x uses this field."""


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
    """LOWER or UPPER: whether the first or the last of several messages with this time counts; 4.9.7 ignores this
    field."""


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
    """The reply to 14, 29, 30 and 31, the requests for an offset."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(Header):
    """32 GET_EARLIEST_MSG_STORETIME: the store time of the queue's first message."""

    topic: str
    queue_id: Int32


class UnregisterClientRequestHeader(Header):
    """35 UNREGISTER_CLIENT: remove a client from its producer group and consumer group."""

    client_id: str = field(default="", name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Header):
    """38 GET_CONSUMER_LIST_BY_GROUP: the client ids of a group; the reply's body is a `ConsumerList`."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header):
    """40 NOTIFY_CONSUMER_IDS_CHANGED: a broker's one-way request to a client to rebalance now."""

    consumer_group: str


class ResetOffsetRequestHeader(Header):
    """222 INVOKE_BROKER_TO_RESET_OFFSET, and 220 RESET_CONSUMER_CLIENT_OFFSET to clients, one-way: change offsets.

    The body of 220 and of the reply to 222 has an `offsetTable` by queue.
    """

    topic: str
    group: str
    timestamp: Int64
    """The time to reset to, in milliseconds since 1970; -1 means the end of the queue."""
    is_force: bool = False
    """Whether the offset of a queue may also move forward."""
    queue_id: Int32 | None = None
    """In 5.x: the only queue to reset; a negative number means every queue."""
    offset: Int64 | None = None
    """In 5.x, together with a queue: the offset to reset to, instead of a time; -1 means no offset."""


class GetConsumerStatusRequestHeader(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and 221 GET_CONSUMER_STATUS_FROM_CLIENT to members: members' offsets.

    The body of the reply to 221 has a `messageQueueTable` by queue. The body of the reply to 223 has a `consumerTable`,
    which maps each client to its `messageQueueTable`.
    """

    topic: str
    group: str
    client_addr: str | None = None
    """The client id of the only member to ask (223); if it is absent, all members are asked."""


class GetConsumerRunningInfoRequestHeader(Header):
    """307 GET_CONSUMER_RUNNING_INFO: a member's state; the reply's body is a `ConsumerRunningInfo`, by queue."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False
    """Whether the reply includes the stacks of the client's threads."""


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """309 CONSUME_MESSAGE_DIRECTLY: let a member consume one message, which the broker puts into the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str = ""
    broker_name: str | None = None

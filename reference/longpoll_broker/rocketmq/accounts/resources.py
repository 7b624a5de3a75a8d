"""The topics and groups that each request uses: one entry per code that the broker serves.

If a request names a message by its log offset (codes 33, 36 and 37), the request uses the topic to which the message
was sent, even while the message is delayed or prepared. `model_tests/service/test_resources.py` fails if a served code
has no entry.

Decisions: see `rocketmq.accounts.access`. Source: `PlainAccessValidator.parse` of 4.9.7, which covers only the codes
10, 11, 12, 15, 34, 35, 36, 38 and 310.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from longpoll_broker.rocketmq.accounts.access import Right, Wanted
from longpoll_broker.send.message_builder import NAME_COUNT_MAX
from longpoll_protocol.bodies import HeartbeatData, LockBatchRequest, QueryAssignmentRequestBody
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    ViewMessageRequestHeader,
)
from longpoll_protocol.log_record import Record, property_of
from longpoll_protocol.message import decode_batch
from longpoll_protocol.names import DEAD_PREFIX, NOT_FOR_SENDING, RETRY_PREFIX
from longpoll_protocol.properties import read_properties

RecordAt = Callable[[int], Record | None]
"""Returns the message at a log offset, or None if the offset has no message."""
Names = Callable[[Command, Wanted, RecordAt], None]
"""Adds the topics and groups of a request to `Wanted`; raises HeaderError if the request is unreadable."""

ANY_RIGHT: Final = Right.PUB | Right.SUB
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
"""The property with a message's additional queues, separated by commas."""
_MULTI_DISPATCH_BYTES: Final = MULTI_DISPATCH.encode()
_TRUE: Final = frozenset({"true", "1"})
"""Texts that mean true in a field, in upper or lower case (`headers.base`)."""
REAL_TOPIC: Final = "REAL_TOPIC"


def _fields(topic: str = "", group: str = "", right: Right = Right.SUB) -> Names:
    """Returns the function for requests that name a topic and a group in these fields.

    An empty field name means that the request names no topic or no group.
    """

    def names(command: Command, wanted: Wanted, _record_at: RecordAt) -> None:
        fields = command.ext_fields or {}
        wanted.topic(fields.get(topic), right)
        wanted.group(fields.get(group))

    return names


def _send(topic: str, properties: str, batch: str) -> Names:
    """Returns the function for sends with these field names."""

    def names(command: Command, wanted: Wanted, _record_at: RecordAt) -> None:
        fields = command.ext_fields or {}
        name = fields.get(topic)
        if name is not None and name.startswith(RETRY_PREFIX):
            wanted.group(name)
        else:
            wanted.topic(name, Right.PUB)
        _add_further_queues(wanted, fields.get(properties))
        # The raw bytes are searched before the batch is parsed, because a batch may have tens of thousands of messages.
        is_batch = fields.get(batch, "").lower() in _TRUE
        if is_batch and _MULTI_DISPATCH_BYTES in bytes(command.body):
            for message in decode_batch(command.body):
                _add_further_queues(wanted, message.properties)

    return names


def _add_further_queues(wanted: Wanted, properties: str | None) -> None:
    if properties and MULTI_DISPATCH in properties:
        text = property_of(properties.encode("utf-8", "surrogatepass"), MULTI_DISPATCH) or ""
        if text.count(",") >= NAME_COUNT_MAX:
            raise HeaderError("a message", MULTI_DISPATCH, f"has over {NAME_COUNT_MAX} queues")
        for name in text.split(","):
            wanted.topic(name or None, Right.PUB)


def _view(command: Command, wanted: Wanted, record_at: RecordAt) -> None:
    _add_place(wanted, ViewMessageRequestHeader.decode(command.ext_fields).offset, record_at, Right.SUB)


def _send_back(command: Command, wanted: Wanted, record_at: RecordAt) -> None:
    """Code 36 needs rights to the group and to the message's topic, because the group would then read the message."""
    header = ConsumerSendMsgBackRequestHeader.decode(command.ext_fields)
    wanted.group(header.group)
    _add_place(wanted, header.offset, record_at, Right.SUB)


def _end(command: Command, wanted: Wanted, record_at: RecordAt) -> None:
    offset = EndTransactionRequestHeader.decode(command.ext_fields).commit_log_offset
    _add_place(wanted, offset, record_at, Right.PUB)


def _add_place(wanted: Wanted, offset: int, record_at: RecordAt, right: Right) -> None:
    """Add the topic of the message at a log offset; raises HeaderError if no producer's message is at this offset.

    Only bodies have a checksum, so a message body may imitate a record whose properties extend over messages of other
    topics. Such properties contain the magic number of a record, which is never valid UTF-8.
    """
    record = record_at(offset)
    if record is not None:
        try:
            bytes(record.properties).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise HeaderError("request", "offset", f"is {offset}, but no message begins at that place") from None
        add_record(wanted, record, right)


def add_record(wanted: Wanted, record: Record | None, right: Right) -> None:
    """Add a message's original topic; for a dead letter or a retry also add its group."""
    if record is None:
        return
    name = record.topic
    if name in NOT_FOR_SENDING:
        name = read_properties(bytes(record.properties).decode("utf-8", "replace")).get(REAL_TOPIC, name)
    if name.startswith((RETRY_PREFIX, DEAD_PREFIX)):
        wanted.group(name.removeprefix(RETRY_PREFIX).removeprefix(DEAD_PREFIX))
    else:
        wanted.topic(name, right)


def _lock(command: Command, wanted: Wanted, _record_at: RecordAt) -> None:
    wanted.group(LockBatchRequest.decode(command.body).consumer_group)


def _assignment(command: Command, wanted: Wanted, _record_at: RecordAt) -> None:
    asked = QueryAssignmentRequestBody.decode(command.body)
    wanted.topic(asked.topic, Right.SUB)
    wanted.group(asked.consumer_group)


def _heartbeat(command: Command, wanted: Wanted, _record_at: RecordAt) -> None:
    heartbeat = HeartbeatData.decode(command.body)
    for producer in heartbeat.producer_data_set:
        wanted.producers(producer.group_name)
    for consumer in heartbeat.consumer_data_set:
        wanted.group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            wanted.topic(subscription.topic, Right.SUB)


_TOPIC_AND_GROUP: Final = _fields("topic", "consumerGroup")
_GROUP: Final = _fields(group="consumerGroup")
_QUEUE: Final = _fields("topic", right=ANY_RIGHT)
NAMED: Final[dict[int, Names]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "properties", "batch"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "i", "m"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "i", "m"),
    RequestCode.SEND_REPLY_MESSAGE: _send("topic", "properties", "batch"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _send("b", "i", "m"),
    RequestCode.PULL_MESSAGE: _TOPIC_AND_GROUP,
    RequestCode.LITE_PULL_MESSAGE: _TOPIC_AND_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET: _TOPIC_AND_GROUP,
    RequestCode.UPDATE_CONSUMER_OFFSET: _TOPIC_AND_GROUP,
    RequestCode.GET_CONSUME_STATS: _TOPIC_AND_GROUP,
    RequestCode.QUERY_CONSUME_QUEUE: _TOPIC_AND_GROUP,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _QUEUE,
    RequestCode.GET_MAX_OFFSET: _QUEUE,
    RequestCode.GET_MIN_OFFSET: _QUEUE,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _QUEUE,
    RequestCode.QUERY_MESSAGE: _fields("topic"),
    RequestCode.GET_TOPIC_STATS_INFO: _fields("topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _fields("topic"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _fields(group="producerGroup"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _fields("topic", "group"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields("topic", "group"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _fields("topic", "group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields("topic", "group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _fields(group="group"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(group="group"),
    RequestCode.RECALL_MESSAGE: _fields("topic", right=Right.PUB),
    RequestCode.GET_TOPIC_CONFIG: _fields("topic", right=ANY_RIGHT),
    RequestCode.UNREGISTER_CLIENT: _GROUP,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _GROUP,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _GROUP,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.END_TRANSACTION: _end,
}
"""For each code, the function that adds the request's topics and groups to a `Wanted`."""
FOR_EVERY_ACCOUNT: Final[dict[int, str]] = {
    RequestCode.CHECK_CLIENT_CONFIG: "only reads the expression that it brings",
    RequestCode.GET_BROKER_RUNTIME_INFO: "tells counts and times of the whole broker",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "tells settings; clients of 4.9 ask for it",
    RequestCode.VIEW_BROKER_STATS_DATA: "tells counts",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "tells names that every broker has",
}
"""For each code, the reason why every account may use it."""


def wanted_by(command: Command, record_at: RecordAt = lambda _offset: None) -> Wanted:
    """Returns the topics and groups of a request; raises HeaderError if the request is unreadable."""
    wanted = Wanted()
    names = NAMED.get(command.code)
    if names is not None:
        names(command, wanted, record_at)
    return wanted

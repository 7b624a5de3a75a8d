"""Codes and headers of RocketMQ 5's pops, notifications, acknowledgements and changes of invisible times.

A receipt handle (`extraInfo`, property `POP_CK`) has eight fields between spaces: the first offset of the pop, pop
time, invisible time, revive queue, 0 or the version of the retry topic, broker, queue and queue offset.

Source: 5.5.0's `PopMessageRequestHeader`, `NotificationRequestHeader`, `AckMessageRequestHeader`,
`ChangeInvisibleTimeRequestHeader`, `ExtraInfoUtil`, `KeyBuilder.parseNormalTopic`. A field is required if its class in
Java requires it.
"""

from __future__ import annotations

import enum
from typing import Final

from attrs import frozen

from longpoll_protocol.errors import HeaderError
from longpoll_protocol.headers import Header, Int32, Int64

POP_HANDLE: Final = "POP_CK"
"""The name of the property with the receipt handle, for a message that a pop read from the retry topic."""
RETRY: Final = "%RETRY%"
_HANDLE_SIZE: Final = 8


class PopCode(enum.IntEnum):
    """The codes of requests about pops. An ACK_MESSAGE or CHANGE_MESSAGE_INVISIBLETIME is about a single message."""

    POP_MESSAGE = 200_050
    NOTIFICATION = 200_054
    ACK_MESSAGE = 200_051
    CHANGE_MESSAGE_INVISIBLETIME = 200_053


BATCH_ACK_MESSAGE: Final = 200_151


class PopMessageRequestHeader(Header):
    """200050 POP_MESSAGE: get messages that the group has not received yet, or whose invisible time is over."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """The queue, or -1 for all queues of the topic."""
    max_msg_nums: Int32
    invisible_time: Int64
    """The milliseconds for which no other pop of the group gets these messages."""
    poll_time: Int64
    """The milliseconds after `born_time` for which the broker may hold the request."""
    born_time: Int64 = 0
    """The time of the request in milliseconds since 1970. 0 means the time when the broker receives it."""
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponseHeader(Header):
    """The reply to 200050 (POP_MESSAGE).

    The body has the records. `start_offset_info`, `msg_offset_info` and `order_count_info` repeat the records' queues
    and offsets as text.
    """

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    """The broker's count of the messages that remain for the group."""
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class NotificationRequestHeader(Header):
    """200054 NOTIFICATION: a request that the broker holds until the group could pop a message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    """The reply to 200054 (NOTIFICATION)."""

    has_msg: bool
    polling_full: bool = False


class AckMessageRequestHeader(Header):
    """200051 ACK_MESSAGE: acknowledge one message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTimeRequestHeader(AckMessageRequestHeader):
    """200053 CHANGE_MESSAGE_INVISIBLETIME: start the invisible time of one message again."""

    invisible_time: Int64


@frozen
class PopHandle:
    """The content of a receipt handle: the position of one message, and when it was popped."""

    pop_time_ms: int
    invisible_ms: int
    is_retry: bool
    """Whether the message was read from the retry topic, to which `queue` and `offset` then belong."""
    queue: int
    offset: int


def read_handle(text: str) -> PopHandle:
    """Decode a receipt handle; raises HeaderError if the text is not a receipt handle."""
    fields = text.split(" ")
    try:
        _start, pop_time, invisible, _revive, retry, _broker, queue, offset = fields[:_HANDLE_SIZE]
        return PopHandle(int(pop_time), int(invisible), retry != "0", int(queue), int(offset))
    except ValueError:
        raise HeaderError("a receipt handle", "extraInfo", f"has not the eight fields of one: {text[:80]!r}") from None


def normal_topic(topic: str, group: str) -> str:
    """Return the topic that a retry topic of a group belongs to. Any other topic is returned unchanged."""
    for separator in ("_", "+"):
        prefix = f"{RETRY}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic

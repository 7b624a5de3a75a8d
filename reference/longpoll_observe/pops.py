"""Converts the commands of pops to history events: the requests, their answers, and the messages that a pop gets.

The deadline of a held pop is `bornTime` plus `pollTime`, of which `bornTime` comes from the client's clock. The event
contains the time that remains until the deadline when the proxy receives the pop. If the client's clock differs from
the proxy's by more than `CLOCKS_MS`, the event omits `may_hold`, and the judge concludes nothing from the deadline. The
event of an orderly pop omits `may_hold` too, because an orderly pop also waits for the acknowledgements of earlier
messages.

Source: 5.5.0's `PopMessageProcessor`, `NotificationProcessor`, `PopLongPollingService.polling`.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from longpoll_observe.events import PHYSICAL_OFFSET_FIELD, TAG, Fields, id_of
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.log_record import HEAD, HEAD_SIZE, Damage, property_of
from longpoll_protocol.log_record import decode as decode_record
from longpoll_protocol.pop_headers import (
    BATCH_ACK_MESSAGE,
    POP_HANDLE,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopCode,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    normal_topic,
    read_handle,
)
from longpoll_protocol.properties import TAGS, UNIQUE_KEY
from longpoll_recorder.recorder import kept
from longpoll_spec.tables import with_table

POPS: Final = frozenset(code.value for code in PopCode) | {BATCH_ACK_MESSAGE}
SUCCESS: Final = ResponseCode.SUCCESS.value
CLOCKS_MS: Final = 1_000
"""The greatest difference between a client's clock and the observer's, network delay included, in milliseconds."""
RETRIED: Final = "retry"
"""The `cause` in events about a message that a pop read from the group's retry topic, and about requests for this
message."""
ORDERLY: Final = "orderly"
"""The `cause` in the event of an orderly pop."""
_MESSAGE: Final[dict[int, type[AckMessageRequestHeader]]] = {
    PopCode.ACK_MESSAGE: AckMessageRequestHeader,
    PopCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeRequestHeader,
}


def pop_fields(request: Command, unix_ms: int) -> Fields:
    """Returns the `request_received` fields of a request about pops, received at `unix_ms`; raises HeaderError."""
    if request.code == BATCH_ACK_MESSAGE:
        raise HeaderError("BATCH_ACK_MESSAGE", "body", "is not decoded here: it counts as lost")
    if request.code in _MESSAGE:
        return _message_fields(_MESSAGE[request.code].decode(request.ext_fields))
    header: PopMessageRequestHeader | NotificationRequestHeader
    if request.code == PopCode.POP_MESSAGE:
        header = popped = PopMessageRequestHeader.decode(request.ext_fields)
        own = {"count_max": popped.max_msg_nums, "delay_ms": kept(max(popped.invisible_time, 0))}
    else:
        header, own = NotificationRequestHeader.decode(request.ext_fields), {}
    born_ms = header.born_time or unix_ms
    is_told = abs(unix_ms - born_ms) <= CLOCKS_MS and not header.order
    return own | {
        "topic": header.topic,
        "queue": header.queue_id,
        "group": header.consumer_group,
        "may_hold": header.poll_time > 0 if is_told else None,
        "timeout_ms": kept(max(born_ms + header.poll_time - unix_ms, 0)) if header.poll_time > 0 else 0,
        "expression_type": header.exp_type or TAG if header.exp else TAG,
        "expression": header.exp or "*",
        "cause": ORDERLY if header.order else "",
    }


def _message_fields(header: AckMessageRequestHeader) -> Fields:
    handle = read_handle(header.extra_info)
    found: Fields = {
        "topic": normal_topic(header.topic, header.consumer_group),
        "queue": header.queue_id,
        "group": header.consumer_group,
        "queue_offset": kept(header.offset),
        "cause": RETRIED if handle.is_retry else "",
    }
    if isinstance(header, ChangeInvisibleTimeRequestHeader):
        found["delay_ms"] = kept(max(header.invisible_time, 0))
    return found


def pop_answer_fields(code: int, answer: Command) -> Fields:
    """Returns the fields of the event `answer_sent` for an answer to a request of this code.

    Raises HeaderError if a field of the answer is invalid.
    """
    if answer.code != SUCCESS or code != PopCode.NOTIFICATION:
        return {}
    told = NotificationResponseHeader.decode(answer.ext_fields)
    return {"cause": "woken" if told.has_msg else "busy" if told.polling_full else "expired"}


@with_table
class Popped(msgspec.Struct, frozen=True):
    """A message that a pop gets."""

    topic: str
    queue: int
    queue_offset: int
    tag: str
    ids: list[int]
    bodies: list[int]
    delay_ms: int
    """The invisible time of the message, in milliseconds."""
    cause: str
    """`RETRIED` for a message from the retry topic; otherwise empty."""

    def fields(self) -> Fields:
        """Returns the fields of this message's `message_popped` event."""
        return msgspec.structs.asdict(self)


def popped(answer: Command, group: str) -> list[Popped]:
    """Returns the messages in an answer to a pop; raises HeaderError."""
    if answer.code != SUCCESS:
        return []
    header = PopMessageResponseHeader.decode(answer.ext_fields)
    body, start = memoryview(answer.body), 0
    found: list[Popped] = []
    while start < len(body):
        head = HEAD.unpack_from(body, start) if len(body) - start >= HEAD_SIZE else None
        read = None if head is None else decode_record(body, start, len(body), head[PHYSICAL_OFFSET_FIELD])
        if read is None or isinstance(read, Damage):
            raise HeaderError("an answer to a pop", "body", f"is not a sequence of records at byte {start}")
        texts = [property_of(read.properties, name) or "" for name in (UNIQUE_KEY, TAGS, POP_HANDLE)]
        handle = read_handle(texts[2]) if texts[2] else None
        topic = normal_topic(read.topic, group)
        is_retried = topic != read.topic or (handle is not None and handle.is_retry)
        found.append(
            Popped(
                topic=topic,
                queue=read.queue_id,
                queue_offset=kept(read.queue_offset),
                tag=texts[1],
                ids=[id_of(texts[0])],
                bodies=[zlib.crc32(read.body)],
                delay_ms=kept(max(header.invisible_time, 0)),
                cause=RETRIED if is_retried else "",
            )
        )
        start += read.size
    return found

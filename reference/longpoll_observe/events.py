"""Converts commands to the fields of history events about pulls, their answers, and the messages that a send stores.

The functions are pure. Events cover only messages stored under the request's topic and queue: delayed, prepared and
retry messages are stored elsewhere, with other offsets. `tap` matches answers to requests.

Source: `SendMessageProcessor.java`, `PullMessageProcessor.java`, `CommitLog.java` (the topic and queue of a delayed
message).
"""

from __future__ import annotations

import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
from attrs import define

from longpoll_protocol.bodies import HeartbeatData, SubscriptionData
from longpoll_protocol.codes import SEND_SUCCESS_CODES, MessageSysFlag, PullSysFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Buffer, Command
from longpoll_protocol.headers import (
    EndTransactionRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from longpoll_protocol.log_record import (
    HEAD,
    HEAD_SIZE,
    LEVEL,
    MAGIC_V2,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Damage,
    property_of,
)
from longpoll_protocol.log_record import decode as decode_record
from longpoll_protocol.message import decode_batch
from longpoll_protocol.properties import (
    DELAY,
    INNER_OFFSETS,
    INNER_QUEUES,
    PREPARED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQUE_KEY,
    java_hash,
    read_properties,
)
from longpoll_recorder.recorder import kept
from longpoll_spec.tables import with_table

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value})
SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE.value, RequestCode.SEND_MESSAGE_V2.value, RequestCode.SEND_BATCH_MESSAGE.value}
)
PULL_RESULTS: Final = frozenset(
    {
        ResponseCode.SUCCESS.value,
        ResponseCode.PULL_NOT_FOUND.value,
        ResponseCode.PULL_RETRY_IMMEDIATELY.value,
        ResponseCode.PULL_OFFSET_MOVED.value,
    }
)
SUCCESS: Final = ResponseCode.SUCCESS.value
STORED: Final = frozenset(int(code) for code in SEND_SUCCESS_CODES)
SUSPEND: Final = int(PullSysFlag.SUSPEND)
CLASS_FILTER: Final = int(PullSysFlag.CLASS_FILTER)
TRANSACTION: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
TAG: Final = "TAG"
RETRY_TOPIC: Final = "%RETRY%"
TIMERS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties that delay the delivery of a message."""
END_TRANSACTION: Final = RequestCode.END_TRANSACTION.value
RANGES_MAX: Final = 10_000
"""The maximum number of ranges that are remembered per queue."""

ID_BITS: Final = 60
UNKNOWN_BODY: Final = -1
_SIZE: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_AFTER_HEAD: Final = 8 + 8 + 8 + 8 + 4
"""The number of bytes from the head of a record with IPv4 hosts to the length of its body (`log_record`)."""
_LONGER: Final = 12
_QUEUE_OFFSET_FIELD: Final = 5
_FLAGS_FIELD: Final = 7
_RECORD_SIZE_MIN: Final = 91
PHYSICAL_OFFSET_FIELD: Final = 6
_INNER_QUEUES: Final = re.compile(INNER_QUEUES.encode())

Fields = dict[str, Any]


@define(slots=True)
class Subscriptions:
    """The subscriptions of groups: maps (group, topic) to the latest version and its expression.

    Invariant: `_mixed` has the keys with two different expressions.
    """

    _latest: dict[tuple[str, str], tuple[int, str, str]]
    _mixed: set[tuple[str, str]]

    @classmethod
    def none(cls) -> Subscriptions:
        """Create an empty table."""
        return cls({}, set())

    def learn(self, heartbeat: Command) -> None:
        """Read a heartbeat (34); raises HeaderError."""
        for consumer in HeartbeatData.decode(heartbeat.body).consumer_data_set:
            for wanted in consumer.subscription_data_set:
                key = (consumer.group_name, wanted.topic)
                said = (wanted.sub_version, *_expression(wanted))
                known = self._latest.get(key)
                if known is not None and known[1:] != said[1:]:
                    self._mixed.add(key)
                if known is None or known[0] < said[0]:
                    self._latest[key] = said
                elif known[0] == said[0] and known != said:
                    # Two members have different expressions with one version. The broker keeps the expression that it
                    # received first, which is unknown here.
                    self._latest[key] = (said[0], "", "")

    def of(self, group: str, topic: str, version: int | None) -> tuple[str, str]:
        """Returns the type and text of the expression that the broker applies; two empty strings if unknown."""
        key = (group, topic)
        known = self._latest.get(key)
        if known is None or (key in self._mixed and known[0] != version):
            return "", ""
        return known[1], known[2]


def _expression(wanted: SubscriptionData) -> tuple[str, str]:
    """Returns the type and expression of a subscription; two empty strings if the broker may apply another expression.

    Brokers in Java compare the tag hashes in the heartbeat and ignore the expression's text.
    """
    kind, expression = wanted.expression_type or TAG, wanted.sub_string
    if wanted.class_filter_mode:
        return "", ""
    if kind == TAG and expression != "*":
        tags = {tag.strip() for tag in expression.split("||")}
        hashes = {java_hash(tag) for tag in tags if tag}
        if not hashes or wanted.code_set != hashes:
            return "", ""
    return kind, expression


def pull_fields(request: Command, subscriptions: Subscriptions) -> Fields:
    """Returns the fields of a pull's `request_received`; raises HeaderError."""
    header = PullMessageRequestHeader.decode(request.ext_fields)
    # Brokers find no match if the type is empty rather than absent.
    if header.sys_flag & CLASS_FILTER or (header.has_subscription and header.expression_type == ""):
        kind, expression = "", ""
    elif header.has_subscription:
        kind, expression = header.expression_type or TAG, header.subscription or "*"
    else:
        kind, expression = subscriptions.of(header.consumer_group, header.topic, header.sub_version)
    return {
        "topic": header.topic,
        "queue": header.queue_id,
        "group": header.consumer_group,
        "offset": kept(header.queue_offset),
        "count_max": header.max_msg_nums,
        "may_hold": header.may_hold,
        "timeout_ms": kept(header.suspend_timeout_millis or 0),
        "expression_type": kind,
        "expression": expression,
        "commit_offset": kept(max(header.commit_offset or 0, -1)) if header.has_commit_offset else -1,
    }


def pull_answer_fields(answer: Command) -> Fields:
    """Returns a pull's `answer_sent` fields except the request's fields and the messages; raises HeaderError."""
    if answer.code not in PULL_RESULTS:
        return {}
    header = PullMessageResponseHeader.decode(answer.ext_fields)
    return {
        "offset_next": kept(header.next_begin_offset),
        "offset_min": kept(header.min_offset),
        "offset_max": kept(header.max_offset),
    }


@with_table
class Delivered(msgspec.Struct):
    """The messages in the answer to a pull, as lists of equal length: each list has one value per message."""

    offsets: list[int] = []
    ids: list[int] = []
    bodies: list[int] = []
    tags: list[str] = []

    def add(self, offset: int, identity: tuple[int, int, str]) -> None:
        """Add a message."""
        self.offsets.append(offset)
        self.ids.append(identity[0])
        self.bodies.append(identity[1])
        self.tags.append(identity[2])


def delivered(body: Buffer, topic: str, queue: int) -> Delivered:
    """Returns the records in a body: their offsets in this queue, and their identities.

    Raises HeaderError if the body is truncated or is not a sequence of records, or if a record has no offset in this
    queue.
    """
    found = Delivered()
    start, stop = 0, len(body)
    # A record that is listed in several queues has the offset of its own queue at the usual position.
    has_inner = _INNER_QUEUES.search(body) is not None
    while start < stop:
        size = _SIZE.unpack_from(body, start)[0] if stop - start >= _RECORD_SIZE_MIN else 0
        if size < _RECORD_SIZE_MIN or start + size > stop:
            raise HeaderError("an answer to a pull", "body", f"is not a sequence of records at byte {start}")
        record = memoryview(body)[start : start + size]
        offset = _offset_in(record, topic, queue) if has_inner else HEAD.unpack_from(record)[_QUEUE_OFFSET_FIELD]
        found.add(offset, _identity(record))
        start += size
    return found


def _identity(record: memoryview) -> tuple[int, int, str]:
    """Returns the unique id, body and tag of a record; empty values if the lengths in the record are inconsistent."""
    magic, flags = HEAD.unpack_from(record)[1], HEAD.unpack_from(record)[_FLAGS_FIELD]
    at = HEAD_SIZE + _AFTER_HEAD
    at += _LONGER * (bool(flags & SYS_FLAG_BORN_HOST_V6) + bool(flags & SYS_FLAG_STORE_HOST_V6))
    try:
        body_end = at + 4 + _SIZE.unpack_from(record, at)[0]
        wide = magic == MAGIC_V2
        topic_size = _SHORT.unpack_from(record, body_end)[0] if wide else record[body_end]
        begin = body_end + 1 + wide + topic_size + 2
        end = begin + _SHORT.unpack_from(record, begin - 2)[0]
    except (struct.error, IndexError):
        return 0, UNKNOWN_BODY, ""
    if end != len(record) or body_end < at + 4:
        return 0, UNKNOWN_BODY, ""
    properties = bytes(record[begin:end])
    unique, tag = property_of(properties, UNIQUE_KEY), property_of(properties, TAGS)
    return id_of(unique or ""), zlib.crc32(record[at + 4 : body_end]), tag or ""


def id_of(unique: str) -> int:
    """Converts the unique id of a message to the message's number in a history; 0 if the unique id is empty."""
    return int.from_bytes(blake2b(unique.encode(), digest_size=8).digest()) >> (64 - ID_BITS) if unique else 0


class Places:
    """The offsets of the messages that the history has reported so far, as ranges for each queue."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, int], tuple[list[int], list[int]]] = {}

    def add(self, topic: str, queue: int, offset: int) -> bool:
        """Add a message's offset; returns whether it is new."""
        starts, ends = self._ranges.setdefault((topic, queue), ([], []))
        at = bisect_right(starts, offset)
        if at and offset < ends[at - 1]:
            return False
        joins_low, joins_high = at > 0 and ends[at - 1] == offset, at < len(starts) and starts[at] == offset + 1
        if joins_low and joins_high:
            ends[at - 1] = ends.pop(at)
            del starts[at]
        elif joins_low:
            ends[at - 1] = offset + 1
        elif joins_high:
            starts[at] = offset
        else:
            starts.insert(at, offset)
            ends.insert(at, offset + 1)
            if len(starts) > RANGES_MAX:
                del starts[0], ends[0]
        return True


def _offset_in(record: memoryview, topic: str, queue: int) -> int:
    """Returns a record's offset in the given queue, which is one of its queues; raises HeaderError."""
    read = decode_record(record, 0, len(record), HEAD.unpack_from(record)[PHYSICAL_OFFSET_FIELD])
    if isinstance(read, Damage):
        raise HeaderError("an answer to a pull", "body", f"has a record with {read.found} instead of {read.expected}")
    if (read.topic, read.queue_id) == (topic, queue):
        return read.queue_offset
    names, places = ((property_of(read.properties, name) or "").split(",") for name in (INNER_QUEUES, INNER_OFFSETS))
    found = [place for name, place in zip(names, places, strict=False) if name == topic]
    if len(found) == 1 and found[0].isdecimal():
        return kept(int(found[0]))
    raise HeaderError(
        "an answer to a pull", "body", f"has a record of another topic, {read.topic}, without a place in this one"
    )


@with_table
class Sent(msgspec.Struct, frozen=True):
    """The content of a send request: target, messages, and delivery time."""

    topic: str
    queue: int
    ids: list[int] = []
    bodies: list[int] = []
    tags: tuple[str, ...] = ()
    """The tag of each message; empty if the request's tags or the answer's offsets do not belong to these messages."""
    delay_ms: int = -1
    delay_level: int = -1
    transaction: str = ""

    def fields(self) -> Fields:
        """Returns the fields of the send's `request_received` event."""
        names = ("topic", "queue", "ids", "bodies", "delay_ms", "delay_level", "transaction")
        return {name: getattr(self, name) for name in names}


def read_send(request: Command) -> Sent:
    """Decode a send; raises HeaderError."""
    is_old = request.code == RequestCode.SEND_MESSAGE
    header = (SendMessageRequestHeader if is_old else SendMessageRequestHeaderV2).decode(request.ext_fields)
    shared = read_properties(header.properties)
    is_retry = header.topic.startswith(RETRY_TOPIC)
    if header.batch:
        own = [(each.body, read_properties(each.properties)) for each in decode_batch(request.body)]
        tags = tuple(properties.get(TAGS, "") for _body, properties in own)
        # Whether the tag of a request applies to its messages depends on the version of the broker.
        is_told = (
            not is_retry and not header.sys_flag & TRANSACTION and all(tag == shared.get(TAGS, tag) for tag in tags)
        )
        ids = [id_of(properties.get(UNIQUE_KEY, "")) for _body, properties in own]
        bodies = [zlib.crc32(body) for body, _properties in own]
        return Sent(header.topic, header.queue_id, ids, bodies, tags if is_told else ())
    level = shared.get(DELAY, "").strip()
    is_prepared = bool(header.sys_flag & TRANSACTION) or PREPARED in shared
    is_moved = is_retry or is_prepared or level not in {"", "0"} or any(name in shared for name in TIMERS)
    return Sent(
        header.topic,
        header.queue_id,
        [id_of(shared.get(UNIQUE_KEY, ""))],
        [zlib.crc32(request.body)],
        () if is_moved else (shared.get(TAGS, ""),),
        delay_ms=_delay_ms(shared),
        delay_level=int(level) if LEVEL.fullmatch(level) and int(level) else -1,
        transaction="prepared" if is_prepared else "",
    )


def _delay_ms(properties: Mapping[str, str]) -> int:
    """Returns the delay in ms that a send requests; -1 if it requests no delay, or delivery at an absolute time."""
    for name, unit in ((TIMER_DELAY_MS, 1), (TIMER_DELAY_SEC, 1_000)):
        if LEVEL.fullmatch(properties.get(name, "")):
            return int(properties[name]) * unit
    return -1


def ending_fields(request: Command) -> Fields:
    """Returns the `request_received` fields of a request that ends a transaction (37); raises HeaderError."""
    header = EndTransactionRequestHeader.decode(request.ext_fields)
    ends = {int(MessageSysFlag.TRANSACTION_COMMIT): "commit", int(MessageSysFlag.TRANSACTION_ROLLBACK): "rollback"}
    return {"ids": [id_of(header.msg_id)], "transaction": ends.get(header.commit_or_rollback, "unknown")}


def stored_at(answer: Command) -> tuple[int, int] | None:
    """Returns the queue and first offset of a send's messages; None if the send was refused. Raises HeaderError."""
    if answer.code not in STORED:
        return None
    header = SendMessageResponseHeader.decode(answer.ext_fields)
    return header.queue_id, header.queue_offset

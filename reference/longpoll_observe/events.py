"""What a command means for a history: the fields of a pull, of its answer, and of the messages that a send stores.

Pure functions over commands. Events are made only of what a broker keeps under the topic and queue of the request:
delayed and prepared messages and those sent to retry topics are stored elsewhere, and their offsets count there. Leaves
out which answer belongs to which request (`tap`).

Source: `SendMessageProcessor.java`, `PullMessageProcessor.java`, `CommitLog.java` (where a delayed message goes).
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final

import msgspec
from attrs import define

from longpoll_protocol.bodies import HeartbeatData, SubscriptionData
from longpoll_protocol.codes import SEND_SUCCESS_CODES, MessageSysFlag, PullSysFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Buffer
from longpoll_protocol.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from longpoll_protocol.log_record import HEAD, Damage, property_of
from longpoll_protocol.log_record import decode as decode_record
from longpoll_protocol.message import decode_batch
from longpoll_protocol.properties import DELAY, INNER_OFFSETS, INNER_QUEUES, TAGS, read_properties
from longpoll_protocol.tags import java_hash
from longpoll_recorder.offsets import kept
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
ELSEWHERE: Final = ("TRAN_MSG", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Properties by which a broker stores a message in another topic than its own."""

# What is read of a record in a pull's answer, big endian:
#
# | offset | size | field                      |
# |--------|------|----------------------------|
# | 0      | 4    | size of the whole record   |
# | 20     | 8    | queue offset               |
_SIZE: Final = struct.Struct(">i")
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20
_RECORD_SIZE_MIN: Final = 91
_PHYSICAL_OFFSET_FIELD: Final = 6
_INNER_QUEUES: Final = re.compile(INNER_QUEUES.encode())

Fields = dict[str, Any]


@define(slots=True)
class Subscriptions:
    """What groups said that they want, by (group, topic): the latest version and its expression.

    Invariant: `_mixed` holds the keys under which two different expressions were seen.
    """

    _latest: dict[tuple[str, str], tuple[int, str, str]]
    _mixed: set[tuple[str, str]]

    @classmethod
    def none(cls) -> Subscriptions:
        """Nothing is known yet."""
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
                    # Two members' under one number: the broker keeps what it heard first, by which connection ever.
                    self._latest[key] = (said[0], "", "")

    def of(self, group: str, topic: str, version: int | None) -> tuple[str, str]:
        """Expression type and expression that the broker applies; two empty texts when that cannot be told."""
        key = (group, topic)
        known = self._latest.get(key)
        if known is None or (key in self._mixed and known[0] != version):
            return "", ""
        return known[1], known[2]


def _expression(wanted: SubscriptionData) -> tuple[str, str]:
    """Type and expression; two empty texts where a broker may go by something else.

    Java's matches by the hashes that a heartbeat names, whatever its expression is.
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
    """The fields of a pull's `request_received`; raises HeaderError."""
    header = PullMessageRequestHeader.decode(request.ext_fields)
    # With an empty type, which is not an absent one, brokers find no message that matches.
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


def pull_answer_fields(answer: Command, topic: str, queue: int) -> Fields:
    """The fields of the `answer_sent` of a pull from a queue beyond its request's; raises HeaderError."""
    if answer.code not in PULL_RESULTS:
        return {}
    header = PullMessageResponseHeader.decode(answer.ext_fields)
    return {
        "offset_next": kept(header.next_begin_offset),
        "offset_min": kept(header.min_offset),
        "offset_max": kept(header.max_offset),
        "offsets": queue_offsets(answer.body, topic, queue) if answer.code == SUCCESS else [],
    }


def queue_offsets(body: Buffer, topic: str, queue: int) -> list[int]:
    """The offset in this queue of every record in a body.

    Raises HeaderError when it is cut or no sequence of records, or holds one that does not tell where it is there.
    """
    offsets = []
    start, stop = 0, len(body)
    # A record that several queues list has its offset in its own queue at the usual place.
    has_inner = _INNER_QUEUES.search(body) is not None
    while start < stop:
        size = _SIZE.unpack_from(body, start)[0] if stop - start >= _RECORD_SIZE_MIN else 0
        if size < _RECORD_SIZE_MIN or start + size > stop:
            raise HeaderError("an answer to a pull", "body", f"is not a sequence of records at byte {start}")
        if has_inner:
            offsets.append(_offset_in(memoryview(body)[start : start + size], topic, queue))
        else:
            offsets.append(_QUEUE_OFFSET.unpack_from(body, start + _QUEUE_OFFSET_AT)[0])
        start += size
    return offsets


def _offset_in(record: memoryview, topic: str, queue: int) -> int:
    """Where a record stands in a queue that may be one of several; raises HeaderError."""
    read = decode_record(record, 0, len(record), HEAD.unpack_from(record)[_PHYSICAL_OFFSET_FIELD])
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
    """What a send asks for: where to, and the tag of each message; none when they, or its offsets, mean nothing."""

    topic: str
    queue: int
    tags: tuple[str, ...]


def read_send(request: Command) -> Sent:
    """Read a send; raises HeaderError."""
    is_old = request.code == RequestCode.SEND_MESSAGE
    header = (SendMessageRequestHeader if is_old else SendMessageRequestHeaderV2).decode(request.ext_fields)
    if header.topic.startswith(RETRY_TOPIC) or header.sys_flag & TRANSACTION:
        return Sent(header.topic, header.queue_id, ())
    shared = read_properties(header.properties)
    if header.batch:
        own = tuple(read_properties(each.properties).get(TAGS, "") for each in decode_batch(request.body))
        # Whether a tag of the request counts in its messages too is a matter of the broker's version.
        is_told = all(tag == shared.get(TAGS, tag) for tag in own)
        return Sent(header.topic, header.queue_id, own if is_told else ())
    if shared.get(DELAY, "0").strip() not in {"", "0"} or any(name in shared for name in ELSEWHERE):
        return Sent(header.topic, header.queue_id, ())
    return Sent(header.topic, header.queue_id, (shared.get(TAGS, ""),))


def stored_at(answer: Command) -> tuple[int, int] | None:
    """Queue and first queue offset of what a send stored, None when it was refused; raises HeaderError."""
    if answer.code not in STORED:
        return None
    header = SendMessageResponseHeader.decode(answer.ext_fields)
    return header.queue_id, header.queue_offset

"""Messages as a consumer sees them: the records of a pull's response, decoded, decompressed and filtered by exact tags.

`longpoll_protocol.log_record` decodes the record's bytes. Only the broker evaluates SQL92.

Source: `MessageDecoder.decode`, `PullAPIWrapper.processPullResult`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from attrs import frozen
from msgspec.structs import replace

from longpoll_protocol.codes import MessageSysFlag
from longpoll_protocol.compression import unpack
from longpoll_protocol.errors import ProtocolError, RemoteProtocolError
from longpoll_protocol.frames import Buffer
from longpoll_protocol.log_record import (
    CRC_MASK,
    HEAD,
    HEAD_SIZE,
    MAGIC_V1,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Damage,
    Record,
    decode,
    host_text,
)
from longpoll_protocol.properties import KEYS, NAME_END, PAIR_END, RETRY_TOPIC, TAGS, UNIQUE_KEY, decode_properties
from longpoll_protocol.sizes import MIB
from longpoll_spec.tables import with_table

UNPACKED_SIZE_MAX: Final = 64 * MIB
"""Maximum bytes of a decompressed body. The broker accepts 4 MiB compressed, and zlib shrinks zeros a thousandfold."""


_PLAIN: Final = Struct(">iIiiiqqiq8sq8siqi")
"""A record of 4.x between IPv4 hosts, up to its body (`log_record.HEAD` and the next fields)."""
_PLAIN_SIZE: Final = _PLAIN.size
_unpack_plain: Final = _PLAIN.unpack_from
_crc32: Final = zlib.crc32
_KEY_MARK: Final = f"{UNIQUE_KEY}{NAME_END}".encode()
_PAIR_END: Final = PAIR_END.encode()
_PAIR_ENDS: Final = frozenset((b"", _PAIR_END))
"""The possible bytes before a property's name: none at the start, or the end of another property."""
MISSED_COUNT_MAX: Final = 2
_ODD_FLAGS: Final = int(MessageSysFlag.COMPRESSED) | SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6


@with_table
class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """One pulled message."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    """The body, decompressed if necessary."""
    properties: dict[str, str]
    msg_id: str
    """The id that the producer gave the message (`UNIQ_KEY`), or the broker's id if the producer gave none."""
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    physical_offset: int
    sys_flag: int
    flag: int
    reconsume_times: int

    @property
    def tag(self) -> str | None:
        """The message's tag."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The message's keys."""
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group: 1 the first time."""
        return self.reconsume_times + 1

    @property
    def timestamp(self) -> datetime:
        """The time when the message was sent, by its producer's clock; UTC."""
        return datetime.fromtimestamp(self.born_ms / 1000, UTC)


@frozen
class UnreadableMessage:
    """A message that was unreadable twice in a row: its record is damaged, or its body is not in the stated form."""

    topic: str
    queue_id: int
    queue_offset: int
    why: str
    record: bytes
    """The record's bytes as they were received."""

    @property
    def physical_offset(self) -> int | None:
        """The message's offset in its broker's log, or None if the record's head is incomplete."""
        return HEAD.unpack_from(self.record)[6] if len(self.record) >= HEAD_SIZE else None


def decode_messages(body: Buffer) -> list[ReceivedMessage]:
    """Decode the records of a pull's response; raises RemoteProtocolError for an unreadable record."""
    messages, error = decode_readable(body)
    if error is not None:
        raise error
    return messages


def decode_readable(body: Buffer) -> tuple[list[ReceivedMessage], RemoteProtocolError | None]:
    """Decode the records before the first unreadable record. Returns the messages and the error of that record."""
    # The body is copied once, because a slice of bytes costs half as much as a slice of a view, and each message has
    # several.
    data = bytes(body)
    messages: list[ReceivedMessage] = []
    at = 0
    try:
        while (at := read_plain(data, at, messages)) < len(data):
            record = _record(memoryview(data), at)
            messages.append(_message(record))
            at += record.size
    except RemoteProtocolError as error:
        return messages, error
    return messages, None


class AlikeTail(NamedTuple):
    """The parts that the tails (topic and properties) of most records share, because comparing is faster than decoding.

    A tail that begins with `before`, ends with `after` and has `size` bytes has the `known` properties, except for the
    unique key, if that key has only letters and digits.
    """

    before: bytes
    after: bytes
    size: int
    known: dict[str, str]

    @classmethod
    def of(cls, head: bytes, encoded: bytes, known: dict[str, str]) -> AlikeTail:
        """Return the shared parts, from a record's head (topic and lengths), its encoded tail and its properties."""
        before, mark, rest = encoded.partition(_KEY_MARK)
        if not mark or _KEY_MARK in rest or before[-1:] not in _PAIR_ENDS:
            return NO_TAIL
        after = rest[len(rest.partition(_PAIR_END)[0]) :]
        return cls(head + before + mark, after, len(head) + len(encoded), known)


NO_TAIL: Final = AlikeTail(b"", b"", -1, {})


def read_plain(data: bytes, at: int, messages: list[ReceivedMessage]) -> int:
    """Read messages from `at` on like `_record` and `_message`, but faster. Returns the position where reading stopped.

    The function stops at the first record that is damaged or unusual (not 4.x, not between IPv4 hosts, compressed), or
    at the end. If many tails differ, for example by their keys, the function no longer compares tails. All messages of
    a topic share one string for the topic's name.
    """
    last, whole = len(data) - _PLAIN_SIZE, len(data)
    starts_with, ends_with, add = data.startswith, data.endswith, messages.append
    topic, born_text, store_text, born_before, store_before = "", "", "", b"", b""
    before, after, tail_size, known = NO_TAIL
    before_size = after_size = missed_count = 0
    while at <= last:
        (
            size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms,
            store_host, reconsume_times, _prepared_offset, body_size,
        ) = _unpack_plain(data, at)  # fmt: skip
        body_at, end = at + _PLAIN_SIZE, at + size
        topic_at = body_at + body_size
        if magic != MAGIC_V1 or sys_flag & _ODD_FLAGS or body_size < 0 or not topic_at + 3 < end <= whole:
            return at
        body = data[body_at:topic_at]
        if _crc32(body) & CRC_MASK != crc:
            return at
        if born_host != born_before:
            born_before, born_text = born_host, host_text(born_host)
        if store_host != store_before:
            store_before, store_text = store_host, host_text(store_host)
        is_alike = end - topic_at == tail_size and starts_with(before, topic_at) and ends_with(after, topic_at, end)
        if is_alike and (key := data[topic_at + before_size : end - after_size]).isalnum():
            properties = known.copy()
            properties[UNIQUE_KEY] = msg_id = key.decode("ascii")
        else:
            name, properties_at = _name_of(data, topic_at, end)
            if not name:
                return at
            if name != topic:
                # The shortcut compares with the earlier topic, so it does not apply from here on.
                topic, tail_size = name, NO_TAIL.size
            properties = decode_properties(data[properties_at:end])
            msg_id = properties.get(UNIQUE_KEY) or f"{store_host.hex().upper()}{physical_offset:016X}"
            if missed_count <= MISSED_COUNT_MAX:
                missed_count += 1
                tail = AlikeTail.of(data[topic_at:properties_at], data[properties_at:end], properties)
                before, after, tail_size, known = tail
                before_size, after_size = len(before), len(after)
        add(ReceivedMessage(
            topic, queue_id, queue_offset, body, properties, msg_id, born_ms, born_text, store_ms,
            store_text, physical_offset, sys_flag, flag, reconsume_times,
        ))  # fmt: skip
        at = end
    return at


def _name_of(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the topic of a tail and where its properties begin. The topic is empty if the tail is damaged."""
    topic_end = at + 1 + data[at]
    properties_at = topic_end + 2
    if properties_at > end or end - properties_at != data[topic_end] << 8 | data[topic_end + 1]:
        return "", end
    try:
        return data[at + 1 : topic_end].decode(), properties_at
    except UnicodeDecodeError:
        return "", end


def _record(view: memoryview, at: int) -> Record:
    physical_offset = HEAD.unpack_from(view, at)[6] if len(view) - at >= HEAD_SIZE else 0
    record = decode(view, at, len(view), physical_offset)
    if isinstance(record, Damage):
        raise RemoteProtocolError(
            f"record at byte {at} of a pulled body is damaged at {record.offset}: "
            f"found {record.found}, expected {record.expected}"
        )
    return record


def as_first_sent(message: ReceivedMessage, retry_topic: str) -> ReceivedMessage:
    """Return a message of the group's retry topic with its original topic (`resetRetryAndNamespace`)."""
    origin = message.properties.get(RETRY_TOPIC)
    return message if origin is None or message.topic != retry_topic else replace(message, topic=origin)


def as_shown(message: ReceivedMessage, retry_topic: str, again_count: int) -> ReceivedMessage:
    """Return a message as the listener gets it, after `again_count` deliveries without the broker's knowledge."""
    shown = as_first_sent(message, retry_topic)
    return replace(shown, reconsume_times=shown.reconsume_times + again_count) if again_count else shown


def all_as_shown(
    messages: Sequence[ReceivedMessage], topic: str, retry_topic: str, again_count: int
) -> list[ReceivedMessage]:
    """Return the messages of a queue of `topic`, each changed by `as_shown`."""
    if topic != retry_topic and not again_count:
        return list(messages)
    return [as_shown(message, retry_topic, again_count) for message in messages]


def place_of(message: ReceivedMessage) -> str:
    """Return the message's position (topic, queue, offset) as text for the log."""
    return f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"


def _message(record: Record) -> ReceivedMessage:
    properties = decode_properties(record.properties)
    return ReceivedMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        body=_unpacked(record),
        properties=properties,
        msg_id=properties.get(UNIQUE_KEY) or f"{record.store_host.hex().upper()}{record.physical_offset:016X}",
        born_ms=record.born_ms,
        born_host=host_text(record.born_host),
        store_ms=record.store_ms,
        store_host=host_text(record.store_host),
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        flag=record.flag,
        reconsume_times=record.reconsume_times,
    )


def _unpacked(record: Record) -> bytes:
    try:
        return unpack(record.sys_flag, record.body, UNPACKED_SIZE_MAX)
    except ProtocolError as error:
        raise RemoteProtocolError(f"body at offset {record.queue_offset}: {error}") from None


def wanted_tags(expression: str) -> frozenset[str] | None:
    """Return the exact tags of an expression; None for all tags (`FilterAPI.buildSubscriptionData`)."""
    if expression in {"", "*"}:
        return None
    return frozenset(tag for part in expression.split("||") if (tag := part.strip()))

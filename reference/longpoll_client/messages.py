"""Messages as a consumer sees them: records of a pull's body, decoded, unpacked and filtered by their exact tags.

Leaves out the record's bytes (`longpoll_protocol.log_record`) and SQL92, which only the broker evaluates.

Source: `MessageDecoder.decode`, `PullAPIWrapper.processPullResult`.
"""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from longpoll_protocol.compression import unpack
from longpoll_protocol.errors import ProtocolError, RemoteProtocolError
from longpoll_protocol.frames.frame import Buffer
from longpoll_protocol.log_record import HEAD, HEAD_SIZE, Damage, Record, decode, host_text
from longpoll_protocol.properties import KEYS, RETRY_TOPIC, TAGS, UNIQUE_KEY, decode_properties
from longpoll_protocol.sizes import MIB

UNPACKED_SIZE_MAX: Final = 64 * MIB
"""Longest body that is unpacked; the broker takes 4 MiB packed, and zlib packs zeros a thousandfold."""


@frozen
class ReceivedMessage:
    """One message that was pulled."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    """Unpacked, if it came packed."""
    properties: dict[str, str]
    msg_id: str
    """The producer's id if it gave one (`UNIQ_KEY`), else the broker's."""
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    physical_offset: int
    sys_flag: int
    flag: int
    reconsume_times: int

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        """The message's keys, separated by spaces."""
        return self.properties.get(KEYS)


@frozen
class UnreadableMessage:
    """One message that cannot be read, twice in a row: its record is damaged, or its body not what it says."""

    topic: str
    queue_id: int
    queue_offset: int
    why: str
    record: bytes
    """As it came."""

    @property
    def physical_offset(self) -> int | None:
        """Where it stands in its broker's log, if the record's head is there."""
        return HEAD.unpack_from(self.record)[6] if len(self.record) >= HEAD_SIZE else None


def decode_messages(body: Buffer) -> list[ReceivedMessage]:
    """Decode the records of a pull's answer; raises RemoteProtocolError when one cannot be read."""
    messages, error = decode_readable(body)
    if error is not None:
        raise error
    return messages


def decode_readable(body: Buffer) -> tuple[list[ReceivedMessage], RemoteProtocolError | None]:
    """The records of a pull's answer before the first that cannot be read, and what is wrong with that one."""
    view = memoryview(body)
    messages: list[ReceivedMessage] = []
    at = 0
    try:
        while at < len(view):
            record = _record(view, at)
            messages.append(_message(record))
            at += record.size
    except RemoteProtocolError as error:
        return messages, error
    return messages, None


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
    """A message of the group's retry topic under the topic that it was first sent to (`resetRetryAndNamespace`)."""
    origin = message.properties.get(RETRY_TOPIC)
    return message if origin is None or message.topic != retry_topic else evolve(message, topic=origin)


def _message(record: Record) -> ReceivedMessage:
    properties = decode_properties(record.properties)
    broker_id = f"{record.store_host.hex().upper()}{record.physical_offset:016X}"
    return ReceivedMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        body=_unpacked(record),
        properties=properties,
        msg_id=properties.get(UNIQUE_KEY, broker_id),
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
    """The exact tags that an expression asks for; None for all (`FilterAPI.buildSubscriptionData`)."""
    if expression in {"", "*"}:
        return None
    return frozenset(tag for part in expression.split("||") if (tag := part.strip()))

"""Data types of the store, and the limits of names and messages.

Frequent types are `msgspec.Struct`s, because one object is created per message. Format on disk: see
`longpoll_protocol.log_record`. Reading: see `store.selection`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import msgspec
from attrs import frozen
from msgspec.structs import replace

from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import (
    NOT_LISTED,
    SYS_FLAG_TRANSACTION_MASK,
    Lookup,
    with_zeros,
)
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.names import NAME_SIZE_MAX
from longpoll_spec.tables import with_table


class MessageToStore(msgspec.Struct, frozen=True, gc=False):
    """A message from the send processor (`MessageExtBrokerInner.java`)."""

    topic: str
    """The topic: at most 127 bytes of UTF-8, and a safe file name."""
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    r"""The encoded properties (name \x01 value \x02 ...), at most 32,767 bytes."""
    tags_code: int
    """The hash of the message's TAGS property (`record.tags_code`); 0 without tags."""
    born_ms: int
    born_host: bytes
    """The producer's address, then its port as int32 (`record.host_bytes`): 8 bytes for IPv4 or 20 for IPv6."""
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    """The message's flags. The store sets the two bits for IPv6 hosts, from the hosts' lengths."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    inner_queues: tuple[tuple[str, int], ...] = ()
    """Additional queues that list the message, by topic and id, in the order of its property `INNER_MULTI_DISPATCH`."""

    @property
    def in_queue(self) -> bool:
        """Whether the message goes into a consume queue; the rule is that of `Record.in_queue`."""
        return self.sys_flag & SYS_FLAG_TRANSACTION_MASK not in NOT_LISTED


@lru_cache(maxsize=64)
def _host_text(store_host: bytes) -> str:
    return store_host.hex().upper()


@with_table
class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The position of an appended message (`AppendMessageResult.java`)."""

    queue_offset: int
    physical_offset: int
    size: int
    """Size of the whole record, bytes."""
    store_ms: int
    store_host: bytes

    @property
    def msg_id(self) -> str:
        """The broker's message id: store host and physical offset in upper-case hexadecimal (32 or 56 characters)."""
        return f"{_host_text(self.store_host)}{self.physical_offset:016X}"

    @property
    def log_end(self) -> int:
        """The record's end in the log. The message is durable once `flushed_end` has reached this offset."""
        return self.physical_offset + self.size


@with_table
class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One visible message: the arguments of `NotifyMessageArrivingListener.arriving`."""

    topic: str
    queue_id: int
    offset_end: int
    """The queue's visible end after this message: its queue offset plus one."""
    tags_code: int
    store_ms: int
    physical_offset: int
    """The record's offset in the log, for filters by properties (`MessageStore.record_at`)."""
    size: int

    @property
    def log_end(self) -> int:
        """The record's end in the log."""
        return self.physical_offset + self.size


@with_table
class QueryResult(msgspec.Struct, frozen=True):
    """The result of a query by key (`QueryMessageResult.java`)."""

    records: list[memoryview]
    """Slices of the mapped log, one whole record each, oldest first; release them before the store closes."""
    index_end_ms: int
    """`indexLastUpdateTimestamp`: store timestamp of the last indexed message; 0 if the index does not have the key."""
    index_end_offset: int
    """`indexLastUpdatePhyoffset`: physical offset of the last indexed message; 0 if the index does not have the key."""


@frozen
class QueueRange:
    """One queue and its readable offsets [`offset_min`, `offset_max`)."""

    topic: str
    queue_id: int
    offset_min: int
    offset_max: int


TagsMatch = Callable[[int], bool]


class ByProperties(Protocol):
    """A filter on message properties. Matching a message takes longer with a longer expression."""

    @property
    def expression(self) -> str:
        """The text of the filter's expression."""
        ...

    def matches_properties(self, lookup: Lookup, /) -> bool:
        """Whether a message with these properties matches."""
        ...


Matches = tuple[TagsMatch | None, ByProperties | None]
"""Filters by tags code and by properties; a filter that is None matches every message.

Source: `isMatchedByConsumeQueue` and `isMatchedByCommitLog`."""
ALL: Final[Matches] = (None, None)


class GetStatus(enum.StrEnum):
    """The status of a read (`GetMessageStatus.java`), without the two statuses that 5.x added."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@with_table
class GetResult(msgspec.Struct, frozen=True):
    """The result of reading a queue (`GetMessageResult.java`)."""

    status: GetStatus
    offset_next: int
    """The offset at which the client continues (`nextBeginOffset`)."""
    offset_min: int
    offset_max: int
    records: list[memoryview]
    """Slices of the mapped log with whole records in queue order; adjacent records share a slice.

    Send or copy them soon, and release them before the store closes, because a slice keeps its file mapped.
    """
    offsets: list[int]
    """The queue offset of each message, even if a slice in `records` contains several messages."""
    size_bytes: int
    """Sum of the lengths of `records`."""
    suggest_slave: bool
    """`suggestPullingFromSlave`: whether the requested messages are too far behind the log's end to be in memory."""


QUEUE_ID_MAX: Final = 2**31 - 1
FOUND_NAME_SIZE_MAX: Final = 255
"""Maximum bytes of a topic in an existing log: the file system's limit, because 5.x has long retry topics."""


def is_storable(message: MessageToStore, body_size_max: int) -> bool:
    """Whether a message is within the limits and can be stored unchanged."""
    properties = message.properties
    return len(message.body) <= body_size_max and len(properties) <= PROPERTIES_SIZE_MAX and b"\0" not in properties


def storable(message: MessageToStore, body_size_max: int) -> MessageToStore:
    """Returns the message in its stored form; raises MessageRefusedError if a limit is exceeded."""
    properties = message.properties
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise MessageRefusedError(
            f"the properties have {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX} are allowed"
        )
    if len(message.body) > body_size_max:
        raise MessageRefusedError(f"the body has {len(message.body)} bytes, at most {body_size_max} are allowed")
    return replace(message, properties=with_zeros(properties)) if b"\0" in properties else message


def check_place(topic: str, queue_id: int, *, size_max: int = NAME_SIZE_MAX) -> None:
    """Raise MessageRefusedError if a queue's name is not a safe path or does not fit a record."""
    check_topic(topic, size_max)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise MessageRefusedError(f"queue id {queue_id} is not from 0 to {QUEUE_ID_MAX}")


def check_topic(topic: str, size_max: int = NAME_SIZE_MAX) -> None:
    """Raise MessageRefusedError unless the name fits a record and is a safe path component."""
    size = len(topic.encode("utf-8", "surrogatepass"))
    if not 0 < size <= size_max:
        raise MessageRefusedError(f"the topic's name has {size} bytes, from 1 to {size_max} are allowed")
    if topic in {".", ".."} or "/" in topic or not topic.isprintable():
        raise MessageRefusedError(f"the topic name {topic!r} cannot be a directory name")

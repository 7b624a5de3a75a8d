"""Data that goes into the store and comes out of it.

Frequent types are `msgspec.Struct`s: one is created per message. Format on disk: see `longpoll_protocol.log_record`.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
from attrs import frozen

from longpoll_spec.tables import with_table


class MessageToStore(msgspec.Struct, frozen=True, gc=False):
    """A message from the send processor (`MessageExtBrokerInner.java`)."""

    topic: str
    """At most 127 bytes of UTF-8 and a safe file name."""
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    """Encoded: name \\x01 value \\x02 ..., at most 32,767 bytes."""
    tags_code: int
    """`record.tags_code` of the message's TAGS property; 0 without tags."""
    born_ms: int
    born_host: bytes
    """`record.host_bytes`: the address, then the port as int32; 8 bytes (IPv4) or 20 (IPv6)."""
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    """The store sets the two bits for IPv6 hosts, from the hosts' lengths."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    inner_queues: tuple[tuple[str, int], ...] = ()
    """Additional queues that list it, by topic and id, in the order of its property `INNER_MULTI_DISPATCH`."""


@lru_cache(maxsize=64)
def _host_text(store_host: bytes) -> str:
    return store_host.hex().upper()


@with_table
class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The place of an appended message (`AppendMessageResult.java`)."""

    queue_offset: int
    physical_offset: int
    size: int
    """Bytes of the whole record."""
    store_ms: int
    store_host: bytes

    @property
    def msg_id(self) -> str:
        """The broker's message id: store host and physical offset in upper-case hexadecimal (32 or 56 characters)."""
        return f"{_host_text(self.store_host)}{self.physical_offset:016X}"

    @property
    def log_end(self) -> int:
        """The record's end; the message is durable once `flushed_end` has reached it."""
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
        """The record's end."""
        return self.physical_offset + self.size


@with_table
class QueryResult(msgspec.Struct, frozen=True):
    """The result of a query by key (`QueryMessageResult.java`)."""

    records: list[memoryview]
    """Slices of the mapped log, one whole record each, oldest first; release them before the store closes."""
    index_end_ms: int
    """`indexLastUpdateTimestamp`: store timestamp of the last indexed message; 0 when the index has no such key."""
    index_end_offset: int
    """`indexLastUpdatePhyoffset`: physical offset of the last indexed message; 0 in the same case."""


@frozen
class QueueRange:
    """One queue and its readable offsets [`offset_min`, `offset_max`)."""

    topic: str
    queue_id: int
    offset_min: int
    offset_max: int

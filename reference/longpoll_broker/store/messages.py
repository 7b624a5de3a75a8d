"""What goes into the store and what comes out of it, as plain data.

The hot ones are `msgspec.Struct`s: one is made for every message sent. Leaves out the bytes on disk (`record`).
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
from attrs import frozen

from longpoll_spec.tables import with_table


class MessageToStore(msgspec.Struct, frozen=True, gc=False):
    """A message as the send processor hands it over (`MessageExtBrokerInner.java`)."""

    topic: str
    """At most 127 bytes of UTF-8 and a safe file name."""
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    """Encoded: name \\x01 value \\x02 ..., at most 32,767 bytes."""
    tags_code: int
    """`record.tags_code` of the message's TAGS property; 0 when it has none."""
    born_ms: int
    born_host: bytes
    """`record.host_bytes`: the address, then the port as int32; 8 bytes (IPv4) or 20 (IPv6)."""
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    """The two bits that tell IPv6 hosts are set by the store, from the hosts' lengths."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    inner_queues: tuple[tuple[str, int], ...] = ()
    """Further queues that list it, by topic and id, in the order of its property `INNER_MULTI_DISPATCH`."""


@lru_cache(maxsize=64)
def _host_text(store_host: bytes) -> str:
    """A host in upper-case hexadecimal; a store has very few."""
    return store_host.hex().upper()


@with_table
class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Where an appended message stands (`AppendMessageResult.java`)."""

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
        """Where the record ends; the message is durable once `flushed_end` has reached it."""
        return self.physical_offset + self.size


@with_table
class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One message made visible: what `NotifyMessageArrivingListener.arriving` is told."""

    topic: str
    queue_id: int
    offset_end: int
    """The queue's visible end after this message: its queue offset plus one."""
    tags_code: int
    store_ms: int
    physical_offset: int
    """Where the record stands, for a filter that needs its properties (`MessageStore.record_at`)."""
    size: int

    @property
    def log_end(self) -> int:
        """Where the record ends."""
        return self.physical_offset + self.size


@with_table
class QueryResult(msgspec.Struct, frozen=True):
    """What a query by key found (`QueryMessageResult.java`)."""

    records: list[memoryview]
    """Slices of the mapped log, one whole record each, oldest first; drop them before the store closes."""
    index_end_ms: int
    """`indexLastUpdateTimestamp`: store timestamp of the last indexed message; 0 when the index has no such key."""
    index_end_offset: int
    """`indexLastUpdatePhyoffset`: its physical offset; 0 likewise."""


@frozen
class QueueRange:
    """One queue and what a consumer can read of it: offsets [`offset_min`, `offset_max`)."""

    topic: str
    queue_id: int
    offset_min: int
    offset_max: int

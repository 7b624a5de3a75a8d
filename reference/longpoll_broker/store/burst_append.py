"""Appends many messages at the cost of one: one timestamp, one write to the map, one call to the dispatcher.

A long batch follows the rules of `MessageStore.put_batch`. The records of a long batch are encoded in parts before the
append, without a lock; the append only fills in their offsets and store times. `MessageExtBatchEncoder` and `doAppend`
of 4.9 divide the work in the same way.

A burst stores exactly the bytes that `MessageStore.put` stores in its simplest case: an existing queue, no limit
exceeded, and enough reserved space in the current file. The burst ends before the first message that does not meet
these conditions, and `put` stores that message. The caller handles locks.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from attrs import define, field

from longpoll_broker.store.commit_log import CommitLog, encode_record
from longpoll_broker.store.consume_queue import ConsumeQueue, QueueTable
from longpoll_broker.store.messages import Arrival, MessageToStore, PutResult, is_storable, storable
from longpoll_broker.store.queue_builder import Handed
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import SCHEDULE_TOPIC, SYS_FLAG_TRANSACTION_MASK

# In a record (`longpoll_protocol.log_record`), queue offset and log offset are adjacent. The store time follows the
# born host, which has 8 or 20 bytes.
_PLACE: Final = struct.Struct(">qq")
_PLACE_AT: Final = 20
_STORE_MS: Final = struct.Struct(">q")
_BORN_HOST_AT: Final = 48


@define(slots=True, eq=False)
class PreparedBatch:
    """Records of one queue without offsets. Invariant: `sizes` and `tags_codes` have one item per record."""

    topic: str
    queue_id: int
    body_size_max: int
    content: bytearray = field(factory=bytearray, init=False)
    """The records, concatenated."""
    sizes: array[int] = field(factory=lambda: array("i"), init=False)
    tags_codes: array[int] = field(factory=lambda: array("q"), init=False)
    _first: MessageToStore | None = field(default=None, init=False)

    @property
    def first(self) -> MessageToStore:
        """The first message; all others have the same queue, hosts and birth time. Requires an earlier `add`."""
        assert self._first is not None
        return self._first

    def add(self, messages: Sequence[MessageToStore]) -> None:
        """Encode more messages; raises MessageRefusedError as `MessageStore.put` does."""
        topic = self.topic.encode()
        topic_part = bytes((len(topic),)) + topic
        records = []
        for message in messages:
            assert (message.topic, message.queue_id, message.inner_queues) == (self.topic, self.queue_id, ())
            assert message.in_queue
            record = encode_record(storable(message, self.body_size_max), topic_part, 0, 0, 0)
            records.append(record)
            self.sizes.append(len(record))
            self.tags_codes.append(message.tags_code)
        self.content += b"".join(records)
        self._first = self._first or messages[0]

    def place(self, queue_offset: int, start: int, store_ms: int) -> None:
        """Write the store time and the offsets into the records; the arguments give the first record's offsets."""
        content, pack_place, pack_time = self.content, _PLACE.pack_into, _STORE_MS.pack_into
        time_at = _BORN_HOST_AT + len(self.first.born_host)
        at = 0
        for size in self.sizes:
            pack_place(content, at + _PLACE_AT, queue_offset, start + at)
            pack_time(content, at + time_at, store_ms)
            queue_offset += 1
            at += size

    def starts(self, first: PutResult) -> Iterator[int]:
        """Iterate over the physical offsets of the records, given the result of the first record."""
        return accumulate(self.sizes[:-1], initial=first.physical_offset)

    def arrivals(self, first: PutResult) -> Iterator[Arrival]:
        """Iterate over the arrivals of the messages."""
        topic, queue_id, store_ms = self.topic, self.queue_id, first.store_ms
        parts = zip(self.starts(first), self.sizes, self.tags_codes, strict=True)
        for offset_end, (start, size, tags_code) in enumerate(parts, first.queue_offset + 1):
            yield Arrival(topic, queue_id, offset_end, tags_code, store_ms, start, size)

    def results(self, first: PutResult) -> Iterator[PutResult]:
        """Iterate over the results of the messages."""
        for number, (start, size) in enumerate(zip(self.starts(first), self.sizes, strict=True)):
            yield PutResult(first.queue_offset + number, start, size, first.store_ms, first.store_host)


def append_burst(
    log: CommitLog, table: QueueTable, messages: Sequence[MessageToStore], store_ms: int, body_size_max: int
) -> list[Handed]:
    """Append messages up to the first that is not plain; returns the queue and arrival of each stored message.

    A message is plain if its queue exists, no limit is exceeded and the current file has room for it. The caller holds
    the append lock and hands the result over to the dispatcher.
    """
    topics = table.topics
    start, sure_end = log.end, log.sure_end
    records: list[bytes] = []
    burst: list[Handed] = []
    for message in messages:
        topic = topics.get(message.topic)
        queue = topic.queues.get(message.queue_id) if topic is not None else None
        if topic is None or queue is None or not _is_plain(message, body_size_max):
            break
        if queue.offset_next >= queue.room_end:
            break
        try:
            record = encode_record(message, topic.part, queue.offset_next, start, store_ms)
        except MessageRefusedError:
            break
        size = len(record)
        if start + size > sure_end:
            break
        records.append(record)
        burst.append((queue, _numbered(queue, message, start, size, store_ms)))
        start += size
    if records:
        log.append_records(records)
    return burst


def append_prepared(
    log: CommitLog, queue: ConsumeQueue, batch: PreparedBatch, store_ms: int
) -> tuple[PutResult, list[Handed]]:
    """Append a long batch for which room is reserved; returns the first result, and each message's queue and arrival.

    The caller holds the append lock and hands the arrivals over to the dispatcher. This function raises nothing.
    """
    first = PutResult(queue.offset_next, log.end, batch.sizes[0], store_ms, batch.first.store_host)
    batch.place(first.queue_offset, first.physical_offset, store_ms)
    log.append_records((batch.content,))
    queue.offset_next += len(batch.sizes)
    return first, [(queue, arrival) for arrival in batch.arrivals(first)]


def _is_plain(message: MessageToStore, body_size_max: int) -> bool:
    return (
        is_storable(message, body_size_max)
        and not message.sys_flag & SYS_FLAG_TRANSACTION_MASK
        and not message.inner_queues
        and message.topic != SCHEDULE_TOPIC
    )


def _numbered(queue: ConsumeQueue, message: MessageToStore, start: int, size: int, store_ms: int) -> Arrival:
    """Assign the queue's next offset to a message and return its arrival. No later step of the append can fail."""
    queue.offset_next += 1
    return Arrival(message.topic, message.queue_id, queue.offset_next, message.tags_code, store_ms, start, size)

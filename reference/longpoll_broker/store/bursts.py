"""Appends a burst of messages at the cost of one: a time stamp, a write to the map, a hand-over to the dispatcher.

Only what `MessageStore.put` would do in its plainest form, and byte for byte that: a message to a queue that there is,
within the limits, in the part of the present file that has its disk blocks. A burst ends before the
first message that is not so. Leaves out locks and everything that can fail; `put` does such a message.
"""

from __future__ import annotations

from collections.abc import Sequence

from longpoll_broker.store.dispatch import Handed
from longpoll_broker.store.limits import is_storable
from longpoll_broker.store.log.commit_log import CommitLog, encode_record
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_broker.store.queues.consume_queue import ConsumeQueue
from longpoll_broker.store.queues.queue_table import QueueTable
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import SCHEDULE_TOPIC, SYS_FLAG_TRANSACTION_MASK


def append_burst(
    log: CommitLog, table: QueueTable, messages: Sequence[MessageToStore], store_ms: int, body_size_max: int
) -> list[Handed]:
    """Append messages up to the first that is not plain; each one's queue and arrival, in order.

    The caller holds the append lock and hands over what it gets.
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


def _is_plain(message: MessageToStore, body_size_max: int) -> bool:
    return (
        is_storable(message, body_size_max)
        and not message.sys_flag & SYS_FLAG_TRANSACTION_MASK
        and not message.inner_queues
        and message.topic != SCHEDULE_TOPIC
    )


def _numbered(queue: ConsumeQueue, message: MessageToStore, start: int, size: int, store_ms: int) -> Arrival:
    """How a message will arrive, with the queue's next offset, which is taken. Nothing can fail from here on."""
    queue.offset_next += 1
    return Arrival(message.topic, message.queue_id, queue.offset_next, message.tags_code, store_ms, start, size)

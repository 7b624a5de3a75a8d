"""Puts messages into the store for everybody who has some: producers, the schedule, send-backs, ended transactions.

Also turns a delayed message into one of the schedule topic, and back. Leaves out making messages visible
(`hold.dispatch_service`) and when a delayed one is due (`rocketmq.timers.schedule_service`).

Sources: `CommitLog.asyncPutMessage`, `ScheduleMessageService.messageTimeup` 4.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Final

from attrs import define
from msgspec.structs import replace

from longpoll_broker.send.send_events import SendEvents
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store.burst_append import PreparedBatch
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore, PutResult
from longpoll_protocol.log_record import SCHEDULE_TOPIC, Record
from longpoll_protocol.properties import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    PropertiesForm,
    read_properties,
    write_properties,
)
from longpoll_protocol.tags import java_hash
from longpoll_runtime import Runtime

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_MASK: Final = 0xC
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


@define(slots=True, eq=False)
class Appender:
    """Appends messages; callable from any thread."""

    runtime: Runtime
    store: MessageStore
    events: SendEvents
    statistics: Statistics | None = None

    def append(self, message: MessageToStore, tag: str) -> PutResult:
        """Append one message; raises what `MessageStore.put` raises."""
        self.runtime.step("append")
        after_ns = self.events.now_ns()
        result = self.store.put(message)
        if self.statistics is not None:
            self.statistics.count_put(message.topic, messages=1, size=result.log_end - result.physical_offset)
        self.events.appended(((message, tag, result),), after_ns)
        return result

    def append_burst(self, messages: Sequence[MessageToStore]) -> Sequence[Arrival]:
        """Append as many of these, from the first on, as `MessageStore.put_burst` does; their events are not told."""
        self.runtime.step("append")
        arrivals = self.store.put_burst(messages)
        if self.statistics is not None:
            for topic, together in groupby(arrivals, key=lambda arrival: arrival.topic):
                sizes = [arrival.size for arrival in together]
                self.statistics.count_put(topic, messages=len(sizes), size=sum(sizes))
        return arrivals

    def append_batch(self, messages: Sequence[tuple[MessageToStore, str]]) -> list[PutResult]:
        """Append messages with their tags, all or none; raises what `MessageStore.put_batch` raises."""
        self.runtime.step("append")
        after_ns = self.events.now_ns()
        results = self.store.put_batch([message for message, _tag in messages])
        if self.statistics is not None:
            size = results[-1].log_end - results[0].physical_offset
            self.statistics.count_put(messages[0][0].topic, messages=len(results), size=size)
        stored = ((message, tag, result) for (message, tag), result in zip(messages, results, strict=True))
        self.events.appended(stored, after_ns)
        return results

    def append_prepared(self, batch: PreparedBatch, tags: Sequence[str]) -> PutResult:
        """Append a long batch whose messages have these tags; where the first one is.

        Raises what `MessageStore.put_prepared` raises.
        """
        self.runtime.step("append")
        after_ns = self.events.now_ns()
        first = self.store.put_prepared(batch)
        if self.statistics is not None:
            self.statistics.count_put(batch.first.topic, messages=len(tags), size=len(batch.content))
        self.events.appended(((batch.first, *each) for each in zip(tags, batch.results(first), strict=True)), after_ns)
        return first


def delayed(
    message: MessageToStore, properties: dict[str, str], level: int, form: PropertiesForm, *, level_count: int
) -> MessageToStore:
    """The message as the schedule topic holds it; a level beyond the last is the last."""
    assert level > 0
    if level > level_count:
        level = level_count
        properties[DELAY] = str(level)
    return moved(message, properties, SCHEDULE_TOPIC, level - 1, form)


def moved(
    message: MessageToStore, properties: dict[str, str], topic: str, queue_id: int, form: PropertiesForm
) -> MessageToStore:
    """The message in another topic, with its own topic and queue kept as properties."""
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=topic, queue_id=queue_id, properties=write_properties(properties, form))


def brought_back(
    record: Record, form: PropertiesForm, *, forgets_place: bool = False, more: Mapping[str, str] = NO_PROPERTIES
) -> tuple[MessageToStore, str] | None:
    """The message of a schedule or half record in its own topic, and its tag; None when it does not say where.

    Its properties stay as they are stored, also those that brought it there unless `forgets_place`, and get `more`.
    """
    properties = read_properties(record.properties.decode("utf-8", "surrogatepass"))
    topic, queue_text = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    if not topic or not (queue_text.isascii() and queue_text.isdigit() and len(queue_text) <= 10):
        return None
    if forgets_place:
        del properties[REAL_TOPIC], properties[REAL_QUEUE_ID]
    tag = properties.get(TAGS, "")
    properties |= more
    message = MessageToStore(
        topic=topic,
        queue_id=int(queue_text),
        body=bytes(record.body),
        properties=write_properties(properties, form),
        tags_code=java_hash(tag),
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        flag=record.flag,
        sys_flag=record.sys_flag & ~TRANSACTION_MASK,
        reconsume_times=record.reconsume_times,
    )
    return message, tag

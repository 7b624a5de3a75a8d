"""Appends messages to the store, and reports sends to the history.

Messages come from producers, the schedule, send-backs and ended transactions. This module also moves a delayed message
to the schedule topic and back. Visibility: see `hold.hold_service`. Delivery of delayed messages: see
`rocketmq.delay_levels`.

Sources: `CommitLog.asyncPutMessage`, `ScheduleMessageService.messageTimeup` 4.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store.burst_append import PreparedBatch
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore, PutResult
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.log_record import SCHEDULE_TOPIC, Record
from longpoll_protocol.properties import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    PropertiesForm,
    java_hash,
    read_properties,
    write_properties,
)
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Lock, Runtime

Stored: TypeAlias = tuple[MessageToStore, str, PutResult]
"""A message, its tag, and its position in the log."""

_TOPIC: Final = attrgetter("topic")


class SendRequest(msgspec.Struct, frozen=True, gc=False):
    """One send request and the connection that sent it."""

    channel: Channel
    command: Command
    header: SendMessageRequestHeader
    number: int
    """The request's number on its connection, starting at 1."""


class SendEvents:
    """Receives the events of sends; this base class records nothing.

    `after_ns` is a value of `now_ns` that was read before the event began.
    """

    __slots__ = ()

    def now_ns(self) -> int:
        """Returns the recorder's time; 0 if nothing is recorded."""
        return 0

    def received(self, asked: SendRequest) -> None:
        """Called when a send has arrived."""

    def refused(self, asked: SendRequest, code: int, outbox: Outbox) -> None:
        """Called before a send is answered with an error code."""

    def acknowledged(self, asked: SendRequest, stored: Iterable[Stored], outbox: Outbox) -> None:
        """Called before a send is answered with success."""

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """Called when these messages are in the log."""


HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_MASK: Final = 0xC
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
COPIED_SIZE_MAX: Final = 256 * MIB
"""Maximum bytes of existing messages that all peers together may have stored again in `COPIED_NS`.

A `Quota` limits each connection and account."""
COPIED_NS: Final = 10_000_000_000


@define(slots=True, eq=False)
class Appender:
    """Appends messages; callable from any thread."""

    runtime: Runtime
    store: MessageStore
    events: SendEvents
    statistics: Statistics | None = None
    _copied: Quota | None = field(default=None, init=False)
    """The bytes copied since `_copied_ns`."""
    _copied_ns: int = field(default=0, init=False)
    _copied_lock: Lock = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._copied_lock = self.runtime.lock()

    def may_copy(self, channel: Channel, size: int) -> bool:
        """Whether a peer's request may store `size` bytes of an existing message again; if so, counts these bytes."""
        now_ns = self.runtime.monotonic_ns()
        with self._copied_lock:
            if self._copied is None or now_ns - self._copied_ns >= COPIED_NS:
                self._copied, self._copied_ns = Quota("bytes of copies", COPIED_SIZE_MAX), now_ns
            return self._copied.take(object(), channel, size)

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
        """Append as many of the first messages as `MessageStore.put_burst` accepts; records no events."""
        self.runtime.step("append")
        arrivals = self.store.put_burst(messages)
        if self.statistics is not None:
            for topic, group in groupby(arrivals, key=_TOPIC):
                together = list(group)
                # The records are adjacent in the log, so the end of the last record and the start of the first record
                # give the size without a loop.
                size = together[-1].log_end - together[0].physical_offset
                self.statistics.count_put(topic, messages=len(together), size=size)
        return arrivals

    def append_batch(self, messages: Sequence[tuple[MessageToStore, str]]) -> list[PutResult]:
        """Append all messages with their tags, or none; raises what `MessageStore.put_batch` raises."""
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
        """Append a long batch with these tags; returns the result of the first message.

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
    """Returns the message for the schedule topic; a level above the highest level counts as the highest."""
    assert level > 0
    if level > level_count:
        level = level_count
        properties[DELAY] = str(level)
    return moved(message, properties, SCHEDULE_TOPIC, level - 1, form)


def moved(
    message: MessageToStore, properties: dict[str, str], topic: str, queue_id: int, form: PropertiesForm
) -> MessageToStore:
    """Returns the message for another topic, with its original topic and queue as properties."""
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=topic, queue_id=queue_id, properties=write_properties(properties, form))


def brought_back(
    record: Record, form: PropertiesForm, *, forgets_place: bool = False, more: Mapping[str, str] = NO_PROPERTIES
) -> tuple[MessageToStore, str] | None:
    """Returns the original message of a schedule or half record, and its tag; None if the record has no original topic.

    The properties stay as stored, with `more` added; `forgets_place` removes the original topic and queue.
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

"""Delivers 5.x's timed messages from the queue of the topic `rmq_sys_wheel_timer`, and recalls waiting messages (370).

A message is delivered in the first whole second at or after the requested time, which is one second after its property
`TIMER_OUT_MS`. A recall is stored as a message that waits for the same second. The messages of one second are handled
together: a recall removes the recalled messages and itself.

Progress is in `config/timerOffset.json`, which is saved twice a second. As in RocketMQ, messages delivered after the
last save are delivered again after a crash. RocketMQ's files (`timerwheel`, `timerlog`) are not written. Invalid
messages of this topic are skipped, while RocketMQ stops at them permanently.

Storing timed messages: see `send.message_builder`. Source: `TimerMessageStore.java`, `RecallMessageProcessor.java` 5.5;
answers as seen on 5.5.0, where recalls are off without `recallMessageEnable`.
"""

from __future__ import annotations

import heapq
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import TopicLeavingError
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.send.append import Appender, brought_back
from longpoll_broker.send.message_builder import (
    DELAY_MS_MAX,
    PRECISION_MS,
    TIME_SIZE_MAX,
    SendRefusedError,
    timer_message,
)
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.timer_offsets import TimerCounts, TimerOffsets
from longpoll_broker.shared.topics import Topics
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import RecallMessageRequestHeader
from longpoll_protocol.log_record import Record
from longpoll_protocol.message import RecallHandle, read_handle
from longpoll_protocol.names import PERM_WRITE, TIMER_TOPIC
from longpoll_protocol.properties import (
    CLUSTER,
    REAL_TOPIC,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_RECALLED_KEY,
    UNIQUE_KEY,
    PropertiesForm,
    java_hash,
    read_properties,
)
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS
from longpoll_runtime.services import ServiceThread

log = logging.getLogger(__name__)

POLL_MS: Final = 100
READ_COUNT: Final = 256
"""Number of messages read before the thread checks again whether it must stop."""
SHOWN_COUNT: Final = 256
"""Number of messages delivered before they become visible; one second may have a million messages."""


_Entry: TypeAlias = tuple[int, int, int, str]
"""A waiting message: its `TIMER_OUT_MS`, queue offset, time of reading, and target topic."""


@define(slots=True, eq=False)
class TimerService(ServiceThread):
    """The thread that delivers timed messages; `run` does one round.

    Invariant: `_due` lists the messages that are read and not delivered.
    """

    NAME = "timer"

    store: MessageStore
    appender: Appender
    offsets: TimerOffsets
    appended: Callable[[], None]
    """Called at the end of each round, to make the appended messages visible."""
    form: PropertiesForm
    counts: TimerCounts = field(factory=TimerCounts)
    _due: list[_Entry] = field(factory=list, init=False)
    """A heap of the waiting messages, ordered by delivery time."""
    _pending: list[int] = field(factory=list, init=False)
    """A heap of the queue offsets of the messages in `_due`, and of some offsets in `_gone`."""
    _gone: set[int] = field(factory=set, init=False)
    _read: int | None = field(default=None, init=False)
    """The next queue offset to read; None before the first round."""

    def _run(self) -> None:
        while not self._stop.wait(POLL_MS / 1000):
            try:
                self.run()
            except FAULTS:
                log.exception("messages that wait for a time could not be delivered; trying again")

    def run(self) -> None:
        """Read new messages, and deliver the messages that are due. Raises OSError."""
        # Messages that arrive later wait for the next round, so that endless sends do not delay due messages.
        end = self.store.visible_end(TIMER_TOPIC, 0)
        while self._read_some(end):
            if self._stop.is_set():
                return
        try:
            while self._due and self._due[0][0] + PRECISION_MS <= self.runtime.unix_ms():
                if not self._deliver_second():
                    break
        finally:
            self.appended()

    def _read_some(self, end: int) -> bool:
        """Read messages before `end` and their delivery times; returns whether more messages follow."""
        store, state = self.store, self.offsets
        start = min(max(state.first if self._read is None else self._read, store.visible_start(TIMER_TOPIC, 0)), end)
        stop = min(start + READ_COUNT, end)
        for offset in range(start, stop):
            due_ms, topic = self._due_at(offset)
            if due_ms is None:
                log.error("message %d of %s waits for no time and is passed over", offset, TIMER_TOPIC)
            elif offset >= state.read or due_ms > state.delivered_ms:
                now_ms = self.runtime.unix_ms()
                heapq.heappush(self._due, (due_ms, offset, now_ms, topic))
                heapq.heappush(self._pending, offset)
                self.counts.add(topic, 1, now_ms)
        self._read = stop
        state.pending_count = len(self._due)
        return stop < end

    def _due_at(self, offset: int) -> tuple[int | None, str]:
        """Returns a message's delivery time and target topic; the time is None if the message is not timed."""
        record = self._record(offset)
        properties = {} if record is None else _properties(record)
        text = properties.get(TIMER_OUT_MS, "")
        due_ms = int(text) if text.isascii() and text.isdigit() and len(text) <= TIME_SIZE_MAX else None
        return due_ms, sys.intern(properties.get(REAL_TOPIC, ""))

    def _record(self, offset: int) -> Record | None:
        unit = self.store.unit(TIMER_TOPIC, 0, offset)
        return None if unit is None else self.store.read_record(unit[0])

    def _deliver_second(self) -> bool:
        """Deliver the messages of the first second; returns false if they must wait until a topic is deleted."""
        second_ms = self._due[0][0]
        taken = []
        while self._due and self._due[0][0] == second_ms:
            taken.append(heapq.heappop(self._due))
        recalled = self._recalled(taken)
        for number, entry in enumerate(taken):
            if number % SHOWN_COUNT == SHOWN_COUNT - 1:
                self.appended()
            try:
                self._deliver(entry, recalled)
            except (TopicLeavingError, OSError, MemoryError) as error:
                # This message and later messages are tried again in the next round. The earlier messages are already
                # delivered.
                for left in taken[number:]:
                    heapq.heappush(self._due, left)
                self._forget(taken[:number])
                if isinstance(error, TopicLeavingError):
                    return False
                raise
        self._forget(taken)
        while self._pending and self._pending[0] in self._gone:
            self._gone.discard(heapq.heappop(self._pending))
        read = self._read or 0
        # A message that is read late may be due before messages that were already delivered, but its delivery must not
        # reduce the saved delivery time.
        delivered_ms = max(self.offsets.delivered_ms, second_ms)
        if self._due:
            delivered_ms = min(delivered_ms, self._due[0][0] - 1)
        self.offsets.put(self._pending[0] if self._pending else read, read, delivered_ms, len(self._due))
        return True

    def _forget(self, gone: Sequence[_Entry]) -> None:
        now_ms = self.runtime.unix_ms()
        self._gone.update(offset for _due_ms, offset, _read_ms, _topic in gone)
        for topic, count in Counter(topic for _due_ms, _offset, _read_ms, topic in gone).items():
            self.counts.add(topic, -count, now_ms)

    def _recalled(self, taken: Sequence[_Entry]) -> set[tuple[str, str]]:
        """Returns the topic and key of each message that a recall of the same second removes."""
        found = set()
        for _due_ms, offset, _read_ms, _topic in taken:
            record = self._record(offset)
            properties = {} if record is None else _properties(record)
            if TIMER_RECALLED_KEY in properties:
                found.add((properties.get(REAL_TOPIC, ""), properties[TIMER_RECALLED_KEY]))
        return found

    def _deliver(self, entry: _Entry, recalled: set[tuple[str, str]]) -> None:
        _due_ms, offset, read_ms, _topic = entry
        try:
            record = self._record(offset)
            if record is None:
                log.error("message %d of %s is not in the log any more", offset, TIMER_TOPIC)
                return
            properties = _properties(record)
            if TIMER_RECALLED_KEY in properties:
                return
            if (properties.get(REAL_TOPIC, ""), properties.get(UNIQUE_KEY, "")) in recalled:
                return
            times = {
                TIMER_ENQUEUE_MS: str(read_ms // PRECISION_MS * PRECISION_MS),
                TIMER_DEQUEUE_MS: str(self.runtime.unix_ms()),
            }
            found = brought_back(record, self.form, more=times)
            if found is None or found[0].topic == TIMER_TOPIC:
                log.error("message %d of %s has no topic to go to and is dropped", offset, TIMER_TOPIC)
                return
            self.appender.append(*found)
        except MessageRefusedError as error:
            log.error("message %d of %s cannot be delivered: %s", offset, TIMER_TOPIC, error)  # noqa: TRY400 - no fault of ours


def _properties(record: Record) -> dict[str, str]:
    return read_properties(record.properties.decode("utf-8", "surrogatepass"))


RECALL_TAG: Final = "_RECALL_TAG_"
_FIELDS: Final = {"MSG_REGION": "DefaultRegion"}
_NOT_HERE: Final = "recall failed, broker service not available"
_NO_HANDLE: Final = (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
_MARKS: Final = re.compile(r"[\0\1\2]")
"""Characters that a key must not contain, because they would add properties to the recall message."""
_TIME: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


@define(slots=True, eq=False)
class RecallProcessor(Serving):
    """The processor of RECALL_MESSAGE (code 370), which removes a timed message before its delivery."""

    runtime: Runtime
    config: BrokerConfig
    role: BrokerRole
    topics: Topics
    appender: Appender
    store_host: bytes
    form: PropertiesForm

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 370: recall a message by its handle; succeeds even if the message was delivered or recalled already."""
        header = RecallMessageRequestHeader.decode(command.ext_fields)
        handle = read_handle(header.recall_handle)
        if handle is not None and (not handle.key or _MARKS.search(handle.key)):
            handle = None
        refusal = self._off() or self._refusal(header.topic, handle)
        if refusal is not None or handle is None:
            return answer(command, *(refusal or _NO_HANDLE), _FIELDS)
        try:
            self.appender.append(self._message(channel, handle), RECALL_TAG)
        except (SendRefusedError, MessageRefusedError, OSError) as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {error}", _FIELDS)
        # RocketMQ's reply has this remark even on success.
        return answer(command, ResponseCode.SUCCESS, "not set any response code", {"msgId": handle.key, **_FIELDS})

    def _off(self) -> tuple[int, str] | None:
        if not self.config.recall_message:
            return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
        if self.role.is_slave:
            return ResponseCode.SLAVE_NOT_AVAILABLE, _NOT_HERE
        if not self.config.permission & PERM_WRITE:
            return ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_HERE
        return None

    def _refusal(self, topic: str, handle: RecallHandle | None) -> tuple[int, str] | None:
        """Returns why a recall is refused, or None if it is allowed or the handle is invalid."""
        if self.topics.get(topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic[:127]}] not exist"
        if handle is None:
            return None
        if handle.topic != topic:
            return ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match"
        if handle.broker_name != self.config.broker_name:
            return ResponseCode.ILLEGAL_OPERATION, _NOT_HERE
        left_ms = int(handle.time) - self.runtime.unix_ms() if _TIME.fullmatch(handle.time) else 0
        if not 0 < left_ms < DELAY_MS_MAX:
            return ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid"
        return None

    def _message(self, channel: Channel, handle: RecallHandle) -> MessageToStore:
        now_ms = self.runtime.unix_ms()
        properties = {
            TIMER_RECALLED_KEY: handle.key,
            UNIQUE_KEY: handle.key,
            TIMER_DELIVER_MS: handle.time,
            TAGS: RECALL_TAG,
            CLUSTER: self.config.cluster_name,
        }
        message = MessageToStore(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            properties=b"",
            tags_code=java_hash(RECALL_TAG),
            born_ms=now_ms,
            born_host=channel.host_bytes or self.store_host,
            store_host=self.store_host,
        )
        return timer_message(message, properties, self.form, now_ms)

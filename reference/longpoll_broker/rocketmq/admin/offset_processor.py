"""Serves offsets of groups (14, 15) and queues (29 to 32), and messages by offset (33) and key (12).

A query by key compares topic and key, because the index contains only hashes; RocketMQ leaves this comparison to the
client. Index: see `store.index`. `recorded` adds commits and queries of offsets to a history; commits in pulls: see
`hold.hold_service`.

Source: `ConsumerManageProcessor.java`, `AdminBrokerProcessor.java`, `QueryMessageProcessor.java` 4.9; answers as seen
on 4.9.7.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any, Final

from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor, Serving, Turns, answer, serves
from longpoll_broker.shared.offsets import OFFSETS_FULL, Offsets
from longpoll_broker.shared.topics import Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command, FrameReader, decode_frame
from longpoll_protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from longpoll_recorder.recorder import (
    OFFSET_CODES,
    RESETTING_CODES,
    HistoryRecorder,
    offset_fields,
    resetting_fields,
    told_offset,
)

UNIQUE_KEY_FLAG: Final = "_UNIQUE_KEY_QUERY"
"""`MixAll.UNIQUE_MSG_QUERY_FLAG`: the key is a unique key, and the requested count is ignored."""
UNIQUE_KEY_COUNT: Final = 32
"""`defaultQueryMaxNum`: maximum number of messages that a query by unique key returns."""
_BOOT_FIRST: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


@define(slots=True, eq=False)
class OffsetProcessor(Serving):
    """The processors for offsets and for message queries."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    store: MessageStore
    traits: Traits = STRICT_TRAITS

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 14: return the group's offset; for a new group, 0 if the queue's first message exists, else code 22."""
        header = QueryConsumerOffsetRequestHeader.decode(command.ext_fields)
        offset = self.offsets.query(header.topic, header.consumer_group, header.queue_id)
        if offset is None or offset < 0:
            problem = self._no_offset(header)
            if problem is not None:
                return answer(command, ResponseCode.QUERY_NOT_FOUND, problem)
            offset = 0
        return self._offset(command, offset)

    def _no_offset(self, header: QueryConsumerOffsetRequestHeader) -> str | None:
        """Returns why a group without a committed offset does not get offset 0, or None if it gets offset 0."""
        topic, queue_id = header.topic, header.queue_id
        if self.traits.zero_for_stored_only:
            if header.set_zero_if_not_found is False:
                return "Not found, do not set to zero, maybe this group boot first"
            if self.store.unit(topic, queue_id, 0) is None:
                return _BOOT_FIRST
        return _BOOT_FIRST if self.store.visible_start(topic, queue_id) > 0 else None

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_offset(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 15: store the group's offset, without checking that the queue has a message at this offset."""
        if self.traits.commits_of_known_only:
            refusal = self._unknown(command)
            if refusal is not None:
                return refusal
        header = UpdateConsumerOffsetRequestHeader.decode(command.ext_fields)
        for kind, name in (("group", header.consumer_group), ("topic", header.topic)):
            if len(name) > self.groups.size_max:
                return answer(
                    command,
                    ResponseCode.SYSTEM_ERROR,
                    f"the {kind}'s name is longer than {self.groups.size_max} characters",
                )
        stored = self.offsets.commit(
            header.topic, header.consumer_group, header.queue_id, header.commit_offset, channel=channel
        )
        if not stored:
            return answer(command, ResponseCode.SYSTEM_ERROR, OFFSETS_FULL)
        if not self.traits.offsets_outlive_topics and self.topics.get(header.topic) is None:
            self.offsets.note_stray(header.topic, header.consumer_group)
        return answer(command, ResponseCode.SUCCESS)

    def _unknown(self, command: Command) -> Parts | None:
        """Returns the refusal of a commit that lacks a field or has an unknown group or topic, or None."""
        fields = command.ext_fields or {}
        group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
        if group not in self.groups.by_name:
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:255]} not exist!")
        if self.topics.get(topic) is None:
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic[:127]} not exist!")
        for field, name in (("queueId", "QueueId"), ("commitOffset", "Offset")):
            if field not in fields:
                return answer(command, ResponseCode.INVALID_PARAMETER, f"{name} is null, topic is {topic}")
        return None

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 29: return the offset of the message whose store time is nearest to a given time."""
        header = SearchOffsetRequestHeader.decode(command.ext_fields)
        topic, queue_id = header.topic, header.queue_id
        if not self.traits.searches_by_boundary:
            return self._offset(command, self.store.offset_by_time(topic, queue_id, header.timestamp))
        upper = (header.boundary_type or "").upper() == "UPPER"
        return self._offset(command, self._by_boundary(topic, queue_id, header.timestamp, upper=upper))

    def _by_boundary(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """Returns the offset for a time by 5.x's rule: the first message at or after it, or the last at or before it.

        Returns the queue's end if every message is older and `upper` is false. 4.9 uses the nearest message instead
        (`store.selection`). Source: `ConsumeQueue.binarySearchInQueueByTime` 5.x.
        """

        def stored_ms(offset: int) -> int:
            found = self.store.store_ms_of(topic, queue_id, offset)
            # A removed message counts as older than all existing messages.
            return -1 if found is None else found

        start = self.store.visible_start(topic, queue_id)
        offsets = range(start, self.store.visible_end(topic, queue_id))
        if upper:
            return max(start + bisect_right(offsets, time_ms, key=stored_ms) - 1, 0)
        return start + bisect_left(offsets, time_ms, key=stored_ms)

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 30: return the queue's visible end."""
        header = GetMaxOffsetRequestHeader.decode(command.ext_fields)
        return self._offset(command, self.store.visible_end(header.topic, header.queue_id))

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 31: return the queue's visible start."""
        header = GetMinOffsetRequestHeader.decode(command.ext_fields)
        return self._offset(command, self.store.visible_start(header.topic, header.queue_id))

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_time(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 32: return the store time of the queue's first message, ms; -1 if the queue is empty."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(command.ext_fields)
        start = self.store.visible_start(header.topic, header.queue_id)
        stored_ms = self.store.store_ms_of(header.topic, header.queue_id, start)
        return answer(command, ResponseCode.SUCCESS, None, {"timestamp": str(-1 if stored_ms is None else stored_ms)})

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 33: return the record at a physical offset of the log."""
        offset = ViewMessageRequestHeader.decode(command.ext_fields).offset
        record = self.store.record_at(offset) if offset >= 0 else None
        if record is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return answer(command, ResponseCode.SUCCESS, None, None, record)

    @serves(RequestCode.QUERY_MESSAGE)
    def query_messages(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 12: return the newest messages with a key; answers with code 22 if no message has the key.

        A long search lets other connections be served in between, and answers at its end.
        """
        header = QueryMessageRequestHeader.decode(command.ext_fields)
        count_max = header.max_num
        if (command.ext_fields or {}).get(UNIQUE_KEY_FLAG) == "true":
            count_max = UNIQUE_KEY_COUNT
        if count_max < 0:
            raise HeaderError("QueryMessageRequestHeader", "maxNum", f"is {count_max}, less than 0")
        found = yield from self.store.query(
            header.topic, header.key, count_max, header.begin_timestamp, header.end_timestamp
        )
        fields = {
            "indexLastUpdateTimestamp": str(found.index_end_ms),
            "indexLastUpdatePhyoffset": str(found.index_end_offset),
        }
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return answer(command, ResponseCode.SUCCESS, None, fields, b"".join(found.records))

    @staticmethod
    def _offset(command: Command, offset: int) -> Parts:
        return answer(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})


def recorded(processors: Mapping[int, Processor], recorder: HistoryRecorder) -> dict[int, Processor]:
    """Wrap the processors of offsets to record their requests and answers in a history."""
    kinds = dict.fromkeys(OFFSET_CODES, _recorded) | dict.fromkeys(RESETTING_CODES, _told_of)
    return {
        code: kinds[code](processor, recorder) if code in kinds else processor for code, processor in processors.items()
    }


def _told_of(processor: Processor, recorder: HistoryRecorder) -> Processor:
    """Wrap a processor to record only its requests, without an identifier, because the answers do not matter."""

    def process(channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        fields: dict[str, Any] = resetting_fields(command) | {"connection": str(channel.number)}
        recorder.put("request_received", channel.received_ns, code=command.code, **fields)
        return processor(channel, command, outbox)

    return process


def _recorded(processor: Processor, recorder: HistoryRecorder) -> Processor:
    def process(channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        try:
            fields = offset_fields(command)
        except HeaderError:
            return processor(channel, command, outbox)
        channel.request_count += 1
        fields["connection"] = str(channel.number)
        # A one-way request has no answer, so it gets no identifier.
        if not command.is_one_way:
            fields["request"] = f"{channel.number}-{channel.request_count}"
        recorder.put("request_received", channel.received_ns, code=command.code, **fields)
        reply = processor(channel, command, outbox)
        if reply is not None and not command.is_one_way:
            frames = FrameReader()
            frames.feed(b"".join(reply))
            frame = frames.next_frame()
            assert frame is not None, "a reply is one frame"
            told = decode_frame(frame)
            place = {name: fields[name] for name in ("topic", "queue", "request", "connection")}
            sent = place | {"code": told.code} | told_offset(command.code, told)
            after_ns = recorder.now_ns()
            outbox.after_answer(channel, lambda: recorder.put("answer_sent", after_ns, **sent))
        return reply

    return process

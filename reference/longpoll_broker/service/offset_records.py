"""Records what groups commit by themselves, what they are told of their offsets (14, 15), and what may put these back.

A step around the processors, so that these know nothing of histories. Leaves out what pulls commit along: that stands
in their own events (`pull_service`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from longpoll_broker.record import HistoryRecorder
from longpoll_broker.service.channel import Channel, Outbox, Parts
from longpoll_broker.service.exchange import Processor
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command, decode_frame
from longpoll_protocol.frames.frame import FrameReader
from longpoll_protocol.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader

OFFSET_CODES: Final = (int(RequestCode.QUERY_CONSUMER_OFFSET), int(RequestCode.UPDATE_CONSUMER_OFFSET))

RESETTING_CODES: Final = (207, 215, 222, 314)
"""Requests that change a group's offsets without being commits: the group is deleted, or the topic, the offsets are put
to a moment, or are copied from another group."""


def resetting_fields(request: Command) -> dict[str, str]:
    """Whose offsets such a request changes; empty texts stand for any group, or any topic."""
    fields = request.ext_fields or {}
    groups = (fields.get(name) for name in ("groupName", "destGroup", "group"))
    return {"group": next(filter(None, groups), ""), "topic": fields.get("topic", "")}


def offset_fields(request: Command) -> dict[str, Any]:
    """The fields of the `request_received` of a query or an update of an offset; raises HeaderError."""
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        update = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        asked = {"topic": update.topic, "queue": update.queue_id, "group": update.consumer_group}
        return asked | {"commit_offset": max(update.commit_offset, -1)}
    query = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
    return {"topic": query.topic, "queue": query.queue_id, "group": query.consumer_group}


def told_offset(code: int, answer: Command) -> dict[str, int]:
    """What an answer to a request of this code tells: the committed offset, where it is one; raises HeaderError."""
    if code != RequestCode.QUERY_CONSUMER_OFFSET or answer.code != ResponseCode.SUCCESS:
        return {}
    told = (answer.ext_fields or {}).get("offset", "")
    if not told.lstrip("-").isdecimal() or len(told) > 19:
        raise HeaderError("an answer to a query of an offset", "offset", f"is no number but {told[:40]!r}")
    return {"offset": max(int(told), -1)}


def recorded(processors: Mapping[int, Processor], recorder: HistoryRecorder) -> dict[int, Processor]:
    """The processors, of which those of offsets record what they are asked and what they say."""
    kinds = dict.fromkeys(OFFSET_CODES, _recorded) | dict.fromkeys(RESETTING_CODES, _told_of)
    return {
        code: kinds[code](processor, recorder) if code in kinds else processor for code, processor in processors.items()
    }


def _told_of(processor: Processor, recorder: HistoryRecorder) -> Processor:
    """The request is told without an identifier: what was answered is of no interest."""

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
        # Nobody answers a one-way request, so it has no identifier by which an answer could be missed.
        if not command.is_one_way:
            fields["request"] = f"{channel.number}-{channel.request_count}"
        recorder.put("request_received", channel.received_ns, code=command.code, **fields)
        reply = processor(channel, command, outbox)
        if reply is not None and not command.is_one_way:
            frames = FrameReader()
            frames.feed(b"".join(reply))
            frame = frames.next_frame()
            assert frame is not None, "a reply is one frame"
            answer = decode_frame(frame)
            place = {name: fields[name] for name in ("topic", "queue", "request", "connection")}
            told = place | {"code": answer.code} | told_offset(command.code, answer)
            after_ns = recorder.now_ns()
            outbox.after_answer(channel, lambda: recorder.put("answer_sent", after_ns, **told))
        return reply

    return process

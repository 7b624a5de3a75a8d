"""Records explicit commits and offset queries of groups (14, 15), and requests that may reset offsets.

Wraps the processors, so that they need no recording. Commits in pulls: see `hold.hold_service`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command, FrameReader, decode_frame
from longpoll_recorder.recorder import (
    OFFSET_CODES,
    RESETTING_CODES,
    HistoryRecorder,
    offset_fields,
    resetting_fields,
    told_offset,
)


def recorded(processors: Mapping[int, Processor], recorder: HistoryRecorder) -> dict[int, Processor]:
    """Wrap the processors of offsets to record their requests and answers."""
    kinds = dict.fromkeys(OFFSET_CODES, _recorded) | dict.fromkeys(RESETTING_CODES, _told_of)
    return {
        code: kinds[code](processor, recorder) if code in kinds else processor for code, processor in processors.items()
    }


def _told_of(processor: Processor, recorder: HistoryRecorder) -> Processor:
    """Record the request without an identifier, because its answer does not matter."""

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
            answer = decode_frame(frame)
            place = {name: fields[name] for name in ("topic", "queue", "request", "connection")}
            told = place | {"code": answer.code} | told_offset(command.code, answer)
            after_ns = recorder.now_ns()
            outbox.after_answer(channel, lambda: recorder.put("answer_sent", after_ns, **told))
        return reply

    return process

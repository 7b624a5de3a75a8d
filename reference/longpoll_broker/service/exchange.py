"""How a processor is called and how it answers.

A processor takes (channel, command, outbox) and returns the buffers of its reply, or None when it has none yet (a held
pull). Leaves out which processor serves which code (`service.broker`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from longpoll_broker.core.faults import FAULTS
from longpoll_broker.errors import HeaderError
from longpoll_broker.service.channel import Channel, Outbox, Parts
from longpoll_broker.wire.codes import ResponseCode
from longpoll_broker.wire.command import Command, encode_reply_head
from longpoll_broker.wire.frame import EMPTY, Buffer, Serialisation

log = logging.getLogger(__name__)

Processor = Callable[[Channel, Command, Outbox], Parts | None]


def answer(
    command: Command,
    code: int,
    remark: str | None = None,
    fields: dict[str, str] | None = None,
    body: Buffer = EMPTY,
) -> Parts:
    """The reply to a command."""
    head = encode_reply_head(command, code, remark=remark, ext_fields=fields, body_size=len(body))
    return (head, body) if len(body) else (head,)


def serve(processors: Mapping[int, Processor], channel: Channel, command: Command, outbox: Outbox) -> None:
    """Have a command processed and its reply queued; a failure becomes code 1 and costs nobody else anything."""
    if command.is_response:
        return
    processor = processors.get(command.code)
    parts: Parts | None
    if processor is None:
        parts = answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
    else:
        parts = call(processor, channel, command, outbox)
    if parts is not None and not command.is_one_way:
        outbox.write(channel, parts)


def call(processor: Processor, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
    """Call a processor; what it raises becomes a reply with code 1, in JSON and without fields as Java's are."""
    try:
        return processor(channel, command, outbox)
    except HeaderError as error:
        remark = str(error)
    except FAULTS as error:
        log.exception("request %d of %s failed", command.code, channel)
        remark = f"{type(error).__name__}: {error}"
    return (encode_reply_head(command, ResponseCode.SYSTEM_ERROR, remark=remark, serialisation=Serialisation.JSON),)

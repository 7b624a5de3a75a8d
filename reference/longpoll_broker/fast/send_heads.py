"""Sends whose fields are read in the same pass as their header, and whose answers are patched into a template."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from longpoll_broker.io.channel import Outbox, Parts
from longpoll_broker.send.send_events import Asked, Stored
from longpoll_broker.send.send_processor import SendProcessor
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.fast.send_answer import encode_send_head
from longpoll_protocol.fast.send_request import SendCommand
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Serialisation
from longpoll_protocol.headers import SendMessageRequestHeader

_JSON = Serialisation.JSON
_RESPONSE = CommandFlag.RESPONSE.value


@define(slots=True, eq=False)
class PatchedSendProcessor(SendProcessor):
    """`SendProcessor` for connections that read sends (`TypedConnection`); it serves any other as well."""

    _is_patched: bool = field(init=False)
    """Whether an answer is given at once, with nothing in it but the message's place."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._is_patched = not self.keepers.are_there and not self.traits.returns_transaction_id

    def header_of(self, command: Command) -> SendMessageRequestHeader:
        """The request's header; raises as that of `SendProcessor` does."""
        return command.header if type(command) is SendCommand else super().header_of(command)

    def acknowledge_one(
        self, asked: Asked, queue_id: int, stored: Stored, properties: Mapping[str, str], outbox: Outbox
    ) -> Parts | None:
        """The answer to a message that is in the log; None when it follows once the message is durable."""
        command, result = asked.command, stored[2]
        # A message that goes through another topic may have more in its answer.
        if not self._is_patched or command.serialisation is not _JSON or stored[0].topic != asked.header.topic:
            return super().acknowledge_one(asked, queue_id, stored, properties, outbox)
        self.events.acknowledged(asked, (stored,), outbox)
        place = (result.physical_offset, result.queue_offset)
        return (encode_send_head(command.opaque, _RESPONSE, queue_id, self.host_digits, *place),)

"""Sends parsed together with their headers, and answered from a template."""

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
    """`SendProcessor` for connections with parsed sends (`TypedConnection`); it serves others too."""

    _is_patched: bool = field(init=False)
    """Whether answers are immediate and contain only the message's place."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._is_patched = not self.keepers.are_there and not self.traits.returns_transaction_id

    def header_of(self, command: Command) -> SendMessageRequestHeader:
        """Returns the request's header; raises as that of `SendProcessor` does."""
        return command.header if type(command) is SendCommand else super().header_of(command)

    def acknowledge_one(
        self, asked: Asked, queue_id: int, stored: Stored, properties: Mapping[str, str], outbox: Outbox
    ) -> Parts | None:
        """Returns the answer to an appended message; None when it follows later."""
        command, result = asked.command, stored[2]
        # A message stored in another topic may have more fields in its answer.
        if not self._is_patched or command.serialisation is not _JSON or stored[0].topic != asked.header.topic:
            return super().acknowledge_one(asked, queue_id, stored, properties, outbox)
        self.events.acknowledged(asked, (stored,), outbox)
        place = (result.physical_offset, result.queue_offset)
        return (encode_send_head(command.opaque, _RESPONSE, queue_id, self.host_digits, *place),)

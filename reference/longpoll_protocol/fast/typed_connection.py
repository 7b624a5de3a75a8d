"""A connection that decodes the fields of the most frequent requests, sends (310) and pulls (11).

Decoders: see `send_request`, `pull_request`.
"""

from __future__ import annotations

from typing import Final

from longpoll_protocol.fast import pull_request, send_request
from longpoll_protocol.fast.pull_request import PullCommand, read_pull
from longpoll_protocol.fast.send_request import SendCommand, read_send
from longpoll_protocol.frames.command import Command, decode_frame
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.frames.frame import Frame, Serialisation

_SEND: Final = send_request.START
_PULL: Final = pull_request.START
_JSON: Final = Serialisation.JSON


class TypedConnection(Connection):
    """May return 310s as `SendCommand`s, several at once if adjacent, and 11s as `PullCommand`s."""

    __slots__ = ()

    def _decode(self, frame: Frame) -> Command:
        """Decode a frame, a send or a pull with its fields; raises RemoteProtocolError."""
        if frame.serialisation is not _JSON:
            return decode_frame(frame)
        header = bytes(frame.header)
        read: Command | None = None
        if header.startswith(_SEND):
            read = read_send(header, frame.body)
        elif header.startswith(_PULL):
            read = read_pull(header, frame.body)
        return read or decode_frame(frame)

    def next_sends(self, count_max: int | None = None) -> list[SendCommand]:
        """Returns the next sends that are complete in the last received data, at most `count_max`; often none.

        Raises nothing: `next_event` handles the frame that ends the burst.
        """
        return self._frames.next_alike(_SEND, read_send, count_max)

    def next_pulls(self, count_max: int) -> list[PullCommand]:
        """Returns the next pulls in the same way, at most `count_max`."""
        return self._frames.next_alike(_PULL, read_pull, count_max)

    def keep(self, count: int) -> None:
        """Keep the first `count` of the last `next_sends` or `next_pulls`; the others will be returned again."""
        self._frames.keep_alike(count)

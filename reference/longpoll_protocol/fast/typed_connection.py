"""A connection whose hottest requests, sends (310) and pulls (11), come with their fields read.

Leaves out how one is read (`send_request`, `pull_request`).
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
    """Its 310s may come as `SendCommand`s, several at once where they lie side by side, its 11s as `PullCommand`s."""

    __slots__ = ()

    def _decode(self, frame: Frame) -> Command:
        """Read the header of a frame, a send's and a pull's with its fields; raises RemoteProtocolError."""
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
        """The sends that come next and lie whole in what was received last, at most `count_max`; often none.

        Raises nothing: `next_event` meets whatever ends the burst.
        """
        return self._frames.next_alike(_SEND, read_send, count_max)

    def next_pulls(self, count_max: int) -> list[PullCommand]:
        """The same of pulls, and at most `count_max` of them."""
        return self._frames.next_alike(_PULL, read_pull, count_max)

    def keep(self, count: int) -> None:
        """Have what `next_sends` or `next_pulls` has just returned come again, but for the first `count`."""
        self._frames.keep_alike(count)

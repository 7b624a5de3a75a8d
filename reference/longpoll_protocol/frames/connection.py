"""One end of one connection, without the socket: received bytes in, commands out; commands in, bytes to send out.

Rule: this file does not know which role it plays. Broker, name server and client use it alike, and the owner of the
socket moves the bytes.
Leaves out matching replies to requests, time-outs and idle times, which need a clock (`service`).
"""

from __future__ import annotations

import enum
from typing import Literal

from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames.command import Command, decode_frame, encode
from longpoll_protocol.frames.frame import FRAME_SIZE_MAX, Buffer, Frame, FrameReader


class Signal(enum.Enum):
    """What `Connection.next_event` says when there is no command."""

    NEED_DATA = "more bytes must be received first"
    CLOSED = "the peer has closed its side, between two commands"


NEED_DATA: Literal[Signal.NEED_DATA] = Signal.NEED_DATA
CLOSED: Literal[Signal.CLOSED] = Signal.CLOSED


class Connection:
    """Receive with `receive_data` and then `next_event` until NEED_DATA; send what `send` returns.

    Not safe for two threads at once, except that `send` touches no state and may be called from any.

    Invariant: once `_error` is set no command is returned any more, and the same error is raised again: after one
    unreadable frame nobody knows where the next begins.
    """

    __slots__ = ("_error", "_frames", "_is_at_end", "_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frames = FrameReader(frame_size_max)
        self._size_max = frame_size_max
        self._is_at_end = False
        self._error: RemoteProtocolError | None = None

    @property
    def unread_size(self) -> int:
        """Bytes received that belong to no command that was returned."""
        return self._frames.unread_size

    def wait_for(self, size: int) -> None:
        """Return no command, and refuse nothing, before the peer has sent `size` bytes in all."""
        self._frames.first_size = size

    def receive_data(self, data: Buffer) -> None:
        """Take received bytes: `bytes` are kept uncopied, anything else (a reused buffer) is copied once.

        Raises LocalProtocolError after `receive_eof`.
        """
        if self._is_at_end:
            raise LocalProtocolError("receive_data was called after receive_eof")
        self._frames.feed(data)

    def receive_eof(self) -> None:
        """Note that the peer has closed its side; commands already received are still returned."""
        self._is_at_end = True

    def next_event(self) -> Command | Signal:
        """The next command; NEED_DATA; or CLOSED after the end of the stream.

        Raises RemoteProtocolError, now and at every later call: close the connection.
        """
        if self._error is not None:
            raise self._error
        try:
            frame = self._frames.next_frame()
            if frame is not None:
                return self._decode(frame)
        except RemoteProtocolError as error:
            self._error = error
            raise
        if not self._is_at_end:
            return NEED_DATA
        if self._frames.is_between_frames:
            return CLOSED
        self._error = RemoteProtocolError("the connection was closed in the middle of a frame")
        raise self._error

    def _decode(self, frame: Frame) -> Command:
        """Read the header of a frame; raises RemoteProtocolError."""
        return decode_frame(frame)

    def send(self, command: Command) -> list[Buffer]:
        """The buffers to write, in order; the body is not copied. Raises LocalProtocolError."""
        return encode(command, self._size_max)

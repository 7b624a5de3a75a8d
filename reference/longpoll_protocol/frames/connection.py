"""One end of a connection without the socket: received bytes in, commands out; commands in, bytes to send out.

Broker, name server and client use it alike; the owner of the socket moves the bytes. Matching replies and time-outs
need a clock and are left to the owner.
"""

from __future__ import annotations

import enum
from typing import Literal

from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames.command import Command, decode_frame, encode
from longpoll_protocol.frames.frame import FRAME_SIZE_MAX, Buffer, Frame, FrameReader


class Signal(enum.Enum):
    """The result of `Connection.next_event` without a command."""

    NEED_DATA = "more bytes must be received first"
    CLOSED = "the peer has closed its side, between two commands"


NEED_DATA: Literal[Signal.NEED_DATA] = Signal.NEED_DATA
CLOSED: Literal[Signal.CLOSED] = Signal.CLOSED


class Connection:
    """Receive with `receive_data` and then `next_event` until NEED_DATA; send what `send` returns.

    Not thread-safe, except that any thread may call `send`, which uses no state. Invariant: once `_error` is set, no
    command is returned and the same error is raised again, because the next frame's begin is unknown.
    """

    __slots__ = ("_error", "_frames", "_is_at_end", "_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frames = FrameReader(frame_size_max)
        self._size_max = frame_size_max
        self._is_at_end = False
        self._error: RemoteProtocolError | None = None

    @property
    def unread_size(self) -> int:
        """Received bytes that belong to no returned command."""
        return self._frames.unread_size

    def wait_for(self, size: int) -> None:
        """Return and refuse nothing before the peer has sent `size` bytes in total."""
        self._frames.first_size = size

    def receive_data(self, data: Buffer) -> None:
        """Add received bytes: `bytes` are kept uncopied, anything else (a reused buffer) is copied once.

        Raises LocalProtocolError after `receive_eof`.
        """
        if self._is_at_end:
            raise LocalProtocolError("receive_data was called after receive_eof")
        self._frames.feed(data)

    def receive_eof(self) -> None:
        """Record that the peer closed its side; received commands are still returned."""
        self._is_at_end = True

    def next_event(self) -> Command | Signal:
        """Returns the next command; NEED_DATA; or CLOSED after the end of the stream.

        Raises RemoteProtocolError, now and in every later call: close the connection.
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
        """Decode a frame; raises RemoteProtocolError."""
        return decode_frame(frame)

    def send(self, command: Command) -> list[Buffer]:
        """Returns the buffers to write, in order; the body is not copied. Raises LocalProtocolError."""
        return encode(command, self._size_max)

"""Frames: the boundaries of commands in a byte stream, and the limits of each length.

Goals, in this order: a hostile length costs nothing; each byte is copied a bounded number of times, however the stream
is split into chunks; a body can be kept as long as its user likes.

A chunk is an immutable `bytes`. A frame inside one chunk is returned as uncopied views. A frame across chunks is
gathered in a growing array and copied once when it is complete.

Headers: see `command`.

Source: `remoting/protocol/RemotingCommand.java`, `remoting/netty/NettyDecoder.java`.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias, TypeVar

import msgspec

from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.sizes import MIB
from longpoll_spec.tables import with_table

# One frame, big endian. `length` counts everything after itself.
#
# | offset | size       | field                                             |
# |--------|------------|---------------------------------------------------|
# | 0      | 4          | length = 4 + header size + body size, signed      |
# | 4      | 1          | serialisation of the header: 0 JSON, 1 ROCKETMQ   |
# | 5      | 3          | header size                                       |
# | 8      | header     | header                                            |
# | 8 + h  | the rest   | body                                              |
LENGTH: Final = Struct(">i")
HEAD: Final = Struct(">iI")
LENGTH_SIZE: Final = 4
HEAD_SIZE: Final = 8

FRAME_SIZE_MAX: Final = 16 * MIB
"""Default maximum of the length field, bytes (`NettyDecoder.FRAME_MAX_LENGTH`)."""
HEADER_SIZE_MAX: Final = 1 * MIB
"""Maximum header size, bytes.

The largest regular header is a send's: 32,767 bytes of properties, six times as many if all characters are escaped,
plus names. Java has no such limit, but a header of 16 MiB becomes 1 GB of objects.
"""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to send or received; a memoryview has items of one byte."""

EMPTY: Final = memoryview(b"")
T = TypeVar("T")


class Serialisation(enum.IntEnum):
    """The encoding of a header (`SerializeType.java`)."""

    JSON = 0
    ROCKETMQ = 1


@with_table
class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, not decoded yet."""

    serialisation: Serialisation
    header: memoryview
    body: memoryview
    """A view into immutable bytes, valid as long as it is kept.

    It keeps its whole chunk in memory, so copy it to keep it for long; an empty body keeps nothing.
    """


_SERIALISATIONS: Final = {int(kind): kind for kind in Serialisation}
_unpack_head: Final = HEAD.unpack_from


def check_length(length: int, size_max: int) -> None:
    """Check a frame's length field; raises RemoteProtocolError."""
    if length < LENGTH_SIZE:
        raise RemoteProtocolError(f"frame length {length} is too short: a frame has at least {LENGTH_SIZE} bytes")
    if length > size_max:
        raise RemoteProtocolError(f"frame length {length} is over the limit of {size_max} bytes")


def check_mark(mark: int, length: int) -> tuple[Serialisation, int]:
    """Split the word after the length into serialisation and header size; raises RemoteProtocolError."""
    header_size = mark & 0xFFFFFF
    serialisation = _SERIALISATIONS.get(mark >> 24)
    if serialisation is None:
        raise RemoteProtocolError(f"header serialisation {mark >> 24} is unknown: 0 is JSON, 1 is ROCKETMQ")
    if header_size == 0:
        raise RemoteProtocolError("header is empty: even a request without fields has a code")
    if header_size > length - LENGTH_SIZE:
        raise RemoteProtocolError(f"header of {header_size} bytes does not fit in a frame of length {length}")
    if header_size > HEADER_SIZE_MAX:
        raise RemoteProtocolError(f"header of {header_size} bytes is over the limit of {HEADER_SIZE_MAX}")
    return serialisation, header_size


def frame_head(serialisation: Serialisation, header: bytes, body_size: int, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """Returns the frame's first eight bytes and its header, to write before a body of `body_size` bytes.

    Raises LocalProtocolError when the frame is too large for the peer.
    """
    header_size = len(header)
    length = LENGTH_SIZE + header_size + body_size
    if header_size > HEADER_SIZE_MAX:
        raise LocalProtocolError(f"header of {header_size} bytes is over the limit of {HEADER_SIZE_MAX}")
    if length > size_max:
        raise LocalProtocolError(f"frame of {length} bytes is over the limit of {size_max}: send less in one command")
    return HEAD.pack(length, serialisation << 24 | header_size) + header


class FrameReader:
    """Splits a stream that arrives in chunks of any size into frames.

    Invariant: the unreturned bytes are `_gathered`, then `_chunk` from `_start`, then `_waiting`, in this order.
    `_gathered` is shorter than `_wanted` and belongs to one frame.
    """

    __slots__ = ("_alike_start", "_chunk", "_gathered", "_size_max", "_start", "_waiting", "_wanted", "first_size")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self.first_size = 0
        """Number of bytes before anything is read or refused; 0 afterwards."""
        self._chunk = EMPTY
        self._start = 0
        self._waiting: deque[bytes] = deque()
        self._gathered = bytearray()
        self._wanted = LENGTH_SIZE
        self._alike_start = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether every received byte belongs to a returned frame."""
        return not self._gathered and self._start == len(self._chunk) and not self._waiting

    @property
    def unread_size(self) -> int:
        """Received bytes that belong to no returned frame."""
        return len(self._gathered) + len(self._chunk) - self._start + sum(map(len, self._waiting))

    def feed(self, data: Buffer) -> None:
        """Add bytes of the stream; `bytes` are kept uncopied, anything else is copied once."""
        if not data:
            return
        chunk = bytes(data)
        if self._start == len(self._chunk) and not self._waiting:
            self._chunk, self._start = memoryview(chunk), 0
        else:
            self._waiting.append(chunk)

    def next_frame(self) -> Frame | None:
        """Returns the next complete frame, or None when more bytes are needed; raises RemoteProtocolError."""
        if self.first_size:
            if self.unread_size < self.first_size:
                return None
            self.first_size = 0
        while True:
            frame = self._gather() if self._gathered else self._cut_in_place()
            if frame is not None:
                return frame
            if self._start < len(self._chunk):
                continue
            if not self._waiting:
                # The chunk is used up: release it, or an idle connection would keep it in memory.
                self._chunk, self._start = EMPTY, 0
                return None
            self._chunk, self._start = memoryview(self._waiting.popleft()), 0

    def next_alike(
        self, start: bytes, read: Callable[[bytes, memoryview], T | None], count_max: int | None = None
    ) -> list[T]:
        """Read adjacent, complete JSON frames of the chunk whose headers begin with `start`, at most `count_max`.

        `read` gets a header and its body. Raises nothing: the first other frame, or one for which `read` returns None,
        stays the next one.
        """
        found: list[T] = []
        self._alike_start = self._start
        content, at = self._chunk.obj, self._start
        assert type(content) is bytes
        # While a frame is being gathered, the chunk belongs to it.
        size = 0 if self._gathered else len(content)
        while at + HEAD_SIZE < size:
            length, header_size = _unpack_head(content, at)
            header_at = at + HEAD_SIZE
            body_at, stop = header_at + header_size, at + LENGTH_SIZE + length
            # As `check_length` and `check_mark`, where another serialisation looks like a header that is too large.
            if length > self._size_max or header_size > HEADER_SIZE_MAX or not header_at < body_at <= stop <= size:
                break
            if not content.startswith(start, header_at):
                break
            command = read(content[header_at:body_at], self._chunk[body_at:stop] if body_at < stop else EMPTY)
            if command is None:
                break
            found.append(command)
            at = stop
            if len(found) == count_max:
                break
        self._start = at
        return found

    def keep_alike(self, count: int) -> None:
        """Keep the first `count` frames of the last `next_alike`; the others will be returned again."""
        start = self._alike_start
        for _frame in range(count):
            start += LENGTH_SIZE + _unpack_head(self._chunk, start)[0]
        self._start = start

    def _cut_in_place(self) -> Frame | None:
        """Return a frame that is complete in the chunk, or begin to gather an incomplete one."""
        chunk, start = self._chunk, self._start
        left = len(chunk) - start
        if left >= HEAD_SIZE:
            length, mark = _unpack_head(chunk, start)
            check_length(length, self._size_max)
            serialisation, header_size = check_mark(mark, length)
            stop = start + LENGTH_SIZE + length
            if stop <= len(chunk):
                self._start = stop
                body_start = start + HEAD_SIZE + header_size
                body = chunk[body_start:stop] if body_start < stop else EMPTY
                return Frame(serialisation, chunk[start + HEAD_SIZE : body_start], body)
            self._wanted = LENGTH_SIZE + length
        elif left:
            self._wanted = LENGTH_SIZE
        else:
            return None
        taken = min(left, self._wanted)
        self._gathered += chunk[start : start + taken]
        self._start = start + taken
        return self._grow_wanted()

    def _gather(self) -> Frame | None:
        """Move wanted bytes from the chunk to the gathered ones; returns the frame if it is complete."""
        start = self._start
        taken = min(self._wanted - len(self._gathered), len(self._chunk) - start)
        self._gathered += self._chunk[start : start + taken]
        self._start = start + taken
        return self._grow_wanted()

    def _grow_wanted(self) -> Frame | None:
        """Advance when all wanted bytes are there: first the head, then the whole frame, which is returned.

        Lengths are checked on arrival, so a hostile length is refused before its frame.
        """
        gathered = self._gathered
        if len(gathered) < self._wanted:
            return None
        if self._wanted == LENGTH_SIZE:
            (length,) = LENGTH.unpack_from(gathered)
            check_length(length, self._size_max)
            self._wanted = HEAD_SIZE
            return None
        length, mark = HEAD.unpack_from(gathered)
        serialisation, header_size = check_mark(mark, length)
        self._wanted = LENGTH_SIZE + length
        if len(gathered) < self._wanted:
            return None
        whole = memoryview(bytes(gathered))
        self._gathered = bytearray()
        self._wanted = LENGTH_SIZE
        body_start = HEAD_SIZE + header_size
        return Frame(
            serialisation, whole[HEAD_SIZE:body_start], whole[body_start:] if body_start < len(whole) else EMPTY
        )

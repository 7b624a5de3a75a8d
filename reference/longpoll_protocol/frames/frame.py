"""Frames: where one command ends and the next begins in a byte stream, and the limits of each length.

Goals, in this order: a hostile length costs nothing; no byte is copied twice more often than once a frame, however
the stream is cut into chunks; a body can be kept as long as its user likes.

How: a chunk is an immutable `bytes`. A frame that lies whole inside one is returned as views into it, uncopied. A frame
that is cut is gathered in one growing array and copied out once when it is whole.

Leaves out what a header says (`command`) and where bytes come from.

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
"""Largest length field taken by default, bytes (`NettyDecoder.FRAME_MAX_LENGTH`)."""
HEADER_SIZE_MAX: Final = 1 * MIB
"""Largest header, bytes. The longest honest one is a send: 32,767 bytes of properties, at most six times as long when
every character is escaped, plus names. Java has no such limit, but one header of 16 MiB becomes 1 GB of objects."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that can be sent or received; a memoryview is of single bytes."""

EMPTY: Final = memoryview(b"")
T = TypeVar("T")


class Serialisation(enum.IntEnum):
    """How a header is written (`SerializeType.java`)."""

    JSON = 0
    ROCKETMQ = 1


@with_table
class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, cut but not yet read."""

    serialisation: Serialisation
    header: memoryview
    body: memoryview
    """A view into immutable bytes: valid as long as it is kept. It keeps alive the chunk that it came in, so what is
    kept for long should be copied; an empty body keeps nothing alive."""


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
    """The frame's eight bytes and its header, ready to be written before a body of `body_size` bytes.

    Raises LocalProtocolError when the peer would refuse the frame for its size.
    """
    header_size = len(header)
    length = LENGTH_SIZE + header_size + body_size
    if header_size > HEADER_SIZE_MAX:
        raise LocalProtocolError(f"header of {header_size} bytes is over the limit of {HEADER_SIZE_MAX}")
    if length > size_max:
        raise LocalProtocolError(f"frame of {length} bytes is over the limit of {size_max}: send less in one command")
    return HEAD.pack(length, serialisation << 24 | header_size) + header


class FrameReader:
    """Cuts a stream that arrives in chunks of any size into frames.

    Invariant: the bytes not yet returned are `_gathered`, then `_chunk` from `_start`, then `_waiting`, in this order;
    `_gathered` is shorter than `_wanted` and belongs to one frame only.
    """

    __slots__ = ("_alike_start", "_chunk", "_gathered", "_size_max", "_start", "_waiting", "_wanted", "first_size")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self.first_size = 0
        """Nothing is read, or refused, before the stream has this many bytes; 0 from then on."""
        self._chunk = EMPTY
        self._start = 0
        self._waiting: deque[bytes] = deque()
        self._gathered = bytearray()
        self._wanted = LENGTH_SIZE
        self._alike_start = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether every byte received belongs to a frame that was returned."""
        return not self._gathered and self._start == len(self._chunk) and not self._waiting

    @property
    def unread_size(self) -> int:
        """Bytes received that belong to no frame that was returned."""
        return len(self._gathered) + len(self._chunk) - self._start + sum(map(len, self._waiting))

    def feed(self, data: Buffer) -> None:
        """Take the next bytes of the stream; `bytes` are kept uncopied, anything else is copied once."""
        if not data:
            return
        chunk = bytes(data)
        if self._start == len(self._chunk) and not self._waiting:
            self._chunk, self._start = memoryview(chunk), 0
        else:
            self._waiting.append(chunk)

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed; raises RemoteProtocolError."""
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
                # Nothing is left of the chunk: let go of it, or an idle connection keeps up to a chunk alive.
                self._chunk, self._start = EMPTY, 0
                return None
            self._chunk, self._start = memoryview(self._waiting.popleft()), 0

    def next_alike(
        self, start: bytes, read: Callable[[bytes, memoryview], T | None], count_max: int | None = None
    ) -> list[T]:
        """Cut and read frames that lie whole and side by side in the chunk, in JSON, their headers beginning alike.

        At most `count_max` of them. `read` gets a header and its body. Nothing is raised: the first frame that is
        otherwise, or for which `read` returns None, stays the next one.
        """
        found: list[T] = []
        self._alike_start = self._start
        content, at = self._chunk.obj, self._start
        assert type(content) is bytes
        # None of the chunk belongs to a frame that is being gathered: that one goes on with it.
        size = 0 if self._gathered else len(content)
        while at + HEAD_SIZE < size:
            length, header_size = _unpack_head(content, at)
            header_at = at + HEAD_SIZE
            body_at, stop = header_at + header_size, at + LENGTH_SIZE + length
            # As `check_length` and `check_mark`, whose other serialisations look like headers too large.
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
        """Of the frames that `next_alike` has just returned keep the first `count`; the others come again."""
        start = self._alike_start
        for _frame in range(count):
            start += LENGTH_SIZE + _unpack_head(self._chunk, start)[0]
        self._start = start

    def _cut_in_place(self) -> Frame | None:
        """Cut a frame that lies whole in the chunk, or start to gather the one that does not."""
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
        """Move what is wanted from the chunk to the gathered bytes; the frame, when it is whole."""
        start = self._start
        taken = min(self._wanted - len(self._gathered), len(self._chunk) - start)
        self._gathered += self._chunk[start : start + taken]
        self._start = start + taken
        return self._grow_wanted()

    def _grow_wanted(self) -> Frame | None:
        """When all that was wanted is there: want the head, then the whole frame, then return it.

        Lengths are checked as soon as their bytes are there, so a hostile length is refused before its frame arrives.
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

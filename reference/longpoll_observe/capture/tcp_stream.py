"""One direction of a captured connection: its bytes in order, each once, with gaps.

Segments may be out of order, repeated, overlapping, or truncated by the snap length. Positions count bytes from the
first known one. Of copies, the first counts. The other direction: see `conversation`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Final

from attrs import define, field

HALF: Final = 1 << 31
MASK: Final = (1 << 32) - 1
PENDING_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of a direction that wait for earlier ones."""


@define(slots=True)
class TcpStream:
    """The bytes of one direction.

    Invariants: `_next` is the sequence number of position `read`; `_pending` are later (position, time, bytes),
    ascending, and `_waiting` is their total length.
    """

    read: int = 0
    """Every byte before this position was taken."""
    come: int = 0
    """The position after the last captured byte."""
    end: int | None = None
    """The position of the stream's end, once captured."""
    _next: int | None = None
    _pending: list[tuple[int, int, bytes]] = field(factory=list)
    _waiting: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the first byte is known."""
        return self._next is not None

    @property
    def is_ended(self) -> bool:
        """Whether everything up to the stream's end was taken."""
        return self.end is not None and self.read >= self.end

    def begin(self, sequence: int) -> None:
        """Set the sequence number of the next byte."""
        self._next = sequence & MASK

    def position_of(self, sequence: int) -> int:
        """Returns the position of a sequence number, which may be before the taken bytes."""
        assert self._next is not None, "positions count from a known byte"
        return self.read + ((sequence - self._next + HALF) & MASK) - HALF

    def put(self, sequence: int, time_ns: int, content: bytes, size: int) -> None:
        """Add a segment of `size` bytes, of which `content` was captured."""
        position = self.position_of(sequence)
        self.come = max(self.come, position + size)
        skip = max(self.read - position, 0)
        if content[skip:]:
            insort(self._pending, (position + skip, time_ns, content[skip:]))
            self._waiting += len(content) - skip

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Iterate over the times and bytes that are now in order."""
        while self._pending and self._pending[0][0] <= self.read:
            position, time_ns, content = self._pending.pop(0)
            self._waiting -= len(content)
            content = content[self.read - position :]
            if content:
                self._go(self.read + len(content))
                yield time_ns, content

    @property
    def is_full(self) -> bool:
        """Whether too many bytes are waiting."""
        return self._waiting > PENDING_MAX

    def skip(self, known: int) -> None:
        """Skip a gap: continue at the first captured byte, or at `known`, if bytes were sent."""
        first = self._pending[0][0] if self._pending else known
        self._go(max(min(first, known) if known > self.read else first, self.read))

    def _go(self, position: int) -> None:
        assert self._next is not None, "bytes are taken from a known one on"
        self._next = (self._next + position - self.read) & MASK
        self.read = position

"""The extended consume queue (`ConsumeQueueExt.java` 4.9), used only with `enableConsumeQueueExt`.

A unit's tags code is then an address here: -2^63 plus the byte where the extended unit begins. No tag's hash is in this
range, up to -2^31 - 1.

    Offset  Size  Extended unit (big-endian, signed)
    0       2     size of the unit, 20 at least
    2       8     tags code, as the unit would have it
    10      8     store timestamp of the message, ms
    18      2     size of the bit map
    20      n     bit map: which SQL filters would take the message (`enableCalcFilterBitMap`)

Four bytes of a file stay free: where the next unit does not fit, two of them contain -1 and the rest is skipped. We
write no bit maps, because SQL filters read the message; existing ones are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from longpoll_broker.store.segment import SegmentList

UNIT: Final = struct.Struct(">hqqh")
UNIT_SIZE_MIN: Final = 20
ADDRESS_MAX: Final = -(2**31) - 1
"""The greatest address (`MAX_ADDR`)."""
END_MARK: Final = struct.Struct(">h")
END_SIZE: Final = 4
"""`END_BLANK_DATA_LENGTH`."""
_ADDRESS_ZERO: Final = -(2**63)


def is_address(tags_code: int) -> bool:
    """Whether a unit's tags code is an address (`isExtAddr`)."""
    return tags_code <= ADDRESS_MAX


class ConsumeQueueExt:
    """The extended units of one queue. Invariant: bytes [segments.start, end) are units and skipped rests."""

    __slots__ = ("end", "flushed_end", "segments")

    def __init__(self, segments: SegmentList) -> None:
        """Open the files; `stand_after` finds the true end."""
        assert segments.size > UNIT_SIZE_MIN + END_SIZE
        self.segments = segments
        loaded = segments.segments
        self.end = loaded[-1].stop if loaded else 0
        self.flushed_end = self.end

    def put(self, tags_code: int, store_ms: int) -> int:
        """Write a unit and return its address; raises OSError when the disk is full."""
        segment = self.segments.find(self.end) or self.segments.append(self.end)
        position = self.end - segment.start
        if position + UNIT_SIZE_MIN + END_SIZE > segment.size:
            segment.reserve(position, position + END_MARK.size)
            segment.is_dirty = True
            END_MARK.pack_into(segment.view, position, -1)
            self.end = segment.stop
            segment, position = self.segments.append(self.end), 0
        if position + UNIT_SIZE_MIN > segment.reserved_end:
            segment.reserve(position, position + UNIT_SIZE_MIN)
        segment.is_dirty = True
        UNIT.pack_into(segment.view, position, UNIT_SIZE_MIN, tags_code, store_ms, 0)
        self.end = segment.start + position + UNIT_SIZE_MIN
        return _ADDRESS_ZERO + segment.start + position

    def tags_code(self, address: int) -> int | None:
        """Returns the tags code at an address; None without a unit."""
        found = self._unit(address)
        return found[1] if found is not None else None

    def matching(self, matches: Callable[[int], bool]) -> Callable[[int], bool]:
        """Returns a tags-code test that also resolves addresses; as in Java, an invalid one matches."""

        def matches_too(tags_code: int) -> bool:
            found = self.tags_code(tags_code) if is_address(tags_code) else tags_code
            return found is None or matches(found)

        return matches_too

    def _unit(self, address: int) -> tuple[int, int, int, int] | None:
        start = address - _ADDRESS_ZERO
        segment = self.segments.find(start)
        if segment is None or start + UNIT_SIZE_MIN > min(segment.stop, self.end):
            return None
        view = segment.view_unless_gone()
        if view is None:
            return None
        size, tags_code, store_ms, map_size = UNIT.unpack_from(view, start - segment.start)
        is_whole = UNIT_SIZE_MIN <= size <= segment.stop - start
        return (size, tags_code, store_ms, map_size) if is_whole else None

    def stand_after(self, address: int | None) -> None:
        """Continue after the unit at an address, or at the start, and forget the rest. Raises OSError."""
        start = address - _ADDRESS_ZERO if address is not None else self.segments.start
        found = self._unit(address) if address is not None else None
        self.end = start + (found[0] if found is not None else 0)
        self.segments.truncate(self.end)
        self.flushed_end = min(self.flushed_end, self.end)

    def remove_before(self, address: int) -> None:
        """Remove files that end before the unit at an address, never the newest; raises OSError."""
        start = address - _ADDRESS_ZERO
        gone = sum(segment.stop < start for segment in self.segments.segments[:-1])
        if gone:
            self.segments.remove(gone)

    def flush(self) -> None:
        """Make every written unit durable; raises OSError."""
        end = self.end
        if self.flushed_end < end:
            self.segments.flush(self.flushed_end, end)
            self.flushed_end = end

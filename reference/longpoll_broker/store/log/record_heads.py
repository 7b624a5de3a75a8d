"""Limits checksum work during searches for record heads, so that a search takes linear time.

After damage, a record is found by the magic in its head. A message body may be full of such heads, each with a size up
to a common end, and each checksum covers all of it: 256 KiB, 512 KiB and 1 MiB of them took 0.07, 0.24 and 0.9 s at
start. So checksums are limited in proportion to the bytes searched. Searches: see `store.recovery`, `store.inspect`.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from longpoll_protocol.log_record import FIXED_SIZE, HEAD, HEAD_SIZE
from longpoll_protocol.sizes import MIB

SPARE_SIZE: Final = 64 * MIB
"""Bytes of checksums that a search may always compute: several of the largest records."""
TIMES: Final = 4
"""Additional bytes of checksums per byte searched."""


def claimed_size(view: memoryview, at: int, physical_offset: int) -> int:
    """Returns a record's length by its head, which must have the right offset and end in time; otherwise 0."""
    if at < 0 or len(view) - at < HEAD_SIZE:
        return 0
    head = HEAD.unpack_from(view, at)
    size: int = head[0]
    return size if head[6] == physical_offset and FIXED_SIZE <= size <= len(view) - at else 0


@define(slots=True, eq=False)
class ChecksumBudget:
    """The remaining checksum budget of a search. Invariant: not below 0."""

    left: int = SPARE_SIZE

    def passed(self, size: int) -> None:
        """Count searched bytes."""
        self.left += TIMES * size

    def may(self, size: int) -> bool:
        """Whether `size` bytes may be checked; subtracts them if so. A too large size costs nothing."""
        if size > self.left:
            return False
        self.left -= size
        return True

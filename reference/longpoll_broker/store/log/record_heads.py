"""Heads of records where one may begin anywhere: which of them are worth a checksum, so that the work stays linear.

Behind damage a record is found by the mark in its head. What somebody sent may be full of such marks, each with a size
that reaches to one common end, and the checksum of each is over all of it: 256 KiB, 512 KiB and 1 MiB of them took a
start 0.07, 0.24 and 0.9 s. So what checksums may cost is bounded by what was looked through. Leaves out who looks
(`store.recovery`, `store.inspect`).
"""

from __future__ import annotations

from typing import Final

from attrs import define

from longpoll_protocol.log_record import FIXED_SIZE, HEAD, HEAD_SIZE
from longpoll_protocol.sizes import MIB

SPARE_SIZE: Final = 64 * MIB
"""Bytes of checksums that a search has in any case: several of the largest records."""
TIMES: Final = 4
"""And as many more for each byte that was looked through."""


def claimed_size(view: memoryview, at: int, physical_offset: int) -> int:
    """How long a record is by its head, which has to say where it is and to end in time; 0 for what is no head."""
    if at < 0 or len(view) - at < HEAD_SIZE:
        return 0
    head = HEAD.unpack_from(view, at)
    size: int = head[0]
    return size if head[6] == physical_offset and FIXED_SIZE <= size <= len(view) - at else 0


@define(slots=True, eq=False)
class ChecksumBudget:
    """What is left for checksums of a search. Invariant: it is not below 0."""

    left: int = SPARE_SIZE

    def passed(self, size: int) -> None:
        """Count bytes that were looked through."""
        self.left += TIMES * size

    def may(self, size: int) -> bool:
        """Whether as many bytes may be checked; counts them if so: one size that rotted uses nothing up."""
        if size > self.left:
            return False
        self.left -= size
        return True

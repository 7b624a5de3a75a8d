"""The names of all reported findings, in 8 bytes each, so that a follower of weeks reports nothing twice.

A name is stored as 64 bits of its checksum, as many as a finding's name has.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import numpy as np
from attrs import define, field

SUM_BYTES: Final = 8
RECENT_MAX: Final = 4_096
"""Names that are kept apart, some 100 bytes each, until they are put in their place among the others."""


@define(eq=False)
class Names:
    """A set that only grows."""

    _sorted: np.ndarray[tuple[int], np.dtype[np.uint64]] = field(factory=lambda: np.zeros(0, dtype=np.uint64))
    _recent: set[int] = field(factory=set)

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """These names."""
        found = cls()
        for name in names:
            found.add(name)
        return found

    def add(self, name: str) -> None:
        """Put a name into the set, unless it is there."""
        if name in self:
            return
        self._recent.add(_sum_of(name))
        if len(self._recent) > RECENT_MAX:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = np.sort(np.concatenate((self._sorted, recent)))
            self._recent.clear()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        wanted = _sum_of(name)
        if wanted in self._recent:
            return True
        # Another thread may add: what it moves is in its new place before it leaves the old one.
        found = self._sorted
        at = int(np.searchsorted(found, np.uint64(wanted)))
        return at < len(found) and int(found[at]) == wanted

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    @property
    def nbytes(self) -> int:
        """The size of the stored names in bytes."""
        return self._sorted.nbytes


def _sum_of(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=SUM_BYTES).digest(), "big")

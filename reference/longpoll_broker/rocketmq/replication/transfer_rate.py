"""Measures the bytes per second of a connection (`FlowMonitor.java` 5.x)."""

from __future__ import annotations

from typing import Final

from attrs import define, field

SECOND_NS: Final = 1_000_000_000


@define(slots=True, eq=False)
class TransferRate:
    """One direction of one connection; one thread counts, any thread reads `per_second`."""

    since_ns: int
    per_second: int = field(default=0, init=False)
    """The rate at the last update."""
    _size: int = field(default=0, init=False)

    def add(self, size: int) -> None:
        """Count `size` bytes."""
        self._size += size

    def look(self, now_ns: int) -> None:
        """Update the rate after each second; called periodically."""
        passed_ns = now_ns - self.since_ns
        if passed_ns >= SECOND_NS:
            self.per_second = self._size * SECOND_NS // passed_ns
            self.since_ns, self._size = now_ns, 0

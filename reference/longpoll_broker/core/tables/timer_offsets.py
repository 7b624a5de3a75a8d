"""How far the timer has come, and how many messages wait for it.

A message is delivered when it was read and its second is over: so three numbers tell it of every message. Leaves out
who keeps them (`service.upkeep.config_files`) and who moves them (`timer_service`).
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

PENDING_COUNT_MAX: Final = 1_000_000
"""Most messages that wait for a time, about 200 bytes of memory each; one more is refused (`isReject`)."""


@define(slots=True, eq=False)
class TimerOffsets:
    """One thread writes. `changed` as in `core.tables.topics`."""

    first: int = 0
    """The queue offset of the first message that is not delivered, or is not read."""
    read: int = 0
    """The first that had not been read by then."""
    delivered_ms: int = -1
    """The last second of which messages were delivered, and of those read by then none before it waits."""
    pending_count: int = field(default=0, init=False)
    changed: bool = field(default=False, init=False)

    @property
    def is_full(self) -> bool:
        """Whether no more messages may wait."""
        return self.pending_count >= PENDING_COUNT_MAX

    def put(self, first: int, read: int, delivered_ms: int, pending_count: int) -> None:
        """Note how far the timer has come."""
        self.first, self.read, self.delivered_ms, self.pending_count = first, read, delivered_ms, pending_count
        self.changed = True

    def table(self) -> dict[str, int]:
        """As it is kept."""
        return {"first": self.first, "read": self.read, "deliveredMs": self.delivered_ms}

    def take(self, table: dict[str, int]) -> None:
        """Take over what was kept."""
        self.first = table.get("first", 0)
        self.read = table.get("read", 0)
        self.delivered_ms = table.get("deliveredMs", -1)

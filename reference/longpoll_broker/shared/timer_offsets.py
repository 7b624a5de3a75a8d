"""How far the delay levels and the timer have come, and how many messages wait for the timer.

A timed message is delivered when it was read and its second is over: so three numbers describe all of them. They are
saved by `upkeep.config_files` and moved by the services of `rocketmq/timers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define, field

PENDING_COUNT_MAX: Final = 1_000_000
"""Most messages that wait for a time, about 200 bytes of memory each; one more is refused (`isReject`)."""


@define(slots=True, eq=False)
class DelayOffsets:
    """The queue offset that each level delivers next; one thread writes. `changed` as in `shared.topics`."""

    by_level: dict[int, int] = field(factory=dict)
    changed: bool = field(default=False, init=False)

    def put(self, level: int, offset: int) -> None:
        """Note how far a level has come."""
        self.by_level[level] = offset
        self.changed = True

    def replace(self, by_level: Mapping[int, int]) -> None:
        """Have these and no others, as a slave has its master's."""
        if self.by_level != by_level:
            self.by_level = dict(by_level)
            self.changed = True


@define(slots=True, eq=False)
class TimerOffsets:
    """One thread writes. `changed` as in `shared.topics`."""

    progress: tuple[int, int, int] = (0, 0, -1)
    """`first`, `read` and `delivered_ms`, which others read together."""
    pending_count: int = field(default=0, init=False)
    changed: bool = field(default=False, init=False)

    @property
    def first(self) -> int:
        """The queue offset of the first message that is not delivered, or is not read."""
        return self.progress[0]

    @property
    def read(self) -> int:
        """The first that had not been read by then."""
        return self.progress[1]

    @property
    def delivered_ms(self) -> int:
        """The last second of which messages were delivered, and of those read by then none before it waits."""
        return self.progress[2]

    @property
    def is_full(self) -> bool:
        """Whether no more messages may wait."""
        return self.pending_count >= PENDING_COUNT_MAX

    def put(self, first: int, read: int, delivered_ms: int, pending_count: int) -> None:
        """Note how far the timer has come."""
        self.progress, self.pending_count = (first, read, delivered_ms), pending_count
        self.changed = True

    def copy(self, first: int | None, read: int, delivered_ms: int) -> None:
        """Have these, as a slave has its master's; without `first` its own stays, and more is read again."""
        told = (min(self.first, read) if first is None else first, read, delivered_ms)
        if self.progress != told:
            self.put(*told, 0)

    def table(self) -> dict[str, int]:
        """As it is kept."""
        first, read, delivered_ms = self.progress
        return {"first": first, "read": read, "deliveredMs": delivered_ms}

    def take(self, table: dict[str, int]) -> None:
        """Take over what was kept."""
        self.progress = (table.get("first", 0), table.get("read", 0), table.get("deliveredMs", -1))

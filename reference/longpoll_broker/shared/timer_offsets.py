"""Progress of the delay levels and the timer, and the number of messages that wait for the timer.

A timed message is delivered if the timer has read it and its second has passed. Therefore three numbers describe the
progress of all timed messages. Saving: see `upkeep.config_files`. Delivery: see `rocketmq.timers`.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from longpoll_broker.shared.topics import TOPIC_COUNT_MAX
from longpoll_protocol.bodies import TimerCount

PENDING_COUNT_MAX: Final = 1_000_000
"""Maximum waiting messages, about 200 bytes of memory each; further messages are refused (`isReject`)."""


@define(slots=True, eq=False)
class DelayOffsets:
    """The next queue offset that each delay level delivers. One thread writes. For `changed` see `shared.topics`."""

    by_level: dict[int, int] = field(factory=dict)
    changed: bool = field(default=False, init=False)

    def put(self, level: int, offset: int) -> None:
        """Set a level's progress."""
        self.by_level[level] = offset
        self.changed = True


@define(slots=True, eq=False)
class TimerOffsets:
    """The timer's progress. One thread writes. For `changed` see `shared.topics`."""

    progress: tuple[int, int, int] = (0, 0, -1)
    """`first`, `read` and `delivered_ms`, in one tuple so that a reader gets values of the same time."""
    pending_count: int = field(default=0, init=False)
    changed: bool = field(default=False, init=False)

    @property
    def first(self) -> int:
        """The queue offset of the first message that was not delivered yet."""
        return self.progress[0]

    @property
    def read(self) -> int:
        """The first queue offset that the timer had not read when `delivered_ms` was set."""
        return self.progress[1]

    @property
    def delivered_ms(self) -> int:
        """The last delivered second, ms: of the messages before `read`, no message with an earlier time still waits."""
        return self.progress[2]

    @property
    def is_full(self) -> bool:
        """Whether so many messages wait that further messages are refused."""
        return self.pending_count >= PENDING_COUNT_MAX

    def put(self, first: int, read: int, delivered_ms: int, pending_count: int) -> None:
        """Set the timer's progress."""
        self.progress, self.pending_count = (first, read, delivered_ms), pending_count
        self.changed = True

    def table(self) -> dict[str, int]:
        """Returns the table to save."""
        first, read, delivered_ms = self.progress
        return {"first": first, "read": read, "deliveredMs": delivered_ms}

    def take(self, table: dict[str, int]) -> None:
        """Load a saved table."""
        self.progress = (table.get("first", 0), table.get("read", 0), table.get("deliveredMs", -1))


@define(slots=True, eq=False)
class TimerCounts:
    """The number of waiting timed messages by target topic (`TimerMetrics.java` 5.5).

    One thread changes the numbers, and any thread reads them. After a start, the numbers begin at 0 and grow as the
    timer reads the messages again. Invariant: each change increments `version` after the change is visible.
    """

    by_topic: dict[str, TimerCount] = field(factory=dict, init=False)
    """Maps each topic to its number of waiting messages. A topic without waiting messages stays in the table while
    there is room."""
    version: int = field(default=0, init=False)

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """Add `count`, which may be negative, to a topic's number."""
        if topic not in self.by_topic and len(self.by_topic) >= TOPIC_COUNT_MAX:
            self.by_topic = {name: each for name, each in self.by_topic.items() if each.count}
        known = self.by_topic.get(topic)
        self.by_topic[topic] = TimerCount(count=max((known.count if known else 0) + count, 0), time_stamp=now_ms)
        self.version += 1

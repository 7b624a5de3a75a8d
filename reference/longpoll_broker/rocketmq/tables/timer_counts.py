"""The number of waiting timed messages by target topic (`TimerMetrics.java` 5.5).

One thread changes it, any reads. Where they wait: see `rocketmq.timers.timer_service`. After a start they are counted
again as they are read.
"""

from __future__ import annotations

from attrs import define, field


@define(slots=True, eq=False)
class TimerCounts:
    """The counts. Invariant: each change increments `version` after it is visible."""

    by_topic: dict[str, tuple[int, int]] = field(factory=dict, init=False)
    """By topic, the number of waiting messages and the time of the last change, ms; a topic with 0 stays."""
    version: int = field(default=0, init=False)

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """Add `count`, which may be negative, to a topic's number."""
        self.by_topic[topic] = (max(self.by_topic.get(topic, (0, 0))[0] + count, 0), now_ms)
        self.version += 1

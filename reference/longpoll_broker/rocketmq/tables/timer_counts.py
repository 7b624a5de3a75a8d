"""The number of waiting timed messages by target topic (`TimerMetrics.java` 5.5).

One thread changes it, any reads. Where they wait: see `rocketmq.timers.timer_service`. After a start they are counted
again as they are read.
"""

from __future__ import annotations

from attrs import define, field

from longpoll_broker.shared.topics import TOPIC_COUNT_MAX


@define(slots=True, eq=False)
class TimerCounts:
    """The counts. Invariant: each change increments `version` after it is visible."""

    by_topic: dict[str, tuple[int, int]] = field(factory=dict, init=False)
    """By topic, the number of waiting messages and the time of the last change, ms.

    A topic with 0 stays while there is room.
    """
    version: int = field(default=0, init=False)

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """Add `count`, which may be negative, to a topic's number."""
        if topic not in self.by_topic and len(self.by_topic) >= TOPIC_COUNT_MAX:
            self.by_topic = {name: each for name, each in self.by_topic.items() if each[0]}
        self.by_topic[topic] = (max(self.by_topic.get(topic, (0, 0))[0] + count, 0), now_ms)
        self.version += 1

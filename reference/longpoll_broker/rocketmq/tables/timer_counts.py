"""How many messages wait for their time, by the topic that they go to (`TimerMetrics.java` 5.5).

One thread changes it, any reads. Leaves out where they wait (`rocketmq.timers.timer_service`): after a start they are
counted anew as they are read.
"""

from __future__ import annotations

from attrs import define, field

from longpoll_broker.shared.topics import TOPIC_COUNT_MAX


@define(slots=True, eq=False)
class TimerCounts:
    """Invariant: each change makes `version` greater, after it is seen."""

    by_topic: dict[str, tuple[int, int]] = field(factory=dict, init=False)
    """By topic how many wait, and when that changed last, ms; one that has none any more stays with 0 while there is
    room."""
    version: int = field(default=0, init=False)

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """Add `count`, which may be below 0, to those of a topic."""
        if topic not in self.by_topic and len(self.by_topic) >= TOPIC_COUNT_MAX:
            self.by_topic = {name: each for name, each in self.by_topic.items() if each[0]}
        self.by_topic[topic] = (max(self.by_topic.get(topic, (0, 0))[0] + count, 0), now_ms)
        self.version += 1

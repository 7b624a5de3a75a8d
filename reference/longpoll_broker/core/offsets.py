"""How far each group has consumed each queue, as the groups themselves say.

Any offset is stored, also a lower one or one of an unknown queue, as RocketMQ 4.9 does; limits bound the memory.
May be shared between threads: a pair is made by `setdefault` and every change is one assignment to a dict. Leaves out
persistence (`service.config_files`). Source: `ConsumerOffsetManager.java`.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

SEPARATOR: Final = "@"
OFFSET_COUNT_MAX: Final = 1_000_000
"""Most (topic, group) pairs; a commit for one more is refused."""
QUEUE_COUNT_MAX: Final = 4096
"""Most queues of one pair; a commit for one more is refused."""


@define(slots=True, eq=False)
class Offsets:
    """Committed offsets by topic and group, then by queue; `changed` is set after every change, as in `core.topics`."""

    by_pair: dict[str, dict[int, int]] = field(factory=dict)
    changed: bool = field(default=False, init=False)

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Store an offset, whatever was there before; false when a limit forbids a new entry."""
        pair = f"{topic}{SEPARATOR}{group}"
        queues = self.by_pair.get(pair)
        if queues is None:
            if len(self.by_pair) >= OFFSET_COUNT_MAX:
                return False
            queues = self.by_pair.setdefault(pair, {})
        if queue_id not in queues and len(queues) >= QUEUE_COUNT_MAX:
            return False
        queues[queue_id] = offset
        self.changed = True
        return True

    def query(self, topic: str, group: str, queue_id: int) -> int | None:
        """The stored offset; None when there is none."""
        return self.by_pair.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id)

    def forget_topic(self, topic: str) -> None:
        """Drop every group's offsets of one topic."""
        prefix = topic + SEPARATOR
        for pair in [pair for pair in self.by_pair if pair.startswith(prefix)]:
            del self.by_pair[pair]
            self.changed = True

"""Queues in memory: the minimum that the hold table's threads need of a store.

A message is its tag's hash and its properties. It is appended, and visible after `make_visible`, as in a store. Bytes,
files and limits: `store.selection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.shared.sql92 import Lookup
from longpoll_broker.store.read import ALL, GetResult, GetStatus, Matches

Key = tuple[str, int]


@frozen
class Message:
    """One message."""

    tags_code: int = 0
    properties: Mapping[str, str] = field(factory=dict)


@define(slots=True, eq=False)
class MemoryQueues:
    """Some queues. Invariant: a queue's first `visible[key]` messages are visible, from `start[key]` on."""

    messages: dict[Key, list[Message]] = field(factory=dict)
    visible: dict[Key, int] = field(factory=dict)
    start: dict[Key, int] = field(factory=dict)
    failing: set[Key] = field(factory=set)
    """Queues whose reads fail."""

    log_start: Final = 0

    def append(self, key: Key, message: Message | None = None) -> None:
        """Append a message to the log; it is not visible yet."""
        self.messages.setdefault(key, []).append(message or Message())

    def make_visible(self, key: Key) -> int:
        """Make the next appended message visible; returns the visible end."""
        end = self.visible.get(key, 0) + 1
        assert end <= len(self.messages[key])
        self.visible[key] = end
        return end

    def visible_end(self, topic: str, queue_id: int) -> int:
        """The queue's visible end; raises OSError if it cannot be read."""
        if (topic, queue_id) in self.failing:
            raise OSError(f"queue {queue_id} of {topic} cannot be read")
        return self.visible.get((topic, queue_id), 0)

    def visible_start(self, topic: str, queue_id: int) -> int:
        """The queue's first offset."""
        return self.start.get((topic, queue_id), 0)

    def properties_at(self, topic: str, queue_id: int, offset: int) -> Lookup | None:
        """The properties of one visible message."""
        if not self.visible_start(topic, queue_id) <= offset < self.visible_end(topic, queue_id):
            return None
        return self.messages[topic, queue_id][offset].properties.get

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """A read, with the store's statuses."""
        start, end = self.visible_start(topic, queue_id), self.visible_end(topic, queue_id)
        if end == 0 or not start <= offset < end:
            return GetResult(_status_outside(offset, start, end), _next_outside(offset, start, end), start, end,
                             [], [], 0, False)  # fmt: skip
        tags, by_properties = matches
        found: list[int] = []
        offset_next = offset
        for message in self.messages[topic, queue_id][offset:end]:
            if len(found) == count_max:
                break
            wanted = tags is None or tags(message.tags_code)
            if wanted and (by_properties is None or by_properties.matches_properties(message.properties.get)):
                found.append(offset_next)
            offset_next += 1
        status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, offset_next, start, end, [], found, 0, False)


def _status_outside(offset: int, start: int, end: int) -> GetStatus:
    if end == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE
    if offset < start:
        return GetStatus.OFFSET_TOO_SMALL
    return GetStatus.OFFSET_OVERFLOW_ONE if offset == end else GetStatus.OFFSET_OVERFLOW_BADLY


def _next_outside(offset: int, start: int, end: int) -> int:
    return start if offset < start else min(offset, end)

"""What a consumer has done, topic by topic: pulls, messages, time, failures and stops.

Counts since the start; a rate is the difference of two snapshots. Leaves out windows of a minute, hour and day.

Source: `ConsumerStatsManager.java`.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from longpoll_client.consume.process_queue import Stop
from longpoll_runtime import Runtime
from longpoll_spec.tables import with_table


@with_table
class TopicStatistics(msgspec.Struct):
    """One topic's counts."""

    pull_count: int = 0
    """Pulls that were answered, with messages or without."""
    pull_ms: float = 0.0
    """Time from the asking of the pulls that found messages to their answers, all together; holds are in it."""
    found_count: int = 0
    """Pulls that found messages."""
    message_count: int = 0
    """Messages pulled, after the filter of exact tags."""
    failed_pull_count: int = 0
    moved_count: int = 0
    """Pulls whose offset the broker did not have (OFFSET_ILLEGAL)."""
    consumed_count: int = 0
    later_count: int = 0
    """Messages that a listener put off, or raised at."""
    consume_ms: float = 0.0
    """Time within listeners."""
    sent_back_count: int = 0
    unreadable_count: int = 0
    """Messages that could not be read; `ConsumerConfig.unreadable` says what became of them."""
    stopped_by_count: int = 0
    """How often flow control stopped a queue for its number of waiting messages."""
    stopped_by_size: int = 0
    stopped_by_span: int = 0


class Statistics:
    """The counts of one consumer. Invariant: `_topics` and all in it change under `_lock`; only copies are given."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._topics: dict[str, TopicStatistics] = {}

    def snapshot(self) -> dict[str, TopicStatistics]:
        """Every topic's counts now."""
        with self._lock:
            return {topic: replace(counts) for topic, counts in self._topics.items()}

    def add(self, topic: str, **more: float) -> None:
        """Add to some of a topic's counts, by their names."""
        with self._lock:
            counts = self._topics.get(topic)
            if counts is None:
                counts = self._topics[topic] = TopicStatistics()
            for name, value in more.items():
                setattr(counts, name, getattr(counts, name) + value)

    def given(self, topic: str, count: int, took_ms: float, *, is_consumed: bool) -> None:
        """Note that a listener had `count` messages for `took_ms`, and whether they are consumed or put off.

        As `add`, in half the time, for it is asked for every message.
        """
        with self._lock:
            counts = self._topics.get(topic)
            if counts is None:
                counts = self._topics[topic] = TopicStatistics()
            counts.consume_ms += took_ms
            if is_consumed:
                counts.consumed_count += count
            else:
                counts.later_count += count

    def stopped(self, topic: str, stop: Stop) -> None:
        """Note that flow control stopped a queue."""
        self.add(topic, **{f"stopped_by_{stop}": 1})

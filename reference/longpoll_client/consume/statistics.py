"""Counts of a consumer by topic: pulls, messages, times, failures and stops, since the start.

A rate is the difference of two snapshots.

Source: `ConsumerStatsManager.java`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
from msgspec.structs import replace

from longpoll_client.consume.process_queue import Stop
from longpoll_runtime import Runtime
from longpoll_spec.tables import with_table

GIVEN_COUNT_MAX: Final = 256
"""Notes of listeners' threads that wait to be counted."""


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
    """Messages that could not be read; `MemberConfig.unreadable` says what became of them."""
    differing_count: int = 0
    """How often another member of the group was found to want something else of the topic: messages get lost then."""
    stopped_by_count: int = 0
    """How often flow control stopped a queue for its number of waiting messages."""
    stopped_by_size: int = 0
    stopped_by_span: int = 0


class Statistics:
    """The counts of one consumer.

    Invariant: `_topics` and its content change under `_lock`; callers get copies. `_given` has counts of listeners'
    threads that are not added yet; any thread may append.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._topics: dict[str, TopicStatistics] = {}
        self._given: deque[tuple[str, int, int, bool]] = deque()

    def snapshot(self) -> dict[str, TopicStatistics]:
        """Every topic's counts now."""
        with self._lock:
            self._count_given()
            return {topic: replace(counts) for topic, counts in self._topics.items()}

    def add(self, topic: str, **more: float) -> None:
        """Add to some of a topic's counts, by their names."""
        with self._lock:
            counts = self._of(topic)
            for name, value in more.items():
                setattr(counts, name, getattr(counts, name) + value)

    def given(self, topic: str, count: int, took_ns: int, *, is_consumed: bool) -> None:
        """Count a listener call with `count` messages that took `took_ns`.

        Only appends, because several threads call this for every message. A snapshot, or a long list, adds them up.
        """
        self._given.append((topic, count, took_ns, is_consumed))
        if len(self._given) >= GIVEN_COUNT_MAX:
            with self._lock:
                self._count_given()

    def _count_given(self) -> None:
        """Count what was noted. With the lock, under which alone notes are taken out."""
        given = self._given
        topic, consumed_count, later_count, sum_ns = "", 0, 0, 0
        for _number in range(len(given)):
            of_topic, count, took_ns, is_consumed = given.popleft()
            if of_topic != topic:
                # Mostly all of them are one topic's, and are added to it once.
                self._add_given(topic, consumed_count, later_count, sum_ns)
                topic, consumed_count, later_count, sum_ns = of_topic, 0, 0, 0
            sum_ns += took_ns
            if is_consumed:
                consumed_count += count
            else:
                later_count += count
        self._add_given(topic, consumed_count, later_count, sum_ns)

    def _add_given(self, topic: str, consumed_count: int, later_count: int, took_ns: int) -> None:
        """Add notes of one topic, if there are any."""
        if consumed_count or later_count:
            counts = self._of(topic)
            counts.consume_ms += took_ns / 1e6
            counts.consumed_count += consumed_count
            counts.later_count += later_count

    def _of(self, topic: str) -> TopicStatistics:
        """The counts of a topic. With the lock."""
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = TopicStatistics()
        return counts

    def stopped(self, topic: str, stop: Stop) -> None:
        """Note that flow control stopped a queue."""
        self.add(topic, **{f"stopped_by_{stop}": 1})

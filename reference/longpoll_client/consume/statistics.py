"""Counts a consumer's messages by topic since its start, and calls the consumer's hooks.

Subtract two snapshots to compute a rate.

Source: `ConsumerStatsManager.java`.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.tables import with_table

log: logging.Logger = logging.getLogger(__name__)

Stop: TypeAlias = Literal["count", "size", "span"]
"""The limit that stops a queue's pulls."""
GIVEN_COUNT_MAX: Final = 256
"""Maximum entries that listener threads append to a list before the list is added up."""


@with_table
class TopicStatistics(msgspec.Struct):
    """One topic's counts."""

    pull_count: int = 0
    """The number of answered pulls, with or without messages."""
    pull_ms: float = 0.0
    """Total time from the request to the response of pulls that found messages, ms, including long-polling waits."""
    found_count: int = 0
    """The number of pulls that found messages."""
    message_count: int = 0
    """The number of messages pulled, after the client's exact comparison of tags."""
    failed_pull_count: int = 0
    moved_count: int = 0
    """The number of pulls whose offset the broker did not have (OFFSET_ILLEGAL)."""
    consumed_count: int = 0
    later_count: int = 0
    """The number of messages for which a listener raised an error or asked for a retry."""
    consume_ms: float = 0.0
    """Total time in listeners, ms."""
    sent_back_count: int = 0
    unreadable_count: int = 0
    """The number of unreadable messages; `MemberConfig.unreadable` decides what happens to them."""
    differing_count: int = 0
    """How often another group member had a different subscription to the topic, which loses messages."""
    stopped_by_count: int = 0
    """How often flow control stopped a queue because too many of its messages waited."""
    stopped_by_size: int = 0
    stopped_by_span: int = 0


class Statistics:
    """The counts of one consumer.

    Invariant: `_topics` and its content change under `_lock`; callers get copies. Any thread may append to `_given`,
    which has counts that are not added to the topics yet.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._topics: dict[str, TopicStatistics] = {}
        self._given: deque[tuple[str, int, int, bool]] = deque()

    def snapshot(self) -> dict[str, TopicStatistics]:
        """Returns the current counts of every topic."""
        with self._lock:
            self._count_given()
            return {topic: replace(counts) for topic, counts in self._topics.items()}

    def add(self, topic: str, **more: float) -> None:
        """Add to some counts of a topic. The keywords are names of counts."""
        with self._lock:
            counts = self._of(topic)
            for name, value in more.items():
                setattr(counts, name, getattr(counts, name) + value)

    def given(self, topic: str, count: int, took_ns: int, *, is_consumed: bool) -> None:
        """Count a listener call with `count` messages that took `took_ns`.

        This method only appends to a list, because several threads call it for every message and appending needs no
        lock. A snapshot adds up the list, and so does an append to a long list.
        """
        self._given.append((topic, count, took_ns, is_consumed))
        if len(self._given) >= GIVEN_COUNT_MAX:
            with self._lock:
                self._count_given()

    def _count_given(self) -> None:
        """Add up the noted calls; the caller holds the lock, because only the lock's holder may remove notes."""
        given = self._given
        topic, consumed_count, later_count, sum_ns = "", 0, 0, 0
        for _number in range(len(given)):
            of_topic, count, took_ns, is_consumed = given.popleft()
            if of_topic != topic:
                # Usually all entries are of one topic, and their sum is added to the topic at once.
                self._add_given(topic, consumed_count, later_count, sum_ns)
                topic, consumed_count, later_count, sum_ns = of_topic, 0, 0, 0
            sum_ns += took_ns
            if is_consumed:
                consumed_count += count
            else:
                later_count += count
        self._add_given(topic, consumed_count, later_count, sum_ns)

    def _add_given(self, topic: str, consumed_count: int, later_count: int, took_ns: int) -> None:
        if consumed_count or later_count:
            counts = self._of(topic)
            counts.consume_ms += took_ns / 1e6
            counts.consumed_count += consumed_count
            counts.later_count += later_count

    def _of(self, topic: str) -> TopicStatistics:
        """Returns the counts of a topic; the caller holds the lock."""
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = TopicStatistics()
        return counts


class HookCalls:
    """Calls the hooks of a consumer, on threads or on an event loop."""

    def __init__(self, runtime: Runtime, config: MemberConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._first = f"{runtime.unix_ms():X}{runtime.monotonic_ns():X}-"
        self._number = itertools.count(1)

    def begin(self, messages: Sequence[ReceivedMessage]) -> str:
        """Call the hooks before a listener call; returns an id for the listener call."""
        delivery = f"{self._first}{next(self._number)}"
        for hook in self._config.hooks:
            with KeepGoing(log, "a hook before a listener failed"):
                hook.before_consume(self._config.group, delivery, messages)
        return delivery

    def ended(
        self,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        begun_ns: int,
    ) -> None:
        """Call the hooks after a listener call."""
        latency_s = (self._runtime.monotonic_ns() - begun_ns) / 1e9
        for hook in self._config.hooks:
            with KeepGoing(log, "a hook after a listener failed"):
                hook.after_consume(
                    self._config.group, delivery, messages, error, is_consumed=is_consumed, latency_s=latency_s
                )

    def received(self, messages: Sequence[ReceivedMessage], latency_ns: int) -> None:
        """Call the hooks after a poll that returned messages."""
        if not self._config.hooks:
            return
        begun_s = self._runtime.unix_ms() / 1000 - latency_ns / 1e9
        for hook in self._config.hooks:
            if hasattr(hook, "after_receive"):
                with KeepGoing(log, "a hook after a poll failed"):
                    hook.after_receive(self._config.group, messages, begun_s, latency_ns / 1e9)

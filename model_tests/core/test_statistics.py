"""Sums sampled over a minute, an hour and a day."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from longpoll_broker.shared import statistics as module
from longpoll_broker.shared.statistics import (
    BROKER_GET_NUMS,
    GROUP_GET_LATENCY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    Statistics,
)


def counted(minutes: int) -> Statistics:
    """Ten messages of 100 bytes a second for some minutes, sampled twice a second."""
    statistics = Statistics()
    for now_ms in range(0, minutes * 60_000, 500):
        statistics.count_get("T", "G", 3, messages=5, size=500, latency_ms=2)
        statistics.sample(now_ms)
    return statistics


def test_a_rate_is_that_of_the_span() -> None:
    """Ten messages a second, five at a time; the day has no two samples yet and says nothing."""
    found = counted(30).snapshots(GROUP_GET_NUMS, "T@G")
    assert found is not None
    assert (found["statsMinute"].sum, found["statsMinute"].tps, found["statsMinute"].average) == (600, 10.0, 5.0)
    assert (found["statsHour"].tps, found["statsHour"].average) == (10.0, 5.0)
    assert (found["statsDay"].sum, found["statsDay"].tps) == (0, 0.0)


def test_what_was_long_ago_is_not_in_the_last_minute() -> None:
    """The minute forgets, the hour does not."""
    statistics = counted(20)
    for now_ms in range(20 * 60_000, 25 * 60_000, 500):
        statistics.sample(now_ms)
    found = statistics.snapshots(GROUP_GET_SIZE, "T@G")
    assert found is not None
    assert found["statsMinute"].sum == 0
    assert found["statsHour"].sum > 0


def test_latency_is_counted_by_queue_and_messages_by_broker() -> None:
    """RocketMQ's keys; the broker's sum has no key of its own."""
    statistics = counted(2)
    latency = statistics.snapshots(GROUP_GET_LATENCY, "3@T@G")
    assert latency is not None
    assert latency["statsMinute"].average == 2.0
    assert statistics.snapshots(GROUP_GET_LATENCY, "4@T@G") is None
    assert statistics.snapshots(BROKER_GET_NUMS, "DefaultCluster") is not None


def test_many_alike_are_counted_as_one_by_one() -> None:
    """In each of the four sums."""
    alike, singly = Statistics(), Statistics()
    alike.count_get("T", "G", 3, messages=2, size=100, latency_ms=4, times=5)
    for _ in range(5):
        singly.count_get("T", "G", 3, messages=2, size=100, latency_ms=4)
    counts = [{key: (item.value, item.times) for key, item in each._items.items()} for each in (alike, singly)]
    assert counts[0] == counts[1]
    assert counts[0] == {
        (GROUP_GET_NUMS, "T@G"): (10, 5),
        (GROUP_GET_SIZE, "T@G"): (500, 5),
        (GROUP_GET_LATENCY, "3@T@G"): (20, 5),
        (BROKER_GET_NUMS, ""): (10, 5),
    }


def test_nothing_got_in_a_span_has_an_average_of_nothing() -> None:
    """Neither one sample, nor two that nothing was counted between, say more."""
    statistics = Statistics()
    statistics.count_get("T", "G", 3, messages=5, size=500, latency_ms=2)
    for now_ms in (0, 10_000):
        statistics.sample(now_ms)
        found = statistics.snapshots(GROUP_GET_NUMS, "T@G")
        assert found is not None
        minute = found["statsMinute"]
        assert (minute.sum, minute.tps, minute.average) == (0, 0.0, 0.0)


class Guard:
    """A lock of one thread that knows whether it is held."""

    held = False

    def __enter__(self) -> None:
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


class Guarded(dict[Any, Any]):
    """Items that are only read with the guard held: another thread's count would change them meanwhile."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def get(self, *key: Any) -> Any:
        assert self.guard.held
        return super().get(*key)

    def items(self) -> Any:
        assert self.guard.held
        return super().items()


def test_samples_and_snapshots_hold_the_guard() -> None:
    """Whoever goes through the items has it, and gives it back."""
    guard = Guard()
    statistics = Statistics(guard=guard)
    statistics._items = Guarded(guard)
    statistics.count_get("T", "G", 3, messages=5, size=500, latency_ms=2)
    statistics.sample(0)
    assert statistics.snapshots(GROUP_GET_NUMS, "T@G") is not None
    assert not guard.held


def test_others_count_while_many_items_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part holds the guard once; an item is looked up by its key, however many there are."""
    monkeypatch.setattr(module, "PART_COUNT", 2)
    statistics = Statistics()
    for group in "ABCD":
        statistics.count_get("T", group, 0, messages=1, size=1, latency_ms=0)
    statistics.guard = guard = mock.MagicMock()
    statistics.sample(0)
    assert guard.__enter__.call_count == 1 + len(statistics._items) // 2 + 1
    assert statistics.snapshots(GROUP_GET_NUMS, "T@A") is not None


def test_an_item_leaves_after_a_day_without_a_count() -> None:
    """Its room is another's then; the broker's own sums stay."""
    statistics = Statistics()
    for group in "GH":
        statistics.count_get("T", group, 3, messages=5, size=500, latency_ms=2)
    hour_ms = 3_600_000
    for hour in range(25):
        statistics.count_get("T", "H", 3, messages=5, size=500, latency_ms=2)
        statistics.sample(hour * hour_ms)
    assert statistics.snapshots(GROUP_GET_NUMS, "T@G") is None
    assert statistics.snapshots(GROUP_GET_NUMS, "T@H") is not None
    for hour in range(25, 51):
        statistics.sample(hour * hour_ms)
    assert (statistics.quota.used, statistics.given()) == (1, 27 * 5)
    statistics.count_get("T", "H", 3, messages=5, size=500, latency_ms=2)
    assert statistics.snapshots(GROUP_GET_NUMS, "T@H") is not None


def test_items_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes first is counted on, what comes over the limit is not."""
    monkeypatch.setattr(module, "ITEM_COUNT_MAX", 4)
    statistics = Statistics()
    statistics.count_get("T", "G", 0, messages=1, size=1, latency_ms=0)
    statistics.count_get("T", "H", 0, messages=1, size=1, latency_ms=0)
    assert statistics.snapshots(GROUP_GET_NUMS, "T@G") is not None
    assert statistics.snapshots(GROUP_GET_NUMS, "T@H") is None


def test_the_broker_s_messages_are_those_of_all_groups() -> None:
    """None before the first; every queue and group counts."""
    statistics = Statistics()
    assert statistics.given() == 0
    statistics.count_get("T", "G", 0, messages=2, size=1, latency_ms=0)
    statistics.count_get("U", "H", 1, messages=3, size=1, latency_ms=0, times=2)
    assert statistics.given() == 8

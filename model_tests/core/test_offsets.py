"""Tables of the broker: committed offsets, queue locks and statistics."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from model_tests.support.broker.stores import result_of
from model_tests.support.present import present

from longpoll_broker.rocketmq.admin import lock_processor
from longpoll_broker.rocketmq.admin.lock_processor import LIFE_MS, QueueLocks
from longpoll_broker.shared import offsets as offsets_module
from longpoll_broker.shared import statistics as module
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import (
    BROKER_GET_NUMS,
    GROUP_GET_LATENCY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    Statistics,
)


def test_commits_by_consumers_and_by_pulls() -> None:
    """A consumer may move an offset back, as in RocketMQ 4.9, and a pull may not."""
    offsets = Offsets()
    assert offsets.query("T", "G", 0) is None
    offsets.commit("T", "G", 0, 9)
    offsets.commit("T", "G", 0, 4)
    offsets.commit("T", "H", 0, 1)
    assert (offsets.query("T", "G", 0), offsets.by_pair) == (4, {"T@G": {0: 4}, "T@H": {0: 1}})
    offsets = Offsets()
    assert offsets.commit("T", "G", 0, 5, forward_only=True)
    assert offsets.commit("T", "G", 0, 3, forward_only=True)
    assert offsets.query("T", "G", 0) == 5
    offsets.commit("T", "G", 0, 9, forward_only=True)
    offsets.commit("T", "G", 0, 2)
    assert offsets.query("T", "G", 0) == 2


def test_forgetting_offsets() -> None:
    """Only the named group or topic is removed; names with the same beginning or end stay."""
    offsets = Offsets(pulled=Offsets())
    assert offsets.pulled is not None
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        offsets.commit(topic, group, 0, 1)
        offsets.pulled.commit(topic, group, 0, 3)
    assert (result_of(offsets.topics_of("G"))[0], result_of(offsets.groups_of("T"))[0]) == (["T", "U"], ["G", "H"])
    assert offsets.pulled_to("T", "G", 0) == 3
    offsets.forget_group("G")
    assert [offsets.pulled_to(topic, "G", 0) for topic in ("T", "U")] == [None, None]
    assert offsets.pulled_to("T", "H", 0) == 3
    offsets.forget_topic("T")
    assert offsets.pulled_to("T", "H", 0) is None
    offsets = Offsets()
    offsets.commit("T", "G", 0, 1)
    offsets.commit("T2", "G", 0, 1)
    offsets.changed = False
    offsets.forget_topic("none")
    assert not offsets.changed
    offsets.forget_topic("T")
    assert list(offsets.by_pair) == ["T2@G"]
    assert offsets.changed, "otherwise the file would restore the offsets"
    offsets = stored()
    offsets.forget_group("none")
    assert not offsets.changed
    offsets.forget_group("G")
    assert list(offsets.by_pair) == ["T@H", "TT@GG"]
    assert offsets.changed, "otherwise the file would restore the offsets"
    offsets = stored()
    assert (result_of(offsets.topics_of("G"))[0], result_of(offsets.topics_of("none"))[0]) == (["T", "U"], [])
    assert (result_of(offsets.groups_of("T"))[0], result_of(offsets.groups_of("none"))[0]) == (["G", "H"], [])


def test_limits_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "OFFSET_COUNT_MAX", 2)
    monkeypatch.setattr(offsets_module, "QUEUE_COUNT_MAX", 1)
    offsets = Offsets()
    assert offsets.commit("T", "G", 0, 1)
    assert offsets.commit("T", "H", 0, 1)
    assert not offsets.commit("T", "I", 0, 1)
    assert not offsets.commit("T", "G", 1, 1)
    assert offsets.commit("T", "G", 0, 2)
    monkeypatch.setattr(offsets_module, "QUEUE_COUNT_MAX", 9)
    assert not offsets.commit("T", "G", 1, 1), "each queue of the group counts"
    offsets.forget_topic("T")
    assert offsets.commit("T", "G", 0, 1)
    assert offsets.commit("T", "G", 1, 1)
    offsets.clone("T", "G", "H")
    assert offsets.by_pair == {"T@G": {0: 1, 1: 1}}, "a cloned offset counts too"


def test_a_light_group_has_one_queue() -> None:
    """With `enableLmq` a light group has one queue, named after the group."""
    offsets = Offsets(light=True)
    offsets.commit("T", "%LMQ%g", 4, 9)
    offsets.commit("%LMQ%t", "G", 4, 3)
    assert offsets.by_pair == {"T@%LMQ%g": {0: 9}, "%LMQ%t@G": {4: 3}}
    assert offsets.query("T", "%LMQ%g", 2) == 9
    assert (offsets.query("%LMQ%t", "G", 0), offsets.query("%LMQ%t", "G", 4)) == (None, 3)
    assert Offsets(by_pair={"T@%LMQ%g": {4: 9}}).query("T", "%LMQ%g", 4) == 9
    assert [offsets.is_light(pair) for pair in offsets.by_pair] == [True, False]
    assert not Offsets().is_light("T@%LMQ%g")


def stored() -> Offsets:
    offsets = Offsets()
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G"), ("TT", "GG")):
        offsets.commit(topic, group, 0, 1)
    offsets.changed = False
    return offsets


class Guard:
    """A lock that adds the offsets of `others` when first acquired, and counts the pairs that each block removes."""

    def __init__(self, offsets: Offsets, others: dict[str, dict[int, int]]) -> None:
        self.offsets, self.others = offsets, others
        self.dropped: list[int] = []

    def __enter__(self) -> None:
        self.offsets.by_pair |= self.others
        self.others = {}
        self.before = len(self.offsets.by_pair)

    def __exit__(self, *_told: object) -> None:
        self.dropped.append(self.before - len(self.offsets.by_pair))


def test_a_group_is_removed_with_its_latest_commits() -> None:
    """Commits arrive while the group is removed from the table part by part."""
    offsets = stored()
    guard = offsets.guard = Guard(offsets, {"V@G": {0: 1}, "V@H": {0: 1}})
    offsets.forget_group("G")
    assert (list(offsets.by_pair), guard.dropped) == (["T@H", "TT@GG", "V@H"], [0, 1, 1, 1])


def test_a_large_table_is_traversed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = Offsets()
    for number in range(10):
        offsets.commit(f"T{number}", "G@" * 4, 0, number)
    topics = [f"T{number}" for number in range(10)]
    monkeypatch.setattr(offsets_module, "TURN_COUNT", 5)
    assert result_of(offsets.topics_of("G@" * 4)) == (topics, 1)
    assert result_of(offsets.groups_of("T3")) == (["G@" * 4], 1)
    assert result_of(offsets.topics_by_group(["G@" * 4])) == ({"G@" * 4: topics}, 10)


def test_a_queue_lock_has_one_holder() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "a", ["q0", "q1"], 0) == ["q0", "q1"]
    assert locks.lock("G", "b", ["q1", "q2"], 1) == ["q2"]
    assert (locks.lock("H", "b", ["q1"], 1), locks.lock("G", "a", [], 1)) == (["q1"], [])
    locks = QueueLocks()
    locks.lock("G", "a", ["q"], 0)
    assert locks.lock("G", "b", ["q"], LIFE_MS) == []
    assert locks.lock("G", "a", ["q"], LIFE_MS) == ["q"]
    assert locks.lock("G", "b", ["q"], LIFE_MS + 1) == []
    assert locks.lock("G", "b", ["q"], 2 * LIFE_MS + 1) == ["q"]
    locks = QueueLocks()
    locks.lock("G", "a", ["q"], 0)
    locks.unlock("G", "b", ["q"])
    assert locks.lock("G", "b", ["q"], 0) == []
    locks.unlock("G", "a", ["q", "never"])
    assert locks.lock("G", "b", ["q"], 0) == ["q"]


def test_the_number_of_locks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_processor, "LOCK_COUNT_MAX", 2)
    locks = QueueLocks()
    assert locks.lock("G", "a", ["q0", "q1", "q2"], 0) == ["q0", "q1"]
    assert locks.lock("H", "a", ["q"], 0) == []
    locks.unlock("G", "a", ["q0"])
    assert locks.lock("H", "a", ["q"], 0) == ["q"]


def test_a_renewed_lock_does_not_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_processor, "LOCK_COUNT_MAX", 2)
    locks = QueueLocks()
    for now_ms in (0, 1, 2):
        assert locks.lock("G", "a", ["q0"], now_ms) == ["q0"]
    assert locks.lock("G", "b", ["q0"], LIFE_MS + 3) == ["q0"]
    assert locks.lock("G", "b", ["q1", "q2"], LIFE_MS + 3) == ["q1"]


def test_a_group_without_locks_is_not_stored() -> None:
    """Clients choose group names, so a group without locks must not use memory."""
    locks = QueueLocks()
    locks.lock("G", "a", [], 0)
    assert not locks._holders
    locks.lock("G", "a", ["q0", "q1"], 0)
    locks.unlock("G", "a", ["q0"])
    assert list(locks._holders) == [("G", "q1")]
    locks.unlock("G", "a", ["q1"])
    assert not locks._holders
    assert locks.quota.used == 0


def test_locks_that_were_not_renewed_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_processor, "LOCK_COUNT_MAX", 2)
    locks = QueueLocks()
    assert locks.lock("G", "a", ["q0", "q1"], 0) == ["q0", "q1"]
    assert locks.lock("H", "b", ["q"], LIFE_MS) == []
    assert locks.lock("H", "b", ["q"], LIFE_MS + 1) == ["q"]


def counted(minutes: int) -> Statistics:
    """Return statistics of ten 100-byte messages per second for some minutes, sampled twice a second."""
    statistics = Statistics()
    for now_ms in range(0, minutes * 60_000, 500):
        statistics.count_get("T", "G", 3, messages=5, size=500, latency_ms=2)
        statistics.sample(now_ms)
    return statistics


def test_rates_of_a_span() -> None:
    """A message may be too old for the rate of a minute and still count in the rate of an hour.

    With fewer than two samples there is no rate.
    """
    found = present(counted(30).snapshots(GROUP_GET_NUMS, "T@G"))
    assert (found["statsMinute"].sum, found["statsMinute"].tps, found["statsMinute"].average) == (600, 10.0, 5.0)
    assert (found["statsHour"].tps, found["statsHour"].average) == (10.0, 5.0)
    assert (found["statsDay"].sum, found["statsDay"].tps) == (0, 0.0)
    statistics = counted(20)
    for now_ms in range(20 * 60_000, 25 * 60_000, 500):
        statistics.sample(now_ms)
    found = present(statistics.snapshots(GROUP_GET_SIZE, "T@G"))
    assert found["statsMinute"].sum == 0
    assert found["statsHour"].sum > 0
    statistics = Statistics()
    statistics.count_get("T", "G", 3, messages=5, size=500, latency_ms=2)
    for now_ms in (0, 10_000):
        statistics.sample(now_ms)
        found = present(statistics.snapshots(GROUP_GET_NUMS, "T@G"))
        minute = found["statsMinute"]
        assert (minute.sum, minute.tps, minute.average) == (0, 0.0, 0.0)


def test_sums_by_queue_and_by_broker() -> None:
    statistics = counted(2)
    latency = present(statistics.snapshots(GROUP_GET_LATENCY, "3@T@G"))
    assert latency["statsMinute"].average == 2.0
    assert statistics.snapshots(GROUP_GET_LATENCY, "4@T@G") is None
    assert statistics.snapshots(BROKER_GET_NUMS, "DefaultCluster") is not None
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
    statistics = Statistics()
    assert statistics.given() == 0
    statistics.count_get("T", "G", 0, messages=2, size=1, latency_ms=0)
    statistics.count_get("U", "H", 1, messages=3, size=1, latency_ms=0, times=2)
    assert statistics.given() == 8


class NotedGuard:
    held = False

    def __enter__(self) -> None:
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


class Guarded(dict[Any, Any]):
    """A dictionary that may only be read while the guard is held, because other threads change it when they count."""

    def __init__(self, guard: NotedGuard) -> None:
        self.guard = guard

    def get(self, *key: Any) -> Any:
        assert self.guard.held
        return super().get(*key)

    def items(self) -> Any:
        assert self.guard.held
        return super().items()


def test_samples_and_snapshots_hold_the_guard() -> None:
    guard = NotedGuard()
    statistics = Statistics(guard=guard)
    statistics._items = Guarded(guard)
    statistics.count_get("T", "G", 3, messages=5, size=500, latency_ms=2)
    statistics.sample(0)
    assert statistics.snapshots(GROUP_GET_NUMS, "T@G") is not None
    assert not guard.held


def test_other_threads_count_while_items_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_COUNT", 2)
    statistics = Statistics()
    for group in "ABCD":
        statistics.count_get("T", group, 0, messages=1, size=1, latency_ms=0)
    statistics.guard = guard = mock.MagicMock()
    statistics.sample(0)
    assert guard.__enter__.call_count == 1 + len(statistics._items) // 2 + 1
    assert statistics.snapshots(GROUP_GET_NUMS, "T@A") is not None


def test_an_item_leaves_after_a_day_without_a_count() -> None:
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
    monkeypatch.setattr(module, "ITEM_COUNT_MAX", 4)
    statistics = Statistics()
    statistics.count_get("T", "G", 0, messages=1, size=1, latency_ms=0)
    statistics.count_get("T", "H", 0, messages=1, size=1, latency_ms=0)
    assert statistics.snapshots(GROUP_GET_NUMS, "T@G") is not None
    assert statistics.snapshots(GROUP_GET_NUMS, "T@H") is None


def test_offsets_of_a_topic_that_does_not_exist_end_when_it_is_created() -> None:
    """No offset is stored for a name that no topic can have."""
    offsets = Offsets()
    for topic, group in (("T", "late"), ("T", "gone"), ("T", "other"), ("a b", "late")):
        offsets.commit(topic, group, 0, 3)
        if group != "other":
            offsets.note_stray(topic, group)
    offsets.forget_group("gone")
    assert offsets._strays == {"T": {"late"}}
    offsets.forget_strays("T")
    assert (set(offsets.by_pair), offsets._strays, offsets.quota.used) == ({"T@other", "a b@late"}, {}, 2)
    offsets.note_stray("T", "other")
    offsets.forget_topic("T")
    assert (set(offsets.by_pair), offsets._strays) == ({"a b@late"}, {})

"""Counts stores and reads, with sizes and latencies: sums per minute, hour and day, and rates per second.

Time is an argument. To share statistics between threads, pass a lock as `guard`. Queries: see
`rocketmq.admin.table_processor`.

Source: `StatsItem.java`, `StatsItemSet.java`, `BrokerStatsManager.java`: the same names, keys and sampling;
`StoreStatsService.java`; `FlowMonitor.java` 5.x.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_broker.shared.quota import Quota

GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"

ITEM_COUNT_MAX: Final = 100_000
"""Maximum counted items; values for further items are ignored."""
PART_COUNT: Final = 2_000
"""Items sampled before the guard is released, which takes about 2 ms."""
_MINUTE_MS: Final = 60_000
_SPANS: Final = (
    ("statsMinute", _MINUTE_MS // 6, 7),
    ("statsHour", 10 * _MINUTE_MS, 7),
    ("statsDay", 60 * _MINUTE_MS, 25),
)
"""Name, milliseconds between samples, and number of samples. A span of n steps needs n + 1 samples."""


@frozen
class Snapshot:
    """The counts of one time span."""

    sum: int
    tps: float
    """The sum per second of the span."""
    average: float
    """The sum divided by the count."""


@define(slots=True, eq=False)
class Item:
    """One sum. Invariant: each list in `samples` has (time in ms, value, times) tuples, oldest first, up to a limit."""

    value: int = 0
    times: int = 0
    samples: list[deque[tuple[int, int, int]]] = field(
        factory=lambda: [deque(maxlen=count) for _name, _step_ms, count in _SPANS]
    )

    def sample(self, now_ms: int) -> None:
        """Take a sample in every span whose step has passed since the last sample in the span."""
        for (_name, step_ms, _count), samples in zip(_SPANS, self.samples, strict=True):
            if not samples or now_ms - samples[-1][0] >= step_ms:
                samples.append((now_ms, self.value, self.times))

    @property
    def is_idle(self) -> bool:
        """Whether nothing was counted in the last day."""
        day = self.samples[-1]
        return len(day) == day.maxlen and day[0][2] == self.times

    def snapshots(self) -> dict[str, Snapshot]:
        """Returns the sums by span."""
        return {name: _between(samples) for (name, _step_ms, _count), samples in zip(_SPANS, self.samples, strict=True)}


def _between(samples: deque[tuple[int, int, int]]) -> Snapshot:
    if len(samples) < 2:
        return Snapshot(0, 0.0, 0.0)
    (first_ms, first, first_times), (last_ms, last, last_times) = samples[0], samples[-1]
    total, times = last - first, last_times - first_times
    return Snapshot(total, total * 1000 / (last_ms - first_ms), total / times if times else 0.0)


@define(slots=True, eq=False)
class Statistics:
    """Every item, by name and key. An item exists from its first count until it was idle for a day."""

    guard: AbstractContextManager[Any] = field(factory=nullcontext)
    quota: Quota = field(factory=lambda: Quota("statistics", ITEM_COUNT_MAX, unit=0), init=False)
    _items: dict[tuple[str, str], Item] = field(factory=dict, init=False)
    _last_place: tuple[str, str, int] = field(default=("", "", -1), init=False)
    _last_items: tuple[Item, Item, Item, Item] = field(factory=lambda: (Item(), Item(), Item(), Item()), init=False)
    """The items of `_last_place`, kept because the next count usually has the same topic, group and queue."""
    _last_topic: str = field(default="", init=False)
    _last_put: tuple[Item, Item, Item] = field(factory=lambda: (Item(), Item(), Item()), init=False)
    """The items of `_last_topic`, kept because the next send usually has the same topic."""

    def count_get(
        self,
        topic: str,
        group: str,
        queue_id: int,
        *,
        messages: int,
        size: int,
        latency_ms: int,
        times: int = 1,
        channel: Hashable = None,
    ) -> None:
        """Count a group's read of messages from a queue. One call may count several (`times`) equal reads."""
        with self.guard:
            # One message may wake a thousand pulls of one group, so the group's items are looked up once.
            if self._last_place != (topic, group, queue_id):
                pair = f"{topic}@{group}"
                self._last_items = (
                    self._item(GROUP_GET_NUMS, pair, channel),
                    self._item(GROUP_GET_SIZE, pair, channel),
                    self._item(GROUP_GET_LATENCY, f"{queue_id}@{pair}", channel),
                    self._item(BROKER_GET_NUMS),
                )
                self._last_place = (topic, group, queue_id)
            nums, sizes, latencies, broker = self._last_items
            nums.value += messages * times
            nums.times += times
            sizes.value += size * times
            sizes.times += times
            latencies.value += latency_ms * times
            latencies.times += times
            broker.value += messages * times
            broker.times += times

    def count_put(self, topic: str, *, messages: int, size: int) -> None:
        """Count stored messages of a topic; `size` is the total bytes of records."""
        with self.guard:
            if self._last_topic != topic:
                self._last_put = (
                    self._item(TOPIC_PUT_NUMS, topic),
                    self._item(TOPIC_PUT_SIZE, topic),
                    self._item(BROKER_PUT_NUMS),
                )
                self._last_topic = topic
            nums, sizes, broker = self._last_put
            nums.value += messages
            nums.times += 1
            sizes.value += size
            sizes.times += 1
            broker.value += messages
            broker.times += 1

    def count_back(self, topic: str, group: str) -> None:
        """Count a message of a topic, because a group sent it back."""
        with self.guard:
            item = self._item(SNDBCK_PUT_NUMS, f"{topic}@{group}")
            item.value += 1
            item.times += 1

    def sample(self, now_ms: int) -> None:
        """Sample every item; a call within ten seconds of the last call has no effect.

        Items are sampled in batches, between which other threads can count.
        """
        with self.guard:
            items = list(self._items.items())
        for start in range(0, len(items), PART_COUNT):
            with self.guard:
                for key, item in items[start : start + PART_COUNT]:
                    item.sample(now_ms)
                    if key[1] and item.is_idle:
                        del self._items[key]
                        self.quota.release(key)
                        self._last_place, self._last_topic = ("", "", -1), ""

    def snapshots(self, name: str, key: str) -> dict[str, Snapshot] | None:
        """Returns an item by RocketMQ's key (`topic`, `topic@group`, `queue@topic@group` or the cluster), or None."""
        with self.guard:
            item = self._items.get((name, "" if name in {BROKER_GET_NUMS, BROKER_PUT_NUMS} else key))
            return None if item is None else item.snapshots()

    def times_given(self) -> int:
        """Number of pulls that got messages."""
        item = self._items.get((BROKER_GET_NUMS, ""))
        return 0 if item is None else item.times

    def given(self) -> int:
        """Number of messages that all groups got."""
        item = self._items.get((BROKER_GET_NUMS, ""))
        return 0 if item is None else item.value

    def _item(self, name: str, key: str = "", channel: Hashable = None) -> Item:
        item = self._items.get((name, key))
        if item is None:
            item = Item()
            if self.quota.take((name, key), channel):
                self._items[name, key] = item
        return item


SPANS_S: Final = (10, 60, 600)
_SAMPLE_COUNT_MAX: Final = SPANS_S[-1] + 1


@define(slots=True, eq=False)
class Rates:
    """Messages per second over the last 10 s, minute and 10 minutes, sampled once a second.

    `_samples` has pairs of (time ms, count), oldest first and at least a second apart. Only one thread adds samples.
    """

    _samples: deque[tuple[int, int]] = field(factory=lambda: deque(maxlen=_SAMPLE_COUNT_MAX), init=False)

    def sample(self, now_ms: int, count: int) -> None:
        """Add a sample, unless the last sample is less than a second old."""
        if not self._samples or now_ms - self._samples[-1][0] >= 1000:
            self._samples.append((now_ms, count))

    def as_text(self) -> str:
        """Returns the rates as in RocketMQ: three numbers separated by spaces; a rate is 0.0 without samples."""
        samples = list(self._samples)
        return " ".join(str(_rate(samples, span_s)) for span_s in SPANS_S)


def _rate(samples: list[tuple[int, int]], span_s: int) -> float:
    """Returns the rate over `span_s` before the last sample, or since the first sample if that is later."""
    if len(samples) < 2:
        return 0.0
    last_ms, last = samples[-1]
    first_ms, first = next(each for each in samples if last_ms - each[0] <= span_s * 1000)
    return 0.0 if first_ms == last_ms else round((last - first) * 1000 / (last_ms - first_ms), 3)

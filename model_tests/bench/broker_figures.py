"""Defines the names, units and limits of the figures of `broker_bench`, which `broker_measures` measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, Literal

import msgspec
from attrs import frozen

OURS: Final = "ours"
JAVA: Final = "Java 4.9.7"
POLLING: Final = "ours, polling"
"""Our broker with RocketMQ's dispatcher, which polls the log every millisecond."""
RECORDING: Final = "ours, recording"
"""Our broker with `--record`, which writes every event to a history."""
CEILING: Final = "ceiling"
"""The harness with a server that answers without reading, which shows the limit of the harness."""
SIDES: Final = (OURS, JAVA, POLLING, RECORDING, CEILING)


@frozen
class Bar:
    """An upper or lower limit for a figure of our broker, or for its ratio to the Java broker's figure."""

    of: Literal["ours", "ratio"]
    limit: float
    at: Literal["most", "least"] = "most"

    def __str__(self) -> str:
        return f"{self.of} {'<=' if self.at == 'most' else '>='} {self.limit:g}"

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.at == "most" else value >= self.limit


def total(values: Sequence[float]) -> float:
    return float(sum(values))


@frozen
class Figure:
    name: str
    unit: str
    bar: Bar | None = None
    of_rounds: Callable[[Sequence[float]], float] = median
    """The function that combines the values of the rounds."""


FIGURES: Final[Mapping[str, Figure]] = {
    "round_trip_p50": Figure("small request and answer, p50", "ms"),
    "wake_p50": Figure("send written to held pull answered, p50", "ms", Bar("ratio", 0.6)),
    "wake_p99": Figure("send written to held pull answered, p99", "ms", Bar("ratio", 1.0)),
    "overshoot_p50": Figure("answer after the deadline, p50", "ms"),
    "overshoot_p99": Figure("answer after the deadline, p99", "ms", Bar("ours", 10.0)),
    "raced": Figure("racing deliveries", "", of_rounds=total),
    "raced_late": Figure("over 500 ms late, a million", "", Bar("ours", 0.0)),
    "raced_unexplained": Figure("over 100 ms late with no stall of the machine", "", Bar("ours", 0.0), total),
    "new_queues": Figure("64 new queues' first messages, longest wake just after", "ms", Bar("ratio", 1.0), max),
    "fan_first": Figure("1,000 pulls woken by one message, first", "ms", Bar("ratio", 1.0)),
    "fan_last": Figure("1,000 pulls woken by one message, last", "ms", Bar("ratio", 1.0)),
    "send_1": Figure("sends of 128 B, 64 in flight, 1 connection", "/s", Bar("ratio", 1.0, "least"), max),
    "send_us": Figure("processor time of such a send, all threads", "us", of_rounds=min),
    "send_8": Figure("sends of 128 B, 64 in flight, 8 connections", "/s", Bar("ratio", 0.5, "least"), max),
    "send_keys": Figure("sends of 128 B with a tag and two keys, 64 in flight, 1 connection", "/s", of_rounds=max),
    "pull_1": Figure("messages pulled, 32 a pull, 1 in flight", "/s", Bar("ratio", 1.0, "least"), max),
    "pull_8": Figure("messages pulled, 32 a pull, 8 in flight", "/s", Bar("ratio", 0.5, "least"), max),
    "accepted": Figure("100,000 pulls accepted to hold", "/s", of_rounds=max),
    "held_bytes": Figure("memory of a held pull", "bytes", Bar("ours", 1360.0)),
    "held_late_p99": Figure("100,000 pulls of one timeout, answered late, p99", "ms", Bar("ours", 250.0)),
    "moment_last": Figure("100,000 pulls due in one millisecond, last", "ms", Bar("ours", 1000.0)),
    "idle": Figure("processor while idle", "% of a core", Bar("ours", 1.0)),
    "idle_held": Figure("processor while 100,000 are held", "% of a core", Bar("ours", 1.0)),
}


class Value(msgspec.Struct):
    name: str
    unit: str
    sides: dict[str, float]
    ratio: float | None
    bar: str
    met: bool | None
    """Whether the limit is kept; None if the figure has no limit, or if one of the brokers was not measured."""


def value_of(figure: Figure, measured: Mapping[str, Sequence[float]]) -> Value:
    sides = {side: figure.of_rounds(measured[side]) for side in SIDES if side in measured}
    ratio = sides[OURS] / sides[JAVA] if sides.get(JAVA) and OURS in sides else None
    met = None
    if figure.bar is not None:
        held_to = ratio if figure.bar.of == "ratio" else sides.get(OURS)
        met = figure.bar.is_met(held_to) if held_to is not None else None
    return Value(figure.name, figure.unit, sides, ratio, str(figure.bar or ""), met)

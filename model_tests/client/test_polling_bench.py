"""The polling bench finds long polling best only when it is, and runs from end to end."""

from __future__ import annotations

import msgspec
import pytest
from model_tests.bench.polling_bench import WAYS, Result, is_long_polling_best, measure


def result(way: str, latency_ms: float, idle_pulls_per_s: float) -> Result:
    """One way's figures, of which two count."""
    return Result(way, latency_ms, latency_ms, latency_ms, 1.0, 1.0, idle_pulls_per_s, 0.0, [latency_ms])


@pytest.mark.parametrize(
    ("latency_ms", "idle_pulls_per_s", "is_best"), [(1.0, 0.0, True), (9.0, 0.0, False), (1.0, 900.0, False)]
)
def test_only_the_quickest_with_the_fewest_pulls_is_best(
    latency_ms: float, idle_pulls_per_s: float, is_best: bool
) -> None:
    """A slower one or one that asks while nothing comes is not."""
    others = [result("every 1 s", 500.0, 8.0), result("every 10 ms", 5.0, 800.0)]
    assert is_long_polling_best([*others, result("long polling", latency_ms, idle_pulls_per_s)]) is is_best


def test_one_way_is_measured_from_end_to_end() -> None:
    """Every message comes, and a held pull stays held while nothing does."""
    found = measure(next(way for way in WAYS if way.name == "long polling"), 5, 0.2, 1)
    assert found.idle_pulls_per_s == 0.0
    assert 0.0 < found.latency_ms_median <= found.latency_ms_p99 <= found.latency_ms_max
    assert msgspec.json.decode(msgspec.json.encode(found), type=Result) == found

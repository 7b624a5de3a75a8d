"""Messages per second over the last 10 s, minute and 10 minutes, sampled once a second.

Time is an argument. Source: `StoreStatsService.java`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define, field

SPANS_S: Final = (10, 60, 600)
_SAMPLE_COUNT_MAX: Final = SPANS_S[-1] + 1


@define(slots=True, eq=False)
class Rates:
    """One count's samples (time ms, count), oldest first, at least a second apart; one thread adds."""

    _samples: deque[tuple[int, int]] = field(factory=lambda: deque(maxlen=_SAMPLE_COUNT_MAX), init=False)

    def sample(self, now_ms: int, count: int) -> None:
        """Add a sample, unless the last is less than a second old."""
        if not self._samples or now_ms - self._samples[-1][0] >= 1000:
            self._samples.append((now_ms, count))

    def told(self) -> str:
        """Returns the rates per second in RocketMQ's form: three numbers separated by spaces; 0.0 without a span."""
        samples = list(self._samples)
        return " ".join(str(_rate(samples, span_s)) for span_s in SPANS_S)


def _rate(samples: list[tuple[int, int]], span_s: int) -> float:
    """The rate of the span up to the last sample, or of its available part."""
    if len(samples) < 2:
        return 0.0
    last_ms, last = samples[-1]
    first_ms, first = next(each for each in samples if last_ms - each[0] <= span_s * 1000)
    return 0.0 if first_ms == last_ms else round((last - first) * 1000 / (last_ms - first_ms), 3)

"""How many messages a second came and went over the last 10 s, minute and 10 minutes, sampled once a second.

Time is an argument. Leaves out what is counted. Source: `StoreStatsService.java`.
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
        """Note a count, unless the last one was less than a second ago."""
        if not self._samples or now_ms - self._samples[-1][0] >= 1000:
            self._samples.append((now_ms, count))

    def told(self) -> str:
        """A second, by span, as RocketMQ says it: three numbers with spaces between; 0.0 where there is no span."""
        samples = list(self._samples)
        return " ".join(str(_rate(samples, span_s)) for span_s in SPANS_S)


def _rate(samples: list[tuple[int, int]], span_s: int) -> float:
    """Of the span up to the last sample, or of what there is of it."""
    if len(samples) < 2:
        return 0.0
    last_ms, last = samples[-1]
    first_ms, first = next(each for each in samples if last_ms - each[0] <= span_s * 1000)
    return 0.0 if first_ms == last_ms else round((last - first) * 1000 / (last_ms - first_ms), 3)

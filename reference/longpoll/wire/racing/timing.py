"""Chooses when to pull so that a pull meets its message, and learns it from earlier answers.

A pull that is held before its message arrives gets its answer one wake time after the message was written. A pull that
arrives later gets its answer one trip time after the pull was written. The race happens where both coincide: the wake
time minus the trip time after the message. The module follows both times as medians, so they include the delays of
proxy, network and load. `load` sends and pulls.
"""

from __future__ import annotations

import random
from typing import Final

from attrs import define

EARLY_SHARE: Final = 0.08
LATE_SHARE: Final = 0.08
"""Shares of rounds that measure the wake time and the trip time."""
WIDE_SHARE: Final = 0.25
"""Share of rounds that ignore the estimate, because the right time differs between queues."""
TOGETHER_SHARE: Final = 0.5
"""The share of bursts whose pulls are written right after their messages."""
SPREADS_MS: Final = (0.02, 0.08, 0.3)
CLEAR_MS: Final = 1.0
"""At this distance from the estimate a round is not a race, but measures one of the two times."""
STEP: Final = 0.02
"""The relative change of a median per round."""
FLOOR_MS: Final = 0.05
GAP_MS_MAX: Final = 50.0
"""However slow a broker is, a message and its pull are written within this time."""


@define
class PullTiming:
    """Draws gaps, from a message's write to its pull's. Invariant: `wake_ms` and `trip_ms` are positive."""

    gap_ms: float
    """The width of the rounds that ignore the estimate."""
    wake_ms: float = 1.0
    trip_ms: float = 0.5

    @property
    def middle_ms(self) -> float:
        """The centre of the race; negative if a trip takes longer than a wake."""
        return max(-GAP_MS_MAX, min(GAP_MS_MAX, self.wake_ms - self.trip_ms))

    def draw(self, sequence: random.Random) -> float:
        """The delay of a pull after its message, milliseconds; negative: before it."""
        kind = sequence.random()
        if kind < EARLY_SHARE:
            return self.middle_ms - CLEAR_MS * sequence.uniform(1.2, 3)
        if kind < EARLY_SHARE + LATE_SHARE:
            return self.middle_ms + CLEAR_MS * sequence.uniform(1.2, 3)
        if kind < EARLY_SHARE + LATE_SHARE + WIDE_SHARE:
            return sequence.uniform(0, self.gap_ms)
        return self.middle_ms + sequence.gauss(0, sequence.choice(SPREADS_MS))

    def draw_burst(self, sequence: random.Random) -> float:
        """The same for many messages and pulls in one write: often at the same time."""
        if sequence.random() < TOGETHER_SHARE:
            return 0.0
        return sequence.uniform(min(0.0, self.middle_ms), max(self.gap_ms, self.middle_ms))

    def learn(self, sent_ms: float, asked_ms: float, answered_ms: float) -> None:
        """Learn from a round's times: message written, pull written, pull answered."""
        beside_ms = asked_ms - sent_ms - self.middle_ms
        if beside_ms < -CLEAR_MS:
            self.wake_ms = _median(self.wake_ms, answered_ms - sent_ms)
        elif beside_ms > CLEAR_MS:
            self.trip_ms = _median(self.trip_ms, answered_ms - asked_ms)


def _median(now_ms: float, seen_ms: float) -> float:
    return max(FLOOR_MS, now_ms * (1 + STEP if seen_ms > now_ms else 1 - STEP))

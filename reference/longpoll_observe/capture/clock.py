"""Checks by the senders' clocks whether the capture's clock was changed.

A capture's timestamps come from a clock that can be set, and a step of it looks like a pause of the broker. Most TCP
senders write a counter of ms into each segment (RFC 7323), which cannot be set. Between two segments of one sender both
clocks must advance equally. The difference is added to the uncertainty of timestamps. Above `AGREE_NS`, or without such
a counter, the capture's clock may have been changed, and the judge treats no measurement by it as certain
(`docs/history.md`).
"""

from __future__ import annotations

from typing import Final

from attrs import define

TICK_NS: Final = 1_000_000
"""A sender's counter counts ms; with another unit it disagrees, and nothing is claimed."""
AGREE_NS: Final = 25_000_000
"""More than the usual time from a sender's counter to the capture."""
WINDOW_NS: Final = 10_000_000_000
"""Period after which clocks are compared again: within it clocks drift by less than a tick (100 ppm)."""
STAMP_BITS: Final = 32


@define(slots=True)
class Agreement:
    """The result of the comparison for a whole capture."""

    worst_ns: int = 0
    is_steady: bool = True
    """Whether every sender had a counter that agreed."""

    @property
    def name(self) -> str:
        """The clock's name for `meta.json`."""
        return "monotonic" if self.is_steady else "unix"


@define(slots=True)
class SenderClock:
    """One direction of one connection: the capture's time and the sender's counter at the begin of a period."""

    agreement: Agreement
    _time_ns: int = -1
    _stamp: int = 0

    def saw(self, time_ns: int, stamp: int | None) -> None:
        """Compare the clocks at a captured segment of this sender."""
        agreement = self.agreement
        if stamp is None:
            agreement.is_steady = False
            return
        if self._time_ns >= 0:
            ticks = (stamp - self._stamp) & ((1 << STAMP_BITS) - 1)
            if ticks >> (STAMP_BITS - 1):
                # Out of order: an older counter.
                return
            apart_ns = abs(time_ns - self._time_ns - ticks * TICK_NS)
            agreement.worst_ns = max(agreement.worst_ns, apart_ns)
            agreement.is_steady = agreement.is_steady and apart_ns <= AGREE_NS
        if self._time_ns < 0 or time_ns - self._time_ns > WINDOW_NS:
            self._time_ns, self._stamp = time_ns, stamp

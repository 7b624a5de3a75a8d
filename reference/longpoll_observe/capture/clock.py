"""Whether the clock of a capture was set while it was taken: the senders' own clocks tell.

A capture's moments are told by a clock that can be set, and a step of it looks like a broker that stands still. Most
TCP senders write a counter of ms into each segment (RFC 7323), which nobody can set. Between two segments of one
sender the capture's clock and that counter must have gone on alike. By how much they have not is added to what is
not known of a moment; beyond `AGREE_NS`, or where a sender has no such counter, the capture's clock is one that may
have been set, and the judge takes nothing for certain that was measured by it.

Leaves out what the judge does with that (`docs/history.md`).
"""

from __future__ import annotations

from typing import Final

from attrs import define

TICK_NS: Final = 1_000_000
"""A sender's counter counts ms. One that does not disagrees, and then nothing is claimed."""
AGREE_NS: Final = 25_000_000
"""More than a segment usually takes from its sender's counter to where it is captured."""
WINDOW_NS: Final = 10_000_000_000
"""Clocks are compared anew after so long: in that time crystals drift apart by less than a tick (100 ppm)."""
STAMP_BITS: Final = 32


@define(slots=True)
class Agreement:
    """What the comparison of a whole capture came to."""

    worst_ns: int = 0
    is_steady: bool = True
    """Whether every sender had a counter, and it agreed."""

    @property
    def name(self) -> str:
        """As `meta.json` names such a clock."""
        return "monotonic" if self.is_steady else "unix"


@define(slots=True)
class SenderClock:
    """One direction of one connection: the capture's time and the sender's count at the begin of a window."""

    agreement: Agreement
    _time_ns: int = -1
    _stamp: int = 0

    def saw(self, time_ns: int, stamp: int | None) -> None:
        """A segment of this sender was captured."""
        agreement = self.agreement
        if stamp is None:
            agreement.is_steady = False
            return
        if self._time_ns >= 0:
            ticks = (stamp - self._stamp) & ((1 << STAMP_BITS) - 1)
            if ticks >> (STAMP_BITS - 1):
                # Out of order: an older count.
                return
            apart_ns = abs(time_ns - self._time_ns - ticks * TICK_NS)
            agreement.worst_ns = max(agreement.worst_ns, apart_ns)
            agreement.is_steady = agreement.is_steady and apart_ns <= AGREE_NS
        if self._time_ns < 0 or time_ns - self._time_ns > WINDOW_NS:
            self._time_ns, self._stamp = time_ns, stamp

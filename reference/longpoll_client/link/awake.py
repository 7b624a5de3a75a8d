"""Whether one that waits for an answer waits awake, looking again and again, instead of sleeping until it is there.

A thread that sleeps is woken late: its core has gone to sleep as well, and has forgotten what the thread was about. So
where answers come soon waiting awake makes more calls a second, and costs processor time for it: time that is worth
nothing while a core has nothing else to do, and is somebody's where none has. Which of these a process is in changes
while it runs, so both are looked at:

- of all cores together `SPARE_MIN` of one has to have been idle lately, and `LEFT_MIN` while calls wait awake: where
  that is not so nobody waits awake for a while, each time twice as long;
- it is tried for some blocks of calls, and has to make them quicker by `GAIN_MIN`; where it does not it is tried ever
  more seldom. That also tells where the idle cores are of no use to this process, for it may not have them.

Rule: no clock and no waiting; the owner passes in when it begins, how long it took, and what was idle.

Leaves out how one waits, asleep or awake (`leading`, `aio.connection`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field

AWAKE_NS_MAX: Final = 300_000
"""The longest time of one wait awake; none begins after a call that took longer."""
BLOCK_NS_MIN: Final = 50_000_000
"""The scheduler lends a thread some milliseconds that it takes back later: no shorter time tells what waiting costs."""
BLOCK_COUNT_MIN: Final = 16
"""Fewer calls have no mean."""
TRY_BLOCKS: Final = 6
"""How long it is tried: a virtual machine learns by and by how long its cores sleep, and the first blocks are slow."""
TRIED_BLOCKS: Final = 2
"""Of these the last ones count."""
ASLEEP_BLOCKS: Final = 16
"""How long it is not tried again after it was no quicker; each time twice as long."""
ASLEEP_BLOCKS_MAX: Final = 512
CHECK_BLOCKS: Final = 32
"""One block of this number is asleep where awake is quicker, to see whether it still is."""
GAIN_MIN: Final = 0.08
"""How much quicker it has to be: less is not worth a core's time."""
SPARE_MIN: Final = 0.5
"""How much of a core has to be idle where calls wait asleep: a caller and a broker at work leave as much of two."""
LEFT_MIN: Final = 0.15
"""How much of a core has to be idle beside one that waits awake."""
LOOK_NS_MIN: Final = 200_000_000
"""How often is looked at what is idle, which the system counts in hundredths of a second."""
REFUSED_NS: Final = 2_000_000_000
"""For how long none waits awake after one that did left too little: else two that see each other would alternate."""
REFUSED_NS_MAX: Final = 64_000_000_000
"""For how long at most, when that happens again and again."""


@define(slots=True, eq=False)
class Awake:
    """The choice of one connection; for one waiting caller at a time.

    Invariant: `_is_awake` is the way of the present block, in which `_count` calls have taken `_sum_ns`; it is the
    `_place`th of a row: of blocks asleep, or of blocks awake, the last of which may be asleep to check.
    """

    idle_ns: Callable[[], int | None]
    """Processor time that nobody has used, all cores together; None: it is not known, so nobody waits awake."""
    _is_awake: bool = field(default=False, init=False)
    _is_quicker: bool = field(default=False, init=False)
    """Whether waiting awake was tried, and is quicker."""
    _place: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)
    _sum_ns: int = field(default=0, init=False)
    _began_ns: int = field(default=0, init=False)
    """When the present block began."""
    _asleep_ns: float = field(default=0.0, init=False)
    """The mean of a call in the last blocks asleep, the latest counting most; 0: there was none."""
    _awake_ns: float = field(default=0.0, init=False)
    """The same of those awake in this row."""
    _asleep_blocks: int = field(default=0, init=False)
    """How many blocks are asleep until it is tried again."""
    _is_spare: bool = field(default=False, init=False)
    """Whether the last look found a core idle."""
    _looked_ns: int = field(default=0, init=False)
    _idle_ns: int | None = field(default=None, init=False)
    """What was idle by then."""
    _was: set[bool] = field(factory=set, init=False)
    """Whether the blocks since then were awake."""
    _refused_ns: int = field(default=0, init=False)
    """Until when nobody waits awake."""
    _refusal_ns: int = field(default=REFUSED_NS, init=False)
    """How long the next refusal lasts."""
    _last_ns: int = field(default=0, init=False)
    """How long the last call took."""

    @property
    def awake_ns(self) -> int:
        """How long the call that begins now is to wait awake, at most; then it sleeps."""
        return AWAKE_NS_MAX if self._is_awake and self._last_ns <= AWAKE_NS_MAX else 0

    def ended(self, now_ns: int, took_ns: int) -> None:
        """A call had its answer after so long."""
        self._last_ns = took_ns
        if not self._began_ns:
            self._began_ns = now_ns
        self._count += 1
        self._sum_ns += took_ns
        if now_ns - self._began_ns >= BLOCK_NS_MIN and self._count >= BLOCK_COUNT_MIN:
            self._end_block(now_ns)

    def _end_block(self, now_ns: int) -> None:
        block_ns = self._sum_ns / self._count
        if not self._is_awake:
            self._asleep_ns = _later(self._asleep_ns, block_ns)
        elif self._is_quicker or self._place > TRY_BLOCKS - TRIED_BLOCKS:
            self._awake_ns = _later(self._awake_ns, block_ns)
        self._was.add(self._is_awake)
        if now_ns - self._looked_ns >= LOOK_NS_MIN:
            self._look(now_ns)
        self._place += 1
        self._choose(now_ns)
        self._count = self._sum_ns = 0
        self._began_ns = now_ns

    def _look(self, now_ns: int) -> None:
        """See what was idle since the last look."""
        idle_ns, passed_ns = self.idle_ns(), now_ns - self._looked_ns
        if idle_ns is not None and self._idle_ns is not None:
            self._is_spare = idle_ns - self._idle_ns >= (LEFT_MIN if True in self._was else SPARE_MIN) * passed_ns
            if self._is_spare and self._was == {True}:
                self._refusal_ns = REFUSED_NS
            elif not self._is_spare and True in self._was:
                self._refused_ns = now_ns + self._refusal_ns
                self._refusal_ns = min(2 * self._refusal_ns, REFUSED_NS_MAX)
        self._idle_ns, self._looked_ns = idle_ns, now_ns
        self._was.clear()

    def _choose(self, now_ns: int) -> None:
        """Whether the calls of the next block wait awake."""
        if not self._is_spare or now_ns < self._refused_ns:
            self._sleep(0)
        elif self._is_quicker or (self._is_awake and self._place >= TRY_BLOCKS):
            self._judge()
        elif not self._is_awake and self._place >= self._asleep_blocks:
            self._is_awake, self._place, self._awake_ns = True, 0, 0.0

    def _judge(self) -> None:
        """It was tried, or goes on: see whether it is quicker."""
        is_quicker = self._awake_ns * (1 + GAIN_MIN) <= self._asleep_ns
        if not is_quicker:
            blocks = ASLEEP_BLOCKS if self._is_quicker else 2 * self._asleep_blocks
            self._sleep(min(max(blocks, ASLEEP_BLOCKS), ASLEEP_BLOCKS_MAX))
            return
        self._is_quicker = True
        self._asleep_blocks = 0
        self._is_awake = self._place % CHECK_BLOCKS != 0

    def _sleep(self, blocks: int) -> None:
        """Sleep for this number of blocks at least; 0: for the same as before."""
        if self._is_awake or self._is_quicker:
            self._place = 0
        self._is_awake = self._is_quicker = False
        self._asleep_blocks = blocks or self._asleep_blocks


def _later(mean_ns: float, block_ns: float) -> float:
    """The mean after one block more, which counts for an eighth, for one is spoilt easily; the first counts for all."""
    return mean_ns + (block_ns - mean_ns) / 8 if mean_ns else block_ns

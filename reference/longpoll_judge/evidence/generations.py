"""The generations of a queue: within one, its log only grows.

A generation ends when the topic is deleted (215); the next one begins empty. It may also end in a gap of the record: a
broker that was killed and restarted may have lost messages that were not on disk, and kept messages that no event
shows. A request that certainly lies within one generation is judged by the events that may belong to it. A request
that touches a change may have been served in either generation, so only rules that need no log judge it.

How changes are found: `survey`.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.evidence.record_gaps import Integers, RecordGaps
from longpoll_judge.read.schema import INTEGER_LIMIT

Booleans = NDArray[np.bool_]
NEITHER = -1
"""In place of a life: of what touches a change."""


@frozen(eq=False)
class Generations:
    """The lives of one queue: number n lies between the changes n - 1 and n."""

    changes: RecordGaps
    """When a life may end and the next one begin."""
    deletions: RecordGaps
    """Those of them that certainly do, and let the next life begin empty."""

    def number(self, after_ns: Integers, before_ns: Integers) -> Integers:
        """The life that each interval lies in; `NEITHER` where it touches a change."""
        life = np.searchsorted(self.changes.ends, after_ns, side="left")
        next_ns = np.append(self.changes.starts, INTEGER_LIMIT)[life]
        return np.where((before_ns < next_ns) | (life == len(self.changes)), life, NEITHER).astype(np.int64)

    def life(self, number: int) -> Generation:
        """The events of one generation."""
        begun_ns = int(self.changes.ends[number - 1]) if number > 0 else -INTEGER_LIMIT
        start_ns = int(self.changes.starts[number - 1]) if number > 0 else -INTEGER_LIMIT
        deleted = np.flatnonzero((self.deletions.starts == start_ns) & (self.deletions.ends == begun_ns))
        return Generation(self, number, int(start_ns) if len(deleted) else None)


@frozen(eq=False)
class Generation:
    """One life of a queue."""

    lives: Generations
    number: int
    emptied_ns: int | None
    """It began with an empty log, no earlier than this; None where it may have begun with anything."""

    @property
    def first_known(self) -> int | None:
        """Offsets from this one on are in the record if they are in the log; None where the log itself must tell."""
        if self.number <= 0:
            return None
        return INTEGER_LIMIT if self.emptied_ns is None else 0

    def sure(self, after_ns: Integers, before_ns: Integers) -> Booleans:
        """Which events certainly belong to it."""
        found: Booleans = (self.lives.number(after_ns, before_ns) == self.number) & (self.number != NEITHER)
        return found

    def possible(self, after_ns: Integers, before_ns: Integers) -> Booleans:
        """Which events may describe its log.

        They touch a change, or are of an earlier generation and may have outlived it.
        """
        if self.number == NEITHER:
            return np.zeros(len(after_ns), dtype=np.bool_)
        numbers = self.lives.number(after_ns, before_ns)
        found: Booleans = (numbers == NEITHER) | (numbers <= self.number)
        since: Booleans = before_ns >= (-INTEGER_LIMIT if self.emptied_ns is None else self.emptied_ns)
        return found & since

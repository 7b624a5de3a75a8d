"""A queue's case made of the parts that a property looks at; what its answers tell is found in these, one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class CaseOfParts(SimpleNamespace):
    """A stand-in for `Case`, made of `pulls` and `events`."""

    def told(self, name: str) -> Any:
        """The answer's value for each pull; -1 without an answer."""
        pairs = zip(self.pulls.answer_row.tolist(), self.pulls.is_answered.tolist(), strict=True)
        found = [int(self.events.integers(name, np.array([row]))[0]) if there else -1 for row, there in pairs]
        return np.array(found, dtype=np.int64)

    @property
    def answer_code(self) -> Any:
        """The code of each pull's answer; -1 where there is none."""
        return self.told("code")

    @property
    def bodies(self) -> Any:
        """How many messages each pull's answer carries, their offsets, and the pull of each."""
        counts, offsets, owners = [], [], []
        for pull, (row, there) in enumerate(zip(self.pulls.answer_row, self.pulls.is_answered, strict=True)):
            first, count, values = self.events.bodies(np.array([row]))
            counts.append(int(count[0]) if there else 0)
            offsets += values[int(first[0]) :][: counts[-1]].tolist()
            owners += [pull] * counts[-1]
        return tuple(np.array(column, dtype=np.int64) for column in (counts, offsets, owners))

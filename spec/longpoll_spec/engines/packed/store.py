"""How a packed search keeps its states in memory: a table of those seen, and the levels.

Leaves out disks: see `spill`.
"""

from __future__ import annotations

from attrs import define, field

from longpoll_spec.engines.packed.word_table import WordTable
from longpoll_spec.engines.packed.words import Words, joined


@define
class HeldStore:
    """Everything in memory. Invariant: `levels[d]` has the states that are first reached by d actions."""

    seen: WordTable
    levels: list[Words] = field(factory=list)
    coming: list[Words] = field(factory=list)
    """States of the next level."""

    def take(self, words: Words) -> None:
        """See `part.Store`."""
        self.coming.append(self.seen.add(words))

    def next_level(self) -> Words:
        """See `part.Store`."""
        level = joined(self.coming, self.seen.width)
        self.coming = []
        self.levels.append(level)
        return level

    def level(self, depth: int) -> Words:
        """See `part.Store`."""
        return self.levels[depth]

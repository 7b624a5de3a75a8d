"""Keep the states of a packed search in memory: a table of seen states, and the levels.

States on disk: see `spill`.
"""

from __future__ import annotations

from attrs import define, field

from longpoll_spec.engines.packed.word_table import WordTable
from longpoll_spec.engines.packed.words import Words, joined


@define
class HeldStore:
    """All states in memory. Invariant: `levels[d]` has the states first reached by d actions."""

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

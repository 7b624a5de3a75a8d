"""A part of a packed search: the states that one process owns, level by level, and what follows from them.

Alone in a search it owns every state; one of several workers owns the words whose mixed form lies in its own range.
Leaves out who owns what and when a level ends: the search decides that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from attrs import define, field, frozen

from longpoll_spec.engines.compile_packed import Expand, Found, Weigh
from longpoll_spec.engines.layout import Words
from longpoll_spec.engines.orbits import Orbits
from longpoll_spec.engines.word_table import WordTable, distinct, mixed, unmixed

CHUNK_STATES: Final = 1 << 16
"""States unpacked at once: their columns stay in the cache."""
STRETCH_WORDS: Final = 6 << 20
"""Successors that are sorted at once."""


@frozen
class Stretch:
    """What expanding a stretch of a level gave."""

    fired: list[int]
    """Transitions by action instance."""
    found: list[tuple[int, int | None, int]]
    """(property index, index of the closing action or None, word)."""
    over: bool
    """Nothing of the level is left."""


@define
class Part:
    """The states of one process. Invariant: `levels[d]` has its states that are first reached by d actions.

    With `orbits` a state stands for all that renaming requests makes of it, and the counts are of them all.
    """

    expand: Expand
    actions: int
    properties: int
    orbits: Orbits | None
    levels: list[Words] = field(factory=list)
    seen: WordTable = field(factory=WordTable)
    coming: list[Words] = field(factory=list)
    """States of the next level."""
    expanded: int = 0
    """States of the last level whose successors were found."""

    @property
    def words_most(self) -> int:
        """No stretch gives more words than this."""
        return STRETCH_WORDS + CHUNK_STATES * self.actions

    def take(self, words: Words) -> None:
        """Take in mixed words, sorted, each once: those not seen before are the next level's."""
        self.coming.append(unmixed(self.seen.add_mixed(words)))

    def next_level(self) -> int:
        """Go on to the next level; gives how many states it counts for here."""
        level = np.concatenate([np.empty(0, dtype=np.uint64), *self.coming])
        self.coming, self.expanded = [], 0
        self.levels.append(level)
        return level.size if self.orbits is None else int(self.orbits.sizes(level).sum())

    def stretch(self, still_open: Sequence[bool]) -> tuple[Stretch, Words]:
        """Expand the next states of the level; gives their successors as mixed words, sorted, each once."""
        fired = [0] * self.actions
        found: list[tuple[int, int | None, int]] = []
        out: list[Words] = [np.empty(0, dtype=np.uint64)]
        level = self.levels[-1]
        words = 0
        while self.expanded < level.size and words < STRETCH_WORDS:
            chunk = level[self.expanded : self.expanded + CHUNK_STATES]
            hits: list[Found] = []
            before = len(out)
            self.expand(chunk, still_open, self._weigh(chunk), out, fired, hits)
            found += [(item, closing, int(chunk[row])) for item, closing, row in hits]
            words += sum(part.size for part in out[before:])
            self.expanded += chunk.size
        made = distinct(mixed(self._kept(np.concatenate(out))))
        return Stretch(fired, found, over=self.expanded >= level.size), made

    def before(self, word: int, depth: int) -> tuple[int, int] | None:
        """A state of the level `depth` that leads to `word`, and the action's index; None if there is none here."""
        for chunk in _slices(self.levels[depth], CHUNK_STATES):
            index = next((index for index, words in self._made_by(chunk) if (words == word).any()), None)
            if index is not None:
                return self._source(chunk, word, index), index
        return None

    def _source(self, chunk: Words, word: int, index: int) -> int:
        """The state of the chunk that action `index` leads to `word`: halve the chunk until one state is left."""
        while chunk.size > 1:
            half = chunk[: chunk.size // 2]
            made = dict(self._made_by(half))
            chunk = half if index in made and (made[index] == word).any() else chunk[chunk.size // 2 :]
        return int(chunk[0])

    def _made_by(self, chunk: Words) -> Iterator[tuple[int, Words]]:
        """(index of an action instance, what it makes of the chunk) for every instance that is enabled anywhere."""
        out: list[Words] = []
        fired = [0] * self.actions
        self.expand(chunk, [False] * self.properties, len, out, fired, [])
        indices = [index for index, count in enumerate(fired) if count]
        return zip(indices, map(self._kept, out), strict=True)

    def _kept(self, words: Words) -> Words:
        """The words that stand for these."""
        return words if self.orbits is None else self.orbits.canonical(words)

    def _weigh(self, chunk: Words) -> Weigh:
        if self.orbits is None:
            return len
        sizes = self.orbits.sizes(chunk)
        return lambda rows: int(sizes.take(rows).sum())


def _slices(words: Words, size: int) -> Iterator[Words]:
    for start in range(0, words.size, size):
        yield words[start : start + size]

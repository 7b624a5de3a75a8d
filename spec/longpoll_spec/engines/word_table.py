"""The set of states seen, as an open-addressing table of words that takes in many words at once.

A slot holds the whole word, so membership is exact. Inside, words are mixed by a bijection whose upper bits say where
to begin to look: sorted words are then looked for in the order of the slots, and many cache misses are under way at
once. Leaves out taking words away: a state once seen stays seen.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import define, field

from longpoll_spec.engines.layout import WORD_BITS, Words

LOAD_MAX: Final = 0.6
"""The part of the slots that may be in use: beyond it chains grow long."""
SLOTS_FIRST_BITS: Final = 14
SLOTS_BITS_BIG: Final = 24
"""A table of so many slots grows twofold, a smaller one fourfold."""
BLOCK_WORDS: Final = 1 << 16
"""Words looked for at once: the columns made on the way stay in the second-level cache."""
_FOLD: Final = np.uint64(WORD_BITS // 2)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_INVERSE: Final = np.uint64(pow(int(_FACTOR), -1, 1 << WORD_BITS))
_FREE: Final = np.uint64(0)
"""The mixed form of the word 0, which is held beside the slots."""
_NEXT: Final = np.int64(1)


def mixed(words: Words) -> Words:
    """The words with every bit spread to the upper ones; different words stay different, and 0 stays 0."""
    return (words ^ (words >> _FOLD)) * _FACTOR


def unmixed(words: Words) -> Words:
    """The words that `mixed` made these of."""
    folded = words * _FACTOR_INVERSE
    return folded ^ (folded >> _FOLD)


def distinct(words: Words) -> Words:
    """The words sorted, each once; sorts in place."""
    words.sort()
    first: npt.NDArray[np.bool_] = np.empty(words.size, dtype=bool)
    first[:1] = True
    np.not_equal(words[1:], words[:-1], out=first[1:])
    return words.take(np.flatnonzero(first))


@define
class WordTable:
    """A growing set of words. Invariant: a word stands in the first slot of its chain that was free when it came."""

    bits: int = SLOTS_FIRST_BITS
    skipped: int = 0
    """The upper bits of mixed words that do not say where to look: where all words of a table agree in those."""
    slots: Words = field(init=False)
    used: int = 0
    has_zero: bool = False

    def __attrs_post_init__(self) -> None:
        """Begin empty."""
        self.slots = np.zeros(1 << self.bits, dtype=np.uint64)

    def add(self, words: Words) -> Words:
        """Take in words, in any order and as often as they come; gives those that were new, each once."""
        return unmixed(self.add_mixed(distinct(mixed(words))))

    def add_mixed(self, words: Words) -> Words:
        """The same for mixed words that are sorted, each once."""
        self._make_room(words.size)
        new: list[Words] = [words[:0]]
        if words.size and words[0] == _FREE:
            new.append(words[: 0 if self.has_zero else 1])
            self.has_zero = True
            words = words[1:]
        new.extend(self._put(words[start : start + BLOCK_WORDS]) for start in range(0, words.size, BLOCK_WORDS))
        found = np.concatenate(new)
        self.used += found.size
        return found

    def _put(self, words: Words) -> Words:
        """Look for all of them at once, slot after slot; what comes to a free slot is new and put there."""
        new: list[Words] = [words[:0]]
        last = np.int64(self.slots.size - 1)
        spread = words << np.uint64(self.skipped) if self.skipped else words
        at = (spread >> np.uint64(WORD_BITS - self.bits)).view(np.int64)
        while words.size:
            held = self.slots.take(at)
            left = np.flatnonzero(held != words)
            words, at, held = words.take(left), at.take(left), held.take(left)
            free = np.flatnonzero(held == _FREE)
            if free.size:
                placed = free.take(self._place(words.take(free), at.take(free)))
                new.append(words.take(placed))
                held[placed] = new[-1]
                left = np.flatnonzero(held != words)
                words, at = words.take(left), at.take(left)
            at = (at + _NEXT) & last
        return np.concatenate(new)

    def _place(self, words: Words, at: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Write words into free slots; of several for one slot the last stays. Gives which stayed."""
        self.slots[at] = words
        return np.flatnonzero(self.slots.take(at) == words)

    def _make_room(self, more: int) -> None:
        bits = self.bits
        while self.used + more > LOAD_MAX * (1 << bits):
            bits += 1 if bits >= SLOTS_BITS_BIG else 2
        if bits == self.bits:
            return
        before = self.slots
        self.bits, self.slots = bits, np.zeros(1 << bits, dtype=np.uint64)
        for start in range(0, before.size, BLOCK_WORDS):
            part = before[start : start + BLOCK_WORDS]
            self._put(part.take(np.flatnonzero(part)))

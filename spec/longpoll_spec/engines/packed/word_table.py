"""The set of seen states, as an open-addressing table with batch insertion.

A slot holds all words of a state, so membership is exact. States are stored mixed (`words`): the upper bits of the head
give the first slot to probe. Sorted states are therefore probed in slot order, with many cache misses in flight. States
are never removed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field

from longpoll_spec.engines.packed.words import WORD_BITS, Words, differ, first_head, joined, key_of, taken

Slots: TypeAlias = npt.NDArray[np.int64]
"""Numbers of slots."""
LOAD_MAX: Final = 0.6
"""The maximum load: beyond it probe sequences get long."""
SLOTS_FIRST_BITS: Final = 14
SLOTS_BITS_BIG: Final = 24
"""A table of 2**24 slots or more grows twofold, a smaller one fourfold."""
BLOCK_STATES: Final = 1 << 16
"""States probed at once: the temporary columns stay in the second-level cache."""
BLOCK_SLOTS: Final = 1 << 20
"""Slots moved at once to a larger table."""
_FREE: Final = np.uint64(0)
"""The head of a free slot. A state with this head is kept outside the slots."""
_NEXT: Final = np.int64(1)


@define
class WordTable:
    """A growing set of mixed states. Invariant: no slot is free between the start of a chain and its states' slots."""

    width: int = 1
    """Words per state."""
    bits: int = SLOTS_FIRST_BITS
    number: int = 0
    """The index of this table's range of heads (`words.first_head`), from 0 to `shares` - 1."""
    shares: int = 1
    """The number of ranges."""
    slots: Words = field(init=False)
    used: int = 0
    headless: set[int] = field(factory=set)
    """Keys of states whose head equals that of a free slot; with one word there is one such state."""

    def __attrs_post_init__(self) -> None:
        self.slots = np.zeros((self.width, 1 << self.bits), dtype=np.uint64)

    def add(self, words: Words) -> Words:
        """Add mixed states, sorted by heads, without duplicates; returns the new ones."""
        self._make_room(words.shape[1])
        headless = int(np.searchsorted(words[0], _FREE, side="right"))
        new = [self._add_headless(words[:, :headless])]
        blocks = range(headless, words.shape[1], BLOCK_STATES)
        new += [self._put(words[:, start : start + BLOCK_STATES]) for start in blocks]
        self.used += sum(part.shape[1] for part in new)
        return joined(new, self.width)

    def _add_headless(self, words: Words) -> Words:
        keys = [key_of(words, column) for column in range(words.shape[1])]
        new = [column for column, key in enumerate(keys) if key not in self.headless]
        self.headless.update(keys)
        return taken(words, np.array(new, dtype=np.intp))

    def _put(self, words: Words) -> Words:
        """Probe for sorted states at once, slot after slot; a state that reaches a free slot is new and put there."""
        new: list[Words] = []
        last = np.int64(self.slots.shape[1] - 1)
        at = self._first_slots(words[0])
        while words.shape[1]:
            held = taken(self.slots, at)
            left = np.flatnonzero(differ(held, words))
            words, at, heads = taken(words, left), at.take(left), held[0].take(left)
            free = np.flatnonzero(heads == _FREE)
            if free.size:
                placed = free.compress(_first_of_each(at.take(free)))
                new.append(taken(words, placed))
                self.slots[:, at.take(placed)] = new[-1]
                stays = np.ones(at.size, dtype=bool)
                stays[placed] = False
                left = np.flatnonzero(stays)
                words, at = taken(words, left), at.take(left)
            at = (at + _NEXT) & last
        return joined(new, self.width)

    def _first_slots(self, heads: Words) -> Slots:
        """The first slots of these heads' chains: the range spread over all slots, in the order of heads."""
        if self.shares > 1:
            heads = (heads - np.uint64(first_head(self.number, self.shares))) * np.uint64(self.shares)
        return (heads >> np.uint64(WORD_BITS - self.bits)).view(np.int64)

    def _make_room(self, more: int) -> None:
        bits = self.bits
        while self.used + more > LOAD_MAX * (1 << bits):
            bits += 1 if bits >= SLOTS_BITS_BIG else 2
        if bits > self.bits:
            before = self.slots
            self.bits, self.slots = bits, np.zeros((self.width, 1 << bits), dtype=np.uint64)
            self._move(before)

    def _move(self, before: Words) -> None:
        """Move everything from smaller slots into these, from first to last.

        States between two free slots start their chains there too, so heads only grow from one such group to the next.
        Each sorted state goes into the first slot of its chain that is behind the state before it: the slots between
        are full, as the invariant requires. Last come the states before the first free slot, and those that would pass
        the end.
        """
        heads, slots = before[0], self.slots.shape[1]
        begin = int((heads == _FREE).argmax())
        rest, behind = [_sorted(_held(before[:, :begin]))], 0
        while begin < heads.size:
            end = begin + BLOCK_SLOTS
            while end < heads.size and heads[end]:
                end += 1
            words = _sorted(_held(before[:, begin:end]))
            number = np.arange(words.shape[1])
            at = self._first_slots(words[0])
            at[:1] = np.maximum(at[:1], behind)
            at = np.maximum.accumulate(at - number) + number
            inside = int(at.searchsorted(slots))
            self.slots[:, at[:inside]] = words[:, :inside]
            rest.append(words[:, inside:])
            begin, behind = end, int(at[-1]) + 1 if at.size else behind
        for words in rest:
            self._put(words)


def _held(slots: Words) -> Words:
    return taken(slots, np.flatnonzero(slots[0]))


def _sorted(words: Words) -> Words:
    return taken(words, words[0].argsort()) if len(words) > 1 else np.sort(words)


def _first_of_each(at: Slots) -> npt.NDArray[np.bool_]:
    first = np.ones(at.size, dtype=bool)
    np.not_equal(at[1:], at[:-1], out=first[1:])
    return first

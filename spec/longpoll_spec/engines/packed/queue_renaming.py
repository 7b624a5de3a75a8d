"""The effect of a renaming of queues on packed states: bits of a queue's variables move, numbers of queues are mapped.

Requests are handled by sorting their groups of bits (`orbits`).
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from longpoll_spec.engines.analysis.symmetry import Renaming
from longpoll_spec.engines.packed.layout import Field, Layout
from longpoll_spec.engines.packed.words import WORD_BITS, Words


@frozen
class QueueMoves:
    """The moves of bits that one renaming makes."""

    renaming: Renaming
    moves: tuple[tuple[Field, Field], ...]
    """(from, to): a field's bits move unchanged to the field of the renamed variable."""
    maps: tuple[tuple[Field, Words], ...]
    """(field, old value -> new one): fields that hold the number of a queue."""
    rest: Words
    """The bits of each word that stay in place, one row per word."""

    def of(self, words: Words) -> Words:
        """The states after renaming, as a new array."""
        made: Words = words & self.rest
        for old, new in self.moves:
            made[new.word] |= _value(words, old) << np.uint64(new.shift_in_word)
        for place, table in self.maps:
            made[place.word] |= table.take(_value(words, place)) << np.uint64(place.shift_in_word)
        return made


def moves_of(layout: Layout, renaming: Renaming) -> QueueMoves:
    """The moves of this renaming of queues in states of this layout."""
    places = {place.variable.name: place for place in layout.fields}
    renamed = [(place, places[renaming.name(place.variable.name)]) for place in layout.fields]
    moves = tuple((old, new) for old, new in renamed if old is not new)
    maps = tuple((place, numbers_of(place, renaming)) for place in layout.fields if place.variable.numbers_queues)
    stays = [(1 << WORD_BITS) - 1] * layout.words
    for place in (*(old for old, _ in moves), *(place for place, _ in maps)):
        stays[place.word] &= ~(place.mask << place.shift_in_word)
    return QueueMoves(renaming, moves, maps, np.array(stays, dtype=np.uint64).reshape(-1, 1))


def numbers_of(place: Field, renaming: Renaming) -> Words:
    """The new number of a queue for each value of a field."""
    return np.array([renaming.queues.get(value, value) for value in range(place.mask + 1)], dtype=np.uint64)


def _value(words: Words, place: Field) -> Words:
    bits: Words = words[place.word] >> np.uint64(place.shift_in_word)
    return bits & np.uint64(place.mask)

"""Symmetry reduction: of all states that differ only in the numbering of requests or queues, explore one.

Requests and queues are interchangeable (`symmetry` checks that), so all renamings of a state behave alike. All
renamings of a state form its orbit. A renaming of queues moves bits and maps numbers of queues (`QueueMoves`), and a
renaming of requests moves their groups of bits. To find the canonical state of an orbit, the engine renames the queues
in every way and sorts the groups each time; the least result is canonical. A canonical state counts as many times as
its orbit has states. The size of an orbit is the number of renamings, divided by the number of renamings that leave the
state unchanged.

| bits                       | hold                                                                           |
|----------------------------|--------------------------------------------------------------------------------|
| the lowest                 | variables that belong to no request                                            |
| a group for every request  | the request's variables, in the same order for all; all of a group in one word |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from longpoll_spec.engines.evaluate import after_step, enabled_actions
from longpoll_spec.engines.packed.layout import Field, Group, Layout, grouped_layout_of
from longpoll_spec.engines.packed.words import WORD_BITS, Words, differ, key_of, less, words_of
from longpoll_spec.engines.simplify import Simplifier, ranges_of
from longpoll_spec.engines.symmetry import Renaming, is_symmetric, queue_acting
from longpoll_spec.errors import SymmetryError
from longpoll_spec.model import Action, Actor, Model, Property


@frozen
class QueueMoves:
    """One renaming of queues, as operations on the bits of packed states."""

    renaming: Renaming
    moves: tuple[tuple[Field, Field], ...]
    """(from, to): the bits of the first field move unchanged to the second, which has the renamed variable."""
    maps: tuple[tuple[Field, Words], ...]
    """(field, table from its old value to the new one) for each field whose value is the number of a queue."""
    rest: Words
    """A mask of the bits that the renaming leaves alone, shape (words, 1)."""

    def of(self, words: Words) -> Words:
        """The states after renaming, as a new array of the same shape."""
        made: Words = words & self.rest
        for old, new in self.moves:
            made[new.word] |= _value(words, old) << np.uint64(new.shift_in_word)
        for place, table in self.maps:
            made[place.word] |= table.take(_value(words, place)) << np.uint64(place.shift_in_word)
        return made


def moves_of(layout: Layout, renaming: Renaming) -> QueueMoves:
    """The operations that rename queues in states of this layout."""
    places = {place.variable.name: place for place in layout.fields}
    renamed = [(place, places[renaming.name(place.variable.name)]) for place in layout.fields]
    moves = tuple((old, new) for old, new in renamed if old is not new)
    maps = tuple((place, numbers_of(place, renaming)) for place in layout.fields if place.variable.numbers_queues)
    stays = [(1 << WORD_BITS) - 1] * layout.words
    for place in (*(old for old, _ in moves), *(place for place, _ in maps)):
        stays[place.word] &= ~(place.mask << place.shift_in_word)
    return QueueMoves(renaming, moves, maps, np.array(stays, dtype=np.uint64).reshape(-1, 1))


def numbers_of(place: Field, renaming: Renaming) -> Words:
    """The new number of a queue for each value of the field `place`, as an array that the value indexes."""
    return np.array([renaming.queues.get(value, value) for value in range(place.mask + 1)], dtype=np.uint64)


def _value(words: Words, place: Field) -> Words:
    bits: Words = words[place.word] >> np.uint64(place.shift_in_word)
    return bits & np.uint64(place.mask)


QUEUES_MAX: Final = 4
"""The greatest number of queues for symmetry reduction. Four queues have 24 renamings, which are all tried for each
state."""
BLOCK_STATES: Final = 1 << 15
"""The number of states sorted at once, so that their groups stay in the second-level cache."""


@frozen
class Orbits:
    """Computes with the orbits of a model's states under renaming of requests and queues."""

    model: Model
    layout: Layout
    groups: tuple[Group, ...]
    """The group of bits of each request."""
    width: int
    """The number of bits in a group."""
    renamings: tuple[QueueMoves, ...]
    """Every renaming of queues; the first one changes nothing."""

    @property
    def requests(self) -> int:
        """The number of requests."""
        return len(self.groups)

    def canonical(self, words: Words) -> Words:
        """Replace each state by its canonical state, in place."""
        for start in range(0, words.shape[1], BLOCK_STATES):
            self._fold(words[:, start : start + BLOCK_STATES])
        return words

    def _fold(self, words: Words) -> None:
        renamed = [moves.of(words) for moves in self.renamings[1:]]
        for states in (words, *renamed):
            self._sort(states)
        for states in renamed:
            better = less(states, words)
            for word, other in zip(words, states, strict=True):
                np.copyto(word, other, where=better)

    def _sort(self, words: Words) -> None:
        groups = self._groups(words)
        for low, high in _comparators(self.requests):
            groups[low], groups[high] = np.minimum(groups[low], groups[high]), np.maximum(groups[low], groups[high])
        for row in range(len(words)):
            words[row] &= self._others(row)
        for place, group in zip(self.groups, groups, strict=True):
            words[place.word] |= group << np.uint64(place.shift)

    def _others(self, word: int) -> np.uint64:
        taken = sum(((1 << self.width) - 1) << place.shift for place in self.groups if place.word == word)
        return np.uint64(~taken & ((1 << WORD_BITS) - 1))

    def sizes(self, words: Words) -> npt.NDArray[np.int64]:
        """The size of each canonical state's orbit.

        A renaming of queues leaves a state unchanged if the groups are the same after sorting. Equal groups divide the
        size of the orbit by the number of their arrangements.
        """
        sizes = np.full(words.shape[1], math.factorial(self.requests) * len(self.renamings), dtype=np.int64)
        alike = np.ones(words.shape[1], dtype=np.int64)
        for before, group in pairwise(self._groups(words)):
            alike = np.where(before == group, alike + 1, 1)
            sizes //= alike
        stays = np.ones(words.shape[1], dtype=np.int64)
        for moves in self.renamings[1:]:
            renamed = moves.of(words)
            self._sort(renamed)
            stays += ~differ(renamed, words)
        return sizes // stays

    def _groups(self, words: Words) -> list[Words]:
        mask = np.uint64((1 << self.width) - 1)
        return [(words[place.word] >> np.uint64(place.shift)) & mask for place in self.groups]

    def spread(self, fired: Sequence[int]) -> list[int]:
        """The transitions of each action instance over all states, from the weighted counts over canonical states.

        Over a whole orbit all requests have equal counts, and all queues have equal counts, so the sum of each kind is
        divided evenly.
        """
        kinds: dict[tuple[object, ...], list[int]] = {}
        for index, action in enumerate(self.model.actions):
            actors = tuple(_kind_of(actor) for actor in action.actors)
            kinds.setdefault((action.name, actors), []).append(index)
        shared = list(fired)
        for alike in kinds.values():
            each, rest = divmod(sum(fired[index] for index in alike), len(alike))
            assert not rest, f"{self.model.actions[alike[0]].name} does not fire equally for every request"
            for index in alike:
                shared[index] = each
        return shared

    def run_through(self, words: Sequence[int], closing: Action | None) -> list[Action]:
        """A run of the specification that visits the orbits of these canonical states in order, then the closing step.

        A step between canonical states is a step of the model only up to renaming, so the actions are searched again
        from the first state: each leads to a state in the orbit of the next canonical state.
        """
        state, actions = self.model.initial, list[Action]()
        for word in words[1:]:
            action, state = self._step(state, word)
            actions.append(action)
        if closing is not None:
            actions.append(self._renamed(closing, words[-1], state))
        return actions

    def _step(self, state: tuple[int, ...], word: int) -> tuple[Action, tuple[int, ...]]:
        for action in enabled_actions(self.model, state):
            following = after_step(self.model, action, state)
            if self._canonical_of(following) == word:
                return action, following
        raise AssertionError(f"no step leads to an arrangement of {word:#x}")

    def _canonical_of(self, state: Sequence[int]) -> int:
        return key_of(self.canonical(self._words_of(state)), 0)

    def _words_of(self, state: Sequence[int]) -> Words:
        return words_of([self.layout.pack(state)], self.layout.words)

    def _renamed(self, action: Action, word: int, state: Sequence[int]) -> Action:
        """The action instance in `state` that corresponds to `action` in the canonical state `word`."""
        for moves in self.renamings:
            moved = moves.of(self._words_of(state))
            groups = [int(group[0]) for group in self._groups(moved)]
            self._sort(moved)
            if key_of(moved, 0) == word:
                slots = sorted(range(self.requests), key=groups.__getitem__)
                back = Renaming(dict(enumerate(slots)), {new: old for old, new in moves.renaming.queues.items()})
                actors = tuple(back.actor(actor) for actor in action.actors)
                return next(each for each in self.model.named(action.name) if each.actors == actors)
        raise AssertionError(f"no renaming of the state is {word:#x}")


def _kind_of(actor: Actor) -> Actor:
    """The kind of an actor: "request" or "queue"; any other actor is its own kind."""
    return "request" if isinstance(actor, int) else "queue" if queue_acting(actor) is not None else actor


def _comparators(count: int) -> Iterator[tuple[int, int]]:
    """A sorting network for `count` items, as pairs to compare and swap in order: odd-even transposition sort."""
    for round_ in range(count):
        for low in range(round_ % 2, count - 1, 2):
            yield low, low + 1


def orbits_of(model: Model, properties: Sequence[Property]) -> Orbits:
    """The orbits of a model under renaming of requests and queues.

    Raises `SymmetryError` if the model or a property distinguishes requests or queues, or if there are too many queues.
    Raises `BoundsError` if a request needs more bits than a word has.
    """
    queues = model.bounds.queues
    if queues > QUEUES_MAX:
        raise SymmetryError(f"{queues} queues have too many renamings; check at most {QUEUES_MAX} with --symmetry")
    # Simplify the terms, so that a difference in an impossible case does not count.
    decide = Simplifier(ranges_of(model)).simplify
    if not is_symmetric(model, [decide(item.term) for item in properties]):
        unlike = next((item.name for item in properties if not is_symmetric(model, [decide(item.term)])), "")
        what = unlike if is_symmetric(model, []) else "the model"
        raise SymmetryError(f"{what} distinguishes requests or queues under this policy; check it without --symmetry")
    layout, groups, width = grouped_layout_of(model)
    orders = permutations(range(queues))
    renamings = tuple(moves_of(layout, Renaming(queues=dict(enumerate(order)))) for order in orders)
    return Orbits(model, layout, groups, width, renamings)

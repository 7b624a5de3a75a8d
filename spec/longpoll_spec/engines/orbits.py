"""Explore one state for all that differ only in which request is which, and count them all the same.

Requests are interchangeable (`symmetry` sees that in the law's text), so every state that renaming requests makes of a
state behaves as it does. Kept is the one whose requests' groups of bits are sorted. It stands for as many states as its
groups can be arranged in different ways, and counts for so many. Leaves out queues: this law has one.

| bits of the word                | hold                                    |
|---------------------------------|-----------------------------------------|
| the lowest `base`               | what no request has                     |
| next `width`, for request 0     | request 0's variables in their own order |
| next `width`, for request 1 ... | request 1's variables in the same order  |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from attrs import frozen

from longpoll_spec.engines.evaluate import after_step, enabled_actions
from longpoll_spec.engines.layout import Group, Layout, grouped_layout_of
from longpoll_spec.engines.symmetry import is_symmetric
from longpoll_spec.engines.words import WORD_BITS, Words, key_of, words_of
from longpoll_spec.errors import SymmetryError
from longpoll_spec.model import Action, Model, Property

BLOCK_STATES = 1 << 15
"""Words sorted inside at once: their groups stay in the second-level cache."""


@frozen
class Orbits:
    """The groups of bits of a law's requests."""

    model: Model
    layout: Layout
    groups: tuple[Group, ...]
    width: int
    """Bits of a group."""

    @property
    def requests(self) -> int:
        """How many groups a state has."""
        return len(self.groups)

    def canonical(self, words: Words) -> Words:
        """Put in place of each state the one that stands for it: the same groups, the greatest last."""
        for start in range(0, words.shape[1], BLOCK_STATES):
            self._sort(words[:, start : start + BLOCK_STATES])
        return words

    def _sort(self, words: Words) -> None:
        groups = self._groups(words)
        for low, high in _comparators(self.requests):
            groups[low], groups[high] = np.minimum(groups[low], groups[high]), np.maximum(groups[low], groups[high])
        for row in range(len(words)):
            words[row] &= self._others(row)
        for place, group in zip(self.groups, groups, strict=True):
            words[place.word] |= group << np.uint64(place.shift)

    def _others(self, word: int) -> np.uint64:
        """The bits of a word that no request has."""
        taken = sum(((1 << self.width) - 1) << place.shift for place in self.groups if place.word == word)
        return np.uint64(~taken & ((1 << WORD_BITS) - 1))

    def sizes(self, words: Words) -> npt.NDArray[np.int64]:
        """How many states each canonical state stands for: all arrangements, over those of equal groups."""
        sizes = np.full(words.shape[1], math.factorial(self.requests), dtype=np.int64)
        alike = np.ones(words.shape[1], dtype=np.int64)
        for before, group in pairwise(self._groups(words)):
            alike = np.where(before == group, alike + 1, 1)
            sizes //= alike
        return sizes

    def _groups(self, words: Words) -> list[Words]:
        mask = np.uint64((1 << self.width) - 1)
        return [(words[place.word] >> np.uint64(place.shift)) & mask for place in self.groups]

    def spread(self, fired: Sequence[int]) -> list[int]:
        """What every instance fired in all states, from what it fired in the canonical ones, each by its size.

        Over a whole orbit every request does what every other does, so they share alike.
        """
        kinds: dict[tuple[object, ...], list[int]] = {}
        for index, action in enumerate(self.model.actions):
            actors = tuple(actor if isinstance(actor, str) else None for actor in action.actors)
            kinds.setdefault((action.name, actors), []).append(index)
        shared = list(fired)
        for alike in kinds.values():
            each, rest = divmod(sum(fired[index] for index in alike), len(alike))
            assert not rest, f"{self.model.actions[alike[0]].name} does not fire alike for every request"
            for index in alike:
                shared[index] = each
        return shared

    def run_through(self, words: Sequence[int], closing: Action | None) -> list[Action]:
        """A run of the law through these canonical states, one after the other, and then the closing step.

        The states on the way are the law's own: at each the action is chosen that leads to a state which the next
        canonical word stands for.
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
        """The instance that does in `state` what `action` does in its canonical word: slots are matched in order."""
        groups = [int(group[0]) for group in self._groups(self._words_of(state))]
        assert self._canonical_of(state) == word
        slots = sorted(range(self.requests), key=groups.__getitem__)
        actors = tuple(slots[actor] if isinstance(actor, int) else actor for actor in action.actors)
        return next(each for each in self.model.named(action.name) if each.actors == actors)


def _comparators(count: int) -> Iterator[tuple[int, int]]:
    """Pairs to put in order, one after the other, so that `count` things end up sorted: odd-even transposition."""
    for round_ in range(count):
        for low in range(round_ % 2, count - 1, 2):
            yield low, low + 1


def orbits_of(model: Model, properties: Sequence[Property]) -> Orbits:
    """The orbits of a law under renaming of requests.

    Raises `SymmetryError` if the law or a property tells requests apart, `BoundsError` if a word is too narrow.
    """
    if not is_symmetric(model, [item.term for item in properties]):
        unlike = next((item.name for item in properties if not is_symmetric(model, [item.term])), "")
        what = unlike if is_symmetric(model, []) else "the law"
        raise SymmetryError(f"{what} tells requests apart under this policy; check it without --symmetry")
    return Orbits(model, *grouped_layout_of(model))

"""A part of a packed search: the states that one process owns, and the expansion of these states level by level.

If the search has one process, it owns every state. Each of several workers owns the states whose heads (`words`) lie in
its range. `search` decides which process owns a state and when a level ends, and `store` keeps the states.

Parent pointers would take memory for each state, so instead each level keeps the states that the search first reached
at that depth, and `runs_backwards` rebuilds counterexamples from the levels. From the state of a witness,
`runs_backwards` finds the least state in the previous level that leads to it, and so on to the first state. One pass
over the levels serves all witnesses. The choice of the least state makes the result independent of the number of
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
from attrs import define, field, frozen

from longpoll_spec.engines.exploration import Witness
from longpoll_spec.engines.packed.compile import Expand, Found, Weigh
from longpoll_spec.engines.packed.orbits import Orbits
from longpoll_spec.engines.packed.store import HeldStore, WordTable
from longpoll_spec.engines.packed.words import Rows, Words, distinct, find, key_of, mixed, unmixed, words_of
from longpoll_spec.model import Action, Model

CHUNK_STATES: Final = 1 << 16
"""The number of states unpacked at once, so that their columns stay in the cache."""
STRETCH_STATES: Final = 6 << 20
"""The number of successors that are sorted at once."""


class Store(Protocol):
    """Keeps the states of a part, in mixed form (`words.mixed`)."""

    def take(self, words: Words) -> None:
        """Add states, sorted by heads and without duplicates. New states belong to the next level."""

    def next_level(self) -> Words:
        """Start the next level, and return its states."""
        ...

    def level(self, depth: int) -> Words:
        """The states first reached by `depth` actions."""
        ...


@frozen
class Stretch:
    """The result of expanding a batch of a level."""

    fired: list[int]
    """The number of transitions of each action instance, by index."""
    found: list[tuple[int, int | None, int]]
    """The states that decide properties: (property index, index of the closing action or None, key of the state)."""
    over: bool
    """Whether every state of the level is expanded now."""


@define
class Successors:
    """A buffer for successors. Invariant: the first `used` columns of `words` are filled."""

    words: Words
    used: int = 0

    def make(self, index: int, words: Words, rows: Rows) -> Words:  # noqa: ARG002 - `_Traced` wants the index
        """Append copies of these columns, and return them to be changed (`compile.Make`)."""
        start, self.used = self.used, self.used + rows.size
        made = self.words[:, start : self.used]
        for word, copy in zip(words, made, strict=True):
            word.take(rows, out=copy, mode="clip")
        return made


@define
class _Traced(Successors):
    sources: list[tuple[int, Rows]] = field(factory=list)
    """(action index, columns of the chunk) for each action that made successors, in the order of the buffer."""

    def make(self, index: int, words: Words, rows: Rows) -> Words:
        self.sources.append((index, rows))
        return super().make(index, words, rows)

    def source(self, column: int) -> tuple[int, int]:
        """The action that made the successor in a column, and the column of the state before it in the chunk."""
        for index, rows in self.sources:
            if column < rows.size:
                return index, int(rows[column])
            column -= rows.size
        raise AssertionError(f"nothing was made in column {column}")


@define
class Part:
    """The states that one process owns.

    With `orbits`, the part keeps only the canonical state of each orbit, but counts all states of the orbit.
    """

    expand: Expand
    words: int
    """The number of words in a state."""
    actions: int
    properties: int
    orbits: Orbits | None
    chunk_states: int = field(factory=lambda: CHUNK_STATES)
    stretch_states: int = field(factory=lambda: STRETCH_STATES)
    new_store: Callable[[], Store] | None = None
    """Makes the store when the search begins; None keeps the states in memory."""
    number: int = 0
    """The index of the range of heads that this part owns, from 0 to `shares` - 1."""
    shares: int = 1
    """The number of parts that the search has, which own ranges of equal size."""
    store: Store = field(init=False)
    here: Words = field(init=False)
    """The states of the level that is being expanded."""
    expanded: int = 0
    """The number of states of the level that are expanded already."""
    successors: Successors | None = None

    @property
    def most(self) -> int:
        """The greatest number of successors of one batch."""
        return self.stretch_states + self.chunk_states * self.actions

    def begin(self) -> None:
        """Make the store. The store is made in the process that uses it, after the fork."""
        table = WordTable(self.words, number=self.number, shares=self.shares)
        self.store = HeldStore(table) if self.new_store is None else self.new_store()

    def take(self, words: Words) -> None:
        """Add mixed states, sorted by heads and without duplicates."""
        self.store.take(words)

    def next_level(self) -> int:
        """Start the next level; returns the number of its states in this part.

        With `orbits`, this is the number of states in the orbits.
        """
        self.go_on_with(self.store.next_level())
        if self.orbits is None:
            return int(self.here.shape[1])
        return sum(int(self.orbits.sizes(chunk).sum()) for chunk in self._chunks(self.here))

    def go_on_with(self, states: Words) -> None:
        """Make these mixed states the level to be expanded."""
        self.here, self.expanded = states, 0

    def stretch(self, still_open: Sequence[bool]) -> tuple[Stretch, Words]:
        """Expand the next batch of the level.

        Returns the results, and the successors in mixed form, sorted by heads and without duplicates.
        """
        fired = [0] * self.actions
        found: list[tuple[int, int | None, int]] = []
        made = self._successors()
        level = self.here
        while self.expanded < level.shape[1] and made.used < self.stretch_states:
            chunk = self._chunk(level, self.expanded)
            hits: list[Found] = []
            self.expand(chunk, still_open, self._weigh(chunk), made.make, fired, hits)
            found += [(item, closing, key_of(chunk, column)) for item, closing, column, _ in hits]
            self.expanded += chunk.shape[1]
        words = distinct(mixed(self._kept(made.words[:, : made.used])))
        return Stretch(fired, found, over=self.expanded >= level.shape[1]), words

    def _successors(self) -> Successors:
        """The buffer for a batch, which all batches share. Only the pages that were written take memory."""
        if self.successors is None:
            self.successors = Successors(np.empty((self.words, self.most), dtype=np.uint64))
        self.successors.used = 0
        return self.successors

    def before(self, keys: Iterable[int], depth: int) -> dict[int, tuple[int, int]]:
        """Map each key to (source key, action index) for the least state of level `depth` that leads to it.

        The result lacks keys to which no state of this part leads.
        """
        return self.sources(keys, self._chunks(self.store.level(depth)))

    def sources(self, keys: Iterable[int], chunks: Iterable[Words]) -> dict[int, tuple[int, int]]:
        """Do the same as `before`, but search among the states in these chunks."""
        wanted = distinct(mixed(words_of(keys, self.words)))
        names = [key_of(unmixed(wanted.copy()), column) for column in range(wanted.shape[1])]
        sources: dict[int, tuple[int, int]] = {}
        for chunk in chunks:
            for column, source, index in self._leading_to(wanted, chunk):
                known = sources.get(names[column])
                if known is None or (source, index) < known:
                    sources[names[column]] = (source, index)
        return sources

    def _leading_to(self, wanted: Words, chunk: Words) -> Iterator[tuple[int, int, int]]:
        """Yield (column of `wanted`, key of the state before, action index) for each step into a wanted state."""
        made = _Traced(np.empty((self.words, chunk.shape[1] * self.actions), dtype=np.uint64))
        self.expand(chunk, [False] * self.properties, len, made.make, [0] * self.actions, [])
        columns = find(mixed(self._kept(made.words[:, : made.used])), wanted)
        for hit in np.flatnonzero(columns >= 0):
            index, row = made.source(int(hit))
            yield int(columns[hit]), key_of(chunk, row), index

    def _chunks(self, level: Words) -> Iterator[Words]:
        return (self._chunk(level, start) for start in range(0, level.shape[1], self.chunk_states))

    def _chunk(self, level: Words, start: int) -> Words:
        return unmixed(level[:, start : start + self.chunk_states].copy())

    def _kept(self, words: Words) -> Words:
        return words if self.orbits is None else self.orbits.canonical(words)

    def _weigh(self, chunk: Words) -> Weigh:
        if self.orbits is None:
            return len
        sizes = self.orbits.sizes(chunk)
        return lambda rows: int(sizes.take(rows).sum())


Sources: TypeAlias = Mapping[int, tuple[int, int]]
"""Maps the key of a state to (key of a state with a step to it, index of the action of that step)."""
Before: TypeAlias = Callable[[Sequence[int], int], Sources]
"""Takes (keys of states, depth), and returns the least source of each of these states in the level of this depth."""


def runs_backwards(
    model: Model, witnesses: Sequence[Witness], before: Before, orbits: Orbits | None = None
) -> list[list[Action]]:
    """The run to each witness, including its closing step if it has one. The states of these witnesses are keys."""
    wanted: dict[int, set[int]] = {}
    for witness in witnesses:
        wanted.setdefault(witness.depth, set()).add(_key(witness))
    sources: dict[tuple[int, int], tuple[int, int]] = {}
    for depth in range(max(wanted, default=0), 0, -1):
        keys = sorted(wanted[depth])
        found = before(keys, depth - 1)
        assert len(found) == len(keys), f"no state of level {depth - 1} leads to some state of the next"
        sources |= {(depth, key): source for key, source in found.items()}
        wanted.setdefault(depth - 1, set()).update(source for source, _ in found.values())
    return [_run_to(model, witness, sources, orbits) for witness in witnesses]


def _run_to(
    model: Model, witness: Witness, sources: Mapping[tuple[int, int], tuple[int, int]], orbits: Orbits | None
) -> list[Action]:
    last = None if witness.closing is None else model.actions[witness.closing]
    keys, actions = [_key(witness)], [] if last is None else [last]
    for depth in range(witness.depth, 0, -1):
        key, index = sources[depth, keys[-1]]
        keys.append(key)
        actions.append(model.actions[index])
    return actions[::-1] if orbits is None else orbits.run_through(keys[::-1], last)


def _key(witness: Witness) -> int:
    assert isinstance(witness.state, int), witness
    return witness.state

"""The packed engine: a state is one 64-bit word, a level of the search is an array of words.

The states seen are kept twice: as levels, from which a counterexample is rebuilt backwards without a parent for each
state, and in a table that holds whole words. Keys are exact.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import define, field

from longpoll_spec.engines.compile_packed import Expand, Found, Weigh, expand_of
from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.layout import Layout, Words, layout_of
from longpoll_spec.engines.orbits import Orbits, orbits_of
from longpoll_spec.engines.word_table import WordTable
from longpoll_spec.model import Action, Model, Property

NAME = "packed"
CHUNK_STATES = 1 << 16
"""States unpacked at once: their columns stay in the second-level cache."""
BATCH_STATES = 1 << 20
"""States whose successors are sorted at once."""


@define
class _Search:
    """A breadth-first search. Invariant: `levels[d]` has the states first reached by d actions.

    With `orbits` a state stands for all that renaming requests makes of it, and the counts are of them all.
    """

    model: Model
    layout: Layout
    ledger: Ledger
    expand: Expand
    orbits: Orbits | None
    levels: list[Words] = field(factory=list)
    seen: WordTable = field(factory=WordTable)
    fired: list[int] = field(factory=list)
    distinct: int = 0
    complete: bool = False

    @property
    def depth(self) -> int:
        return len(self.levels) - 1

    def grow(self, limit: int | None, report: Report | None) -> None:
        """Expand level after level until nothing is new, or the limit is reached."""
        self.fired = [0] * len(self.model.actions)
        level = np.array([self.layout.pack(self.model.initial)], dtype=np.uint64)
        self.seen.add(level)
        while level.size:
            self.levels.append(level)
            self.distinct += level.size if self.orbits is None else int(self.orbits.sizes(level).sum())
            if limit is not None and self.distinct >= limit:
                return
            level = self._following(level, report)
        self.complete = True

    def _following(self, level: Words, report: Report | None) -> Words:
        parts: list[Words] = []
        for batch in _slices(level, BATCH_STATES):
            out: list[Words] = []
            for chunk in _slices(batch, CHUNK_STATES):
                self._expand(chunk, out)
            if out:
                parts.append(self.seen.add(self._kept(np.concatenate(out))))
            if report is not None:
                report(Progress(self.distinct, sum(self.fired), self.depth, level.size))
        return np.concatenate(parts) if parts else level[:0]

    def _kept(self, words: Words) -> Words:
        """The words that stand for these."""
        return words if self.orbits is None else self.orbits.canonical(words)

    def _expand(self, chunk: Words, out: list[Words]) -> None:
        found: list[Found] = []
        still_open = [self.ledger.is_open(item) for item in range(len(self.ledger.properties))]
        fired = [0] * len(self.fired)
        self.expand(chunk, still_open, self._weigh(chunk), out, fired, found)
        # A chunk counts as a whole or, after Ctrl-C, not at all.
        self.fired = list(map(operator.add, self.fired, fired))
        for item, closing, row in found:
            self.ledger.note(item, Witness(int(chunk[row]), self.depth, closing))

    def _weigh(self, chunk: Words) -> Weigh:
        if self.orbits is None:
            return len
        sizes = self.orbits.sizes(chunk)
        return lambda rows: int(sizes.take(rows).sum())

    def transitions(self) -> list[int]:
        """What each action instance fired."""
        return self.fired if self.orbits is None else self.orbits.spread(self.fired)

    def actions_to(self, witness: Witness) -> list[Action]:
        """The run to a witness, backwards: at each level find a state that leads to the one known."""
        assert isinstance(witness.state, int)
        closing = None if witness.closing is None else self.model.actions[witness.closing]
        words, actions = [witness.state], [] if closing is None else [closing]
        for depth in range(witness.depth, 0, -1):
            word, action = self._before(words[-1], self.levels[depth - 1])
            words.append(word)
            actions.append(action)
        return actions[::-1] if self.orbits is None else self.orbits.run_through(words[::-1], closing)

    def _before(self, word: int, level: Words) -> tuple[int, Action]:
        for chunk in _slices(level, CHUNK_STATES):
            index = next((index for index, words in self._made_by(chunk) if (words == word).any()), None)
            if index is not None:
                return self._source(chunk, word, index), self.model.actions[index]
        raise AssertionError(f"no state of the level before leads to {word:#x}")

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
        fired = [0] * len(self.model.actions)
        self.expand(chunk, [False] * len(self.ledger.properties), len, out, fired, [])
        indices = [index for index, count in enumerate(fired) if count]
        return zip(indices, map(self._kept, out), strict=True)


def _slices(words: Words, size: int) -> Iterator[Words]:
    for start in range(0, words.size, size):
        yield words[start : start + size]


def explore(
    model: Model,
    properties: Sequence[Property],
    *,
    report: Report | None = None,
    limit_states: int | None = None,
    symmetry: bool = False,
) -> Exploration:
    """Explore the model; Ctrl-C ends it with what is known so far. Raises `BoundsError` if a word is too narrow.

    With `symmetry` one state is explored for all that renaming requests makes of it; counts are of them all, and
    `SymmetryError` is raised where requests are not interchangeable.
    """
    began = time.perf_counter()
    orbits = orbits_of(model, properties) if symmetry else None
    layout = layout_of(model) if orbits is None else orbits.layout
    search = _Search(model, layout, Ledger(properties), expand_of(model, layout, properties), orbits)
    compiled = time.perf_counter()
    try:
        search.grow(limit_states, report)
    except KeyboardInterrupt:
        search.complete = False
    seconds = time.perf_counter() - compiled
    fired = search.transitions()
    return Exploration(
        model=model,
        engine=NAME,
        distinct_states=search.distinct,
        transitions=sum(fired),
        depth=search.depth,
        seconds=seconds,
        compile_seconds=compiled - began,
        complete=search.complete,
        verdicts=search.ledger.verdicts(model, search.complete, search.actions_to),
        fired={action.label: fired[index] for index, action in enumerate(model.actions)},
    )

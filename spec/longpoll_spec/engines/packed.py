"""The packed engine: a state is one 64-bit word, a level of the search is an array of words.

The states seen are kept twice: as levels, from which a counterexample is rebuilt backwards without a parent for each
state, and in a table that holds whole words. Keys are exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import define, field

from longpoll_spec.engines.compile_packed import Expand, Found, expand_of
from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.layout import Layout, Words, layout_of
from longpoll_spec.engines.word_table import WordTable
from longpoll_spec.model import Action, Model, Property

NAME = "packed"
CHUNK_STATES = 1 << 16
"""States unpacked at once: their columns stay in the second-level cache."""
BATCH_STATES = 1 << 20
"""States whose successors are sorted at once."""


@define
class _Search:
    """A breadth-first search. Invariant: `levels[d]` has the states first reached by d actions."""

    model: Model
    layout: Layout
    ledger: Ledger
    expand: Expand
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
            self.distinct += level.size
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
                parts.append(self.seen.add(np.concatenate(out)))
            if report is not None:
                report(Progress(self.distinct, sum(self.fired), self.depth, level.size))
        return np.concatenate(parts) if parts else level[:0]

    def _expand(self, chunk: Words, out: list[Words]) -> None:
        found: list[Found] = []
        count = len(self.ledger.properties)
        self.expand(chunk, [self.ledger.is_open(item) for item in range(count)], out, self.fired, found)
        for item, closing, row in found:
            self.ledger.note(item, Witness(int(chunk[row]), self.depth, closing))

    def actions_to(self, witness: Witness) -> list[Action]:
        """The run to a witness, backwards: at each level find a state that leads to the one known."""
        assert isinstance(witness.state, int)
        chosen = [] if witness.closing is None else [self.model.actions[witness.closing]]
        word = witness.state
        for depth in range(witness.depth, 0, -1):
            word, action = self._before(word, self.levels[depth - 1])
            chosen.append(action)
        return chosen[::-1]

    def _before(self, word: int, level: Words) -> tuple[int, Action]:
        closed = [False] * len(self.ledger.properties)
        for chunk in _slices(level, CHUNK_STATES):
            out: list[Words] = []
            fired = [0] * len(self.model.actions)
            self.expand(chunk, closed, out, fired, [])
            part = next((number for number, words in enumerate(out) if (words == word).any()), None)
            if part is not None:
                index = [number for number, count in enumerate(fired) if count][part]
                return self._source(chunk, word, index), self.model.actions[index]
        raise AssertionError(f"no state of the level before leads to {word:#x}")

    def _source(self, chunk: Words, word: int, index: int) -> int:
        """The state of the chunk that action `index` leads to `word`: halve the chunk until one state is left."""
        closed = [False] * len(self.ledger.properties)
        while chunk.size > 1:
            half = chunk[: chunk.size // 2]
            out: list[Words] = []
            fired = [0] * len(self.model.actions)
            self.expand(half, closed, out, fired, [])
            made = dict(zip([number for number, count in enumerate(fired) if count], out, strict=True))
            chunk = half if index in made and (made[index] == word).any() else chunk[chunk.size // 2 :]
        return int(chunk[0])


def _slices(words: Words, size: int) -> Iterator[Words]:
    for start in range(0, words.size, size):
        yield words[start : start + size]


def explore(
    model: Model, properties: Sequence[Property], *, report: Report | None = None, limit_states: int | None = None
) -> Exploration:
    """Explore the model; Ctrl-C ends it with what is known so far. Raises `BoundsError` if a word is too narrow."""
    began = time.perf_counter()
    layout = layout_of(model)
    search = _Search(model, layout, Ledger(properties), expand_of(model, layout, properties))
    compiled = time.perf_counter()
    try:
        search.grow(limit_states, report)
    except KeyboardInterrupt:
        search.complete = False
    seconds = time.perf_counter() - compiled
    return Exploration(
        model=model,
        engine=NAME,
        distinct_states=search.distinct,
        transitions=sum(search.fired),
        depth=search.depth,
        seconds=seconds,
        compile_seconds=compiled - began,
        complete=search.complete,
        verdicts=search.ledger.verdicts(model, search.complete, search.actions_to),
        fired={action.label: search.fired[index] for index, action in enumerate(model.actions)},
    )
